"""Synthetic checkpoints, for speed and size: a real model's shapes, random weights."""

from executor.synth.write import FAMILIES, SyntheticSummary, write_synthetic

__all__ = ["FAMILIES", "SyntheticSummary", "write_synthetic"]
