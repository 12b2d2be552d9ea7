"""Predicted against measured throughput over a grid of checkpoints, budgets and requests.

    python benchmarks/prediction.py                # the whole grid, with throttled disks: root only
    python benchmarks/prediction.py --raw          # the same on the disk as it is
    python benchmarks/prediction.py CHECKPOINT ... --memory 0.45 1.1 --requests 1 8 64 --seconds 20

Each checkpoint is packed and profiled once for each disk speed, before all of its runs. Its cells
are planned, and then run several times in turns, each time with a fresh engine: a cell's runs lie
minutes apart, since the machine is faster and slower by a fifth for half a minute at a time. The
median counts, no cell is left out. A run is the workload again and again, each time with other
prompts, until that takes as long as was asked for: about 20 s for the example, whose passes of
30 ms follow each second of the machine, and 7 s for the bulk checkpoints, whose rate the disk
holds, so that the grid stays below half an hour. The plan, its groups and its contexts are those of
one workload; more requests or tokens at once would be another plan. The rate is all new tokens over
all time, times of kinds are means.

Budgets are fractions of the checkpoint's weights. Keys and values stay on the device. The machine's
drift (a fixed operation's time now over its time while profiling) and load stand beside each cell
and correct nothing, but with ``--raw``: there copies are timed just before and after each run as
well, and the run is held against the plan's prediction for a machine of that drift. Nothing of the
run itself is used. Errors are measured against predicted: (measured - predicted) / predicted.

With ``--work`` checkpoints and profiles stay, and what ``--out`` has of the same profile is not run
again: a grid that was stopped goes on with the first checkpoint and disk whose cells were not all
run.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")
ROOT = Path(__file__).resolve().parents[1]
# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(ROOT))

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.prediction_jobs import Job, grid, run_prompts
from benchmarks.record import Record
from benchmarks.summary import Cell, markdown, summary, words
from benchmarks.throttle import throttled
from benchmarks.writing import write_result
from executor import Engine, pack
from planner.documents import Plan, Range, Trace, Workload, document_hash
from planner.profiles import Profile, load_profile
from planner.solve import make_plan
from profiler import profile_checkpoint, verify
from profiler.drift import Drift, link_ratio, predicted_now
from profiler.effort import Effort
from solvers.errors import BudgetError, MoeplanError

THROTTLES = (400_000_000, 800_000_000)
"""Bytes/s of the grid's disks."""


@dataclass(frozen=True)
class Run:
    """One run of a cell's plan, and what it is held against; ``measured`` in tokens/s, ``kinds`` in
    ns of one workload, of which the run had some."""

    measured: float
    predicted: Range
    kinds: dict[str, tuple[int, int]]
    drift: float
    copy_drift: float | None

    @property
    def ratio(self) -> float:
        """Measured / predicted."""
        return self.measured / self.predicted.value

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.predicted.low <= self.measured <= self.predicted.high


@dataclass(frozen=True)
class Planned:
    """A cell on its way: its plan, the prompts of each workload of a run, and the runs so far."""

    plan: Plan
    memory_bytes: int
    groups: list[list[list[int]]]
    runs: list[Run]


