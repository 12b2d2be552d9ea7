"""Costs corrected by a run: what its trace measured against what they say of its operations.

A curve's point moves by the ratio of what operations near its size took, each freed of the copies
that ran beside it as the planner charges them, to what the curve says; the fewer there are, the
less far (``profiler.correct``). Copies correct the link alike.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.comparable import disk_pace, pace_words
from planner.documents import (
    OWN,
    Channel,
    CostProfile,
    Curve,
    Event,
    FormName,
    Hardware,
    KvWrites,
    Surface,
    Trace,
    document_hash,
)
from planner.interval import TILED
from planner.memory import Forms
from planner.profiles import Profile
from profiler.correct import corrected, scaled_channel, scaled_surface, weight
from profiler.curves import figure
from profiler.observed import (
    SURFACES,
    Observed,
    SurfaceName,
    alone_ns,
    copy_factor,
    slowed,
    surface_of,
    written,
)
from solvers.errors import OptionError, StaleError

__all__ = ["Refined", "Step", "check_source", "observed", "refine"]

COPY = "copy"


@dataclass(frozen=True, slots=True)
class Step:
    """One kind's correction, and its effect on the run that it comes from.

    Attributes
    ----------
    kind
        An operation kind (``expert in int8-1``: of the experts in a form), or ``copy``.
    events
        How many it comes from.
    measured_ns, before_ns, after_ns
        All of them together, as they were and as the costs say before and after.
    held_out_ratio
        Measured / predicted of every other event by a correction that comes from the rest; None
        where there are too few. ``after_ns`` has seen what it is held against, this has not.
    """

    kind: str
    events: int
    measured_ns: int
    before_ns: int
    after_ns: int
    held_out_ratio: float | None

    @property
    def before_ratio(self) -> float:
        """Measured / predicted by the costs as they were."""
        return self.measured_ns / max(self.before_ns, 1)

    @property
    def after_ratio(self) -> float:
        """Measured / predicted by the corrected costs."""
        return self.measured_ns / max(self.after_ns, 1)


@dataclass(frozen=True)
class Refined:
    """Corrected documents, and what each step did; ``drift`` is as ``Verification``'s."""

    hardware: Hardware
    costs: CostProfile
    steps: tuple[Step, ...]
    drift: float | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """One event, what is corrected by it (a ``Step.kind``), and by how much copies beside it (or
    computation beside a copy) lengthen it."""

    event: Event
    corrects: str
    factor: float

    @property
    def alone_ns(self) -> float:
        """What it took, freed of what ran beside it."""
        return (self.event.end_ns - self.event.start_ns) / self.factor


def check_source(profile: Profile, trace: Trace) -> None:
    """Make sure that a trace is of a run of a plan of this very profile.

    Raises
    ------
    StaleError
        Naming the document that differs.
    OptionError
        If the trace does not say, or holds nothing to learn from.
    """
    if trace.inputs is None or trace.chunk_bytes is None:
        raise OptionError(
            "the trace does not say what its plan was made from: an older moeplan made it; run the "
            "plan again"
        )
    index = profile.index
    for name, theirs, ours in (
        ("model", trace.inputs.model, index.model_hash),
        ("hardware", trace.inputs.hardware, index.hardware_hash),
        ("costs", trace.inputs.costs, index.costs_hash),
    ):
        if theirs != ours:
            raise StaleError(
                name,
                f"{profile.folder}: the trace is of a run of a plan with another {name} document: "
                "give the profile that the plan was made from",
            )
    if trace.forms is not None and not _forms_fit(profile, trace.forms):
        raise OptionError(
            "the trace's forms are not of the experts that the profile's store has: run the plan "
            "again"
        )
    planned, ran = disk_pace(profile.hardware), trace.paced_bytes_per_second
    if planned != ran:
        raise StaleError(
            "hardware",
            f"{profile.folder}: was measured with the disk {pace_words(planned)}, the run's was "
            f"{pace_words(ran)}: run the plan as it was profiled",
        )


def _forms_fit(profile: Profile, forms: Forms) -> bool:
    """Whether each layer has a form for each of its experts, or none, and only measured ones."""
    sizes = [layer.experts for layer in profile.model.layers]
    known = {OWN, *(profile.costs.forms or ())}
    return (
        len(forms) == len(sizes)
        and all(len(own) in (0, size) for own, size in zip(forms, sizes, strict=True))
        and known.issuperset(form for own in forms for form in own)
    )


