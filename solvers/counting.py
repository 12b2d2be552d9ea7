"""Numbers of things in words: ``1 expert``, ``1,200 batches``."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, thing: str) -> str:
    """A number with its thing, in the plural but for one.

    Parameters
    ----------
    number
        How many.
    thing
        One of them; of several words the last one is what is counted (``new token``).
    """
    return f"{number:,} {thing if number == 1 else _many(thing)}"


def _many(thing: str) -> str:
    if thing.endswith(("s", "x", "ch", "sh")):
        return f"{thing}es"
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{thing[:-1]}ies"
    return f"{thing}s"
