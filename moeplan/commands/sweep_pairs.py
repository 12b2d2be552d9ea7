"""Sweeps of many models on many machines: the options of ``sweep`` that stand for a profile."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import searches
from moeplan.commands.offline import with_host
from moeplan.commands.serve import open_store
from moeplan.options import parse_range, parse_size, split_names
from moeplan.output import Reporter, human_bytes, human_number
from planner.documents import Machine, Workload
from planner.kv import Place
from planner.sizes import typed_size
from solvers.counting import counted
from solvers.errors import OptionError

__all__ = [
    "BudgetList",
    "EngineName",
    "HardwareList",
    "ModelList",
    "PairOptions",
    "RayAddress",
    "Search",
    "Workers",
    "sweep_of_pairs",
]

ModelList = Annotated[
    list[str] | None,
    typer.Option("--models", help="Instead of a profile: config.json files, a,b or repeated."),
]
HardwareList = Annotated[
    list[str] | None,
    typer.Option("--hardware", help="Machines as for plan, a,b or repeated; 'all' of catalog."),
]
BudgetList = Annotated[
    list[str] | None,
    typer.Option("--budgets", help="Device budgets, 8GiB,16GiB or 8GiB..24GiB (--steps)."),
]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="What plans pairs: local processes or ray (local).")
]
RayAddress = Annotated[
    str | None, typer.Option("--ray-address", help="Of a Ray cluster; without, one starts here.")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, max=1024, help="Processes of this machine (its cores)."),
]

ENGINES = ("local", "ray")
_DEFAULT_STEPS = 8
_MOST_PAIRS = 1_000_000
_SHOWN = 40


class Search(NamedTuple):
    """How each plan of a sweep is searched for, in the words of ``make_plan``."""

    solver: str
    objective: str
    time_limit_seconds: float
    seed: int
    kv: Place
    predictors: bool | None


@dataclass(frozen=True)
class PairOptions:
    """The options that a sweep of a profile has no use for, as they were typed."""

    models: list[str] | None
    hardware: list[str] | None
    budgets: list[str] | None
    routing: str | None
    series: str | None
    dtype: str | None
    host_memory: str | None
    engine: str | None
    ray_address: str | None
    workers: int | None
    store: str | None

    def check_unused(self, folder: Path) -> None:
        """Refuse them beside a profile.

        Raises
        ------
        OptionError
            Naming the first.
        """
        for one in fields(self):
            if getattr(self, one.name) is not None:
                option = f"--{one.name.replace('_', '-')}"
                raise OptionError(f"{option} has no effect on a sweep of {folder}; leave one")


def sweep_of_pairs(
    reporter: Reporter,
    options: PairOptions,
    steps: int | None,
    workload: Workload,
    search: Search,
) -> None:
    """Plan each model on each machine within each budget, and say what came of it.

    Raises
    ------
    OptionError
        If an option is missing, unknown, or without effect.
    RunError
        If the engine or the store fails.
    """
    engine, workers = _engine(options)
    required = ("models", "hardware", "budgets", "routing")
    missing = [f"--{name}" for name in required if getattr(options, name) is None]
    if len(missing) == len(required):
        raise OptionError(
            "give a PROFILE_DIR that 'moeplan profile' made, or --models, --hardware, --budgets "
            "and --routing"
        )
    if missing or options.routing is None:
        more = " (uniform says that nothing is known)" if missing == ["--routing"] else ""
        raise OptionError(f"a sweep without a profile needs {' and '.join(missing)}, too{more}")
    paths = tuple(dict.fromkeys(map(Path, _listed(options.models, "--models"))))
    machines = _machines(_listed(options.hardware, "--hardware"), options.host_memory)
    budgets = _budgets(_listed(options.budgets, "--budgets"), steps)
    if len(paths) * len(machines) * len(budgets) > _MOST_PAIRS:
        raise OptionError(f"these are more than {_MOST_PAIRS:,} pairs; give less at once")

    from moeplan.sweeps.pairs import Asked, read_models
    from moeplan.sweeps.run import Counts, Swept
    from moeplan.sweeps.run import sweep_pairs as sweep_all

    asked = Asked(
        read_models(paths),
        machines,
        budgets,
        options.routing,
        options.series,
        options.dtype,
        workload,
        search.solver,
        search.objective,
        search.time_limit_seconds if searches(search.solver) else None,
        search.seed,
        search.kv,
        search.predictors,
    )
    with reporter.steps("sweep") as bar:
        bar(0, 0, "drawing routing")  # seconds, with a large model
        asked.check()
    store = open_store(options.store)
    swept = Swept(Counts(asked.count))
    try:
        with reporter.steps("sweep") as bar:
            bar(0, asked.count, f"starting {engine}")
            sweep_all(
                store,
                asked,
                _carrier(engine, workers, options.ray_address),
                lambda counts: bar(counts.done + counts.failed, counts.total, str(counts)),
                swept,
            )
    except BaseException:
        counts = swept.counts
        if counts.done:
            reporter.note(
                f"moeplan: {counts.done:,} of {counted(counts.total, 'pair')} done and kept in "
                f"{store.database.label}; the same command goes on there"
            )
        raise
    finally:
        store.close()
    _show(reporter, swept, machines, store.database.label)


def _engine(options: PairOptions) -> tuple[str, int]:
    """The engine's name and how many processes it may have."""
    (engine,) = split_names(options.engine or ENGINES[0], ENGINES, "--engine", most=1)
    if options.ray_address is not None:
        if engine != "ray":
            raise OptionError("--ray-address has no effect without --engine ray")
        if not options.ray_address.strip():
            raise OptionError("--ray-address is empty; write HOST:PORT, or auto")
        if options.workers is not None:
            raise OptionError("--workers has no effect with --ray-address: the cluster has its own")
    if engine == "ray":
        from moeplan.sweeps.on_ray import ray_module

        ray_module(options.ray_address)
    return engine, options.workers or len(os.sched_getaffinity(0))