def observed(trace: Trace, encoder: int = 0) -> Observed:
    """The kept passes of a run that are prefill or decode alone: the first, and those of one token
    a sequence. Passes in which some sequences begin while others go on are left out. Of the model's
    layers the first ``encoder`` are an encoder's.

    Raises
    ------
    OptionError
        If not even the first pass was kept.
    """
    events = tuple(trace.timeline.events())
    tokens = {event.pass_index: event.rows for event in events if event.kind == "embed"}
    alive = {event.pass_index: event.rows for event in events if event.kind == "sample"}
    if not tokens.get(0) or not alive.get(0):
        raise OptionError("the trace holds no whole pass, so nothing can be learned from it")
    kept = {0, *(index for index in alive if tokens.get(index) == alive[index])}
    tiles = max((event.item + 1 for event in events if event.kind == "head"), default=1)
    return Observed(
        tuple(event for event in events if event.pass_index in kept),
        max(kept) + 1,
        # a decoder behind an encoder is fed one token of each at once
        -(-tokens[0] // alive[0]) - (encoder > 0),
        tiles,
        uniform=True,
        encoder=encoder,
        chunk_bytes=trace.chunk_bytes or 1,
        forms=trace.forms or (),
    )


def refine(profile: Profile, trace: Trace) -> Refined:
    """Correct a profile's costs, and its link, by a run.

    Parameters
    ----------
    profile
        Which the run's plan was made from.
    trace
        Of that run; its kept passes count. Of a store with several forms those are corrected
        that its experts had.

    Raises
    ------
    StaleError, OptionError
        As ``check_source`` and ``observed``.
    """
    check_source(profile, trace)
    depth = profile.model.encoder_depth
    run, costs, chunk = observed(trace, depth), profile.costs, trace.chunk_bytes or 1
    # all kinds of unit alike, as they nearly are
    share = profile.model.stored_share("expert")
    seen = _computed(costs, run)
    if costs.forms is not None and trace.forms is None:
        # an older moeplan's, which does not say in which form each was computed
        seen = [one for one in seen if one.event.kind != "expert"]
    # of two formats a trace does not tell which was copied
    copies = [] if costs.raw is not None else _copied(costs, run)
    channel = _channel(profile.hardware, copies)
    corrected_costs = _refit(costs, run, seen)
    link = _relink(channel, copies, chunk, share)
    half_costs = _refit(costs, run, _every_other(seen, 0))
    half_link = _relink(channel, _every_other(copies, 0), chunk, share)
    steps = []
    for kind in dict.fromkeys(one.corrects for one in seen):
        own = [one for one in seen if one.corrects == kind]
        steps.append(
            Step(
                kind,
                len(own),
                _took(own),
                _says(costs, run, own),
                _says(corrected_costs, run, own),
                _ratio(rest := _every_other(own, 1), _says(half_costs, run, rest)),
            )
        )
    if channel is not None and link is not None and half_link is not None:
        rest = _every_other(copies, 1)
        steps.append(
            Step(
                COPY,
                len(copies),
                _took(copies),
                _copies_take(channel, copies, chunk, share),
                _copies_take(link, copies, chunk, share),
                _ratio(rest, _copies_take(half_link, rest, chunk, share)),
            )
        )
    hardware = profile.hardware
    if channel is not None and link is not None:
        channels = tuple(link if one is channel else one for one in hardware.channels)
        hardware = replace(hardware, channels=channels)
    drift, reference = None, costs.reference_ns
    if trace.reference_ns and reference.value:
        drift = statistics.median(trace.reference_ns) / reference.value
        # from now on drift counts from this run; how much it drifts within one, the profile saw
        spread = None if reference.spread is None else reference.spread * drift
        reference = replace(figure(trace.reference_ns, reference.source), spread=spread)
    corrected_costs = replace(
        corrected_costs, hardware_hash=document_hash(hardware), reference_ns=reference
    )
    return Refined(hardware, corrected_costs, tuple(steps), drift)


# --- what the run says ---------------------------------------------------------------------------


def _computed(costs: CostProfile, run: Observed) -> list[_Seen]:
    """Operations that the costs say something of, in order of kind."""
    found = [
        _Seen(event, _corrects(run, event), factor)
        for event, factor in slowed(costs, run)
        if alone_ns(costs, run, event)
    ]
    return sorted(found, key=lambda one: one.corrects)


def _corrects(run: Observed, event: Event) -> str:
    form = run.form(event)
    return event.kind if form == OWN else _of_form(form)


def _of_form(form: FormName) -> str:
    return f"expert in {form}"


def _copied(costs: CostProfile, run: Observed) -> list[_Seen]:
    """Copies; all of them lie beside computation, and writes, by one share, too."""
    factor = copy_factor(costs, run)
    return [_Seen(event, COPY, factor) for event in run.copies]


def _every_other(seen: Sequence[_Seen], first: int) -> list[_Seen]:
    """Every other event of each kind."""
    by_kind: defaultdict[tuple[str, str], list[_Seen]] = defaultdict(list)
    for one in seen:
        by_kind[one.event.kind, one.corrects].append(one)
    return [one for own in by_kind.values() for one in own[first::2]]


def _took(seen: Iterable[_Seen]) -> int:
    return sum(one.event.end_ns - one.event.start_ns for one in seen)


def _says(costs: CostProfile, run: Observed, seen: Iterable[_Seen]) -> int:
    return round(sum((alone_ns(costs, run, one.event) or 0) * one.factor for one in seen))


def _ratio(seen: Sequence[_Seen], says_ns: int) -> float | None:
    return _took(seen) / says_ns if seen and says_ns else None


# --- computation ---------------------------------------------------------------------------------


def _refit(costs: CostProfile, run: Observed, seen: Sequence[_Seen]) -> CostProfile:
    def moved(curve: Curve, what: str, *, longer: bool) -> Curve:
        samples = [
            (one.event.rows, one.alone_ns, float(alone_ns(costs, run, one.event) or 0))
            for one in seen
            if one.corrects == what
        ]
        return corrected(curve, samples, longer=longer) if samples else curve

    curves = {
        kind: moved(curve, kind, longer=kind not in TILED) for kind, curve in costs.curves.items()
    }
    forms = costs.forms and {
        form: moved(curve, _of_form(form), longer=False) for form, curve in costs.forms.items()
    }
    surfaces: dict[str, Any] = {name: _rescaled(costs, run, seen, name) for name in SURFACES}
    writes = _rewritten(costs, run, seen)
    return replace(costs, curves=curves, forms=forms, kv_writes=writes, **surfaces)


def _rewritten(costs: CostProfile, run: Observed, seen: Sequence[_Seen]) -> KvWrites | None:
    """Writes of keys and values, alone and beside reads by the same ratios."""
    writes = costs.kv_writes
    samples = [
        (
            written(run, one.event).sizes[0][0],
            one.alone_ns,
            float(alone_ns(costs, run, one.event) or 0),
        )
        for one in seen
        if one.event.kind == "write_kv"
    ]
    if writes is None or not samples:
        return writes
    both = (corrected(curve, samples) for curve in (writes.alone, writes.beside))
    return KvWrites(*both, writes.lost)


def _rescaled(
    costs: CostProfile, run: Observed, seen: Sequence[_Seen], name: SurfaceName
) -> Surface | None:
    """All of a surface by one ratio, since a run has but one batch size."""
    surface: Surface | None = getattr(costs, name)
    own = [one for one in seen if (surface_of(run, one.event) or ("",))[0] == name]
    if surface is None or not own:
        return surface
    said = sum(alone_ns(costs, run, one.event) or 0 for one in own)
    ratio = (sum(one.alone_ns for one in own) / said) ** weight(len(own))
    return scaled_surface(surface, ratio)


# --- copies --------------------------------------------------------------------------------------


def _channel(hardware: Hardware, copies: Sequence[_Seen]) -> Channel | None:
    """The link that copies went over, unless it was paced: then it tells of its pace only."""
    for channel in hardware.channels:
        if channel.name != "d2h":
            return channel if copies and channel.paced_bytes_per_second is None else None
    return None


def _copies_take(channel: Channel, copies: Sequence[_Seen], chunk_bytes: int, share: float) -> int:
    return round(sum(_alone(channel, one.event, chunk_bytes, share) * one.factor for one in copies))


def _alone(channel: Channel, event: Event, chunk_bytes: int, share: float) -> float:
    """A copy alone, of which ``share`` is read."""
    chunks = -(-event.size_bytes // chunk_bytes)
    return channel.alone_ns(event.size_bytes * share, chunks)


def _relink(
    channel: Channel | None, copies: Sequence[_Seen], chunk_bytes: int, share: float
) -> Channel | None:
    """The link faster or slower as a whole: latency and time a byte by one ratio."""
    if channel is None or not copies:
        return channel
    said = sum(_alone(channel, one.event, chunk_bytes, share) for one in copies)
    ratio = (sum(one.alone_ns for one in copies) / said) ** weight(len(copies))
    return scaled_channel(channel, ratio, len(copies))