@dataclass(frozen=True)
class Bench:
    """How cells are run: a profile, and what it was made under.

    ``corrected``: whether a run is held against the prediction for the machine's drift;
    ``seconds``: how long a run lasts, about, if one workload takes less.
    """

    profile: Profile
    runs: int
    paced_bytes_per_second: int | None
    throttle: int | None
    corrected: bool = False
    seconds: float = 0.0

    def key(self, memory_bytes: int, workload: Workload) -> tuple[object, ...]:
        """What tells one cell from another; see ``Cell.key``."""
        asked = (memory_bytes, workload.requests, workload.prompt_tokens, workload.new_tokens)
        return (document_hash(self.profile.index), self.throttle, *asked, self.corrected)

    def planned(self, memory_bytes: int, workload: Workload) -> Planned:
        """A cell's plan, not yet run."""
        plan = make_plan(
            self.profile, workload, memory_bytes=memory_bytes, time_limit_seconds=5, kv="device"
        )
        times = max(round(self.seconds * 1e9 / plan.predicted.totals.wall_ns), 1)
        groups = [run_prompts(self.profile, workload, turn) for turn in range(times)]
        return Planned(plan, memory_bytes, groups, [])

    def run(self, cell: Planned) -> None:
        """Once more."""
        copies = [self._copies(cell.plan)]
        traces = self._traces(cell.plan, cell.groups)
        copies.append(self._copies(cell.plan))
        held = self._held(cell.plan, traces, [one for one in copies if one is not None])
        cell.runs.append(held)

    def compared(self, cell: Planned) -> Cell:
        """What its runs came to."""
        plan, found, workload = cell.plan, cell.runs, cell.plan.workload
        middle = sorted(found, key=lambda one: one.ratio)[len(found) // 2]
        promised = plan.predicted.tokens_per_second
        now = middle.predicted
        copy_drifts = [one.copy_drift for one in found if one.copy_drift is not None]
        return Cell(
            checkpoint=self.profile.model.name,
            profile_hash=document_hash(self.profile.index),
            throttle_bytes_per_second=self.throttle,
            memory_bytes=cell.memory_bytes,
            requests=workload.requests,
            prompt_tokens=workload.prompt_tokens,
            new_tokens=workload.new_tokens,
            solver=plan.solver,
            n_batches=plan.policy.n_batches,
            batch_size=plan.policy.batch_size,
            predicted=now.value,
            low=now.low,
            high=now.high,
            measured=tuple(round(one.measured, 2) for one in found),
            error=middle.ratio - 1,
            inside=sum(one.inside for one in found),
            drift=statistics.median(one.drift for one in found),
            load=os.getloadavg()[0],
            kinds=middle.kinds,
            copy_drift=statistics.median(copy_drifts) if copy_drifts else None,
            planned=promised.value if self.corrected else None,
            times=len(cell.groups),
        )

    def trace_of(self, plan: Plan, prompts: list[list[int]]) -> Trace:
        """One workload, with a fresh engine."""
        (trace,) = self._traces(plan, [prompts])
        return trace

    def _traces(self, plan: Plan, groups: list[list[list[int]]]) -> list[Trace]:
        """The workload with these prompts, one after the other, with a fresh engine."""
        pace, traces = self.paced_bytes_per_second, []
        with Engine.from_plan(plan, paced_bytes_per_second=pace) as engine:
            for prompts in groups:
                engine.generate(prompts, plan.workload.new_tokens)
                traces.append(engine.trace())
        return traces

    def _copies(self, plan: Plan) -> float | None:
        return link_ratio(self.profile, plan.policy.chunk_bytes) if self.corrected else None

    def _held(self, plan: Plan, traces: list[Trace], copies: list[float]) -> Run:
        found = [verify(plan, trace, costs=self.profile.costs) for trace in traces]
        names = {one.name for single in found for one in single.kinds}
        predicted, totals = plan.predicted, plan.predicted.totals.duration_by_kind_ns
        drift = statistics.median(one.drift or 1.0 for one in found)
        copy_drift = statistics.fmean(copies) if copies else None
        if self.corrected:
            now = Drift(drift, 1.0 if copy_drift is None else copy_drift)
            predicted = predicted_now(plan, self.profile, now)
            totals = predicted.totals.duration_by_kind_ns
        said = {str(kind): total for kind, total in totals.items()}
        spent = [{one.name: one.measured for one in single.kinds} for single in found]
        tokens = sum(trace.totals.new_tokens for trace in traces)
        return Run(
            tokens * 1e9 / sum(trace.totals.wall_ns for trace in traces),
            predicted.tokens_per_second,
            {
                name: (said.get(name, 0), sum(one.get(name, 0) for one in spent) // len(spent))
                for name in sorted(names)
            },
            drift,
            copy_drift,
        )


def bench_of(
    job: Job,
    folder: Path,
    options: argparse.Namespace,
    throttle: int | None,
    *,
    corrected: bool = False,
) -> tuple[Bench, int]:
    """Profile one checkpoint under one disk, unless ``folder`` has that; also its store's bytes."""
    held = throttle or (f"paced-{options.disk_bandwidth}" if options.disk_bandwidth else "free")
    store, out = folder / "store", folder / f"profile-{held}"
    size = pack(job.checkpoint, store).size_bytes
    if not (out / "profile.json").exists():
        begun = time.monotonic()
        profile_checkpoint(
            job.checkpoint,
            out,
            memory_bytes=int(size * max(job.memory)),
            store=store,
            paced_bytes_per_second=options.disk_bandwidth,
            effort=QUICK if options.quick else None,
        )
        print(f"# {job.checkpoint.name}: profiled in {time.monotonic() - begun:.0f} s", flush=True)
    profile = load_profile(out)
    pace, runs = options.disk_bandwidth, options.runs
    return Bench(profile, runs, pace, throttle, corrected, job.seconds), size


def cells_of(
    job: Job, folder: Path, options: argparse.Namespace, throttle: int | None, known: list[Cell]
) -> Iterator[Cell]:
    """The cells of one checkpoint under one disk, run unless they are known."""
    bench, size = bench_of(job, folder, options, throttle, corrected=options.raw)
    before = {cell.key: cell for cell in known}
    cells: list[Cell | Planned] = []
    for fraction in job.memory:
        for requests in job.requests:
            workload = Workload(requests, job.prompt_tokens, job.new_tokens)
            memory_bytes = int(size * fraction)
            cell = before.get(bench.key(memory_bytes, workload))
            try:
                cells.append(cell or bench.planned(memory_bytes, workload))
            except BudgetError as error:
                print(f"# {job.checkpoint.name}, {requests} requests: {error}")
    for _ in range(bench.runs):
        for one in cells:
            if isinstance(one, Planned):
                bench.run(one)
    for one in cells:
        found = bench.compared(one) if isinstance(one, Planned) else one
        print(found.row(), flush=True)
        yield found


QUICK = Effort(cell_ns=1, rounds=1, fills=1, turns=1, passes=1, stream_ns=0)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoints", nargs="*", type=Path)
    parser.add_argument("--memory", nargs="+", type=float, default=[0.45, 1.2])
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, help="how long a run lasts, about, by repeating its workload"
    )
    parser.add_argument(
        "--disk-bandwidth", type=int, help="bytes/s to hold the disk to, by waiting"
    )
    parser.add_argument("--throttle", nargs="+", type=int, help="bytes/s, by the kernel (root)")
    parser.add_argument(
        "--raw", action="store_true", help="no throttle; predictions corrected by the drift"
    )
    parser.add_argument("--quick", action="store_true", help="profile in a moment, for a test")
    parser.add_argument("--work", type=Path, help="folder for stores and profiles, which stay")
    parser.add_argument("--out", type=Path, help="JSON with all cells; a table beside it")
    options = parser.parse_args(argv)
    if options.runs < 1:
        parser.error("--runs: give 1 or more")
    if options.seconds is not None and not 0 <= options.seconds < 3600:
        parser.error("--seconds: give 0 (one workload a run) to 3600")
    if options.raw and (options.throttle or options.disk_bandwidth):
        parser.error("--raw: is the disk as it is; leave out --throttle and --disk-bandwidth")
    if not options.checkpoints:
        name = "prediction_raw.json" if options.raw else "prediction.json"
        options.work = options.work or ROOT / "build" / "prediction"
        options.out = options.out or ROOT / "benchmarks" / "results" / name
        if not options.raw:
            options.throttle = options.throttle or list(THROTTLES)
    return options


def _known(out: Path | None) -> tuple[list[Cell], dict[str, Any]]:
    """Cells that ``out`` has, and what it says about them."""
    if out is None or not out.exists():
        return [], {}
    body = json.loads(out.read_text(encoding="utf-8"))
    return [Cell.of(one) for one in body["cells"]], body.get("about", {})


def main(argv: list[str] | None = None) -> int:
    """Run the grid and print a table."""
    options = _options(argv)
    known, before = _known(options.out)
    budget = f"{options.runs} runs a cell, searches of 5 s"
    record = Record.begin(budget=budget)
    cells: list[Cell] = []
    print(Cell.heading())
    with contextlib.ExitStack() as stack:
        if options.work is None:
            parent = options.checkpoints[0].parent
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
        else:
            work = options.work
            work.mkdir(parents=True, exist_ok=True)
        jobs = [
            Job(
                checkpoint,
                tuple(options.memory),
                tuple(options.requests),
                options.prompt_tokens,
                options.new_tokens,
            )
            for checkpoint in options.checkpoints
        ]
        for job in jobs or grid(work):
            if options.seconds is not None:
                job = job._replace(seconds=options.seconds)
            for throttle in options.throttle or [None]:
                folder = work / f"{job.checkpoint.name}-run"
                folder.mkdir(exist_ok=True)
                with throttled(throttle, folder):
                    for cell in cells_of(job, folder, options, throttle, known):
                        cells.append(cell)
                        if cell in known:
                            record = replace(record, before=before)
                        if options.out is not None:
                            body = {"about": record.about(), **summary(cells)}
                            write_result(options.out, body, markdown(cells))
    if not cells:
        print("no cell fits its budget")
        return 1
    found = summary(cells)
    print(f"# {words(found)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MoeplanError as error:
        sys.exit(f"prediction: {error}")
