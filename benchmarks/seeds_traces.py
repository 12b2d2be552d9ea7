"""What the seeds' experiments find in a routing trace alone: nothing here runs a model.

``buffers`` is after "Towards MoE Deployment" (arXiv 2303.06182): a buffer of experts for
each layer and how often it misses, by what goes first. ``accuracies`` is after Klotski (arXiv
2502.06888): how much of what is copied ahead is needed, and how much of it is hot.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.predictor_report import halves, judge, steps_of, tables_of
from planner.predictors import PredictorName, Seen, Tables, best, make_predictor
from planner.routing import TraceArrays
from solvers.outcome import Eviction, Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.replay import replay

__all__ = ["EVICTIONS", "accuracies", "buffers", "hot_share", "miss_rate", "passes_of"]

Row = dict[str, Any]
Int32 = npt.NDArray[np.int32]

EVICTIONS: tuple[Eviction, ...] = ("lru", "lifo", "fifo", "frequency", "belady")
"""What a full buffer gives up; the last knows the future."""
_MOST_PASSES = 512
_PREDICTORS: tuple[PredictorName, ...] = ("coactivation", "lookahead", "popularity")


def passes_of(arrays: TraceArrays, experts: int, group: int) -> Int32:
    """Tokens of each expert in each decode pass, of ``group`` sequences decoded together.

    Returns
    -------
    int32 [passes, moe_layers, experts]
        512 passes at most.
    """
    found = []
    for rows in steps_of(arrays, experts, None, group):
        chosen = arrays.experts[rows]
        found.append(
            [np.bincount(layer.ravel(), minlength=experts) for layer in chosen.swapaxes(0, 1)]
        )
        if len(found) == _MOST_PASSES:
            break
    return np.array(found, dtype=np.int32)


def miss_rate(demand: Int32, size: int, eviction: Eviction) -> float:
    """Share of the experts that passes need ([passes, layers, experts]) that are not in the buffer.

    The buffer holds ``size`` experts for each layer, all of it shared by all layers but with
    ``lifo``, which gives each layer its part; it is empty before the first pass.
    """
    passes, layers, experts = demand.shape
    one = Unit(1, 1, 1, 0, 1, 1)
    none = np.zeros((passes, layers), np.int64)
    work = (demand > 0).astype(np.int64)
    scenarios = Scenarios(none, none, demand, work, none, np.ones(passes, np.int64))
    slots = min(size, experts) * layers
    problem = Problem((Stage(None, (one,) * experts),) * layers, scenarios, slots, 1, 1, "bytes")
    schedule = Schedule((StageChoice(),) * layers, slots, 0, slots, eviction)
    return float(replay(problem, schedule).copied_bytes.sum() / work.sum())


def buffers(arrays: TraceArrays, experts: int, groups: tuple[int, ...]) -> list[Row]:
    """Miss rates of every eviction, for each size of a group and of the buffer."""
    rows = []
    for group in groups:
        demand = passes_of(arrays, experts, group)
        needed = float((demand > 0).sum(axis=2).mean())
        for size in sorted({max(experts * part // 8, 1) for part in range(1, 9)}):
            rates = {name: miss_rate(demand, size, name) for name in EVICTIONS}
            rows.append({"sequences": group, "buffer": size, "needed": needed, **rates})
    return rows


def hot_share(named: tuple[int, ...], counts: npt.NDArray[np.int64]) -> float:
    """Share of the named experts that are among as many of the hottest.

    An expert is hot if it has tokens and fewer than ``len(named)`` have more: equal ones are all
    right.
    """
    hotter = (counts[:, None] < counts[None, :]).sum(axis=1)
    return float(np.mean([hotter[one] < len(named) and counts[one] > 0 for one in named]))


def accuracies(
    arrays: TraceArrays,
    experts: int,
    moe_layers: tuple[int, ...],
    groups: tuple[int, ...],
    seed: int,
) -> list[Row]:
    """Layer by layer, on sequences that the tables were not fitted on: what predictors name.

    Each names as many experts as a token chooses. Of each predictor: ``needed`` (share of the named
    that some token then chose, which Klotski calls accuracy) and ``hot`` (see ``hot_share``).
    """
    top_k = int(arrays.experts.shape[2])
    fitted, held_out = halves(int((np.diff(arrays.sequence) != 0).sum()) + 1, seed)
    tables = tables_of(arrays, fitted, experts)
    rows = []
    for group in groups:
        used = judge(tables, arrays, held_out, moe_layers=moe_layers, count=top_k, group=group)
        hot = _hot(tables, arrays, held_out, top_k, group)
        for column, layer in enumerate(used):
            row: Row = {"sequences": group, "layer": layer.layer, "named": top_k}
            for name in _PREDICTORS:
                rate = layer.rates[name]  # type: ignore[index]
                row[f"{name}_needed"] = None if rate is None else rate.used
                row[f"{name}_hot"] = None if rate is None else hot[name][column]
            rows.append(row)
    return rows


def _hot(
    tables: Tables, arrays: TraceArrays, members: npt.NDArray[np.int64], count: int, group: int
) -> dict[PredictorName, list[float]]:
    """Mean of ``hot_share`` for each MoE layer; predictors learn on as they go."""
    layers, experts = tables.chosen.shape
    predictors = {name: make_predictor(name, tables.copy()) for name in _PREDICTORS}
    popular = tables.copy()
    shares: dict[PredictorName, list[list[float]]] = {
        name: [[] for _ in range(layers)] for name in _PREDICTORS
    }
    for rows in steps_of(arrays, experts, members, group):
        chosen = arrays.experts[rows]
        for column in range(layers):
            actual = chosen[:, column]
            ahead = None if arrays.ahead is None else arrays.ahead[rows, column]
            seen = Seen(chosen[:, column - 1] if column else None, ahead, None)
            counts = np.bincount(actual.ravel(), minlength=experts)
            for name, predictor in predictors.items():
                named = best(predictor.scores(column, seen), popular.chosen[column], count)
                if named:
                    shares[name][column].append(hot_share(named, counts))
                predictor.observe(column, seen, actual)
            popular.add(column, None, actual)
    return {name: [float(np.mean(one)) for one in found] for name, found in shares.items()}
