"""Prompts to record routing on, where the user gives none.

Nothing is shipped for this: the texts are the standard library's sources and Python's own help
topics, which every installation carries. They differ a little from one Python version to the
next; a profile records the routing itself, so a plan does not depend on them any more.
"""

from __future__ import annotations

import importlib
import inspect
import pydoc_data.topics

from solvers.errors import UnsupportedError

__all__ = ["bundled_prompts"]

_MODULES = (
    "argparse",
    "ast",
    "calendar",
    "collections",
    "csv",
    "dataclasses",
    "fractions",
    "heapq",
    "json.decoder",
    "random",
    "shutil",
    "statistics",
    "string",
    "tarfile",
    "textwrap",
    "threading",
)
_LENGTHS = (120, 240, 400, 640, 180, 960, 300, 520)
"""Characters of the prompts, in turn: mixed lengths, so that padding and masks are exercised."""


def bundled_prompts(count: int = 64) -> list[str]:
    """Prompts of mixed length: code and prose in turn.

    Parameters
    ----------
    count
        How many.

    Returns
    -------
    list of str
        The same ones each time, on one Python version. Each starts at the beginning of a line.

    Raises
    ------
    UnsupportedError
        If this Python comes without its sources.
    """
    try:
        code = [inspect.getsource(importlib.import_module(name)) for name in _MODULES]
    except OSError as error:
        raise UnsupportedError(
            "this Python comes without the sources of its standard library, from which the bundled "
            "prompts are taken: give prompts of your own"
        ) from error
    topics = pydoc_data.topics.topics
    prose = [topics[name] for name in sorted(topics) if len(topics[name]) > 2 * max(_LENGTHS)]
    prompts = []
    for index in range(count):
        texts = code if index % 2 == 0 else prose
        # each turn through the texts goes further into them
        turn, which = divmod(index // 2, len(texts))
        length = _LENGTHS[index // 2 % len(_LENGTHS)] + 7 * turn
        prompts.append(_excerpt(texts[which], 400 + 1100 * turn, length))
    return prompts


def _excerpt(text: str, start: int, length: int) -> str:
    """``length`` characters from the next line's beginning on, going around at the end."""
    start %= len(text)
    line = text.find("\n", start) + 1
    return (text[line:] + text)[:length]
