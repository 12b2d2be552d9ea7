"""With the base install alone: planning works, and what needs more says so in one line.

The install is real: a virtual environment with a wheel built from this tree and the distributions
that its base dependencies ask for, as links to those that run the tests, so that no network is
needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("solvers", "planner", "executor", "profiler", "moeplan")


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", Requirement(requirement).name).lower()


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """The distributions that ``requirements`` ask for here, and those that these ask for."""
    found: dict[str, Distribution] = {}
    asked = [(Requirement(one), "") for one in requirements]
    while asked:
        requirement, extra = asked.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = name_of(str(requirement))
        known = name in found
        found[name] = distribution(name)
        for chosen in (*requirement.extras, *(() if known else ("",))):
            asked += [(Requirement(one), chosen) for one in found[name].requires or ()]
    return found


EXTRAS = sorted(
    {name_of(one) for extra in PROJECT["optional-dependencies"].values() for one in extra}
    - set(closure(PROJECT["dependencies"]))
)
"""Distributions of the extras that the base does not ask for."""


def linked(found: Distribution, site: Path) -> None:
    """Link a distribution's files into another environment."""
    for file in found.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # programs, and what Python writes by itself
        place = site / file
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(found.locate_file(file))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of an environment with the base install are."""
    folder = tmp_path_factory.mktemp("base")
    source, wheels, made = folder / "source", folder / "wheels", folder / "venv"
    source.mkdir()
    # a build writes into its tree
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    venv.create(made, symlinks=True)
    (site,) = made.glob("lib/python*/site-packages")
    for one in closure(PROJECT["dependencies"]).values():
        linked(one, site)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    alone = ["--no-index", "--no-deps"]
    wheel = [*pip, "wheel", *alone, "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run(wheel, check=True)
    into = [*pip, "--python", str(made / "bin" / "python"), "install", *alone]
    subprocess.run([*into, *map(str, wheels.iterdir())], check=True)
    return made / "bin"


def run(program: Path, *argv: Any) -> subprocess.CompletedProcess[str]:
    """A program of the environment, run where nothing of this tree is found."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(program), *map(str, argv)],
        cwd=program.parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_of_the_extras_is_there_and_all_that_plans_can_be_imported(programs: Path) -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name in ("solvers", "planner")
        for path in sorted((ROOT / name).rglob("*.py"))
    ]
    code = f"""
import importlib, importlib.metadata, sys
there = {{one.name.lower().replace("_", "-") for one in importlib.metadata.distributions()}}
assert "moeplan" in there and not there & set({EXTRAS!r}), there & set({EXTRAS!r})
for name in {modules!r}:
    importlib.import_module(name)
import planner, moeplan
print(planner.__file__)
"""
    done = run(programs / "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(programs.parent)


def test_planning_needs_no_extra(programs: Path, profile_folder: Path, tmp_path: Path) -> None:
    asked = ("--requests", 4, "--prompt-tokens", 16, "--new-tokens", 4)
    out = tmp_path / "plan.json"
    limits = ("--memory", "1500kB", "--time-limit", 0.2, "--out", out)
    done = run(programs / "moeplan", "plan", profile_folder, *asked, *limits)
    assert done.returncode == 0, done.stderr
    assert run(programs / "moeplan", "check", out).returncode == 0
    # without a machine, from what the wheel brings along
    offline = ("--model", ROOT / "examples" / "pycode-moe" / "config.json", "--hardware", "t4")
    limits = ("--memory", "12MiB", "--solver", "lru", "--out", out)
    done = run(programs / "moeplan", "plan", *offline, "--routing", "uniform", *asked, *limits)
    assert done.returncode == 0, done.stderr


def test_what_needs_an_extra_names_it(programs: Path, profile_folder: Path, tmp_path: Path) -> None:
    checkpoint = ROOT / "examples" / "pycode-moe"
    plan = ("plan", profile_folder, "--memory", "1500kB", "--out", tmp_path / "plan.json")
    pairs = ("sweep", "--models", checkpoint, "--hardware", "t4", "--budgets", "1GiB")
    frontier = ("sweep", profile_folder, "--memory", "1MB..2MB", "--html", tmp_path / "page.html")
    refused = (
        (("serve",), "service"),
        (("token", "list"), "service"),
        ((*plan, "--server", "http://127.0.0.1:1"), "service"),
        ((*pairs, "--routing", "uniform"), "service"),
        ((*pairs, "--routing", "uniform", "--engine", "ray"), "cluster"),
        (frontier, "plots"),
        (("profile", checkpoint, "--memory", "1GiB", "--out", tmp_path / "profile"), "run"),
    )
    code = f"""
from moeplan.cli import main
for argv in {[[*map(str, argv)] for argv, _ in refused]!r}:
    assert main(argv) == 2, argv
"""
    done = run(programs / "python", "-c", code)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.strip().splitlines()
    for line, (argv, extra) in zip(lines, refused, strict=True):
        assert line.endswith(f"pip install 'moeplan[{extra}]'"), (argv, line)
    assert list(tmp_path.iterdir()) == []


HEAVY = (
    *("fastapi", "highspy", "numpy", "ortools", "pandas", "plotly", "pulp", "pydantic", "ray"),
    *("rich", "sqlalchemy", "torch", "transformers", "typer"),
)


@pytest.mark.parametrize("package", ["planner", "moeplan", "solvers"])
def test_an_import_loads_nothing_heavy(package: str) -> None:
    code = f"import sys, {package}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
