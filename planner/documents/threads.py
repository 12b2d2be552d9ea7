"""How many threads compute what on a CPU, and the measurements that say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from planner.documents.base import STRICT, Figure, Keyed, Positive

__all__ = ["MOST_THREADS", "ThreadRatio", "ThreadTimes", "ThreadUse", "Threaded"]

MOST_THREADS = 1 << 16

Threaded = Literal[
    "attention",
    "cross_attention",
    "router",
    "dense_mlp",
    "shared_expert",
    "expert",
    "combine",
    "head",
]
"""Kinds of operations that several threads may share."""


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """Small operations are computed by one thread, which waits for no other; large ones by more.

    Attributes
    ----------
    count
        Threads of a large operation.
    several
        By kind: the fewest rows (tokens; of an expert, those of a tile as it is computed) that
        ``count`` threads compute. A kind that is not in it is computed by one thread, whatever its
        rows.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    count: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    several: Keyed[Threaded, Positive] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if (self.count > 1) != bool(self.several):
            raise ValueError(
                "threads: several of them compute nothing, or something is for several"
            )

    def of(self, kind: Threaded, rows: int) -> int:
        """Threads of an operation of ``rows``."""
        least = self.several.get(kind)
        return 1 if least is None or rows < least else self.count


@dataclass(frozen=True, slots=True)
class ThreadRatio:
    """How many times as long one thread takes as ``threads`` do, while the channel copies.

    ``kind`` is an operation's, of so many ``rows``, or ``copy``: what is copied beside passes of
    so many tokens.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    kind: Threaded | Literal["copy"]
    rows: Positive
    threads: Annotated[int, Field(ge=2, le=MOST_THREADS)]
    ratio: Figure


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """What a profile was measured with, and plans from it run with.

    ``ratios`` are what it was chosen by; empty where it was given, or there is one core.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    use: ThreadUse
    ratios: tuple[ThreadRatio, ...] = ()
