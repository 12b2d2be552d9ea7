"""Costs as runs have them: what benches say, moved to what real runs beside the measuring did.

A bench makes the same passes over again, with weights that stay. In a run units were just copied,
routing is uneven, and its moments are others. So short runs lie between the measuring
(``profiler.observing``) and are asked: each kind's curve moves by the ratio of what its operations
took, freed of the copies beside them as the planner charges those, to what the curve says of them
(``profiler.correct``). Sizes that were not measured say nothing: their ratio would be that of a
guess.

How much copies slow what is computed beside them is another thing in a run, too, where operations
are short: a bench's copies never rest, and the interpreter serves both. Runs that copy ahead lie
beside copies most of the time and those on demand half of it or less, so both together tell what a
kind takes alone and by how much it is slowed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from planner.documents import CostProfile, Curve, Event, Figure, FormName, Surface
from planner.documents.costs import LEAST_SLOWDOWN, OperationKind
from planner.interval import covers
from profiler.contention import LEAST_SHARE, overlap
from profiler.correct import corrected, corrected_surface, weight
from profiler.observed import (
    Observed,
    SurfaceName,
    alone_ns,
    between_passes_ns,
    slowed,
    surface_of,
)

__all__ = ["as_in_runs", "as_runs_do", "slowed_ahead"]

_KINDS = ("router", "dense_mlp", "shared_expert", "expert", "combine", "head")
"""Of the curves; the embedding has reads of its own, and sampling takes no time."""
_MOST = 4.0
"""Longer than so many times what the curve says is a pause of the machine, and counts as so much,
as in ``profiler.curves.tail_ratio``."""
_TURNS = 4
"""What is slowed tells what is alone, and that by how much it is slowed: each turn leaves about the
share by which runs on demand lie beside copies, of that of runs that copy ahead."""


def as_in_runs(costs: CostProfile, runs: Sequence[Observed]) -> CostProfile:
    """``as_runs_do`` by those on demand, slowed by copies as those that copy ahead are, and with
    what runs do between passes."""
    demand, ahead = ([run for run in runs if run.ahead == one] for one in (False, True))
    before = costs
    for _ in range(_TURNS if ahead else 0):
        slowed = slowed_ahead(before, as_runs_do(costs, demand), ahead)
        costs = replace(before, slowdown_by_kind=slowed)
    costs = as_runs_do(costs, demand)
    embed, beyond = costs.curves["embed"], between_passes_ns(costs, demand)
    embed = replace(embed, duration_ns=tuple(one + beyond for one in embed.duration_ns))
    return replace(costs, curves={**costs.curves, "embed": embed})


def as_runs_do(costs: CostProfile, runs: Iterable[Observed]) -> CostProfile:
    """The costs of benches, moved to what these runs did.

    Parameters
    ----------
    costs
        From benches, contention included.
    runs
        Of the same model on the same machine, no read of them paced.
    """
    curves: defaultdict[str, list[tuple[int, float, float]]] = defaultdict(list)
    surfaces: defaultdict[SurfaceName, list[tuple[int, float, float]]] = defaultdict(list)
    for run in runs:
        for event, took, said in _compared(costs, run):
            named = surface_of(run, event)
            if named is not None:
                surfaces[named[0]].append((named[1], took, said))
            else:
                curves[event.kind].append((event.rows, took, said))
    moved: dict[str, Any] = {
        name: corrected_surface(getattr(costs, name), own) for name, own in surfaces.items()
    }
    known = {
        kind: corrected(curve, curves[kind]) if curves[kind] else curve
        for kind, curve in costs.curves.items()
    }
    return replace(costs, curves=known, forms=_forms(costs, known["expert"]), **moved)


def slowed_ahead(
    costs: CostProfile, moved: CostProfile, runs: Iterable[Observed]
) -> dict[OperationKind, Figure]:
    """How much copies slow each kind in decode, by runs that copy ahead.

    Parameters
    ----------
    costs
        What benches say of it.
    moved
        What operations take alone in runs.
    runs
        Runs that copy ahead; one that hardly lies beside copies says nothing.
    """
    sums: defaultdict[OperationKind, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        own = [event for event in run.working if run.phase(event) == "decode"]
        share = overlap(own, run.copies)
        if share < LEAST_SHARE:
            continue
        for event in own:
            said = alone_ns(moved, run, event) if _measured(moved, run, event) else None
            if said and event.kind in costs.slowdown_by_kind:
                took = min(event.end_ns - event.start_ns, _MOST * said)
                # what it would take beside copies that never rest
                sums[event.kind].append((said + (took - said) / share, said))
    found = dict(costs.slowdown_by_kind)
    for kind, pairs in sums.items():
        before = found[kind]
        ratio = sum(took for took, _ in pairs) / sum(said for _, said in pairs)
        value = before.value * (max(ratio, LEAST_SLOWDOWN) / before.value) ** weight(len(pairs))
        found[kind] = replace(before, value=value, samples=before.samples + len(pairs))
    return found


def _forms(costs: CostProfile, moved: Curve) -> dict[FormName, Curve] | None:
    """Experts in other forms, which no recorded run had: each size moves as ``expert`` does."""
    if costs.forms is None:
        return None
    own, found = costs.curves["expert"], {}
    for form, curve in costs.forms.items():
        pairs = zip(curve.rows, curve.duration_ns, strict=True)
        durations = [max(round(took * moved(at) / max(own(at), 1)), 1) for at, took in pairs]
        found[form] = replace(curve, duration_ns=tuple(accumulate(durations, max)))
    return found


def _compared(costs: CostProfile, run: Observed) -> Iterator[tuple[Event, float, float]]:
    """Operations with what they took alone, and what the costs say; both in ns."""
    for event, factor in slowed(costs, run):
        said = alone_ns(costs, run, event) if _measured(costs, run, event) else None
        if said:
            took = (event.end_ns - event.start_ns) / factor
            yield event, min(took, _MOST * said), float(said)


def _measured(costs: CostProfile, run: Observed, event: Event) -> bool:
    """Whether benches measured an operation at about this size."""
    named = surface_of(run, event)
    if named is not None:
        surface: Surface | None = getattr(costs, named[0])
        return surface is not None and _around(surface, *named[1:])
    if event.kind not in _KINDS or event.kind not in costs.curves:
        return False
    return covers(costs.curves[event.kind], event.kind, event.rows)


def _around(surface: Surface, rows: int, second: int) -> bool:
    """Whether the curves on either side of a point were measured at its rows."""
    if not surface.second[0] <= second <= surface.second[-1]:
        return False
    right = bisect_right(surface.second, second)
    return all(curve.covers(rows) for curve in surface.curves[right - 1 : right + 1])
