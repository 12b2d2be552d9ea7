"""One is never ``1 experts``: what is counted in a text goes through one function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from solvers.counting import counted

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("solvers", "planner", "executor", "profiler", "moeplan")
NOUNS = """
batches blocks budgets characters copies cores devices domains entries events experts
figures files forms groups heads items jobs layers machines models nodes numbers objectives
operations outputs pairs passes plans positions processes prompts replicas requests rows runs
sequences sinks slots solvers stages steps swaps tensors threads tiles tokens units values
"""
COUNTS = ("len", "max", "min", "sum")
BESIDE = "attention different head key new prompt recorded resident safetensors"
"""Words that may stand between the number and what is counted."""


@pytest.mark.parametrize(
    ("number", "thing", "said"),
    [
        (0, "expert", "0 experts"),
        (1, "expert", "1 expert"),
        (1, "new token", "1 new token"),
        (1200, "new token", "1,200 new tokens"),
        (2, "batch", "2 batches"),
        (2, "pass", "2 passes"),
        (2, "process", "2 processes"),
        (2, "copy", "2 copies"),
        (2, "key", "2 keys"),
        (2, "box", "2 boxes"),
    ],
)
def test_numbers_of_things(number: int, thing: str, said: str) -> None:
    assert counted(number, thing) == said


def plurals(source: str) -> Iterator[tuple[int, str]]:
    """Line and noun of each number in an f-string with a plural right behind it; constants of a
    module, fractions and ``{name!r}`` are no number that may be one."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for at, (value, after) in enumerate(pairwise(node.values)):
            if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            constant = isinstance(value.value, ast.Name) and value.value.id.isupper()
            fraction = value.format_spec is not None and "f" in ast.unparse(value.format_spec)[2:]
            # a text, or one part of a sum as in ``32+16 tokens``
            made = value.value
            called = isinstance(made, ast.Call) and ast.unparse(made.func) not in COUNTS
            called = called or isinstance(made, ast.BoolOp)
            before = node.values[at - 1] if at else None
            added = isinstance(before, ast.Constant) and str(before.value).endswith("+")
            if constant or fraction or called or added or value.conversion != -1:
                continue
            first, *words = str(after.value).split(" ")
            noun = next((word for word in words if word not in BESIDE.split()), "")
            noun = noun.rstrip(",.:;)")
            if not first and noun in NOUNS.split():
                yield value.lineno, noun


def test_plurals_are_found() -> None:
    assert list(plurals('f"{n} experts"\nf"of {n:,} new tokens each"')) == [
        (1, "experts"),
        (2, "tokens"),
    ]
    assert not list(
        plurals('f"{n} expert"\nf"{MOST:,} experts"\nf"{x:.1f} experts"\nf"{a!r} rows"')
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_text_has_a_plural_of_its_own(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {noun}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, noun in plurals(path.read_text(encoding="utf-8"))
    ]
    assert not found
