"""The interval around a predicted rate, and what of it was never measured.

A rate's interval is meant to hold nine of ten runs. Its parts are taken to be independent:

- the disk's bandwidth, as far as the run's time goes with copies: its spread, of means over a
  run's time;
- each kind's curve, by its share of what the run's time goes with: its error at samples that it was
  not fitted to, all sizes alike, since a run has few; of a measured curve that is how far the
  profile's two halves lie apart, and a run lies nearer to both of them together;
- the machine's drift, as far as the run's time goes with computation: the spread of a fixed
  operation in the profile, of means over a run's time;
- routing: a run is one draw, and the spread over the scenarios' runs says how far draws lie apart;
- the model itself: what replays leave out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt

from planner.documents import Channel, CostProfile, LayerSpec, Range
from planner.documents.costs import Curve, OperationKind
from planner.encode import Encoding
from planner.memory import EXPERT_TILE_ROWS
from planner.scenarios import PassShape
from planner.sides import attended, embedded, parts_of

__all__ = ["NINE_OF_TEN", "QUARTILE", "TILED", "covers", "extrapolated", "rate", "relative_error"]

NINE_OF_TEN = 1.645
"""Standard deviations of a normal distribution on either side that hold 90%."""

QUARTILE = 0.6745
"""And those that hold half: half the distance between quartiles, in standard deviations."""

_MODEL_ERROR = 0.04
"""Standard deviation of what the replay leaves out; assumed, and held against the benchmark."""

_MEASURED = ("measured", "paced")
_OF_HALVES = (1 / 2 + math.sqrt(3) / 2) / 2
"""A run's deviation from a curve, in those of the difference of its two halves. Where a run
averages out what makes them differ, a curve of both errs by half; where it is one more such draw,
its variance and half as much for their mean are three quarters of the difference's. Nothing says
which it is, so this is the middle."""

TILED = ("expert", "dense_mlp", "shared_expert")
"""Kinds of which no more than a tile's rows are computed at once."""


def rate(tokens: int, total_ns: int, per_run: npt.NDArray[np.int64], error: float) -> Range:
    """Tokens/s with their interval.

    Parameters
    ----------
    tokens, total_ns
        Of the mean run.
    per_run
        Duration of each run of the scenarios.
    error
        Relative standard deviation of everything but routing.
    """
    if not tokens or not total_ns:
        return Range(0.0, 0.0, 0.0)
    value = tokens * 1e9 / total_ns
    routing = 0.0
    if len(per_run) > 1:
        # of one more draw around the mean of those
        one_more = math.sqrt(1 + 1 / len(per_run))
        routing = one_more * float(per_run.std(ddof=1)) / max(float(per_run.mean()), 1.0)
    wide = NINE_OF_TEN * math.hypot(error, routing)
    return Range(value, value / (1 + wide), value * (1 + wide))


def relative_error(
    costs: CostProfile, link: Channel, by_kind: Mapping[str, int], wall_ns: int, computing: float
) -> float:
    """Relative standard deviation of a run's time, but for its routing.

    Parameters
    ----------
    costs, link
        With their spreads.
    by_kind, wall_ns
        What each kind takes of a run, waits too, and the run.
    computing
        By how many percent the run takes longer where all computation takes 1% longer, from 0 to 1
        (``planner.computing``): what copies hide of computation makes no run longer.
    """
    bandwidth = link.bandwidth_bytes_per_second
    # a paced link is as steady as its pace
    steady = link.paced_bytes_per_second is not None
    copies = 0.0 if steady else (bandwidth.spread or 0.0) / bandwidth.value / QUARTILE
    drift = (costs.reference_ns.spread or 0.0) / max(costs.reference_ns.value, 1.0) / QUARTILE
    waits = sum(by_kind.get(f"wait_{what}", 0) for what in ("dense", "kv", "expert", "head"))
    wall = max(wall_ns, 1)
    of_kinds: dict[str, Sequence[Curve]] = {kind: (one,) for kind, one in costs.curves.items()}
    of_kinds["attention"] = (*costs.attention_decode.curves, *costs.attention_prefill.curves)
    if costs.cross_decode is not None and costs.cross_prefill is not None:
        of_kinds["cross_attention"] = (*costs.cross_decode.curves, *costs.cross_prefill.curves)
    if costs.kv_writes is not None:
        of_kinds["write_kv"] = (costs.kv_writes.alone, costs.kv_writes.beside)
    worked = max(wall - waits, 1)
    curves = [_error(ones) * by_kind.get(kind, 0) / worked for kind, ones in of_kinds.items()]
    parts = (computing * one for one in (*curves, drift))
    return math.hypot((1 - computing) * copies, *parts, _MODEL_ERROR)


def _error(curves: Sequence[Curve]) -> float:
    """Relative standard deviation of what these curves say, one like the other."""
    errors = [
        one.held_out_error * (_OF_HALVES if one.source in _MEASURED else 1.0)
        for one in curves
        if one.held_out_error is not None
    ]
    return sum(errors) / len(errors) / QUARTILE if errors else 0.0


def extrapolated(
    encoding: Encoding, shapes: tuple[PassShape, ...], expert_rows: npt.NDArray[np.int32]
) -> tuple[str, ...]:
    """Operations that were not measured at the sizes that occur, by name.

    Parameters
    ----------
    encoding, shapes
        What is planned, and its passes.
    expert_rows
        Tokens of experts in those passes, of any shape.
    """
    costs, model = encoding.profile.costs, encoding.profile.model
    size = min(encoding.batch_size, encoding.group)
    one_of_each = {parts_of(model, layer.index): layer.index for layer in model.layers}.values()
    beyond = {
        f"{kind.replace('_', ' ')} in {shape.phase}": shape.phase
        for shape in shapes
        for layer in one_of_each
        for kind, surface, seen in attended(encoding.profile, encoding.workload, shape, layer)
        if not surface.covers(size, seen)
    }
    found = sorted(beyond, key=lambda name: beyond[name] == "decode")
    for kind in get_args(OperationKind):
        curve = costs.curves.get(kind)
        if curve is None:
            continue
        if kind in ("head", "sample"):
            rows = {shape.sequences for shape in shapes}
        elif kind == "embed":
            rows = {embedded(model, shape) for shape in shapes}
        elif kind == "expert":
            rows = {int(count) for count in np.unique(expert_rows) if count}
        else:
            own = [layer for layer in one_of_each if _has(model.layers[layer], kind)]
            rows = {encoding.rows(shape, layer) for shape in shapes for layer in own} - {0}
        if not all(covers(curve, kind, count) for count in rows):
            found.append(kind.replace("_", " "))
    return tuple(found)


def _has(layer: LayerSpec, kind: OperationKind) -> bool:
    if kind == "dense_mlp":
        return layer.mlp_bytes > 0
    return (layer.shared_expert_bytes if kind == "shared_expert" else layer.experts) > 0


def covers(curve: Curve, kind: str, rows: int) -> bool:
    """Whether a curve of this kind was measured at about so many rows."""
    return curve.covers(min(rows, EXPERT_TILE_ROWS) if kind in TILED else rows)
