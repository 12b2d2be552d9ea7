"""Numbers as people write them; Python's own reading also takes ``1_0``, ``nan`` and ``inf``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from solvers.errors import OptionError

__all__ = ["plain_numbers"]

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def plain_numbers(command: Any) -> Any:
    """``command`` (of typer), whose options and those of its subcommands take plain numbers only.

    Such an option raises ``OptionError`` for underscores, digits of other scripts, and what is not
    finite.
    """
    for parameter in command.params:
        parameter.process_value = _checked(parameter.process_value, parameter.opts[0])
    for inner in getattr(command, "commands", {}).values():
        plain_numbers(inner)
    return command


def _checked(process: Callable[..., Any], name: str) -> Callable[..., Any]:
    def checked(context: Any, value: Any) -> Any:
        found = process(context, value)
        if type(found) in (int, float) and isinstance(value, str):
            text = value.strip()
            if _NUMBER.fullmatch(text) is None or not math.isfinite(found):
                raise OptionError(f"{name} {value!r} is no finite number; write it like 10 or 0.5")
        return found

    return checked
