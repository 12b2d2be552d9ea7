"""From a schedule and its scenarios to what a plan promises: rates, totals, timeline."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from planner.computing import computing_share
from planner.credit import credit_of
from planner.documents import Event, Predicted, PredictedTotals, Slowdown, Timeline
from planner.encode import Encoding
from planner.factors import Factors
from planner.interval import rate, relative_error
from planner.overlap import is_raw
from planner.scenarios import PassShape
from planner.sides import embedded, parts_of
from solvers.foresight import asking
from solvers.outcome import Schedule
from solvers.problem import Problem
from solvers.replay import Replay, StageTimes, replay

__all__ = ["Judged", "predict"]

_MOST_EVENTS = 4_000


@dataclass(frozen=True, eq=False)
class Judged:
    """Scenarios that a plan is judged on, and the passes that they are.

    ``shapes`` are those of one run; ``problem`` holds several runs of them.
    """

    encoding: Encoding
    problem: Problem
    shapes: tuple[PassShape, ...]
    factors: Factors

    @property
    def runs(self) -> int:
        """Runs of the whole workload that the scenarios hold."""
        return self.problem.scenarios.passes // len(self.shapes)

    def phase(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """[passes]: which of them are of this phase."""
        one = np.array([shape.phase == name for shape in self.shapes])
        return np.tile(one, self.runs)


def predict(judged: Judged, schedule: Schedule, replayed: Replay | None = None) -> Predicted:
    """Replay ``schedule`` on the judging scenarios and add up what the whole workload takes;
    ``replayed`` is that replay, without a record, where it was made already.

    A link's credit counts, other than in objectives and bounds. Each pass counts as often as it
    stands for passes of the workload; runs are averaged. The interval around a rate is
    ``planner.interval``'s.
    """
    workload = judged.encoding.workload
    scenarios = judged.problem.scenarios
    credit, record = credit_of(judged.encoding), _mixed(judged.encoding)
    result = replayed
    if result is None or record:
        result = replay(judged.problem, schedule, record=record, credit=credit)
    weight = scenarios.weight
    pass_ns = result.pass_ns
    runs = judged.runs
    prefill, decode = judged.phase("prefill"), judged.phase("decode")
    prefill_ns = int((pass_ns * weight)[prefill].sum()) // runs
    decode_ns = int((pass_ns * weight)[decode].sum()) // runs
    wall_ns = prefill_ns + decode_ns
    by_kind = _by_kind(judged, result, schedule)
    totals = PredictedTotals(
        wall_ns=wall_ns,
        prefill_ns=prefill_ns,
        decode_ns=decode_ns,
        bytes_read=_read_bytes(judged, result),
        bubble_inter_layer_ns=by_kind["wait_dense"] + by_kind["wait_kv"],
        bubble_intra_layer_ns=by_kind["wait_expert"] + by_kind["wait_head"],
        duration_by_kind_ns={kind: total for kind, total in by_kind.items() if total},  # type: ignore[misc]
    )
    per_run = (pass_ns * weight).reshape(runs, -1)
    encoding = judged.encoding
    computing = computing_share(judged.problem, schedule, credit)
    spread = relative_error(encoding.profile.costs, encoding.link, by_kind, wall_ns, computing)
    new_tokens = workload.requests * workload.new_tokens
    decoded = workload.requests * (workload.new_tokens - 1)
    decode_runs = per_run[:, decode[: len(judged.shapes)]].sum(axis=1)
    return Predicted(
        tokens_per_second=rate(new_tokens, wall_ns, per_run.sum(axis=1), spread),
        decode_tokens_per_second=rate(decoded, decode_ns, decode_runs, spread),
        time_to_first_token_ns=int(pass_ns[list(scenarios.run_starts)].mean()),
        totals=totals,
        timeline=_timeline(judged, schedule),
        slowdown=Slowdown(*judged.factors),
        credit_ns=None if credit is None else credit.depth_ns,
    )


def _read_bytes(judged: Judged, result: Replay) -> int:
    """Bytes that a run reads for what it copies, of which a compressed store has fewer.

    A kind's share of them is known by its time, which goes by the bytes read; where one kind is
    compressed and not, by each copy.
    """
    stored = judged.encoding.profile.model.stored
    if _mixed(judged.encoding):
        return _read_by_copy(judged, result)
    copied = int((result.copied_bytes * judged.problem.scenarios.weight).sum()) // judged.runs
    if stored is None:
        return copied
    busy = (result.busy_ns * judged.problem.scenarios.weight[:, None]).sum(axis=0)
    share = np.array([stored.dense, stored.expert, stored.expert, stored.head])
    whole = float((busy / share).sum())
    return round(copied * float(busy.sum()) / whole) if whole else copied


def _mixed(encoding: Encoding) -> bool:
    """Whether copies of one kind bring what is compressed and what is not."""
    return bool(encoding.raw) or (
        encoding.kv is not None and encoding.profile.model.stored is not None
    )


def _read_by_copy(judged: Judged, result: Replay) -> int:
    """Bytes read, one copy of the record after the other."""
    encoding, weight = judged.encoding, judged.problem.scenarios.weight
    model, last = encoding.profile.model, len(judged.problem.stages) - 1
    total = 0.0
    for part in result.copies:
        share, index = 1.0, min(part.pass_index, len(weight) - 1)
        if encoding.kv == "batches" and part.kind == "start":
            pass  # keys and values are never compressed
        elif part.kind == "start":
            columns = encoding.kept.columns(judged.shapes[index % len(judged.shapes)])
            whole = encoding.kept.start_bytes(part.stage, columns)
            share = encoding.kept.read_bytes(part.stage, whole) / whole
        elif part.stage == last:
            share = model.stored_share("head")
        elif not is_raw(encoding, part.stage, part.item):
            share = model.stored_share("expert")
        total += share * part.size_bytes * int(weight[index])
    return round(total / judged.runs)


def _streams(schedule: Schedule) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[stages]: whether a start unit is copied (the last stage has none)."""
    return np.array([not choice.start_resident for choice in schedule.stages])


