"""Synthetic checkpoints, for speed and size: a real model's shapes, random weights.

``write`` makes one; ``weights`` draws its tensors within bounded memory, ``routing`` fits routers
to a popularity and persistence, ``files`` writes shards, configuration, tokenizer and prompts.
"""

from executor.synth.write import FAMILIES, SyntheticSummary, write_synthetic

__all__ = ["FAMILIES", "SyntheticSummary", "write_synthetic"]
