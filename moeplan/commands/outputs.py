"""What was generated, into a file or on the screen: not lost where the file cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.text import Text

from moeplan.output import Reporter, escaped
from planner.documents import write_atomic
from solvers.errors import MoeplanError

__all__ = ["give_outputs"]


def give_outputs(
    reporter: Reporter,
    lines: list[dict[str, Any]],
    out: Path | None,
    trace: Path | None = None,
) -> None:
    """Write prompts and what was generated to a file, or else show them.

    An older ``trace`` of an older ``out`` goes: it is not of these outputs.

    Raises
    ------
    MoeplanError
        If they cannot be written: a full disk. They are shown before, under ``--json`` on stderr,
        as the lines that the file would have.
    """
    if out is None:
        _show(reporter, lines)
        return
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    try:
        write_atomic(out, text.encode(), stale=trace)
    except MoeplanError:
        if reporter.as_json:
            reporter.note("\n".join(json.dumps(line) for line in lines))
        _show(reporter, lines)
        raise


def _show(reporter: Reporter, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        prompt, text = escaped(line["prompt"]), escaped(line["text"])
        reporter.show(Text.assemble((prompt, "dim"), (f"{text}\n", "bold")))
