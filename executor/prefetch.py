"""Prefetches by what has just been routed: predictors at work in a run."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from executor.checks import lies_at
from executor.device import Device
from executor.routing import Recorded
from executor.schedule import Named
from executor.units import Unit
from planner.documents import ModelSpec, Plan
from planner.predictors import Seen, Tables, best, make_predictor
from planner.profiles import load_profile

__all__ = ["Prefetcher", "learned_tables"]

_log = logging.getLogger(__name__)


def learned_tables(plan: Plan, model: ModelSpec, profile: Path | None) -> Tables | None:
    """What the plan's profile has counted, where it lies where ``profile`` or the plan says.

    Without it, predictors begin with nothing and learn; None where the plan has no predictor.
    """
    if all(layer.predictor == "plan" for layer in plan.policy.layers):
        return None
    experts = max(spec.experts for spec in model.layers)
    folder = profile or Path(plan.locations.profile)
    if not lies_at(folder):
        _log.warning("moeplan: without the plan's profile its predictors begin with nothing")
        return Tables.empty(len(model.moe_layers), experts)
    return Tables.of(load_profile(folder).arrays, experts)


class Prefetcher:
    """Names the experts that the next MoE layer will need, as the policy has it.

    Parameters
    ----------
    device
        Whose routers.
    tables
        What was counted so far; goes on counting.
    recorded
        What an earlier run of the same prompts chose, for ``clairvoyant``.
    """

    def __init__(self, device: Device, tables: Tables, recorded: Recorded | None) -> None:
        self._operations, self._tables = device.operations, tables
        self._recorded = recorded
        policy, model = device.policy, device.source.model
        self._layers = model.moe_layers
        self._column = {layer: column for column, layer in enumerate(self._layers)}
        self._residents = [frozenset(policy.layers[layer].resident) for layer in self._layers]
        self._names = [policy.layers[layer].predictor for layer in self._layers]
        self._predictors = {
            name: make_predictor(name, tables) for name in self._names if name != "plan"
        }
        self._before: npt.NDArray[np.integer] | None = None

    def routed(self, pass_index: int, layer: int) -> Named | None:
        """The router of ``layer`` has chosen: what the next MoE layer will need."""
        column = self._column[layer]
        chosen = self._operations.chosen.cpu().numpy()
        self._tables.add(column, self._before if column else None, chosen)
        self._before = chosen
        following = column + 1
        if following == len(self._layers):
            return None
        name, there = self._names[following], self._layers[following]
        if name == "plan":
            return None
        seen = Seen(
            before=chosen,
            ahead=self._operations.look_ahead(there).cpu().numpy() if name == "lookahead" else None,
            recorded=self._choices(pass_index, following),
        )
        scores = self._predictors[name].scores(following, seen)
        popularity = self._tables.chosen[following]
        picked = best(scores, popularity, len(scores), self._residents[following])
        return Named(there - layer, tuple(Unit(there, "expert", expert) for expert in picked))

    def _choices(self, pass_index: int, column: int) -> npt.NDArray[np.uint16] | None:
        if self._recorded is None or pass_index >= len(self._recorded):
            return None
        return self._recorded[pass_index][:, column]
