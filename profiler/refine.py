"""Costs corrected by a run: what its trace measured against what they say of its operations.

A curve's point moves by the ratio of what operations near its size took, each freed of the copies
that ran beside it as the planner charges them, to what the curve says; the fewer there are, the
less far (``profiler.correct``). Copies correct the link alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.comparable import disk_pace, pace_words
from planner.documents import (
    OWN,
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
from profiler.correct import corrected, corrected_surface
from profiler.curves import figure
from profiler.host import refit_host
from profiler.observed import (
    SURFACES,
    Observed,
    SurfaceName,
    alone_ns,
    slowed,
    surface_of,
    written,
)
from profiler.relink import links_of, relinked
from profiler.seen import Seen, Step, every_other, ratio, took
from solvers.errors import OptionError, StaleError

__all__ = ["Refined", "Step", "check_source", "observed", "refine"]


@dataclass(frozen=True)
class Refined:
    """Corrected documents, and what each step did; ``drift`` is as ``Verification``'s."""

    hardware: Hardware
    costs: CostProfile
    steps: tuple[Step, ...]
    drift: float | None


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
    if trace.raw is not None and not _raw_fits(profile, trace.raw):
        raise OptionError(
            "the trace's raw experts are none that the profile's store has: run the plan again"
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


def _raw_fits(profile: Profile, raw: tuple[tuple[int, ...], ...]) -> bool:
    """Whether these are experts of a store that has all of them as they are, too."""
    sizes = [layer.experts for layer in profile.model.layers]
    return (
        profile.costs.raw is not None
        and len(raw) == len(sizes)
        and all(item < size for own, size in zip(raw, sizes, strict=True) for item in own)
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
        # as many tokens as of that many prompts of one length: there is nothing that says more
        lengths=int(tokens[0] % alive[0] == 0),
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
    seen = _computed(costs, run)
    if costs.forms is not None and trace.forms is None:
        # an older moeplan's, which does not say in which form each was computed
        seen = [one for one in seen if one.event.kind != "expert"]
    if trace.paced_bytes_per_second is not None:
        # these tell of the pace, as copies do
        seen = [one for one in seen if one.event.kind != "write_kv"]
    links = links_of(profile, run, chunk, trace.raw)
    corrected_costs = _refit(costs, run, seen)
    half_costs = _refit(costs, run, every_other(seen, 0))
    steps = []
    for kind in dict.fromkeys(one.corrects for one in seen):
        own = [one for one in seen if one.corrects == kind]
        steps.append(
            Step(
                kind,
                len(own),
                took(own),
                _says(costs, run, own),
                _says(corrected_costs, run, own),
                ratio(rest := every_other(own, 1), _says(half_costs, run, rest)),
            )
        )
    corrected_costs, host = refit_host(corrected_costs, run.events)
    if host is not None:
        steps.append(host)
    steps += [link.step() for link in links]
    hardware, corrected_costs = relinked(profile.hardware, corrected_costs, links)
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


def _computed(costs: CostProfile, run: Observed) -> list[Seen]:
    """Operations that the costs say something of, in order of kind."""
    found = [
        Seen(event, _corrects(run, event), factor)
        for event, factor in slowed(costs, run)
        if alone_ns(costs, run, event)
    ]
    return sorted(found, key=lambda one: one.corrects)


def _corrects(run: Observed, event: Event) -> str:
    form = run.form(event)
    return event.kind if form == OWN else _of_form(form)


def _of_form(form: FormName) -> str:
    return f"expert in {form}"


def _says(costs: CostProfile, run: Observed, seen: Iterable[Seen]) -> int:
    return round(sum((alone_ns(costs, run, one.event) or 0) * one.factor for one in seen))


# --- computation ---------------------------------------------------------------------------------


def _refit(costs: CostProfile, run: Observed, seen: Sequence[Seen]) -> CostProfile:
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


def _rewritten(costs: CostProfile, run: Observed, seen: Sequence[Seen]) -> KvWrites | None:
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
    alone, beside = (corrected(curve, samples) for curve in (writes.alone, writes.beside))
    return KvWrites(alone, beside, writes.lost)


def _rescaled(
    costs: CostProfile, run: Observed, seen: Sequence[Seen], name: SurfaceName
) -> Surface | None:
    """Each row count of a surface by what the run did of it."""
    surface: Surface | None = getattr(costs, name)
    own = [one for one in seen if (surface_of(run, one.event) or ("",))[0] == name]
    if surface is None or not own:
        return surface
    return corrected_surface(
        surface,
        [
            (named[1], one.alone_ns, float(alone_ns(costs, run, one.event) or 0))
            for one in own
            if (named := surface_of(run, one.event)) is not None
        ],
    )
