"""Model families, one short file each; the table names them without importing transformers.

``base`` is what all share: a family says how its attention, router and experts are computed from
the weights that the executor brings; ``latent`` is attention over compressed keys and values.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from executor.adapters.base import Adapter, CacheShape, ExpertWeights, FeedForward
from executor.families import FAMILIES, check_family
from planner.documents import ModelSpec

__all__ = [
    "FAMILIES",
    "Adapter",
    "CacheShape",
    "ExpertWeights",
    "FeedForward",
    "make_adapter",
]


def make_adapter(config: dict[str, Any], model: ModelSpec, dtype: torch.dtype) -> Adapter:
    """The adapter of a model's family.

    Raises
    ------
    UnsupportedError
        If the family, or something that its configuration asks for, is not supported.
    """
    check_family(model)
    module, name = FAMILIES[model.family]
    adapter: Adapter = getattr(import_module(module), name)(config, model, dtype)
    return adapter