def _carrier(engine: str, workers: int, address: str | None) -> Any:
    """What carries out tasks."""
    if engine == "ray":
        from moeplan.sweeps.on_ray import run_on_ray

        return lambda tasks: run_on_ray(tasks, workers, address)
    from moeplan.sweeps.local import run_local

    return lambda tasks: run_local(tasks, workers)


def _listed(texts: Sequence[str] | None, option: str) -> tuple[str, ...]:
    """What stands in ``a,b`` and in repetitions, each once."""
    parts = (part.strip() for text in texts or () for part in text.split(","))
    found = tuple(dict.fromkeys(part for part in parts if part))
    if not found:
        raise OptionError(f"{option} names nothing")
    return found


def _machines(named: tuple[str, ...], host_memory: str | None) -> tuple[Machine, ...]:
    from planner.catalogue import load_machine, machine_names

    if "all" in named:
        named = tuple(dict.fromkeys((*machine_names(), *(one for one in named if one != "all"))))
    return tuple(with_host(load_machine(one), host_memory) for one in named)


def _budgets(texts: tuple[str, ...], steps: int | None) -> tuple[int, ...]:
    """Ascending budgets of sizes and ranges."""
    from planner.sweep import budgets_between

    if steps is not None and not any(".." in text for text in texts):
        raise OptionError("--steps has no effect without a range in --budgets, as in 8GiB..24GiB")
    found: set[int] = set()
    for text in texts:
        if ".." in text:
            low, high = parse_range(text, "--budgets")
            found.update(budgets_between(low, high, steps or _DEFAULT_STEPS))
        else:
            found.add(parse_size(text, "--budgets"))
    return tuple(sorted(found))


def _show(reporter: Reporter, swept: Any, machines: Sequence[Machine], label: str) -> None:
    counts = swept.counts
    rows = [swept.rows[index] for index in sorted(swept.rows)]
    planned = [row for row in rows if "plan" in row]
    if planned:
        reporter.show(_table(planned[:_SHOWN]))
    if len(planned) > _SHOWN:
        reporter.show(Text(f"and {len(planned) - _SHOWN:,} more; --json has all"))
    for line in (*_reasons(rows), *_assumed(machines)):
        reporter.show(Text(line))
    before = f" ({counts.found:,} of them before)" if counts.found else ""
    failed = f", {counts.failed:,} failed" if counts.failed else ""
    reporter.show(
        Text(
            f"{counted(counts.total, 'pair')}: {len(planned):,} planned{before}, "
            f"{counts.refused:,} refused{failed}; they are in {label}"
        )
    )
    reporter.result(
        {
            "pairs": counts.total,
            "planned": counts.planned,
            "found": counts.found,
            "refused": counts.refused,
            "failed": counts.failed,
            "store": label,
            "sweep": swept.document,
            "rows": rows,
        }
    )
    if counts.failed:
        first = next(row["problem"]["detail"] for row in rows if _failed(row))
        reporter.note(
            f"moeplan: {counted(counts.failed, 'pair')} failed, to be tried again by the same "
            f"command; the first: {first}"
        )
        raise typer.Exit(1)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "hardware"):
        table.add_column(heading)
    for heading in ("memory", "tokens/s", "n x b"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            Text(row["model"]),
            Text(row["hardware"]),
            human_bytes(row["memory_bytes"]),
            human_number(row["tokens_per_second"]),
            f"{row['n_batches']} x {row['batch_size']}",
        )
    return table


def _assumed(machines: Sequence[Machine]) -> list[str]:
    """What the machines' figures do not say: each assumption once, with whose it is."""
    whose: dict[str, list[str]] = {}
    for machine in machines:
        for what in machine.assumed:
            whose.setdefault(what, []).append(machine.name)
    return [
        f"assumed of {', '.join(names) if len(names) < len(machines) else 'every machine'}: {what}"
        for what, names in whose.items()
    ]


def _failed(row: dict[str, Any]) -> bool:
    return "problem" in row and row["problem"]["status"] >= 500


def _reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Why pairs were refused: for each kind of reason how many, and the first of them in full."""
    refused = [row for row in rows if "problem" in row and not _failed(row)]
    first: dict[str, dict[str, Any]] = {}
    for row in refused:
        first.setdefault(row["problem"]["title"], row)
    count = Counter(row["problem"]["title"] for row in refused)
    return [
        f"{count[title]:,} refused: {title}, as {row['model']} on {row['hardware']} within "
        f"{typed_size(row['memory_bytes'])}: {row['problem']['detail']}"
        for title, row in first.items()
    ]