def _by_kind(judged: Judged, result: Replay, schedule: Schedule) -> Counter[str]:
    """Time of each kind over the whole workload, computation, copies and waits."""
    encoding, scenarios = judged.encoding, judged.problem.scenarios
    weight = scenarios.weight
    total: Counter[str] = Counter()
    leads: dict[tuple[PassShape, tuple[bool, ...]], Counter[str]] = {}
    for shape in judged.shapes:
        for layer in encoding.profile.model.layers:
            parts = parts_of(encoding.profile.model, layer.index)
            if (shape, parts) not in leads:
                one: Counter[str] = Counter()
                steps = encoding.lead(shape, layer.index, judged.factors.of(shape.phase)).steps
                for kind, _, _, duration in steps:
                    one[kind] += duration
                leads[shape, parts] = one
            for kind, duration in leads[shape, parts].items():
                total[kind] += duration * shape.weight
    runs = judged.runs

    def add(kind: str, per_pass: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        total[kind] += int((per_pass * weight).sum()) // runs

    if scenarios.start_lead_ns is not None:
        add("write_kv", scenarios.start_lead_ns[:, _streams(schedule)].sum(axis=1))
    if scenarios.asking_ns is not None:
        add("router", scenarios.asking_ns[:, [*asking(judged.problem, schedule)]].sum(axis=1))
    work = scenarios.work_ns.sum(axis=2)
    add("embed", scenarios.prologue_ns.sum(axis=1))
    add("expert", (work - result.spared_ns)[:, :-1].sum(axis=1))
    add("host_expert", result.host_ns.sum(axis=1))
    add("head", work[:, -1])
    add("combine", scenarios.epilogue_ns[:, :-1].sum(axis=1))
    add("sample", scenarios.epilogue_ns[:, -1])
    start = _start_kind(encoding)
    add(f"wait_{start}", result.wait_start_ns.sum(axis=1))
    add("wait_expert", result.wait_item_ns[:, :-1].sum(axis=1))
    add("wait_head", result.wait_item_ns[:, -1])
    for index, kind in enumerate((start, "prefetch", "demand", "head")):
        add(f"copy_{kind}", result.busy_ns[:, index])
    return total


def _start_kind(encoding: Encoding) -> str:
    """What start units are called in a timeline."""
    return "dense" if encoding.grid.each == 1 else "kv"


def _timeline(judged: Judged, schedule: Schedule) -> Timeline:
    """The first run's first passes, event by event, as many as a few thousand events hold."""
    problem = judged.problem
    one = problem.replace(scenarios=problem.scenarios.take_runs(1))
    result = replay(one, schedule, record=True, credit=credit_of(judged.encoding))
    # passes that form a ring are one run, so more than one of them may have been replayed
    stages = [times for times in result.stages if times.pass_index < len(judged.shapes)]
    streams, asked = _streams(schedule), asking(problem, schedule)
    events = [
        event
        for times in stages
        for event in _computed(judged, times, bool(streams[times.stage]), times.stage in asked)
    ]
    kinds = {"start": _start_kind(judged.encoding), "dropped": "prefetch"}
    events += [event for times in stages for event in _hosted(problem, times)]
    grid, name, last = judged.encoding.grid, judged.encoding.link.name, len(problem.stages) - 1
    for part in result.copies:
        kind = "head" if part.stage == last else kinds.get(part.kind, part.kind)
        item = max(part.item, grid.batch(part.stage))
        at = part.pass_index, grid.layer(part.stage), item
        if part.size_bytes:
            times = part.start_ns, part.end_ns
            events.append(Event(f"copy_{kind}", name, *at, *times, 0, part.size_bytes))
    kept = 1
    for kept in range(len(judged.shapes), 0, -1):
        end = int(result.pass_end_ns[kept - 1])
        inside = [event for event in events if event.end_ns <= end]
        if len(inside) <= _MOST_EVENTS:
            break
    inside.sort(key=lambda event: (event.start_ns, event.channel, event.end_ns))
    return Timeline.of(inside[:_MOST_EVENTS])


def _hosted(problem: Problem, times: StageTimes) -> list[Event]:
    """The events of one stage on the host."""
    demand = problem.scenarios.demand[times.pass_index, times.stage]
    at = times.pass_index, times.stage
    return [
        Event("host_expert", "cpu", *at, item, start, end, int(demand[item]), 0)
        for item, start, end in times.hosted
        if end > start
    ]


def _computed(judged: Judged, times: StageTimes, streams: bool, asks: bool) -> list[Event]:
    """The events of one stage, whose start unit may be copied, and whose tokens may be asked of the
    next router, on the compute channel."""
    shape = judged.shapes[times.pass_index]
    encoding, grid = judged.encoding, judged.encoding.grid
    last = len(judged.problem.stages) - 1
    stage, layer = times.stage, grid.layer(times.stage)
    batch = grid.batch(stage)
    tokens = encoding.rows(shape, layer) if stage < last else shape.sequences
    events: list[Event] = []

    def add(kind: str, item: int, start: int, end: int, rows: int) -> None:
        at = -1 if kind == "embed" else layer
        size = 0
        if kind == "write_kv":
            size = encoding.kept.written(shape, layer, None if batch < 0 else batch).size_bytes
        events.append(Event(kind, "compute", times.pass_index, at, item, start, end, rows, size))

    if stage == 0:
        fed = embedded(encoding.profile.model, shape)
        add("embed", -1, times.begin_ns, times.prologue_end_ns, fed)
    if times.start_ready_ns > times.prologue_end_ns:
        add(f"wait_{_start_kind(encoding)}", batch, times.prologue_end_ns, times.start_ready_ns, 0)
    now = times.start_ready_ns
    if stage < last:
        more = encoding.asking_ns(shape, layer, judged.factors.of(shape.phase)) if asks else 0
        for kind, item, rows, duration in _lead(judged, shape, stage, streams):
            duration += more if kind == "router" else 0
            add(kind, item, now, now + duration, rows)
            now += duration
    demand = judged.problem.scenarios.demand[times.pass_index, stage]
    for item, asked, start, end in times.works:
        if start > asked:
            add("wait_head" if stage == last else "wait_expert", item, asked, start, 0)
        rows = int(demand[item])
        add("head" if stage == last else "expert", item, start, end, rows)
        now = end
    if times.host_wait_ns:
        item = times.hosted[-1][0]
        add("wait_expert", item, now, now + times.host_wait_ns, 0)
        now += times.host_wait_ns
    if stage == last:
        add("sample", -1, now, times.end_ns, shape.sequences)
    elif batch < 0 and tokens and encoding.profile.model.layers[layer].experts:
        add("combine", -1, now, times.end_ns, tokens)
    return events


def _lead(
    judged: Judged, shape: PassShape, stage: int, streams: bool
) -> list[tuple[str, int, int, int]]:
    """What a stage computes before its demand is known, as ``LeadTimes`` has it."""
    encoding, grid = judged.encoding, judged.encoding.grid
    layer, batch = grid.layer(stage), grid.batch(stage)
    steps = list(encoding.lead(shape, layer, judged.factors.of(shape.phase)).steps)
    which = None
    if grid.each > 1:
        which = batch
        steps = [one for one in steps if (one[1] if one[0] == "attention" else -1) == batch]
    if not streams or not steps or (batch < 0 and grid.each > 1):
        return steps
    wrote = encoding.write_kv_ns(shape, layer, judged.factors, which)
    if wrote:
        own = [step for step in steps if step[0] == "attention"]
        steps.insert(len(own), ("write_kv", batch, sum(step[2] for step in own), wrote))
    return steps
