"""What pydantic finds in a document or a request, in our words and not in the library's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from solvers.counting import counted

__all__ = ["fault_words"]

_HEXADECIMAL = re.compile(r"\^\[0-9a-f\]\{(\d+)\}\$")
_ONE_OF = re.compile(r"\^\(([\w|-]+)\)\$")
_BASE64 = "^[A-Za-z0-9+/]*={0,2}$"
_MOST_SHOWN = 40

Context = Mapping[str, Any]

_WORDS: dict[str, str | Callable[[Context], str]] = {
    "missing": "is missing",
    "extra_forbidden": "is no key that is known here",
    "unexpected_keyword_argument": "is no key that is known here",
    "greater_than": lambda context: f"must be more than {_plain(context['gt'])}",
    "greater_than_equal": lambda context: f"must be at least {_plain(context['ge'])}",
    "less_than": lambda context: f"must be less than {_plain(context['lt'])}",
    "less_than_equal": lambda context: f"must be at most {_plain(context['le'])}",
    "finite_number": "must be a finite number",
    "too_short": lambda context: f"must have at least {counted(context['min_length'], 'item')}",
    "too_long": lambda context: f"must have at most {counted(context['max_length'], 'item')}",
    "string_too_short": lambda context: (
        f"must have at least {counted(context['min_length'], 'character')}"
    ),
    "string_too_long": lambda context: (
        f"must have at most {counted(context['max_length'], 'character')}"
    ),
    "string_pattern_mismatch": lambda context: _pattern(str(context["pattern"])),
    "literal_error": lambda context: f"must be {context['expected']}",
    "enum": lambda context: f"must be {context['expected']}",
    **dict.fromkeys(("string_type", "string_unicode"), "must be a text"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "must be a whole number"
    ),
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "dataclass_type"),
        "must be an object with keys",
    ),
    "none_required": "must be null",
    "json_invalid": "is not valid JSON",
}
"""pydantic's type of a fault -> what follows the name of the place."""


def fault_words(fault: Mapping[str, Any]) -> str:
    """What is wrong at a place, as what follows its name.

    Parameters
    ----------
    fault
        One of pydantic's ``errors()``.

    Returns
    -------
    str
        Without the place; with what stands there, where it is short. What no table knows (a
        validator of ours raised it) is told as it is.
    """
    words = _WORDS.get(fault["type"])
    if words is None:
        return str(fault["msg"]).removeprefix("Value error, ")
    said = words if isinstance(words, str) else words(fault.get("ctx", {}))
    found = fault.get("input")
    if not said.startswith("must "):
        return said
    if found is None or isinstance(found, bool):
        return f"{said}, not {json.dumps(found)}"
    if isinstance(found, int | float | str) and len(repr(found)) <= _MOST_SHOWN:
        return f"{said}, not {found!r}"
    return said


def _plain(limit: Any) -> str:
    return str(limit).removesuffix(".0")


def _pattern(pattern: str) -> str:
    if digits := _HEXADECIMAL.fullmatch(pattern):
        return f"must be {digits[1]} hexadecimal digits (0 to 9, a to f)"
    if names := _ONE_OF.fullmatch(pattern):
        return f"must be one of {names[1].replace('|', ', ')}"
    return "must be base64" if pattern == _BASE64 else f"must be a text like {pattern}"
