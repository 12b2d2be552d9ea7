"""Credit of a drive that has rested: a burst at its own speed, then the rate that it is held to.

A kernel's throttle and many rented disks are token buckets. A profile's copies then come from the
burst or from what follows as it happens, and a run's in another mix; so both are measured apart.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from executor.schedule import Schedule
from executor.source import WeightSource
from planner.documents import Burst, Figure
from planner.smallest import CHUNK_BYTES
from profiler.bench import Bench
from profiler.curves import figure
from profiler.layout import BenchPlan, copying
from profiler.link import LinkFit, copies_alone
from profiler.others import quietly
from profiler.tasks import Task

__all__ = ["Lasting", "Rested", "Stream", "lasting", "lasting_rate", "settled", "stream"]

_REST_SECONDS = 0.3
_ENOUGH = 3
"""So many streams must show the same burst, of five at most."""

_LASTING = 1 / 3
"""From this share of a stream on the credit is spent; a deeper one does not show as credit."""
_LEAST_RATIO = 1.15
_LEAST_DEPTH_SECONDS = 0.003
"""A shallower one is what queues and caches do to the first reads."""
_ALIKE_RATES, _ALIKE_DEPTHS = 1.07, 1.6
"""A burst over the middle one of several, or the other way round."""
_STEP_SECONDS = 0.001
_AHEAD = 0.95
"""Of what a stream is ahead of its lasting rate over time the quantile that is the depth."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """Reads without a pause, after a rest.

    Attributes
    ----------
    end_ns
        When each ended, from the first one's beginning.
    read_bytes
        All that had been read by then.
    """

    end_ns: tuple[int, ...]
    read_bytes: tuple[float, ...]


class Lasting(NamedTuple):
    """What a link does once its credit is spent, and the credit."""

    bandwidth: Figure
    burst: Burst


class _Found(NamedTuple):
    """Of one stream, in bytes and seconds."""

    rate: float
    depth: float
    peak: float


def stream(bench: Bench, order: Random, least_ns: int) -> Stream:
    """Copy experts without a pause, by the executor's own read path, with nothing beside.

    Parameters
    ----------
    bench
        As for ``profiler.link.copies_alone``; its own channel is at rest.
    order
        Chooses the experts.
    least_ns
        How long.
    """
    policy, units, device = bench.plan.policy, bench.device.units, bench.device
    experts = sorted(unit for unit in units.sizes if unit.kind == "expert")
    count = min(policy.slots - policy.reserve, len(experts))
    raw = any(layer.raw for layer in policy.layers)
    share = 1.0 if raw else bench.model.stored_share("expert")
    ends: list[int] = []
    read: list[float] = []
    total = 0.0
    begin = now = time.perf_counter_ns()
    while now - begin < least_ns:
        chosen = tuple(order.sample(experts, count))
        chain = (chosen, *((),) * bench.plan.layers)
        schedule = Schedule(policy, dataclasses.replace(units, chain=chain), 1)
        chunk = schedule.next_chunk()
        while chunk is not None and now - begin < least_ns:
            device.copy(chunk, schedule.following)
            schedule.chunk_copied()
            now = time.perf_counter_ns()
            total += chunk.size_bytes * share
            ends.append(now - begin)
            read.append(total)
            chunk = schedule.next_chunk()
    return Stream(tuple(ends), tuple(read))


@dataclasses.dataclass(slots=True)
class Rested:
    """Streams of a drive that had rested; ``raw``: of experts as they are, of a store that has them
    compressed, too."""

    plain: list[Stream] = dataclasses.field(default_factory=list)
    raw: list[Stream] = dataclasses.field(default_factory=list)

    def tasks(
        self,
        source: WeightSource,
        memory_bytes: int,
        make_bench: Callable[[BenchPlan], Bench],
        order: Random,
        stream_ns: int,
        most: int,
    ) -> list[Task]:
        """Read them: at most so many of each link, on a drive without bursts no more than it takes
        to see that. None where the budget holds no bench.

        Parameters
        ----------
        source, memory_bytes, make_bench, order
            As of ``profiler.measure.Measurement``.
        stream_ns, most
            How long each lasts, and how many there are.
        """
        tasks = []
        for raw in (False, True) if source.both else (False,):
            plans = (copying(source.model, memory_bytes, chunk, raw=raw) for chunk in CHUNK_BYTES)
            plan = next(filter(None, plans), None)
            if plan is None:
                continue

            def run(
                plan: BenchPlan = plan, into: list[Stream] = self.raw if raw else self.plain
            ) -> None:
                with make_bench(plan) as bench:
                    # first touches of the slots' pages, which a run has behind it
                    copies_alone(bench, order)

                    def rested() -> Stream:
                        time.sleep(_REST_SECONDS)
                        return stream(bench, order, stream_ns)

                    while len(into) < most and not settled(into):
                        # a reader that waits for its core is not at the drive's own speed
                        into.append(quietly(rested))

            estimate = _ENOUGH * (stream_ns + round(_REST_SECONDS * 1e9))
            tasks.append(Task("reads after a rest", estimate, run))
        return tasks

    def spent(self, fit: LinkFit, *, raw: bool = False) -> LinkFit:
        """Copies as they are once the credit is spent, where there is one: at a rate that does not
        ask how many chunks there are, since what a chunk takes to begin is gained as credit."""
        found = lasting(self.raw if raw else self.plain)
        if found is None:
            return fit
        none = Figure(0.0, "fitted", None, found.bandwidth.samples)
        return dataclasses.replace(
            fit, bandwidth_bytes_per_second=found.bandwidth, latency_ns=none, burst=found.burst
        )


def lasting(streams: Sequence[Stream]) -> Lasting | None:
    """The rate that lasts and the burst before it; None unless enough streams agree on it."""
    found = _alike(_bursts(streams))
    if len(found) < _ENOUGH:
        return None
    rates, depths, peaks = zip(*found, strict=True)
    burst = Burst(figure(peaks, "fitted"), figure(depths, "fitted"))
    return Lasting(figure(rates, "fitted"), burst)


def _alike(found: list[_Found]) -> list[_Found]:
    """Those that are near the middle one in depth: others were disturbed."""
    depth = median(one.depth for one in found) if found else 0.0
    return [one for one in found if max(one.depth / depth, depth / one.depth) < _ALIKE_DEPTHS]


def settled(streams: Sequence[Stream]) -> bool:
    """Whether more of them would say nothing new: enough show a burst, or none of two that agree
    on their rate, or of three."""
    found, rates = _bursts(streams), [rate for one in streams if (rate := lasting_rate(one))]
    if found or len(streams) < 2:
        return len(_alike(found)) >= _ENOUGH
    return len(streams) > 2 or not rates or max(rates) < _ALIKE_RATES * min(rates)


def lasting_rate(one: Stream) -> float | None:
    """Bytes/s of a stream once its credit is spent; None of one that is too short to tell.

    A throttle may let through a slice's worth at once, and then nothing until the next slice. So
    this is a line by weighted least squares, with weights that fade out at both ends, whatever
    slice it ends in.
    """
    at, read = _lasting_part(one)
    if len(at) < 3:
        return None
    weights = np.sin(np.pi * (at - at[0]) / (at[-1] - at[0])) ** 2
    far = at - np.average(at, weights=weights)
    rate = float((weights * far * read).sum() / (weights * far**2).sum())
    return rate if rate > 0 else None


def _lasting_part(one: Stream) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Moments, evenly spaced, of a stream once its credit is spent, and the bytes read by then."""
    ends = np.array(one.end_ns, dtype=np.float64) / 1e9
    last = ends[-1] if len(ends) else 0.0
    at = np.arange(_LASTING * last, last, _STEP_SECONDS)
    return at, np.concatenate([[0.0], one.read_bytes])[np.searchsorted(ends, at, side="right")]


