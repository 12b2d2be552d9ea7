"""The runtime on a virtual clock against the planner's replay, which is other code: every copy and
every computation begins and ends at the same nanosecond."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.units import Unit, Units
from executor.virtual import VirtualResult, VirtualStage, run_virtual
from planner.documents import HostCompute, LayerPolicy, Policy
from solvers.checker import used_bytes
from solvers.errors import RunError
from solvers.outcome import Eviction, HostShare, Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage
from solvers.problem import Unit as ProblemUnit
from solvers.replay import Credit, Named, Replay, replay

CHUNK_BYTES = 4096


@dataclass(frozen=True)
class Case:
    """One random instance, in the solvers' form."""

    problem: Problem
    schedule: Schedule
    named: Named = field(default_factory=dict)
    credit: Credit | None = None
    batches: int = 0

    def place(self, stage: int, item: int = -1) -> tuple[int, int]:
        """Layer and item of a stage's start unit (``item`` -1), or of one of its items."""
        layer, part = divmod(stage, self.batches + 1)
        return layer, part if item < 0 and self.batches else item


def _unit(size_bytes: int, chunk_ns: int) -> ProblemUnit:
    chunks = -(-size_bytes // CHUNK_BYTES)
    last = size_bytes - (chunks - 1) * CHUNK_BYTES
    # the last chunk takes its share of a whole one, rounded up
    last_ns = -(-chunk_ns * last // CHUNK_BYTES)
    return ProblemUnit(size_bytes, size_bytes, chunks, chunk_ns, last_ns, CHUNK_BYTES)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    layers = draw(st.integers(1, 4))
    passes = draw(st.integers(1, 5))
    chunk_ns = draw(st.integers(1, 40))
    sizes = st.integers(1, 5 * CHUNK_BYTES)
    stages: list[Stage] = []
    choices: list[StageChoice] = []
    for _ in range(layers):
        experts = draw(st.integers(0, 6))
        expert = _unit(draw(sizes), chunk_ns)
        start = _unit(draw(sizes), chunk_ns)
        parts = draw(st.sampled_from([0, 2])) * [st.integers(1, start.size_bytes)]
        short = [
            replace(_unit(draw(part), chunk_ns), held_bytes=start.held_bytes) for part in parts
        ]
        stages.append(Stage(start, (expert,) * experts, short_starts=tuple(short)))
        order = draw(st.permutations(range(experts)))
        first = draw(st.integers(0, experts))
        second = draw(st.integers(first, experts))
        looks = draw(st.booleans())
        choices.append(
            StageChoice(
                draw(st.booleans()),
                tuple(sorted(order[:first])),
                tuple(order[first:second]),
                looks,
                looks and draw(st.booleans()),
            )
        )
    tiles = draw(st.integers(1, 4))
    kept = draw(st.integers(0, tiles))
    stages.append(Stage(None, tuple(_unit(draw(sizes), chunk_ns) for _ in range(tiles)), True))
    choices.append(StageChoice(False, tuple(range(kept)), tuple(range(kept, tiles))))
    width = max(tiles, max(len(stage.items) for stage in stages))
    shape = (passes, layers + 1, width)
    demand = np.zeros(shape, dtype=np.int32)
    work = np.zeros(shape, dtype=np.int64)
    durations = st.integers(1, 150)
    for index in range(passes):
        for stage in range(layers):
            for item in range(len(stages[stage].items)):
                demand[index, stage, item] = draw(st.integers(0, 3))
        demand[index, layers, :tiles] = 1
        for stage, item in zip(*np.nonzero(demand[index]), strict=True):
            work[index, stage, item] = draw(durations)
    lead = np.array(draw(st.lists(durations, min_size=passes * (layers + 1), max_size=100)))
    lead = np.resize(lead, (passes, layers + 1)).astype(np.int64)
    lead[:, layers] = 0
    prologue = np.zeros((passes, layers + 1), dtype=np.int64)
    prologue[:, 0] = draw(durations)
    epilogue = np.resize(np.array([3, 0, 11]), (passes, layers + 1)).astype(np.int64)
    weight = np.ones(passes, dtype=np.int64)
    # what a start unit that is not resident adds to a lead: writing back
    back = np.resize(np.array(draw(st.sampled_from([[0], [7, 0, 2]]))), lead.shape).astype(np.int64)
    back[:, layers] = 0
    # and one that a later stage looks ahead from: asking
    ask = np.resize(np.array(draw(st.sampled_from([[0], [5, 0, 3, 11]]))), lead.shape)
    ask = ask.astype(np.int64)
    host, share = None, None
    if draw(st.booleans()):
        share = HostShare(draw(st.integers(1, 3)), draw(st.integers(1, 100)))
        host = np.zeros(shape, dtype=np.int64)
        for at in zip(*np.nonzero(demand), strict=True):
            host[at] = draw(durations)
    scenarios = Scenarios(
        prologue,
        lead,
        demand,
        work,
        epilogue,
        weight,
        start_lead_ns=back if back.any() else None,
        host_work_ns=host,
        short=np.array(draw(st.lists(st.integers(0, 2), min_size=passes, max_size=passes))),
        asking_ns=ask if ask.any() else None,
    )
    slots = draw(st.integers(1, 7))
    eviction: Eviction = draw(st.sampled_from(get_args(Eviction)))
    sizes_of = slots, draw(st.integers(1, 3)), draw(st.integers(1, slots))
    hold = draw(st.sampled_from([None, 0, 1, 2]))
    schedule = Schedule(tuple(choices), *sizes_of, eviction, share, hold)
    named: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
    if draw(st.booleans()):
        for index in range(passes):
            for stage in range(layers - 1):
                there = draw(st.integers(stage + 1, layers - 1))
                order = draw(st.permutations(range(len(stages[there].items))))
                some = draw(st.integers(0, len(order)))
                named[index, stage] = (there - stage, tuple(order[:some]))
    credit = None
    if draw(st.booleans()):
        credit = Credit(draw(st.integers(0, 500)), draw(st.integers(1, 1_000_000)))
    return Case(Problem(tuple(stages), scenarios, 1 << 40, 1 << 20), schedule, named, credit)


@st.composite
def batched_cases(draw: st.DrawFn, least: int = 0) -> Case:
    """The same with a layer as several stages: one a batch, which waits for a copy of its own (of
    nothing at all in some passes) and demands nothing, then its experts, which wait for nothing."""
    case, batches = draw(cases()), draw(st.integers(1, 4))
    problem, schedule, old = case.problem, case.schedule, case.problem.scenarios
    durations, chunk = st.integers(least, 150), draw(st.integers(1, 40))
    stages: list[Stage] = []
    choices: list[StageChoice] = []
    for stage, choice in zip(problem.stages[:-1], schedule.stages[:-1], strict=True):
        for _ in range(batches):
            start = _unit(draw(st.integers(1, 5 * CHUNK_BYTES)), chunk)
            part = _unit(draw(st.integers(1, start.size_bytes)), chunk)
            short = (ProblemUnit(0, start.held_bytes), replace(part, held_bytes=start.held_bytes))
            stages.append(Stage(start, (), short_starts=short))
            choices.append(StageChoice(draw(st.booleans())))
        stages.append(replace(stage, start=None, short_starts=()))
        # nothing is named
        choices.append(replace(choice, start_resident=False, looks_ahead=False, waits=False))
    each, last = batches + 1, len(stages)
    at = [*range(batches, last, each), last]

    def placed(table: np.ndarray) -> np.ndarray:
        made = np.zeros((len(table), last + 1, *table.shape[2:]), dtype=table.dtype)
        made[:, at] = table
        return made

    lead = placed(old.lead_ns)
    for stage in range(last):
        if stage not in at:
            lead[:, stage] = draw(durations)
    back = np.resize(np.array(draw(st.sampled_from([[0], [7, 0, 2]]))), lead.shape)
    back[:, at] = 0
    prologue = np.zeros_like(lead)
    prologue[:, 0] = old.prologue_ns[:, 0]
    scenarios = replace(
        old,
        prologue_ns=prologue,
        lead_ns=lead,
        demand=placed(old.demand),
        work_ns=placed(old.work_ns),
        epilogue_ns=placed(old.epilogue_ns),
        start_lead_ns=back.astype(np.int64),
        host_work_ns=None if old.host_work_ns is None else placed(old.host_work_ns),
        asking_ns=None,
    )
    stages.append(problem.stages[-1])
    choices.append(schedule.stages[-1])
    return replace(
        case,
        problem=problem.replace(stages=tuple(stages), scenarios=scenarios),
        schedule=schedule.replace(stages=tuple(choices)),
        named={},
        batches=batches,
    )


def _host_times(scenarios: Scenarios, index: int, stage: int) -> tuple[tuple[int, int], ...]:
    if scenarios.host_work_ns is None:
        return ()
    return tuple((item, int(ns)) for item, ns in enumerate(scenarios.host_work_ns[index, stage]))


def run_executor(case: Case) -> VirtualResult:
    """The case in the executor's form."""
    problem, schedule, each = case.problem, case.schedule, case.batches + 1
    layers = (len(problem.stages) - 1) // each
    sizes: dict[Unit, int] = {}
    short: list[dict[Unit, int]] = [{}, {}, {}]
    # where batches wait for copies of their own, dense parts are always there
    resident = {Unit(layer, "dense", -1) for layer in range(layers) if case.batches}
    chain = []
    for number, (stage, choice) in enumerate(zip(problem.stages, schedule.stages, strict=True)):
        index, batch = case.place(number)
        kind: Literal["expert", "head"] = "head" if index == layers else "expert"
        for item, unit in enumerate(stage.items):
            sizes[Unit(index, kind, item)] = unit.size_bytes
        resident.update(Unit(index, kind, item) for item in choice.resident)
        ahead = [Unit(index, kind, item) for item in choice.prefetch]
        if stage.start is not None:
            dense = Unit(index, "kv", batch) if case.batches else Unit(index, "dense", -1)
            sizes[dense] = stage.start.size_bytes
            for number, part in enumerate(stage.short_starts, 1):
                short[number][dense] = part.size_bytes
            if choice.start_resident:
                resident.add(dense)
            else:
                ahead.insert(0, dense)
        chain.append(tuple(ahead))
    policy = Policy(
        n_batches=max(case.batches, 1),
        batch_size=1,
        layers=tuple(
            LayerPolicy(choice.start_resident or case.batches > 0, choice.resident, choice.prefetch)
            for choice in schedule.stages[case.batches : -1 : each]
        ),
        head_tile_rows=1,
        head_tiles=len(problem.stages[-1].items),
        resident_head_tiles=len(schedule.stages[-1].resident),
        slots=schedule.slots,
        dense_slots=0 if case.batches else schedule.start_slots,
        reserve=schedule.reserve,
        eviction=schedule.eviction,
        chunk_bytes=CHUNK_BYTES,
        kv="batches" if case.batches else None,
        kv_slots=schedule.start_slots if case.batches else None,
        host=None if schedule.host is None else HostCompute(*schedule.host),
        hold=schedule.hold,
    )
    scenarios = problem.scenarios
    leads = scenarios.lead_ns.copy()
    # the stage with experts before one that looks ahead asks for it
    routed = [at for at, stage in enumerate(problem.stages[:-1]) if stage.items]
    for before, there in pairwise(routed):
        if scenarios.asking_ns is not None and schedule.stages[there].looks_ahead:
            leads[:, before] += scenarios.asking_ns[:, before]
    for stage, choice in enumerate(schedule.stages[:-1]):
        if scenarios.start_lead_ns is not None and not choice.start_resident:
            leads[:, stage] += scenarios.start_lead_ns[:, stage]
    passes = [
        [
            VirtualStage(
                int(scenarios.prologue_ns[index, stage]),
                int(leads[index, stage]),
                tuple(
                    (int(item), int(rows), int(scenarios.work_ns[index, stage, item]))
                    for item, rows in enumerate(scenarios.demand[index, stage])
                    if rows
                ),
                int(scenarios.epilogue_ns[index, stage]),
                case.named.get((index, stage)),
                _host_times(scenarios, index, stage),
            )
            for stage in range(len(problem.stages))
        ]
        for index in range(scenarios.passes)
    ]

    def chunk_ns(unit: Unit, size_bytes: int) -> int:
        starts = unit.kind in ("dense", "kv")
        part = 0 if unit.kind == "head" else unit.item if unit.kind == "kv" else case.batches
        stage = problem.stages[unit.stage * each + part]
        item = stage.start if starts else stage.items[unit.item]
        assert item is not None
        whole = -(-item.chunk_ns * size_bytes // CHUNK_BYTES)
        return item.chunk_ns if size_bytes == CHUNK_BYTES else whole

    waits = frozenset(at for at, choice in enumerate(schedule.stages) if choice.waits)
    units = Units(layers, sizes, frozenset(resident), tuple(chain), waits, case.batches)
    starts = {index: short[number] for index, number in enumerate(scenarios.shortened)}
    return run_virtual(policy, units, passes, chunk_ns, starts, case.credit)


@settings(max_examples=250, deadline=None)
@given(st.one_of(cases(), batched_cases()))
def test_equals_replay(case: Case) -> None:
    want: Replay = replay(
        case.problem, case.schedule, record=True, named=case.named, credit=case.credit
    )
    got = run_executor(case)
    assert list(got.pass_end_ns) == want.pass_end_ns.tolist()
    assert got.wasted_bytes == want.wasted_bytes
    assert got.copied_bytes == int(want.copied_bytes.sum())
    copies: list[tuple[int, ...]] = []
    for part in want.copies:
        at = case.place(part.stage, part.item)
        row = (part.pass_index, *at, part.start_ns, part.end_ns, part.size_bytes)
        last = copies[-1] if copies else (-1,) * 6
        if part.stage == len(case.problem.stages) - 1 and (*last[:3], last[4]) == row[:4]:
            # a tile that was demanded while it was copied is one event for the executor
            row = (*last[:4], row[4], last[5] + row[5])
            copies.pop()
        copies.append(row)
    assert [
        (e.pass_index, e.layer, e.item, e.start_ns, e.end_ns, e.size_bytes) for e in got.copies
    ] == copies
    works = [
        (times.pass_index, *case.place(times.stage, item), start, end)
        for times in want.stages
        for item, _, start, end in times.works
    ]
    assert [
        (e.pass_index, e.layer, e.item, e.start_ns, e.end_ns)
        for e in got.compute
        if e.kind in ("expert", "head")
    ] == works
    hosted = [
        (times.pass_index, *case.place(times.stage, item), start, end)
        for times in want.stages
        for item, start, end in times.hosted
    ]
    assert [(e.pass_index, e.layer, e.item, e.start_ns, e.end_ns) for e in got.host] == hosted
    assert got.served.get("on_host", 0) == len(hosted)
    waits = [
        (times.pass_index, *case.place(times.stage), times.prologue_end_ns, times.start_ready_ns)
        for times in want.stages
        if times.start_ready_ns > times.prologue_end_ns
    ]
    assert [
        (e.pass_index, e.layer, e.item, e.start_ns, e.end_ns)
        for e in got.compute
        if e.kind in ("wait_dense", "wait_kv")
    ] == waits


def held_at_most(case: Case, got: VirtualResult) -> int:
    """The most bytes in residents and slots at once, by the events alone: a start unit has its slot
    from when its copy begins until the lead ends; an item, where nothing is kept, until its work
    ends, or until it is found not to be needed and its last chunk has landed."""
    problem, schedule = case.problem, case.schedule
    kept = 0
    for stage, choice in zip(problem.stages, schedule.stages, strict=True):
        kept += sum(stage.items[item].held_bytes for item in choice.resident)
        if stage.start is not None and choice.start_resident:
            kept += stage.start.held_bytes
    known: dict[tuple[int, int, int], int] = {}
    worked: dict[tuple[int, int, int], int] = {}
    for event in got.compute:
        if event.kind == "attention":
            known[event.pass_index, event.layer, event.item] = event.end_ns
        elif event.kind in ("expert", "head"):
            worked[event.pass_index, event.layer, event.item] = event.end_ns
    copies: dict[tuple[bool, int, int, int], tuple[int, int]] = {}
    for event in got.copies:
        starts = event.kind in ("copy_dense", "copy_kv")
        key = starts, event.pass_index, event.layer, event.item
        copies[key] = copies.get(key, (event.start_ns, 0))[0], event.end_ns
    changes: list[tuple[int, int]] = []
    never = got.pass_end_ns[-1] + 1
    for (starts, index, layer, item), (begin, landed) in copies.items():
        end = known.get((index, layer, item if starts else -1), never)
        if starts:
            start = problem.stages[layer * (case.batches + 1) + max(item, 0)].start
            assert start is not None
            size = start.held_bytes
        elif schedule.eviction == "none":
            size = problem.slot_bytes
            end = worked.get((index, layer, item), max(end, landed))
        else:
            continue
        changes += [(begin, size), (end, -size)]
    most = now = 0
    for _, size in sorted(changes):  # what ends at a time makes room for what begins then
        now += size
        most = max(most, now)
    return kept + most


@settings(max_examples=1_000, deadline=None)
@given(st.one_of(cases(), batched_cases(least=1)))
def test_memory_is_never_more_than_the_checker_counts(case: Case) -> None:
    assert held_at_most(case, run_executor(case)) <= used_bytes(case.problem, case.schedule)


def test_by_hand() -> None:
    """One layer, one tile. The dense part (1 chunk of 10 ns) is resident; experts 0, 1, 2 take 2
    chunks each; expert 0 is prefetched, one slot of two is in reserve.

    Pass 0: the chain copies expert 0 in 0..20. embed ends at 5, the router at 5 + 25 = 30: experts
    2 (3 rows), 0 (2 rows) and 1 (1 row) are active. 0 is ready: computed 30..40. The queue is 2, 1.
    2 is copied 30..50 into the reserve, 1 follows in 50..70 into the slot that 0 left at 40.
    2 is computed 50..57, 1 after its copy 70..71; combine 71..73. The tile is resident: 73..80,
    sample 80..81.
    """
    expert = ProblemUnit(2 * CHUNK_BYTES, 0, 2, 10, 10, CHUNK_BYTES)
    tile = ProblemUnit(CHUNK_BYTES, 0, 1, 0, 10, CHUNK_BYTES)
    demand = np.zeros((1, 2, 3), dtype=np.int32)
    demand[0, 0], demand[0, 1, 0] = [2, 1, 3], 1
    work = np.zeros((1, 2, 3), dtype=np.int64)
    work[0, 0], work[0, 1, 0] = [10, 1, 7], 7
    scenarios = Scenarios(
        np.array([[5, 0]]),
        np.array([[25, 0]]),
        demand,
        work,
        np.array([[2, 1]]),
        np.ones(1, dtype=np.int64),
    )
    stages = (Stage(tile, (expert,) * 3), Stage(None, (tile,), True))
    schedule = Schedule((StageChoice(True, (), (0,)), StageChoice(False, (0,), ())), 2, 0, 1)
    got = run_executor(Case(Problem(stages, scenarios, 1 << 40, 1 << 20), schedule))
    assert [(e.kind, e.item, e.start_ns, e.end_ns) for e in got.compute] == [
        ("embed", -1, 0, 5),
        ("attention", -1, 5, 30),
        ("expert", 0, 30, 40),
        ("wait_expert", 2, 40, 50),
        ("expert", 2, 50, 57),
        ("wait_expert", 1, 57, 70),
        ("expert", 1, 70, 71),
        ("combine", -1, 71, 73),
        ("head", 0, 73, 80),
        ("sample", -1, 80, 81),
    ]
    assert [(e.kind, e.item, e.start_ns, e.end_ns) for e in got.copies] == [
        ("copy_prefetch", 0, 0, 20),
        ("copy_demand", 2, 30, 50),
        ("copy_demand", 1, 50, 70),
    ]


def test_named_by_hand() -> None:
    """Two layers of three experts of two chunks of 10 ns; slots enough, one in reserve. The plan
    prefetches 0 and 1 of layer 1; layer 0 needs its expert 0, and once it is routed, at 15, a
    predictor names 2 and 1.

    The chain has nothing in layer 0 and begins with 0 of layer 1: 0..20. The router of layer 0
    speaks at 15 (5 + 10): 0 has begun and stays, of those named the first takes the place of 1. The
    demanded 0 of layer 0 goes before: 20..40. Then 2 of layer 1: 40..60. Layer 0 computes 40..50;
    layer 1 is routed at 60 and needs 1 and 2: 2 is there (a copy that ends at 60 counts), 0 was in
    vain (two chunks), 1 is demanded: 60..80.
    """
    expert = ProblemUnit(2 * CHUNK_BYTES, 0, 2, 10, 10, CHUNK_BYTES)
    tile = ProblemUnit(CHUNK_BYTES, 0, 1, 0, 10, CHUNK_BYTES)
    demand = np.zeros((1, 3, 3), dtype=np.int32)
    demand[0, 0, 0] = demand[0, 1, 1] = demand[0, 1, 2] = demand[0, 2, 0] = 1
    scenarios = Scenarios(
        np.array([[5, 0, 0]]),
        np.array([[10, 10, 0]]),
        demand,
        demand.astype(np.int64) * 10,
        np.array([[0, 0, 1]]),
        np.ones(1, dtype=np.int64),
    )
    stages = (Stage(tile, (expert,) * 3), Stage(tile, (expert,) * 3), Stage(None, (tile,), True))
    choices = (StageChoice(True), StageChoice(True, (), (0, 1)), StageChoice(False, (0,), ()))
    problem = Problem(stages, scenarios, 1 << 40, 1 << 20)
    case = Case(problem, Schedule(choices, 6, 0, 1), {(0, 0): (1, (2, 1))})
    got = run_executor(case)
    assert [(e.kind, e.layer, e.item, e.start_ns, e.end_ns) for e in got.copies] == [
        ("copy_prefetch", 1, 0, 0, 20),
        ("copy_demand", 0, 0, 20, 40),
        ("copy_prefetch", 1, 2, 40, 60),
        ("copy_demand", 1, 1, 60, 80),
    ]
    assert got.wasted_bytes == 2 * CHUNK_BYTES
    assert got.served == {"on_demand": 2, "prefetched": 1}
    assert replay(problem, case.schedule, named=case.named).wasted_bytes == got.wasted_bytes


@pytest.mark.parametrize(("hold", "router", "end"), [(None, 47, 62), (1, 47, 62), (0, 45, 60)])
def test_held_back_by_hand(hold: int | None, router: int, end: int) -> None:
    """Two layers of one expert and one chunk of 10 ns; the first one's streams, and of the second
    one the dense part, of two chunks. Leads of 10, works of 7.

    embed ends at 5, the first router speaks at 15. The chain has the dense part alone: from 0 on.
    If its second chunk may begin in the lead, it ends at 20; the expert is copied 20..30, computed
    30..37, and the second router speaks at 47. If not, the channel rests from 10 to 15; the expert
    comes first, 15..25, the second chunk then, 25..35: the lead begins at 35, and the second router
    speaks at 45. What the next layer needs is held back with 0 only. Behind that router 7 ns of an
    expert, 7 of a tile and 1 of sampling.
    """
    chunk = ProblemUnit(CHUNK_BYTES, 0, 1, 10, 10, CHUNK_BYTES)
    long = ProblemUnit(2 * CHUNK_BYTES, 0, 2, 10, 10, CHUNK_BYTES)
    demand = np.ones((1, 3, 1), dtype=np.int32)
    scenarios = Scenarios(
        np.array([[5, 0, 0]]),
        np.array([[10, 10, 0]]),
        demand,
        demand.astype(np.int64) * 7,
        np.array([[0, 0, 1]]),
        np.ones(1, dtype=np.int64),
    )
    stages = (Stage(chunk, (chunk,)), Stage(long, (chunk,)), Stage(None, (chunk,), True))
    choices = (StageChoice(True), StageChoice(False, (0,)), StageChoice(False, (0,)))
    problem = Problem(stages, scenarios, 1 << 40, 1 << 20)
    schedule = Schedule(choices, 1, 1, 1, hold=hold)
    got = run_executor(Case(problem, schedule))
    assert [e.end_ns for e in got.compute if e.kind == "attention"] == [15, router]
    assert got.pass_end_ns == (end,)
    assert replay(problem, schedule).pass_end_ns.tolist() == [end]
    later = [e for e in got.copies if e.kind == "copy_dense" and e.start_ns > 0]
    assert [(e.start_ns, e.end_ns) for e in later] == ([(25, 35)] if hold == 0 else [])


def test_standstill_is_an_error() -> None:
    """Without a slot for dense parts nothing can ever be copied."""
    unit = ProblemUnit(CHUNK_BYTES, 0, 1, 0, 10, CHUNK_BYTES)
    scenarios = Scenarios(
        *(np.array([[1, 0]]),) * 2,
        np.array([[[0], [1]]], dtype=np.int32),
        np.array([[[0], [1]]]),
        np.array([[1, 1]]),
        np.ones(1, dtype=np.int64),
    )
    stages = (Stage(unit, ()), Stage(None, (unit,), True))
    schedule = Schedule((StageChoice(), StageChoice(False, (0,), ())), 0, 0, 0)
    with pytest.raises(RunError, match="can never be copied"):
        run_executor(Case(Problem(stages, scenarios, 1 << 40, 1 << 20), schedule))
