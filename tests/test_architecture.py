"""The folders form one chain of imports: solvers <- planner <- executor <- profiler <- moeplan.

The syntax tree of every module is walked, so that imports inside functions, behind TYPE_CHECKING
and through importlib count too.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHAIN = ("solvers", "planner", "executor", "profiler", "moeplan")
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in CHAIN
    for path in sorted((ROOT / folder).rglob("*.py"))
}
LIGHT = [name for name in FILES if name.split(".")[0] in ("solvers", "planner")]


def imported_names(source: str, module: str, is_package: bool) -> set[str]:
    """Absolute dotted names that ``source`` imports anywhere, however deep."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*kept, base] if base else kept)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            first = node.args[0]
            if (
                name in ("import_module", "__import__")
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                names.add(first.value)
    return names


def chain_violations(names: set[str], module: str) -> list[str]:
    """Those of ``names`` that lie to the right of ``module``'s folder."""
    rank = CHAIN.index(module.split(".")[0])
    return sorted(name for name in names if name.split(".")[0] in CHAIN[rank + 1 :])


def names_of(module: str) -> set[str]:
    path = FILES[module]
    return imported_names(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")


def test_the_walk_sees_hidden_imports() -> None:
    # each way to hide an import, in a module of planner: all must be found
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from executor.engine import Engine
def later():
    import profiler.measure
    from moeplan import cli
    importlib.import_module("executor.pack")
    __import__("moeplan.demo")
from . import base
from ..memory import slot_bytes
"""
    names = imported_names(source, "planner.documents.x", is_package=False)
    assert chain_violations(names, "planner.documents.x") == [
        "executor.engine.Engine",
        "executor.pack",
        "moeplan.cli",
        "moeplan.demo",
        "profiler.measure",
    ]
    assert {"planner.documents.base", "planner.memory.slot_bytes"} <= names


@pytest.mark.parametrize("module", FILES)
def test_imports_only_go_left(module: str) -> None:
    assert chain_violations(names_of(module), module) == []


def test_no_circle_between_modules() -> None:
    graph: dict[str, set[str]] = {}
    for module in FILES:
        edges = set()
        for name in names_of(module):
            target = name if name in FILES else name.rpartition(".")[0]
            if target in FILES and target != module:
                edges.add(target)
        graph[module] = edges
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("module", LIGHT)
def test_solvers_and_planner_name_no_torch(module: str) -> None:
    heavy = {name.split(".")[0] for name in names_of(module)} & {"torch", "transformers"}
    assert heavy == set()


@pytest.mark.parametrize(
    "modules",
    [LIGHT, ["moeplan", "moeplan.cli"]],
    ids=["every module of solvers and planner", "the front door"],
)
def test_importing_loads_no_torch(modules: list[str]) -> None:
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", FILES)
def test_all_names_the_public_surface(module: str) -> None:
    if module.endswith("__main__"):
        pytest.skip("a program, not a module to import")
    loaded = importlib.import_module(module)
    public = loaded.__all__
    assert len(set(public)) == len(public)
    assert [name for name in public if not hasattr(loaded, name)] == []