def _bursts(streams: Sequence[Stream]) -> list[_Found]:
    """The token buckets that explain the streams that show one: bytes(t) = min(peak t, depth +
    rate t), with the median of all rates. Streams that are not near that were disturbed.

    The depth is what a stream is ahead of that rate at its best: of the kernel's slices, which a
    stream without a pause spends at their beginnings, those that compute in between have all of one
    at any time. (With half of it a plan that reads 0.78 GB/s of 0.8 was predicted 16% slower than
    it ran.)
    """
    rates = [lasting_rate(one) for one in streams]
    known = [rate for rate in rates if rate is not None]
    found = []
    for one, own in zip(streams, rates, strict=True):
        rate = median(known) if known else 0.0
        if own is None or max(own / rate, rate / own) >= _ALIKE_RATES:
            continue
        at, by_then = _lasting_part(one)
        depth = float(np.quantile(by_then - rate * at, _AHEAD))
        if depth < rate * _LEAST_DEPTH_SECONDS:
            continue
        ends, read = np.array(one.end_ns) / 1e9, np.array(one.read_bytes)
        first = np.flatnonzero(read >= depth + rate * ends)[:1]
        peak = float((read[first] / ends[first]).sum())
        if peak >= _LEAST_RATIO * rate:
            found.append(_Found(own, depth, peak))
    return found
