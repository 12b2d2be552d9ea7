"""What pydantic finds is told in our words: no message of the library's own reaches a user."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.documents import Workload, parse_document
from planner.documents.faults import fault_words
from solvers.errors import DocumentError


class Asked(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    count: int = Field(default=1, ge=1, le=9)
    share: float = Field(default=0.5, gt=0, lt=1)
    name: str = Field(default="abc", min_length=2, max_length=4)
    digest: str = Field(default="0" * 64, pattern=r"^[0-9a-f]{64}$")
    solver: str = Field(default="lru", pattern="^(lru|cpsat)$")
    kind: Literal["cpu", "cuda"] = "cpu"
    layers: list[int] = Field(default=[1], min_length=1, max_length=2)
    known: bool = True
    inner: dict[str, int] = {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"count": 0}, "must be at least 1, not 0"),
        ({"count": 10}, "must be at most 9, not 10"),
        ({"count": 1.5}, "must be a whole number, not 1.5"),
        ({"count": "3"}, "must be a whole number, not '3'"),
        ({"count": True}, "must be a whole number, not true"),
        ({"count": None}, "must be a whole number, not null"),
        ({"count": 10**400}, "must be at most 9"),
        ({"share": 0.0}, "must be more than 0, not 0.0"),
        ({"share": 1.0}, "must be less than 1, not 1.0"),
        ({"share": float("inf")}, "must be a finite number, not inf"),
        ({"share": "x"}, "must be a number, not 'x'"),
        ({"name": "a"}, "must have at least 2 characters, not 'a'"),
        ({"name": "abcde"}, "must have at most 4 characters, not 'abcde'"),
        ({"name": 3}, "must be a text, not 3"),
        ({"digest": "g" * 64}, "must be 64 hexadecimal digits (0 to 9, a to f)"),
        ({"solver": "best"}, "must be one of lru, cpsat, not 'best'"),
        ({"kind": "tpu"}, "must be 'cpu' or 'cuda', not 'tpu'"),
        ({"layers": []}, "must have at least 1 item"),
        ({"layers": [1, 2, 3]}, "must have at most 2 items"),
        ({"layers": 1}, "must be a list, not 1"),
        ({"known": "yes"}, "must be true or false, not 'yes'"),
        ({"inner": 1}, "must be an object with keys, not 1"),
        ({"more": 1}, "is no key that is known here"),
    ],
)
def test_words_are_ours(body: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Asked.model_validate(body)
    (fault,) = caught.value.errors()
    assert fault_words(fault) == words


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"requests": 1, "prompt_tokens": 2}, "w.json: new_tokens: is missing"),
        (
            {"requests": -1, "prompt_tokens": 2, "new_tokens": 3, "x": 1},
            "w.json: requests: must be at least 1, not -1 (and 1 more)",
        ),
    ],
)
def test_documents_tell_them(body: dict[str, Any], line: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document(Workload, {"kind": "workload", "version": 1, **body}, "w.json")
    assert str(caught.value) == line
