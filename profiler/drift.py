"""What a plan's prediction would be on the machine as it is now: the drift monitor's correction.

A disk may do twice as much in one hour as in another, and cores have neighbours. Fixed operations
beside a run, the same as while profiling, say how much longer things take by now: a product that
fits the caches, which every run times, and copies of experts, which ``link_ratio`` makes. Nothing
of the run itself is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from executor.backends import make_backend
from executor.source import open_weights
from planner.documents import CostProfile, Hardware, Plan, Predicted, Surface
from planner.encode import schedule_of
from planner.predict import predict
from planner.profiles import Profile
from planner.recompute import candidate_of
from profiler.bench import Tokens
from profiler.burst import lasting_rate
from profiler.correct import scaled_channel, scaled_curve, scaled_surface
from profiler.effort import Effort
from profiler.measure import Measurement

__all__ = ["Drift", "drifted", "link_ratio", "predicted_now"]

_MOMENT = Effort(fills=1)


@dataclass(frozen=True, slots=True)
class Drift:
    """How many times as long things take as while profiling.

    Attributes
    ----------
    compute
        Of the fixed product.
    copies
        Of copies of experts alone on the link.
    """

    compute: float
    copies: float


def link_ratio(profile: Profile, chunk_bytes: int) -> float | None:
    """Copies of experts for a moment, over what the profile says of them.

    Parameters
    ----------
    profile
        What was measured; its budget is used for as long as this takes.
    chunk_bytes
        Piece of a copy, as a plan has it.

    Returns
    -------
    float or None
        None where the budget does not hold a bench with such pieces.

    Raises
    ------
    InputError
        If the checkpoint or store is missing or damaged.
    """
    index, (channel, *_) = profile.index, profile.hardware.channels
    store = None if index.store is None else Path(index.store)
    with open_weights(Path(index.checkpoint), store) as source:
        measurement = Measurement(
            source,
            index.memory_bytes,
            Tokens([0], profile.model.vocab_size),
            channel.paced_bytes_per_second,
            _MOMENT,
            make_backend(profile.hardware.device, link="h2d" if channel.name == "h2d" else "disk"),
        )
        for task in (
            measurement.link_tasks(chunk_bytes)
            if channel.burst is None
            else measurement.burst_tasks(most=2)
        ):
            task.run()
    if channel.burst is not None:
        # what lasts: copies of a moment may be the burst's
        rates = [rate for one in measurement.rested.plain if (rate := lasting_rate(one))]
        return channel.bandwidth_bytes_per_second.value / median(rates) if rates else None
    expected = sum(channel.alone_ns(copy.size_bytes, copy.chunks) for copy in measurement.copies)
    took = sum(copy.duration_ns for copy in measurement.copies)
    return took / expected if expected else None


def drifted(profile: Profile, drift: Drift) -> Profile:
    """A profile whose operations and copies take that many times as long."""
    hardware: Hardware = replace(
        profile.hardware,
        channels=tuple(scaled_channel(one, drift.copies, 0) for one in profile.hardware.channels),
    )
    costs, raw = profile.costs, profile.costs.raw
    changed: CostProfile = replace(
        costs,
        curves={kind: scaled_curve(curve, drift.compute) for kind, curve in costs.curves.items()},
        attention_decode=scaled_surface(costs.attention_decode, drift.compute),
        attention_prefill=scaled_surface(costs.attention_prefill, drift.compute),
        cross_decode=_scaled(costs.cross_decode, drift.compute),
        cross_prefill=_scaled(costs.cross_prefill, drift.compute),
        raw=None if raw is None else replace(raw, link=scaled_channel(raw.link, drift.copies, 0)),
        kv_writes=None
        if costs.kv_writes is None
        else replace(
            costs.kv_writes,
            alone=scaled_curve(costs.kv_writes.alone, drift.copies),
            beside=scaled_curve(costs.kv_writes.beside, drift.copies),
            lost=None
            if costs.kv_writes.lost is None
            else scaled_curve(costs.kv_writes.lost, drift.copies),
        ),
        forms=None
        if costs.forms is None
        else {form: scaled_curve(curve, drift.compute) for form, curve in costs.forms.items()},
    )
    return replace(profile, hardware=hardware, costs=changed)


def _scaled(surface: Surface | None, ratio: float) -> Surface | None:
    return None if surface is None else scaled_surface(surface, ratio)


def predicted_now(plan: Plan, profile: Profile, drift: Drift) -> Predicted:
    """The plan's own policy, replayed on the scenarios that it was judged on.

    Parameters
    ----------
    plan, profile
        What was planned, and from what.
    drift
        Since then.

    Raises
    ------
    InputError
        If the plan is not of this profile.
    """
    candidate = candidate_of(plan, drifted(profile, drift))
    return predict(candidate.judged(), schedule_of(plan.policy))
