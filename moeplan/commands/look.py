"""Commands that only look: ``schema``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from moeplan.commands.common import Json, reporter_of
from planner.documents import DOCUMENTS
from solvers.errors import OptionError

__all__ = ["document_schema", "schema"]


def document_schema(name: str) -> dict[str, Any]:
    """JSON Schema of one kind of document, ``kind`` and ``version`` included.

    Raises
    ------
    OptionError
        If there is no such kind.
    """
    from pydantic import TypeAdapter

    if name not in DOCUMENTS:
        raise OptionError(f"schema {name!r} is unknown; choose from {', '.join(DOCUMENTS)}")
    cls = DOCUMENTS[name]
    body = TypeAdapter(cls).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **body,
        "properties": {
            "kind": {"const": cls.kind},
            "version": {"const": cls.version},
            **body["properties"],
        },
        "required": ["kind", "version", *body.get("required", [])],
    }


def schema(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(DOCUMENTS)}.")],
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of a document."""
    reporter = reporter_of(ctx)
    document = document_schema(name)
    reporter.show_text(json.dumps(document, indent=1))
    reporter.result(document)
