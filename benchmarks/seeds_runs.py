"""The seeds' experiments that run: plans of a given n and b, and their rates, side by side.

Plans of one table run in turn, round after round, so that what the machine does in one moment
falls on all of them alike; medians and the whole spread are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.prediction_jobs import run_prompts
from executor import Engine
from executor.schedule import Named, Routed
from executor.schedule import Schedule as Channel
from executor.units import Unit
from planner.candidate import Candidate
from planner.documents import Plan, Workload
from planner.encode import Encoding
from planner.entries import Entry, Patience, first_looks, run_solver, run_strategy
from planner.groups import group_sizes
from planner.objectives import objective_named
from planner.profiles import Profile
from planner.scenarios import Sequences, split_sequences
from planner.smallest import CHUNK_BYTES, needed_bytes
from planner.solve import document, make_plan
from solvers.layout import START, Layout
from solvers.outcome import Eviction, Schedule, Stop
from solvers.registry import Limits

__all__ = [
    "Case",
    "Runs",
    "ablation",
    "buffered",
    "by_number",
    "chosen",
    "neighbours",
    "throughput",
    "verdict",
]

Row = dict[str, Any]

_WITHIN = 0.03
"""How near the chosen n is to be to the best."""
_HOPELESS = 0.85
"""What reaches less of the best in the first round is not run again."""
_LONGEST = 2.0
"""Groups that are predicted to take so many times as long as the chosen one are not run."""
_WORK = 0.1


@dataclass(frozen=True)
class Case:
    """A profile, what is asked of it, and how it is measured."""

    profile: Profile
    workload: Workload
    memory_bytes: int
    rounds: int
    paced_bytes_per_second: int | None = None
    seed: int = 0

    def asked(self, **changes: Any) -> Case:
        """Another one."""
        return dataclasses.replace(self, **changes)


@dataclass
class Runs:
    """One plan's runs."""

    plan: Plan
    by_number: bool = False
    rates: list[float] = field(default_factory=list)
    bubbles: list[tuple[float, float]] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    wasted_share: float = 0.0

    @property
    def rate(self) -> float:
        """Median of tokens/s, prefill included."""
        return statistics.median(self.rates)

    def row(self) -> Row:
        """What a table shows of it."""
        policy = self.plan.policy
        inter, intra = (statistics.median(one) for one in zip(*self.bubbles, strict=True))
        return {
            "n": policy.n_batches,
            "b": policy.batch_size,
            "solver": self.plan.solver,
            "tokens_per_second": self.rate,
            "lowest": min(self.rates),
            "highest": max(self.rates),
            "runs": len(self.rates),
            "predicted": self.plan.predicted.tokens_per_second.value,
            "bubble_dense": inter,
            "bubble_experts": intra,
        }


def run_once(case: Case, one: Runs) -> None:
    """Run a plan with an engine of its own."""
    workload = one.plan.workload
    prompts = run_prompts(case.profile, workload)
    order = by_number() if one.by_number else contextlib.nullcontext()
    paced = case.paced_bytes_per_second
    with order, Engine.from_plan(one.plan, paced_bytes_per_second=paced) as engine:
        engine.generate(prompts, workload.new_tokens)
        totals = engine.trace().totals
    one.rates.append(totals.new_tokens * 1e9 / totals.wall_ns)
    one.bubbles.append(
        (
            totals.bubble_inter_layer_ns / totals.wall_ns,
            totals.bubble_intra_layer_ns / totals.wall_ns,
        )
    )
    one.served = {str(how): count for how, count in totals.served.items()}
    one.wasted_share = totals.wasted_prefetch_bytes / max(totals.bytes_read, 1)


def run_all(case: Case, plans: Sequence[Runs], hopeless: float = 0.0) -> None:
    """Run plans in turn; those below a share of the best after the first round only once."""
    for index in range(case.rounds):
        best = max((one.rate for one in plans if one.rates), default=0.0)
        for one in plans:
            if not index or one.rate >= hopeless * best:
                run_once(case, one)


@contextlib.contextmanager
def by_number() -> Iterator[None]:
    """Without the expert-aware order: a layer's experts are copied and computed by their numbers.

    Those that are there still come first, since they hold slots that the others may wait for. The
    runtime itself has no such switch, so its rule is replaced here.
    """
    aware = Channel.route

    def route(self: Channel, active: list[Unit], named: Named | None = None) -> Routed:
        return aware(self, sorted(active), named)

    Channel.route = route  # type: ignore[method-assign]
    try:
        yield
    finally:
        Channel.route = aware  # type: ignore[method-assign]


