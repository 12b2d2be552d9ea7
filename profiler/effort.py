"""How long everything is measured."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Effort"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes
    ----------
    cell_ns
        For each kind of pass in each round (at least three passes are made).
    rounds
        Times that everything is measured, one after the other: what the machine does in one moment
        does not decide about one point.
    fills
        Moments in which the channel fills its slots, for each chunk size.
    moment_ns
        The least that each of them lasts: slots are filled again and again.
    stream_ns
        Of each stream that is read after a rest; 0: bursts are not looked for.
    turns, passes
        Of contention: alternations, and passes in each.
    """

    cell_ns: int = 100_000_000
    rounds: int = 2
    fills: int = 3
    moment_ns: int = 200_000_000
    stream_ns: int = 700_000_000
    turns: int = 2
    passes: int = 4
