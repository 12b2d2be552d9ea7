"""Predictors in real runs: what they name, and that it changes no token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor import open_weights
from executor.engine import Engine
from executor.schedule import Named, Schedule
from executor.units import Unit, check_policy
from planner.documents import LayerPolicy, Workload
from planner.memory import smallest_policy
from solvers.errors import DocumentError

RESIDENT = (0, 3)
PROMPTS = [[3 + (7 * i + 5 * j) % 200 for j in range(3 + i)] for i in range(3)]


def test_what_is_named_in_a_run(
    checkpoint_of: Callable[..., Path], helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer 1 by co-activation, layer 2 clairvoyant; the run's own recording says what was to be
    named: the table is counted here once more, pass by pass."""
    folder = checkpoint_of("mixtral")
    with open_weights(folder) as source:
        model = source.model
    layers = [LayerPolicy(True, RESIDENT, (1, 2)) for _ in model.layers]
    base = replace(helpers.resident(model), n_batches=3, batch_size=1, slots=4, reserve=2)
    workload = Workload(3, 8, 6)
    plan = helpers.plan(folder, replace(base, layers=tuple(layers)), workload)
    with Engine.from_plan(plan) as engine:
        wanted = [one.token_ids for one in engine.generate(PROMPTS)]
        recorded = engine.recording()
    layers[1] = replace(layers[1], predictor="coactivation")
    layers[2] = replace(layers[2], predictor="clairvoyant")
    named: list[Named | None] = []
    route = Schedule.route

    def listen(self: Schedule, active: list[Unit], said: Named | None = None, *others: Any) -> Any:
        if active[0].kind == "expert":
            named.append(said)
        return route(self, active, said, *others)

    monkeypatch.setattr(Schedule, "route", listen)
    plan = helpers.plan(folder, replace(base, layers=tuple(layers)), workload)
    with Engine.from_plan(plan) as engine:
        outputs = engine.generate(PROMPTS, recorded=recorded)
    assert [one.token_ids for one in outputs] == wanted
    chosen = np.zeros((3, 8))
    joint = np.zeros((8, 8))
    expected: list[tuple[int, list[int]] | None] = []
    for choices in recorded:
        for layer in range(3):
            for token in range(len(choices)):
                chosen[layer, choices[token, layer]] += 1
                if layer == 1:
                    joint[np.ix_(choices[token, 0], choices[token, 1])] += 1
            if layer == 0:
                scores = np.zeros(8)
                for expert in choices[:, 0].ravel():
                    scores += joint[expert] / chosen[0, expert]
                order = sorted(range(8), key=lambda e: (-round(scores[e], 9), -chosen[1, e], e))
                expected.append((1, [e for e in order if scores[e] and e not in RESIDENT]))
            elif layer == 1:
                counts = np.bincount(choices[:, 2].ravel(), minlength=8)
                order = sorted(range(8), key=lambda e: (-counts[e], -chosen[2, e], e))
                expected.append((1, [e for e in order if counts[e] and e not in RESIDENT]))
            else:
                expected.append(None)
    got = [one and (one.stages, [unit.item for unit in one.units]) for one in named]
    assert got == expected


@pytest.mark.parametrize(
    ("layer", "changes", "words"),
    [
        (0, {"predictor": "coactivation"}, "layers.0.predictor has no effect"),
        (1, {"predictor": "coactivation", "prefetch": ()}, "layers.1.predictor has no effect"),
        (1, {"predictor": "lookahead", "dense_resident": False}, "layers.1.predictor looks ahead"),
        (1, {"predictor": "coactivation", "waits": True}, "layers.1.waits has no effect"),
        (1, {"waits": True}, "layers.1.waits has no effect"),
    ],
)
def test_predictors_that_cannot_work(
    checkpoint_of: Callable[..., Path], layer: int, changes: dict[str, Any], words: str
) -> None:
    with open_weights(checkpoint_of("mixtral")) as source:
        model = source.model
    layers = [LayerPolicy(True, RESIDENT, (1, 2)) for _ in model.layers]
    layers[layer] = replace(layers[layer], **changes)
    policy = replace(smallest_policy(model, 4), layers=tuple(layers))
    with pytest.raises(DocumentError, match=words):
        check_policy(model, policy)