# --- plans of a given n and b -------------------------------------------------------------------


def candidate(case: Case, n_batches: int, batch_size: int) -> Candidate | None:
    """One n and b, with pieces of copies as large as fit; None where nothing does."""
    profile, workload = case.profile, case.workload
    for chunk in CHUNK_BYTES:
        encoding = Encoding(profile, workload, n_batches, batch_size, case.memory_bytes, chunk)
        if needed_bytes(encoding) <= case.memory_bytes:
            sequences = Sequences.of(profile.arrays, profile.routing.experts)
            split = split_sequences(sequences.count, case.seed)
            goal = objective_named("throughput", workload)
            return Candidate(encoding, sequences, split, case.seed, goal)
    return None


def plan_of(
    case: Case, n_batches: int, batch_size: int, strategies: Sequence[str] = ()
) -> Plan | None:
    """The best plan of one n and b, by the solver and some strategies; None where none fits."""
    one = candidate(case, n_batches, batch_size)
    looks = [] if one is None else first_looks([one], math.inf, Patience(False))
    if one is None or not looks:
        return None
    entries = [run_solver("cpsat", one, Limits(_WORK, 60.0, case.seed), looks[0][1])]
    entries += [run_strategy(name, case.profile, [one], looks, case.seed) for name in strategies]
    best = min(entries, key=lambda entry: entry.chosen_value)
    return document(case.profile, best, [], case.seed)


def fixed_plan(
    case: Case, n_batches: int, batch_size: int, make: Callable[[Candidate], Schedule | None]
) -> Plan | None:
    """A plan whose schedule is made by hand; None where it does not fit.

    It is called ``on-demand``, since a plan is by some solver; its rule is the caller's.
    """
    one = candidate(case, n_batches, batch_size)
    schedule = None if one is None else make(one)
    if one is None or schedule is None:
        return None
    one.set_factors(schedule)
    return document(case.profile, Entry.of("on-demand", one, schedule, Stop.RULE), [], case.seed)


# --- experiments --------------------------------------------------------------------------------


def throughput(case: Case, batches: Sequence[int], sizes: Sequence[int]) -> list[Row]:
    """Klotski's figure of throughput: every n with every b, as many requests as one group has."""
    found = []
    for batch_size in sizes:
        for n_batches in batches:
            requests = n_batches * batch_size
            workload = dataclasses.replace(case.workload, requests=requests)
            own = case.asked(workload=workload)
            plan = plan_of(own, n_batches, batch_size)
            if plan is not None:
                found.append((own, Runs(plan)))
    for _ in range(case.rounds):
        for own, one in found:
            run_once(own, one)
    return [{"requests": own.workload.requests, **one.row()} for own, one in found]


def ablation(case: Case, n_batches: int, batch_size: int) -> list[Row]:
    """Klotski's ablation: its parts one after another, then residents and all that is planned.

    Until residents come, memory holds dense parts and slots for one layer's experts and for what is
    copied ahead.
    """
    top_k = max(layer.top_k for layer in case.profile.model.layers)

    def bare(ahead: int) -> Callable[[Candidate], Schedule | None]:
        return lambda one: _without_residents(one, ahead, top_k)

    planned = plan_of(case, n_batches, batch_size)
    steps: list[tuple[str, Plan | None, bool]] = [
        ("one batch", fixed_plan(case, 1, batch_size, bare(0)), True),
        ("n batches", fixed_plan(case, n_batches, batch_size, bare(0)), True),
        ("+ expert-aware order", fixed_plan(case, n_batches, batch_size, bare(0)), False),
        ("+ hot experts ahead", fixed_plan(case, n_batches, batch_size, bare(top_k)), False),
        ("+ residents, planned", planned, False),
        ("planned, order off", planned, True),
    ]
    runs = [(name, Runs(plan, number)) for name, plan, number in steps if plan is not None]
    run_all(case, [one for _, one in runs])
    rows = []
    for name, one in runs:
        row = {"step": name, **one.row(), "wasted_share": one.wasted_share}
        if one.by_number:
            # the replay follows the runtime's order
            row["predicted"] = None
        rows.append(row)
    return rows


