"""Which predictor each layer's prefetches follow, by what was measured on held-out sequences.

A plan's list of prefetches is what pays on average. Where the router of the MoE layer before has
spoken, a predictor may know better: each layer takes the one that finds the most of what is needed
with as many copies as the list has, if it finds significantly more than the list itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from planner.documents import LayerPolicy, Plan
from planner.predictor_report import check_judgeable, halves, steps_of, tables_of
from planner.predictors import Predictor, Seen, best, make_predictor
from planner.profiles import Profile

__all__ = ["choose_predictors"]

_Name = Literal["coactivation", "lookahead", "popularity"]
_NAMES: tuple[_Name, ...] = get_args(_Name)
_SIGNIFICANT = 2.0
"""Standard errors by which a predictor must find more than the list."""

Floats = npt.NDArray[np.float64]


def choose_predictors(plan: Plan, profile: Profile, seed: int = 0) -> Plan:
    """``plan`` with a predictor for each layer that has one better than its list, and a note.

    Layers that follow one already keep it. Everything else stays, what is predicted, too:
    ``planner.looking_ahead`` states that anew.

    Raises
    ------
    OptionError
        If the profile has fewer than two sequences.
    UnsupportedError
        If the model has an encoder.
    """
    check_judgeable(profile.routing)
    fitted, judged = halves(profile.routing.sequences, seed)
    arrays, policy = profile.arrays, plan.policy
    tables = tables_of(arrays, fitted, profile.routing.experts)
    group = min(policy.n_batches * policy.batch_size, plan.workload.requests)
    layers = list(policy.layers)
    moe = profile.routing.moe_layers
    ahead = [column for column in range(1, len(moe)) if layers[moe[column]].prefetch]
    wanted = [column for column in ahead if layers[moe[column]].predictor == "plan"]
    predictors = {name: make_predictor(name, tables.copy()) for name in _NAMES}
    found: dict[tuple[int, str], list[int]] = {
        (column, name): [] for column in wanted for name in ("plan", *_NAMES)
    }
    needed = Counter[int]()
    for rows in steps_of(arrays, profile.routing.experts, judged, group):
        chosen = arrays.experts[rows]
        for column in range(len(moe)):
            seen = Seen(
                chosen[:, column - 1] if column else None,
                None if arrays.ahead is None else arrays.ahead[rows, column],
            )
            if column in wanted:
                layer = layers[moe[column]]
                needs = set(chosen[:, column].ravel().tolist())
                needed[column] += len(needs - set(layer.resident))
                found[column, "plan"].append(len(needs.intersection(layer.prefetch)))
                for name, predictor in predictors.items():
                    picked = _pick(predictor, column, seen, tables.chosen[column], layer)
                    found[column, name].append(len(needs.intersection(picked)))
            for predictor in predictors.values():
                predictor.observe(column, seen, chosen[:, column])
    used: Counter[str] = Counter()
    before = after = 0
    for column in wanted:
        layer = layers[moe[column]]
        own = np.array(found[column, "plan"])
        best_name: _Name | Literal["plan"] = "plan"
        best_gain = 0.0
        for name in _NAMES:
            if name == "lookahead" and (arrays.ahead is None or not layer.dense_resident):
                continue
            more = np.array(found[column, name]) - own
            error = float(more.std()) / math.sqrt(len(more))
            if float(more.mean()) > max(best_gain, _SIGNIFICANT * error):
                best_name, best_gain = name, float(more.mean())
        layers[moe[column]] = dataclasses.replace(layer, predictor=best_name)
        used[best_name] += 1
        before += int(own.sum())
        after += sum(found[column, best_name])
    total = sum(needed.values())
    return dataclasses.replace(
        plan,
        policy=dataclasses.replace(policy, layers=tuple(layers)),
        notes=(*plan.notes, _note(used, before, after, total, len(ahead) - len(wanted))),
    )


def _pick(
    predictor: Predictor,
    column: int,
    seen: Seen,
    popularity: npt.NDArray[np.int64],
    layer: LayerPolicy,
) -> tuple[int, ...]:
    scores = predictor.scores(column, seen)
    return best(scores, popularity, len(layer.prefetch), frozenset(layer.resident))


def _note(used: Counter[str], before: int, after: int, needed: int, follow: int) -> str:
    better = {name: count for name, count in used.items() if name != "plan"}
    if not used and follow:
        return "predictors: each layer that prefetches follows one already"
    if not used:
        return "predictors: the plan prefetches nothing that one could name better"
    if not better:
        return "predictors: on held-out sequences none finds more than the lists of prefetches do"

    def share(count: int) -> str:
        return f"{count / max(needed, 1):.0%}"

    layers = ", ".join(f"{name} in {count}" for name, count in sorted(better.items()))
    return (
        f"predictors by layers: {layers}; on held-out sequences they name {share(after)} of the "
        f"experts to copy, the lists {share(before)}; what is predicted reckons with lookahead, "
        "of the others with the lists alone"
    )
