"""The streams that the shell gave, made such that no work is lost by them.

A closed one would be the first file that is opened; a log on a full disk, or a reader that has
gone, would end a search with its plan unwritten; a width that is none would show nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys

__all__ = ["Nobody", "open_streams", "plain_width"]

_NARROWEST, _WIDEST = 20, 1_000
_NAMES = ("stdin", "stdout", "stderr")


class Nobody(io.TextIOBase):
    """A text stream that nobody reads."""

    def write(self, text: str) -> int:
        """Drop it."""
        return len(text)

    def writable(self) -> bool:
        """Anything may be told."""
        return True


class _Unfailing(io.TextIOWrapper):
    """A stream for words beside the work: where they cannot be written they are dropped."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def open_streams() -> None:
    """Put the null device where stdin, stdout or stderr is closed, and let no fault of stderr end
    what a command does."""
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            # the lowest number that is free: this one, as those below are open
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays
            setattr(sys, name, stream)
    told = open(2, "wb", closefd=False)  # noqa: SIM115 - it stays
    sys.stderr = _Unfailing(told, sys.stderr.encoding, "backslashreplace", line_buffering=True)


def plain_width() -> None:
    """Take ``COLUMNS`` and ``LINES`` out of the environment where they are no sizes of a terminal:
    libraries that draw there would show nothing, never end, or not understand them."""
    for name in ("COLUMNS", "LINES"):
        typed = os.environ.get(name)
        if typed is None:
            continue
        if not re.fullmatch("[0-9]{1,9}", typed) or int(typed) == 0:
            del os.environ[name]
        else:
            os.environ[name] = str(min(max(int(typed), _NARROWEST), _WIDEST))