def _without_residents(one: Candidate, ahead: int, top_k: int) -> Schedule | None:
    """Dense parts stay, nothing else; the most demanded ``ahead`` experts of each layer are copied
    before its router has spoken. None where that does not fit."""
    problem = one.problem("fit")
    slots = max(len(stage.items) for stage in problem.stages[:-1]) + top_k
    layout = Layout(problem, slots, 1)
    if not layout.fits:
        return None
    layout.fill((index, START) for index in range(len(problem.stages)))
    weight = problem.scenarios.weight.astype(np.float64)
    rows = np.tensordot(weight, problem.scenarios.demand, axes=1)
    hot = [np.argsort(-row, kind="stable")[:ahead].tolist() for row in rows]
    return layout.schedule(hot, slots - top_k)


def neighbours(requests: int, n_batches: int, batch_size: int) -> set[tuple[int, int]]:
    """Other n and b: all sizes of a group that the planner looks at, with this b (or all in one
    batch), and this group in one batch, in two, in four, and with twice this b."""
    group = n_batches * batch_size
    found = {
        (-(-size // min(batch_size, size)), min(batch_size, size)) for size in group_sizes(requests)
    }
    sizes = {group, -(-group // 2), -(-group // 4), 2 * batch_size}
    found |= {(-(-group // size), size) for size in sizes if size <= group}
    return found - {(n_batches, batch_size)}


def chosen(case: Case) -> list[Row]:
    """The n and b that are planned, against others that are measured as well.

    Where a strategy's plan was chosen, that strategy makes plans for the others, too.
    """
    plan = make_plan(case.profile, case.workload, memory_bytes=case.memory_bytes, seed=case.seed)
    n, b = plan.policy.n_batches, plan.policy.batch_size
    strategies = [] if plan.solver == "cpsat" else [plan.solver]
    runs = [Runs(plan)]
    skipped: list[Row] = []
    longest = plan.predicted.totals.wall_ns * _LONGEST
    for batches, size in sorted(neighbours(case.workload.requests, n, b)):
        other = plan_of(case, batches, size, strategies)
        if other is None:
            skipped.append({"n": batches, "b": size, "why": "does not fit"})
        elif other.predicted.totals.wall_ns > longest:
            skipped.append(
                {"n": batches, "b": size, "why": f"predicted {_LONGEST:g} times as long"}
            )
        else:
            runs.append(Runs(other))
    run_all(case, runs, _HOPELESS)
    rows = [one.row() for one in sorted(runs, key=lambda one: -one.rate)]
    for row in rows:
        row["chosen"] = (row["n"], row["b"]) == (n, b)
    return [*rows, *skipped]


def verdict(rows: Sequence[Row]) -> Row:
    """The chosen row of ``chosen`` against the best one, and against the best of another n.

    ``short`` is the share of the best rate that the chosen one lacks; ``noise`` the larger of both
    rows' half spreads, as a share: what lies below it is not told apart (None of a single run).
    """
    ran = [row for row in rows if "tokens_per_second" in row]
    own = next(row for row in ran if row["chosen"])
    best = max(ran, key=lambda row: row["tokens_per_second"])
    short = 1 - own["tokens_per_second"] / best["tokens_per_second"]
    noise = max(
        (row["highest"] - row["lowest"]) / 2 / row["tokens_per_second"] for row in (own, best)
    )
    return {
        "chosen": f"{own['n']} x {own['b']}",
        "best": f"{best['n']} x {best['b']}",
        "short": short,
        "noise": noise if min(own["runs"], best["runs"]) > 1 else None,
        "within": short <= _WITHIN,
    }


def buffered(case: Case, sizes: Sequence[int], evictions: Sequence[Eviction]) -> list[Row]:
    """Miss rates that runs had: all requests in one group, memory for so many experts a layer."""
    rows = []
    for size in sizes:
        row: Row = {"sequences": case.workload.requests, "buffer": size}
        for eviction in evictions:
            plan = fixed_plan(case, 1, case.workload.requests, _cache(size, eviction))
            if plan is not None:
                one = Runs(plan)
                run_once(case, one)
                row[eviction] = one.served.get("on_demand", 0) / max(sum(one.served.values()), 1)
        rows.append(row)
    return rows


def _cache(size: int, eviction: Eviction) -> Callable[[Candidate], Schedule | None]:
    def make(one: Candidate) -> Schedule | None:
        problem = one.problem("fit")
        layers = len(problem.stages) - 1
        slots = size * layers
        layout = Layout(problem, slots, 1)
        if not layout.fits:
            return None
        head = problem.stages[-1]
        layout.fill((index, START) for index in range(layers))
        layout.fill((layers, tile) for tile in range(len(head.items)))
        nothing: list[tuple[int, ...]] = [()] * len(problem.stages)
        return layout.schedule(nothing, slots, eviction)

    return make
