"""What a run gives back: whole outputs, or one token after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Output", "Piece"]


@dataclass(frozen=True, slots=True)
class Output:
    """One prompt and what was generated for it; ``token_ids`` holds new tokens only.

    ``finished`` is false where the run was stopped before the sequence had ended.
    """

    prompt: str
    text: str
    token_ids: tuple[int, ...]
    finished: bool = True


class Piece(NamedTuple):
    """A new token of one of the prompts, numbered from 0, and the text that has become whole."""

    request: int
    token_id: int
    text: str
