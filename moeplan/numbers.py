"""Numbers as people write them; Python's own reading also takes ``1_0``, ``nan`` and ``inf``.
And paths that are there: an empty one, of a shell variable that is not set, is the folder ``.``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
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


def _not_plain(name: str, value: str, whole: bool = False) -> OptionError:
    if whole:
        return OptionError(f"{name} {value!r} is no whole number; write it like 10")
    return OptionError(f"{name} {value!r} is no finite number; write it like 10 or 0.5")


def _in_plain_words(name: str, error: BaseException | None) -> OptionError | None:
    """What pydantic finds wrong with a number, as one line about the option; None: no number."""
    if not isinstance(error, ValidationError):
        return None
    fault: Any = error.errors(include_url=False)[0]
    value, limits = fault["input"], fault.get("ctx", {})
    if fault["type"] == "string_unicode":
        return OptionError(f"{name} {value!r} is not UTF-8 text; write it like 10")
    if fault["type"].startswith(("int_", "float_")):
        return _not_plain(name, str(value), whole=fault["type"].startswith("int_"))
    if {"ge", "le"} & limits.keys() and str(value).strip().lower() == "nan":
        return _not_plain(name, str(value))
    for which, small, more in (("ge", "small", "more"), ("le", "large", "less")):
        if which in limits:
            limit = str(limits[which]).removesuffix(".0")
            return OptionError(f"{name} {value} is too {small}: give {limit} or {more}")
    return None


def _checked(parameter: Any) -> Callable[..., Any]:
    process, name = parameter.process_value, parameter.opts[0]
    if not name.startswith("-"):
        name = parameter.metavar or name.upper()

    def checked(context: Any, value: Any) -> Any:
        try:
            found = process(context, value)
        except TyperException as error:
            plainly = _in_plain_words(name, error.__cause__)
            if plainly is None:
                raise
            raise plainly from None
        typed, read = (one if isinstance(one, list | tuple) else [one] for one in (value, found))
        for text, number in zip(typed, read, strict=False):
            if type(number) not in (int, float) or not isinstance(text, str):
                continue
            if _NUMBER.fullmatch(text.strip()) is None or not math.isfinite(number):
                raise _not_plain(name, text, whole=type(number) is int)
        if "" in typed and any(isinstance(one, Path) for one in read):
            raise OptionError(f"{name} is an empty text; name a file or a folder ('.' is this one)")
        return found

    return checked
