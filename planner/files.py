"""Looking at and reading files that a user or a document names: every fault is one line.

``Path.exists`` and its like raise for names that are too long and in folders that may not be
entered, and opening a pipe waits without end; here both are refused.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from solvers.errors import DocumentError, InputError

__all__ = ["exists", "is_dir", "is_file", "led_to", "loads_once", "object_once", "read_regular"]

_MOST_DIGITS = 1_000
"""No number has nearly as many; Python's own limit speaks of a setting of Python's."""
_PIECE_BYTES = 4 << 20
_MOST_BYTES = 256 << 20
"""No file that is read whole is larger: a wrong one is not read without end."""


def _mode(path: Path) -> int | None:
    """The mode of what ``path`` leads to; None where there is nothing."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be looked at: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{path}: is no path: {error}") from error


def exists(path: Path) -> bool:
    """Whether something lies at ``path``.

    Raises
    ------
    InputError
        If that cannot be told: the name is too long, or a folder on the way may not be entered.
    """
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether ``path`` leads to a regular file; raises as ``exists`` does."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_dir(path: Path) -> bool:
    """Whether ``path`` leads to a folder; raises as ``exists`` does."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def led_to(path: Path) -> Path:
    """Where writing to ``path`` writes: behind its links, though nothing may be there yet."""
    return Path(os.path.realpath(path))


def read_regular(
    path: Path,
    what: str = "file",
    most_bytes: int = _MOST_BYTES,
    error_class: Callable[[str], InputError] = DocumentError,
) -> bytes:
    """All bytes of a regular file: a pipe or a device is not waited for.

    Parameters
    ----------
    path
        The file.
    what
        What was expected there, for the messages.
    most_bytes
        A larger file is refused.
    error_class
        Class of the errors.

    Raises
    ------
    InputError
        Of ``error_class``: if the file is missing, of another kind, too large or unreadable.
    """
    try:
        # a pipe without a writer would make a plain open wait
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise error_class(
                    f"{path}: cannot be read: is a device or a pipe; a {what} was expected"
                )
            # piece by piece: a read of all that may be there takes memory for all of it
            pieces: list[bytes] = []
            while most_bytes >= sum(map(len, pieces)) and (piece := file.read(_PIECE_BYTES)):
                pieces.append(piece)
            data = b"".join(pieces)
    except FileNotFoundError:
        raise error_class(f"{path}: no such file; a {what} was expected") from None
    except IsADirectoryError:
        raise error_class(f"{path}: cannot be read: is a folder; a {what} was expected") from None
    except OSError as error:
        raise error_class(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise error_class(f"{path}: is no path: {error}") from error
    if len(data) > most_bytes:
        raise error_class(f"{path}: larger than any {what} can be ({most_bytes >> 20} MiB)")
    return data


def object_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key that stands twice is refused, since one of its values would be lost."""
    body = dict(pairs)
    if len(body) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return body


def loads_once(data: str | bytes) -> Any:
    """JSON as its standard has it: each key once in an object, no NaN or Infinity.

    Raises
    ------
    ValueError
        If it is no such JSON, is nested too deeply, or holds an integer of thousands of digits.
    """
    try:
        return json.loads(
            data,
            object_pairs_hook=object_once,
            parse_constant=_no_constant,
            parse_int=_short_integer,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _short_integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"an integer has {len(digits):,} digits")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
