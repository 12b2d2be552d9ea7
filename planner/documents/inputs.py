"""What a plan was made from; a trace carries it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from planner.documents.base import STRICT, Hash

__all__ = ["Inputs"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Hashes of what a plan was made from."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    model: Hash
    hardware: Hash
    costs: Hash
    routing: Hash
    checkpoint_fingerprint: Hash
    store_fingerprint: Hash | None
