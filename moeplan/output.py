"""What a command leaves: one JSON document or text on stdout, progress and errors on stderr.

``EXIT_CODES`` is the one table from error class to exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from moeplan.streams import Nobody
from planner.documents import printable
from solvers.counting import counted
from solvers.errors import InputError, MoeplanError, RunError

__all__ = [
    "EXIT_CODES",
    "Reporter",
    "SearchSteps",
    "Steps",
    "escaped",
    "exit_code",
    "guard_stdout",
    "human_bytes",
    "human_number",
    "human_time",
    "one_line",
]

_MOST_WORD = 400
"""Longer than most paths; a longer word of an error is cut."""
_MOST_LINE = 1_600

EXIT_CODES: tuple[tuple[type[MoeplanError], int], ...] = ((InputError, 2), (RunError, 1))


def exit_code(error: MoeplanError) -> int:
    """The exit code of an error class, from the table."""
    for cls, code in EXIT_CODES:
        if isinstance(error, cls):
            return code
    return 1


def human_number(value: float) -> str:
    """Three digits that mean something: ``0.0412``, ``4.12``, ``412``, ``4,120``."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def human_bytes(size_bytes: float) -> str:
    """``412.3 MiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def human_time(duration_ns: float) -> str:
    """``3.2 ms``, with three digits that mean something."""
    for limit, scale, unit in ((1e3, 1, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if abs(duration_ns) < limit:
            return f"{human_number(duration_ns / scale)} {unit}"
    return f"{human_number(duration_ns / 1e9)} s"


@contextlib.contextmanager
def guard_stdout() -> Iterator[None]:
    """Give stdout to Python's own writes alone; what native libraries print goes to stderr.

    Solvers print banners from C++ even when told to be silent; one would spoil ``--json``.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    before = sys.stdout
    os.dup2(2, 1)
    sys.stdout = ours
    try:
        yield
    finally:
        try:
            ours.close()
        finally:
            sys.stdout = before
            os.dup2(kept, 1)
            os.close(kept)


def escaped(text: str) -> str:
    """``text`` with what would steer a terminal (colours, jumps, directions) written as escapes;
    lines and tabs stay."""
    return "".join(one if one in "\n\t" or printable(one) else ascii(one)[1:-1] for one in text)


def one_line(message: str) -> str:
    """``message`` on one line that a terminal can show, with what is echoed in it cut where long.

    A user's 5,000 digits, or a document's key without end, are no help in the error about them.
    """
    line = escaped(" ".join(message.split()))
    line = " ".join(map(_cut, line.split(" ")))
    return line if len(line) <= _MOST_LINE else f"{line[: _MOST_LINE // 2]} … {line[-400:]}"


def _cut(word: str) -> str:
    return word if len(word) <= _MOST_WORD else f"{word[:60]}… ({counted(len(word), 'character')})"


class _Screen(Console):
    """rich's console, which would end the program where nobody reads on."""

    def on_broken_pipe(self) -> None:
        """Tell whoever prints."""
        raise BrokenPipeError


class Steps:
    """A progress callback that long work calls with ``(done, total)`` or ``(done, total, what)``.

    A bar on a terminal; elsewhere a line at most every ten seconds, the first after two, and where
    there was one, a last one when the work is done.
    """

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self._bar: Progress | None = None
        self._task: Any = None
        self._start = time.monotonic()
        self._next_line = self._start + 2.0
        self._talked = False
        if stream.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(file=stream),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=None)

    def __enter__(self) -> Steps:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None and self._talked:
            spent = human_time((time.monotonic() - self._start) * 1e9)
            print(f"{self._title}: 100%, done in {spent}", file=self._stream, flush=True)

    def __call__(self, done: int, total: int, what: str = "") -> None:
        text = f"{self._title}: {what}" if what else self._title
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=done, total=total or None)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + 10.0
            self._talked = True
            share = f" {100 * done // total}%" if total else ""
            print(f"{text}{share}", file=self._stream, flush=True)


class SearchSteps:
    """A solver's progress (a name, its best objective, its bound) as shares of its time limit.

    ``of`` says what the share is of.
    """

    def __init__(
        self,
        steps: Callable[[int, int, str], None],
        limit_seconds: float,
        of: str = "time used",
    ) -> None:
        self._steps = steps
        self._of = of
        self._start = time.monotonic()
        self._limit_ms = int(limit_seconds * 1000)

    def __call__(self, name: str, objective: int, bound: int | None) -> None:
        if objective <= 0:
            # before or after the search: no share of its time
            self._steps(0, 0, name)
            return
        spent_ms = min(int((time.monotonic() - self._start) * 1000), self._limit_ms)
        gap = ""
        if bound is not None and objective > 0:
            # the final gap is on other sequences, and of the n and b that are chosen
            share = 100 * (objective - bound) / objective
            gap = f", gap {share:.1f}% on fitted sequences; {self._of}:"
        self._steps(spent_ms, self._limit_ms, f"{name}{gap}")


class Reporter:
    """Where one command's words go.

    Parameters
    ----------
    as_json
        With it, ``result`` prints one JSON document and ``say`` and ``show`` print nothing.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._stdout: TextIO = sys.stdout
        self._stderr: TextIO = sys.stderr

    @property
    def console(self) -> Console:
        """A rich console on stdout; 100 columns where stdout is no terminal."""
        width = None if self._stdout.isatty() or "COLUMNS" in os.environ else 100
        return _Screen(file=self._stdout, width=width, highlight=False, soft_wrap=False)

    @contextlib.contextmanager
    def _read_or_not(self) -> Iterator[None]:
        """Whoever reads stdout may have gone (head, less): what is left to do is done, files are
        written, and nothing more is said."""
        try:
            yield
        except BrokenPipeError:
            self._stdout = cast("TextIO", Nobody())

    def show(self, renderable: Any) -> None:
        """Print for people: text or anything that rich draws.

        Text with a word longer than a line (a path) is left to the terminal to wrap: a path that
        was cut could not be copied.
        """
        if self.as_json:
            return
        words = renderable.plain.split() if isinstance(renderable, Text) else ()
        long = max(map(len, words), default=0) > self.console.width
        with self._read_or_not():
            self.console.print(renderable, soft_wrap=long)

    def show_text(self, text: str) -> None:
        """Print text for people as it is, neither wrapped nor marked up."""
        if not self.as_json:
            with self._read_or_not():
                print(text, file=self._stdout)

    def result(self, document: Any) -> None:
        """Print the JSON document, if that was asked for."""
        if self.as_json:
            with self._read_or_not():
                print(json.dumps(document, allow_nan=False), file=self._stdout, flush=True)

    def note(self, text: str) -> None:
        """One line on stderr."""
        print(text, file=self._stderr, flush=True)

    def steps(self, title: str) -> Steps:
        """A progress bar on stderr."""
        return Steps(title, self._stderr)

    def fail(self, kind: str, message: str) -> None:
        """One line on stderr, and under ``--json`` an error document on stdout."""
        line = one_line(message)
        self.note(f"moeplan: {line}")
        with contextlib.suppress(OSError):  # what was wrong is said; stdout is told of at the end
            self.result({"error": {"class": kind, "message": line}})

    @contextlib.contextmanager
    def quiet_stdout(self) -> Iterator[None]:
        """While it lasts, Python's own prints go to stderr when stdout is for JSON."""
        if self.as_json:
            with contextlib.redirect_stdout(self._stderr):
                yield
        else:
            yield
