"""Numbers as people write them; Python's own reading also takes ``1_0``, ``nan`` and ``inf``.
And paths that are there: an empty one, of a shell variable that is not set, is the folder ``.``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer import TyperException

from solvers.errors import OptionError

__all__ = ["plain_numbers"]

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def plain_numbers(command: Any) -> Any:
    """``command`` (of typer), whose options and those of its subcommands take plain numbers only.

    Such an option raises ``OptionError`` for underscores, digits of other scripts, and what is not
    finite; one that takes a path for an empty text.
    """
    for parameter in command.params:
        parameter.process_value = _checked(parameter)
    for inner in getattr(command, "commands", {}).values():
        plain_numbers(inner)
    return command


def _not_plain(name: str, value: str) -> OptionError:
    return OptionError(f"{name} {value!r} is no finite number; write it like 10 or 0.5")


def _checked(parameter: Any) -> Callable[..., Any]:
    process, name = parameter.process_value, parameter.opts[0]
    if not name.startswith("-"):
        name = parameter.metavar or name.upper()
    limits = [getattr(parameter, which, None) for which in ("min", "max")]
    ranged = any(limit is not None for limit in limits)

    def checked(context: Any, value: Any) -> Any:
        try:
            found = process(context, value)
        except TyperException:
            # no limit is what is wrong with nan
            if ranged and str(value).strip().lower() == "nan":
                raise _not_plain(name, value) from None
            raise
        if type(found) in (int, float) and isinstance(value, str):
            text = value.strip()
            if _NUMBER.fullmatch(text) is None or not math.isfinite(found):
                raise _not_plain(name, value)
        typed, read = (one if isinstance(one, list | tuple) else [one] for one in (value, found))
        if "" in typed and any(isinstance(one, Path) for one in read):
            raise OptionError(f"{name} is an empty text; name a file or a folder ('.' is this one)")
        return found

    return checked
