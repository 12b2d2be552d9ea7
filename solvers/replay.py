"""Times a schedule on scenarios: the runtime's rules (docs/runtime.md), on a virtual clock.

No solver and no choice in here. Compute is followed event by event; the copy channel is brought up
to date whenever compute changes what it may do, unit by unit rather than chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.foresight import Named, asking, named_ahead
from solvers.outcome import Schedule
from solvers.price import PARTS
from solvers.problem import Problem
from solvers.replay_channel import Channel, CopyPart
from solvers.replay_pace import Credit

__all__ = [
    "CopyPart",
    "Credit",
    "DeadlockError",
    "Named",
    "Replay",
    "StageTimes",
    "measure",
    "objective",
    "replay",
]


class StageTimes(NamedTuple):
    """Compute in one stage of one pass, for the record.

    ``works`` holds (item, wait from, start, end) for each worked item, in order; ``hosted``
    likewise (item, start, end) for those of the host, for whose last compute waits in the end.
    """

    pass_index: int
    stage: int
    begin_ns: int
    prologue_end_ns: int
    start_ready_ns: int
    lead_end_ns: int
    works: tuple[tuple[int, int, int, int], ...]
    end_ns: int
    hosted: tuple[tuple[int, int, int], ...] = ()
    host_wait_ns: int = 0


class DeadlockError(Exception):
    """Compute waits for a copy that can never start: the checker refuses such a schedule."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a schedule does on scenarios.

    Attributes
    ----------
    pass_end_ns
        [passes]: when each pass ends; the first begins at 0.
    wait_start_ns, wait_item_ns
        [passes, stages]: compute idle for start units, and for items.
    busy_ns
        [passes, 4]: the channel copying start units, prefetches, on demand, and items of sequential
        stages (a copy counts where it begins).
    copied_bytes
        [passes]: bytes of the chunks that ended in each pass.
    wasted_bytes
        Bytes of prefetches that were dropped.
    taken_off
        What copies ahead take off the objective (``Problem.price``), in ns / ``PARTS``.
    host_ns, spared_ns
        [passes, stages]: the host at work, and what the same items' work on the device would take.
    stages, copies
        The record, where it was asked for.
    """

    pass_end_ns: npt.NDArray[np.int64]
    wait_start_ns: npt.NDArray[np.int64]
    wait_item_ns: npt.NDArray[np.int64]
    busy_ns: npt.NDArray[np.int64]
    copied_bytes: npt.NDArray[np.int64]
    wasted_bytes: int
    taken_off: int
    host_ns: npt.NDArray[np.int64]
    spared_ns: npt.NDArray[np.int64]
    stages: tuple[StageTimes, ...] = ()
    copies: tuple[CopyPart, ...] = ()

    @property
    def pass_ns(self) -> npt.NDArray[np.int64]:
        """[passes]: duration of each pass."""
        pass_ns = self.pass_end_ns.copy()
        pass_ns[1:] -= self.pass_end_ns[:-1]
        return pass_ns


def replay(
    problem: Problem,
    schedule: Schedule,
    *,
    record: bool = False,
    named: Named | None = None,
    credit: Credit | None = None,
) -> Replay:
    """Run ``schedule`` over all passes of ``problem``.

    Parameters
    ----------
    problem, schedule
        What runs; the schedule has passed the checker.
    record
        Keep every step and copy, for a timeline.
    named
        What predictors say, where prefetches are not only the schedule's; None: what the problem
        says of the stages that look ahead.
    credit
        How far a channel that has rested is ahead of the problem's copy times; each run begins with
        all of it. It is no part of what is solved: objectives and bounds are of the problem's own.

    Raises
    ------
    DeadlockError
        If compute waits for a copy that can never start.
    """
    if named is None:
        named = named_ahead(problem, schedule)
    scenarios = problem.scenarios
    passes, count = scenarios.passes, len(problem.stages)
    streams_start = [
        stage.start is not None and not choice.start_resident
        for stage, choice in zip(problem.stages, schedule.stages, strict=True)
    ]
    residents = [frozenset(choice.resident) for choice in schedule.stages]
    prologue, leads = scenarios.prologue_ns.tolist(), scenarios.lead_ns
    if scenarios.start_lead_ns is not None:
        leads = leads + scenarios.start_lead_ns * np.array(streams_start)
    if scenarios.asking_ns is not None:
        leads = leads.copy()
        asked_of = [*asking(problem, schedule)]
        leads[:, asked_of] += scenarios.asking_ns[:, asked_of]
    lead = leads.tolist()
    epilogue, order = scenarios.epilogue_ns.tolist(), scenarios.order
    ends: list[int] = []
    copied: list[int] = []
    waits_start, waits_item, hosting, spared = (
        [[0] * count for _ in range(passes)] for _ in range(4)
    )
    share, host_work = schedule.host, scenarios.host_work_ns
    busy: list[list[int]] = []
    busy_before = [0, 0, 0, 0]
    stages: list[StageTimes] = []
    parts: list[CopyPart] = []
    wasted = now = bytes_before = ahead = 0
    price = problem.price if schedule.eviction == "none" else None
    copy_ns = problem.copy_ns.tolist()
    run_of = {run.start: run for run in scenarios.runs()} if passes else {}
    first = 0
    channel = Channel(problem, schedule, range(0), 0, record, credit)
    for index in range(passes):
        if index in run_of:
            parts += channel.parts_until(now)
            wasted += channel.wasted_bytes
            bytes_before += channel.ended_bytes(now)
            busy_before = [a + b for a, b in zip(busy_before, channel.busy_ns, strict=True)]
            first = index
            channel = Channel(problem, schedule, run_of[index], now, record, credit)
        for stage in range(count):
            here = (index - first) * count + stage
            begin = now
            now += prologue[index][stage]
            prologue_end = now
            if streams_start[stage]:
                now = _arrived(channel.wait_start(here, now), index, stage, "the start unit")
                waits_start[index][stage] = now - prologue_end
            start_ready = now
            channel.lead_begins(here, now)
            now += lead[index][stage]
            lead_end = now
            active = order[index][stage]
            resident = residents[stage]
            queued = channel.demand_known(here, now, active)
            if price is not None:
                row = copy_ns[stage]
                for item, came in channel.came_ahead:
                    ahead += price.taken_off(index, stage, item, row[item], came)
            if named is not None and (index, stage) in named:
                stages_on, items = named[index, stage]
                channel.expect(here + stages_on, items)
            hosted: list[tuple[int, int, int]] = []
            if share is not None and host_work is not None and not problem.stages[stage].sequential:
                taken = channel.give_to_host(scenarios.demand[index, stage].tolist(), share)
                queued = queued[: len(queued) - len(taken)]
                done = now
                for item in taken:
                    hosted.append((item, done, done + int(host_work[index, stage, item])))
                    done = hosted[-1][2]
                    spared[index][stage] += int(scenarios.work_ns[index, stage, item])
                hosting[index][stage] = done - now
            elsewhere = frozenset(one[0] for one in hosted)
            waiting = frozenset(queued)
            works: list[tuple[int, int, int, int]] = []
            for item, work in active:
                if item in waiting or item in elsewhere:
                    continue
                start = now
                now += work
                if item not in resident:
                    channel.release(stage, item, now)
                if record:
                    works.append((item, start, start, now))
            if queued:
                work_of = dict(active)
                for item in queued:
                    asked = now
                    start = _arrived(channel.wait_item(item, now), index, stage, f"item {item}")
                    waits_item[index][stage] += start - asked
                    now = start + work_of[item]
                    channel.release(stage, item, now)
                    if record:
                        works.append((item, asked, start, now))
            late = max(hosted[-1][2] - now, 0) if hosted else 0
            waits_item[index][stage] += late
            now += late
            now += epilogue[index][stage]
            channel.stage_ended(now)
            if record:
                marks = (begin, prologue_end, start_ready, lead_end)
                one = StageTimes(index, stage, *marks, tuple(works), now, tuple(hosted), late)
                stages.append(one)
        ends.append(now)
        busy.append([a + b for a, b in zip(busy_before, channel.busy_ns, strict=True)])
        copied.append(bytes_before + channel.ended_bytes(now))
    ended = np.array([0, *copied], dtype=np.int64)
    kinds = np.array([[0, 0, 0, 0], *busy], dtype=np.int64)
    return Replay(
        np.array(ends, dtype=np.int64),
        np.array(waits_start, dtype=np.int64).reshape(passes, count),
        np.array(waits_item, dtype=np.int64).reshape(passes, count),
        kinds[1:] - kinds[:-1],
        ended[1:] - ended[:-1],
        wasted + channel.wasted_bytes,
        ahead,
        np.array(hosting, dtype=np.int64).reshape(passes, count),
        np.array(spared, dtype=np.int64).reshape(passes, count),
        tuple(stages),
        (*parts, *channel.parts_until(now)),
    )


def _arrived(at: int | None, index: int, stage: int, what: str) -> int:
    if at is None:
        raise DeadlockError(f"pass {index}, stage {stage}: {what} can never be copied")
    return at


def measure(problem: Problem, result: Replay) -> int:
    """What the problem minimises, summed over the passes by weight: ns, or bytes."""
    if problem.measure == "time":
        each = result.pass_ns
    elif problem.measure == "idle":
        each = (result.wait_start_ns + result.wait_item_ns).sum(axis=1)
    else:
        each = result.copied_bytes
    return int((each * problem.scenarios.weight).sum())


def objective(problem: Problem, schedule: Schedule) -> int:
    """What is minimised: the replay's measure, and the problem's correction."""
    result = replay(problem, schedule)
    total = measure(problem, result)
    if problem.correction_ns is None:
        return total
    total -= -(-result.taken_off // PARTS)
    pairs = zip(problem.correction_ns, schedule.stages, strict=True)
    streams = sum(int(row.sum() - row[list(choice.resident)].sum()) for row, choice in pairs)
    return total + streams
