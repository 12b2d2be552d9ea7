"""Small problems, and a second replay that is slow and simple: chunk by chunk, instant by instant.

The slow replay shares no code with the fast one; it follows docs/runtime.md word for word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest

from solvers.checker import check_proofs, check_schedule
from solvers.outcome import Bound, Proof, Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.proof import proven_ns


def unit(copy_ns: int, held_bytes: int = 1, chunks: int = 1) -> Unit:
    """A unit of ``chunks`` equal chunks that takes ``chunks * copy_ns``."""
    return Unit(held_bytes * chunks, held_bytes, chunks, copy_ns, copy_ns, held_bytes)


def scenarios_of(
    demand: list[list[list[int]]],
    *,
    work: Callable[[int], int] = lambda rows: 10 * rows,
    lead: int = 100,
    prologue: int = 0,
    epilogue: int = 0,
    run_starts: tuple[int, ...] = (0,),
) -> Scenarios:
    """Scenarios whose times are the same in all passes and stages."""
    rows = np.array(demand, dtype=np.int32)
    times = np.array([work(int(r)) if r else 0 for r in rows.ravel()], dtype=np.int64)
    shape = rows.shape[:2]
    first = np.zeros(shape, dtype=np.int64)
    first[:, 0] = prologue
    return Scenarios(
        first,
        np.full(shape, lead, dtype=np.int64),
        rows,
        times.reshape(rows.shape),
        np.full(shape, epilogue, dtype=np.int64),
        np.ones(len(rows), dtype=np.int64),
        None,
        run_starts,
    )


def random_problem(rng: np.random.Generator, *, zero: bool = False) -> Problem:
    """A few stages with a few items each; with ``zero`` many durations are 0."""
    count, width, passes = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    low = 0 if zero else 1

    def one(most: int) -> Unit:
        chunks = int(rng.integers(1, 4))
        piece = int(rng.integers(low, most))
        last = int(rng.integers(low, most))
        return Unit(4 * (chunks - 1) + int(rng.integers(1, 5)), 5, chunks, piece, last, 4)

    stages = []
    for _ in range(count):
        start = one(30) if rng.random() < 0.7 else None
        stages.append(Stage(start, tuple(one(20) for _ in range(width))))
    if rng.random() < 0.5:
        stages.append(Stage(None, tuple(one(20) for _ in range(width)), sequential=True))
    total = len(stages)
    demand = (rng.random((passes, total, width)) < 0.6) * rng.integers(1, 4, (passes, total, width))
    for index, stage in enumerate(stages):
        if stage.sequential:
            demand[:, index] = 2
    work = np.where(demand > 0, rng.integers(low, 25, demand.shape), 0)
    shape = (passes, total)
    starts = tuple(sorted({0, *rng.integers(0, passes, 1).tolist()}))
    return Problem(
        tuple(stages),
        Scenarios(
            rng.integers(low, 10, shape),
            rng.integers(low, 40, shape),
            demand.astype(np.int32),
            work.astype(np.int64),
            rng.integers(low, 6, shape),
            rng.integers(1, 4, passes),
            None,
            starts,
        ),
        capacity_bytes=10_000,
        slot_bytes=16,
    )


def with_host(problem: Problem, seed: int) -> Problem:
    """The same with a host, whose work takes about as long as copies."""
    rng = np.random.default_rng([seed, 5])
    demand = problem.scenarios.demand
    host = np.where(demand > 0, rng.integers(0, 60, demand.shape), 0).astype(np.int64)
    return problem.replace(scenarios=replace(problem.scenarios, host_work_ns=host))


def with_short(problem: Problem, seed: int, most_lead: int = 9) -> Problem:
    """The same with start units that are copied in part in some passes, and leads that are longer
    where they are copied."""
    rng = np.random.default_rng([seed, 6])
    passes = problem.scenarios.passes
    stages = []
    for stage in problem.stages:
        start, short = stage.start, []
        for _ in range(0 if start is None else 2):
            chunks = int(rng.integers(1, start.chunks + 1))
            size = start.chunk_bytes * (chunks - 1)
            most = start.last_ns if chunks == start.chunks else start.chunk_ns
            short.append(
                replace(
                    start,
                    chunks=chunks,
                    last_ns=int(rng.integers(0, most + 1)),
                    size_bytes=int(rng.integers(size, start.size_bytes + 1)),
                )
            )
        stages.append(replace(stage, short_starts=tuple(short)))
    shape = problem.scenarios.lead_ns.shape
    scenarios = replace(
        problem.scenarios,
        short=rng.integers(0, 3, passes),
        start_lead_ns=rng.integers(0, most_lead, shape).astype(np.int64),
    )
    return problem.replace(stages=tuple(stages), scenarios=scenarios)


def random_schedule(rng: np.random.Generator, problem: Problem) -> Schedule:
    """Any schedule that the checker accepts, with memory to spare."""
    choices = []
    for stage in problem.stages:
        count = len(stage.items)
        order = rng.permutation(count).tolist()
        kept = int(rng.integers(0, count + 1))
        ahead = int(rng.integers(0, count - kept + 1))
        resident = tuple(sorted(order[:kept]))
        prefetch = tuple(order[kept : kept + ahead])
        if stage.sequential:
            resident, prefetch = tuple(range(kept)), tuple(range(kept, count))
        first = stage.start is not None and bool(rng.random() < 0.3)
        choices.append(StageChoice(first, resident, prefetch))
    slots = int(rng.integers(1, 6))
    schedule = Schedule(
        tuple(choices),
        slots,
        int(rng.integers(1, 3)),
        int(rng.integers(1, slots + 1)),
        ("none", "none", "none", "lru", "lru", "lifo", "lifo")[int(rng.integers(0, 7))],
    )
    hold = int(rng.integers(-1, 3))
    pairs = zip(problem.stages, choices, strict=True)
    streams = any(stage.start and not choice.start_resident for stage, choice in pairs)
    return schedule.replace(hold=hold) if hold >= 0 and streams else schedule


class SlowReplay:
    """See the module. ``ends`` are the pass ends, ``log`` what compute and the channel did."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.now = 0
        self.ends: list[int] = []
        self.pass_bytes: list[int] = []
        self.wasted = 0
        for run in problem.scenarios.runs():
            self._run(run)

    def _run(self, run: range) -> None:
        self.count = len(self.problem.stages)
        self.first_pass = run.start
        self.last_stage = len(run) * self.count
        self.free = self.schedule.slots
        self.free_start = self.schedule.start_slots
        self.here = 0
        # every copy is [kind, here, item, chunks left, bytes so far]; chain position by number
        self.chain_todo = [
            (here, item)
            for here in range(self.last_stage)
            for item in self._chain_of(here % self.count)
        ]
        self.chain: list[Any] | None = None
        self.queue: list[list[Any]] = []
        self.ready: set[tuple[int, int]] = set()
        self.cache: dict[tuple[int, int], int] = {}
        self.landed: dict[tuple[int, int], int] = {}
        self.copies_ended = 0
        self.slots_of = [0] * self.count
        self.held = False
        self.on_channel: list[Any] | None = None
        self.chunk_ends = 0
        self.bytes = 0
        compute = self._compute(run)
        resume_at: int | None = self.now
        waiting: tuple[int, int] | None = None
        while True:
            if self.on_channel is not None and self.chunk_ends == self.now:
                self._chunk_ended()
            while (waiting is not None and waiting in self.ready) or (
                waiting is None and resume_at == self.now
            ):
                try:
                    kind, value = next(compute)
                except StopIteration:
                    return
                waiting = value if kind == "wait" else None
                resume_at = self.now + value if kind == "work" else None
            if self.on_channel is None:
                self._choose()
            times = [t for t in (resume_at,) if t is not None]
            times += [self.chunk_ends] if self.on_channel is not None else []
            assert times, "deadlock"
            self.now = min(times)

    def _chain_of(self, stage: int) -> list[int]:
        choice = self.schedule.stages[stage]
        start = self.problem.stages[stage].start is not None and not choice.start_resident
        return ([-1] if start else []) + list(choice.prefetch)

    def _unit(self, here: int, item: int) -> Unit:
        stage = self.problem.stages[here % self.count]
        found = stage.start if item == -1 else stage.items[item]
        short = self.problem.scenarios.short
        if item == -1 and short is not None and stage.short_starts:
            number = short[self.first_pass + here // self.count]
            found = (stage.start, *stage.short_starts)[number]
        assert found is not None
        return found

    def _compute(self, run: range) -> Iterator[tuple[str, Any]]:
        scenarios = self.problem.scenarios
        for index in run:
            for stage in range(self.count):
                self.here = (index - run.start) * self.count + stage
                choice = self.schedule.stages[stage]
                yield "work", int(scenarios.prologue_ns[index, stage])
                streams = self.problem.stages[stage].start is not None and not choice.start_resident
                if streams:
                    yield "wait", (self.here, -1)
                back = scenarios.start_lead_ns
                longer = 0 if back is None or not streams else int(back[index, stage])
                lacks = len(choice.resident) < len(self.problem.stages[stage].items)
                self.held = lacks and not self.problem.stages[stage].sequential
                yield "work", int(scenarios.lead_ns[index, stage]) + longer
                self.held = False
                if streams:
                    self.free_start += 1
                rows = scenarios.demand[index, stage]
                active = sorted((i for i in range(len(rows)) if rows[i]), key=lambda i: -rows[i])
                ready, demanded = self._router(stage, active)
                hosted_at = self.now
                for item in self._hosted(stage, rows):
                    demanded.remove(item)
                    hosted_at += int(scenarios.host_work_ns[index, stage, item])
                for item in ready:
                    yield "work", int(scenarios.work_ns[index, stage, item])
                    if item not in choice.resident:
                        self._used(stage, item)
                for item in demanded:
                    yield "wait", (self.here, item)
                    yield "work", int(scenarios.work_ns[index, stage, item])
                    self._used(stage, item)
                if hosted_at > self.now:
                    yield "work", hosted_at - self.now
                yield "work", int(scenarios.epilogue_ns[index, stage])
            self.ends.append(self.now)
            self.pass_bytes.append(self.bytes)
            self.bytes = 0

    def _router(self, stage: int, active: list[int]) -> tuple[list[int], list[int]]:
        choice = self.schedule.stages[stage]
        self.chain_todo = [(h, i) for h, i in self.chain_todo if h > self.here]
        partial = self.chain if self.chain is not None and self.chain[1] == self.here else None
        ready, queue = [], []
        for item in active:
            if item in choice.resident or (self.here, item) in self.ready:
                ready.append(item)
            elif (stage, item) in self.cache:
                del self.cache[stage, item]
                ready.append(item)
            elif partial is None or partial[2] != item:
                unit = self._unit(self.here, item)
                queue.append(["demand", self.here, item, unit.chunks, 0, False])
        for item in sorted(i for h, i in self.ready if h == self.here and i not in (*active, -1)):
            self.wasted += self._unit(self.here, item).size_bytes
            self._used(stage, item)
        if partial is not None:
            self.chain = None
            if partial[2] in active:
                partial[0] = "demand"
                queue.insert(0, partial)
            else:
                partial[0] = "dropped"
                self.wasted += partial[4]
                self.free += 1
                self.slots_of[stage] -= 1
        self.queue = queue
        return ready, [copy[2] for copy in queue]

    def _hosted(self, stage: int, rows: Any) -> list[int]:
        """Of the demanded items that have not begun the host takes the last ones."""
        share = self.schedule.host
        if share is None or self.problem.stages[stage].sequential:
            return []
        fresh = [copy for copy in self.queue if not copy[5]]
        few = len(fresh) * share.percent // 100
        taken = [c for c in (fresh[-few:] if few else []) if rows[c[2]] <= share.rows]
        self.queue = [copy for copy in self.queue if copy not in taken]
        return [copy[2] for copy in taken]

    def _used(self, stage: int, item: int) -> None:
        if self.schedule.eviction == "lru":
            self.cache[stage, item] = self.now
        elif self.schedule.eviction == "lifo":
            self.cache[stage, item] = self.landed[stage, item]
        else:
            self.free += 1
            self.slots_of[stage] -= 1

    def _takes(self, stage: int) -> bool:
        """Take a slot for an item of ``stage``, if there is one."""
        victims = dict(self.cache)
        if self.schedule.eviction == "lifo" and self.slots_of[stage] >= self._share():
            victims = {key: age for key, age in victims.items() if key[0] == stage}
        elif self.free:
            self.free -= 1
            self.slots_of[stage] += 1
            return True
        if not victims:
            return False
        way = -1 if self.schedule.eviction == "lifo" else 1
        victim = min(victims, key=lambda key: (way * victims[key], key))
        del self.cache[victim]
        self.slots_of[victim[0]] -= 1
        self.slots_of[stage] += 1
        return True

    def _share(self) -> int:
        streaming = [
            stage
            for stage, choice in zip(self.problem.stages, self.schedule.stages, strict=True)
            if len(choice.resident) < len(stage.items)
        ]
        return max(1, self.schedule.slots // max(1, len(streaming)))

    def _choose(self) -> None:
        copy = None
        if self.queue and (self.queue[0][5] or self._takes(self.queue[0][1] % self.count)):
            copy = self.queue[0]
        if copy is None:
            while self.chain is None and self.chain_todo:
                here, item = self.chain_todo[0]
                if here >= self.here + self.count or self._waits(here):
                    break
                if item == -1:
                    if not self.free_start:
                        break
                    self.free_start -= 1
                elif (here % self.count, item) in self.cache:
                    self.chain_todo.pop(0)
                    continue
                elif self.free + len(self.cache) <= self.schedule.reserve or not self._takes(
                    here % self.count
                ):
                    break
                self.chain_todo.pop(0)
                self.chain = ["chain", here, item, self._unit(here, item).chunks, 0, True]
            copy = None if self.chain and self._waits(self.chain[1]) else self.chain
        if copy is None:
            return
        copy[5] = True
        unit = self._unit(copy[1], copy[2])
        copy[3] -= 1
        size = unit.chunk_bytes if copy[3] else unit.size_bytes - copy[4]
        copy[4] += size
        self.on_channel, self.chunk_size = copy, size
        self.chunk_ends = self.now + (unit.chunk_ns if copy[3] else unit.last_ns)

    def _waits(self, here: int) -> bool:
        """Whether copies for a stage are held back for now."""
        hold = self.schedule.hold
        return self.held and hold is not None and here - self.here > hold

    def _chunk_ended(self) -> None:
        copy, self.on_channel = self.on_channel, None
        assert copy is not None
        self.bytes += self.chunk_size
        if copy[3] or copy[0] == "dropped":
            return
        self.ready.add((copy[1], copy[2]))
        self.landed[copy[1] % self.count, copy[2]] = self.copies_ended = self.copies_ended + 1
        if copy[0] == "demand":
            self.queue.pop(0)
        else:
            self.chain = None


def every_schedule(problem: Problem) -> list[Schedule]:
    """All residents, prefetches in all orders, slots and reserves that the checker accepts.

    But for those that differ in nothing: start slots where no start unit streams, and a reserve
    where nothing is copied ahead. The fewest stand for them, which fit where more do.
    """
    per_stage = []
    for stage in problem.stages:
        options = []
        items = range(len(stage.items))
        for kept in (c for size in range(len(items) + 1) for c in combinations(items, size)):
            rest = [item for item in items if item not in kept]
            for size in range(len(rest) + 1):
                for ahead in permutations(rest, size):
                    for first in (False, True) if stage.start else (False,):
                        options.append(StageChoice(first, kept, ahead))
        per_stage.append(options)
    found = []
    for stages in product(*per_stage):
        pairs = zip(problem.stages, stages, strict=True)
        streams = any(stage.start and not choice.start_resident for stage, choice in pairs)
        ahead = any(choice.prefetch for choice in stages)
        for slots, start_slots in product(range(3), range(3 if streams else 1)):
            for reserve in range(slots + 1) if ahead else (min(slots, 1),):
                schedule = Schedule(stages, slots, start_slots, reserve)
                if not list(check_schedule(problem, schedule)):
                    found.append(schedule)
    return found


def refuses(
    problem: Problem, bound: Bound, index: int, mutant: Proof, best: dict[int, int]
) -> bool:
    """Whether the checker refuses a bound with one of its proofs changed, which proves no more than
    the best by numbers of slots."""
    value, last = proven_ns(problem, mutant), mutant.most_slots
    truth = [
        taken
        for slots, taken in best.items()
        if slots >= mutant.least_slots and (last is None or slots <= last)
    ]
    assert value is None or value <= min(truth, default=value)
    if value is not None and value >= bound.value_ns:
        return False
    others = list(bound.proofs)
    others[index] = mutant
    faults = list(check_proofs(problem, replace(bound, proofs=(*others,))))
    assert [fault.reason for fault in faults] == ["proof_value"]
    return True


@pytest.fixture(scope="session")
def make() -> Any:
    """The helpers of this file."""

    class Make:
        unit = staticmethod(unit)
        scenarios = staticmethod(scenarios_of)
        problem = staticmethod(random_problem)
        schedule = staticmethod(random_schedule)
        hosting = staticmethod(with_host)
        shortening = staticmethod(with_short)
        slow = SlowReplay
        every_schedule = staticmethod(every_schedule)
        refuses = staticmethod(refuses)

    return Make
