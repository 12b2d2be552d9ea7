"""How every result is written: JSON for the report, and a page beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.documents.writing import write_atomic

__all__ = ["write_result"]


def write_result(out: Path, body: Mapping[str, Any], page: str | None = None) -> None:
    """Write a result, and its page as Markdown of the same name: each whole, or as it was.

    Parameters
    ----------
    out
        JSON file; its folder is made.
    body, page
        What it holds; without a page, none is written.

    Raises
    ------
    DocumentError
        If the folder cannot be written to.
    RunError
        If the disk is full.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, (json.dumps(body, indent=1) + "\n").encode())
    if page is not None:
        write_atomic(out.with_suffix(".md"), page.encode())
