"""Routing as a run meets it: which experts each token chose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from executor.device import Device
from executor.units import Unit
from planner.documents import ModelSpec, Policy
from planner.routing import TraceArrays
from solvers.errors import OptionError, UnsupportedError

__all__ = ["Recorded", "RoutingLog", "check_recorded", "needs_of"]

Recorded = Sequence[npt.NDArray[np.uint16]]
"""What the tokens of each pass of a run chose: [tokens, moe_layers, top_k] a pass."""

_NO_RECORDING = (
    "a run of an encoder-decoder cannot be recorded pass by pass yet (each token meets the routers "
    "of one side only), so no plan can be clairvoyant"
)


def check_recorded(recorded: Recorded | None, model: ModelSpec, policy: Policy) -> None:
    """Refuse a run whose recording is missing, of no use, or of another model.

    Raises
    ------
    OptionError
        Saying which.
    UnsupportedError
        If the plan is clairvoyant and the model of a kind that cannot be recorded.
    """
    clairvoyant = policy.eviction == "belady" or any(
        layer.predictor == "clairvoyant" for layer in policy.layers
    )
    if model.encoder and clairvoyant:
        raise UnsupportedError(f"{model.name}: {_NO_RECORDING}")
    if recorded is None and clairvoyant:
        raise OptionError(
            "the plan is clairvoyant (its eviction, or a layer's predictor): give what an earlier "
            "run of the same prompts chose"
        )
    if recorded is None:
        return
    if not clairvoyant:
        raise OptionError(
            "a recording has no effect: neither the plan's eviction nor a predictor looks at it"
        )
    routers = len(model.moe_layers)
    most = max(spec.experts for spec in model.layers)
    for chosen in recorded:
        if chosen.ndim != 3 or chosen.shape[1] != routers or (chosen >= most).any():
            raise OptionError(f"the recording is not of {model.name}: record a run of this model")


def needs_of(recorded: Recorded, model: ModelSpec, policy: Policy) -> dict[Unit, list[int]]:
    """In which stages, counted through all passes, a recorded run needed each expert and tile."""
    layers = len(model.layers)
    found: dict[Unit, list[int]] = {}
    for number, chosen in enumerate(recorded):
        first = number * (layers + 1)
        for column, layer in enumerate(model.moe_layers):
            for expert in np.unique(chosen[:, column]).tolist():
                found.setdefault(Unit(layer, "expert", expert), []).append(first + layer)
        for tile in range(policy.head_tiles):
            found.setdefault(Unit(layers, "head", tile), []).append(first + layers)
    return found


class RoutingLog:
    """Collects the choices of each router; host memory, 2 bytes a choice.

    Layers of one model may have different numbers of experts, but one top-k, as a trace has. With
    an encoder each pass gives two blocks of tokens: the prompts', and the decoder's.

    Parameters
    ----------
    model
        Whose routers.
    ahead
        Keep, too, what each router says of the hidden state of the MoE layer before. Dense parts
        must be resident, or no layer without experts lie between.
    """

    def __init__(self, model: ModelSpec, *, ahead: bool = False) -> None:
        self.moe_layers = model.moe_layers
        self._column = {layer: column for column, layer in enumerate(self.moe_layers)}
        self._top_k = max((spec.top_k for spec in model.layers), default=0)
        self._experts: list[npt.NDArray[np.uint16]] = []
        self._sequence: list[npt.NDArray[np.int32]] = []
        self._position: list[npt.NDArray[np.int32]] = []
        self._phase: list[npt.NDArray[np.uint8]] = []
        self._ahead: list[npt.NDArray[np.uint16]] | None = [] if ahead else None
        self._encoder = sum(layer < model.encoder_depth for layer in model.moe_layers)
        self._refused = f"{model.name}: {_NO_RECORDING}" if model.encoder else None

    def add(self, layer: int, device: Device, members: Sequence[int]) -> None:
        """What the router of ``layer`` has just chosen; ``members`` number the sequences."""
        state, column = device.state, self._column[layer]
        if column in (0, self._encoder):
            counts, past = np.asarray(state.counts), np.asarray(state.past)
            later = past > 0
            if self._encoder:
                later = np.full(len(counts), column > 0)
                past = past + np.asarray(state.behind)
            within = np.arange(state.tokens) - np.repeat(state.starts[:-1], counts)
            self._sequence.append(np.repeat(np.asarray(members, np.int32), counts))
            self._position.append((np.repeat(past, counts) + within).astype(np.int32))
            self._phase.append(np.repeat(later.astype(np.uint8), counts))
            shape = (state.tokens, len(self.moe_layers), self._top_k)
            self._experts.append(np.zeros(shape, np.uint16))
            if self._ahead is not None:
                self._ahead.append(np.zeros(shape, np.uint16))
        self._experts[-1][:, column] = device.operations.chosen.cpu().numpy()

    def look_ahead(self, layer: int, device: Device) -> None:
        """``layer`` begins: what the next router, its own or a later one's, says of the hidden
        state that the layer before has routed, which is there until attention begins."""
        column = self._column.get(layer - 1, len(self.moe_layers)) + 1
        if self._ahead is not None and column < len(self.moe_layers):
            following = device.operations.look_ahead(self.moe_layers[column])
            self._ahead[-1][:, column] = following.cpu().numpy()

    def passes(self) -> Recorded:
        """The choices pass by pass.

        Raises
        ------
        UnsupportedError
            If the model has an encoder.
        """
        if self._refused is not None:
            raise UnsupportedError(self._refused)
        return tuple(self._experts)

    def arrays(self) -> TraceArrays:
        """All choices, by sequence and position."""
        if not self._sequence:
            empty = np.zeros((0, len(self.moe_layers), self._top_k), np.uint16)
            none = np.zeros(0, np.int32)
            ahead = None if self._ahead is None else empty
            return TraceArrays(empty, none, none, np.zeros(0, np.uint8), ahead, self._encoder)
        sequence, position = np.concatenate(self._sequence), np.concatenate(self._position)
        order = np.lexsort((position, sequence))
        return TraceArrays(
            np.concatenate(self._experts)[order],
            sequence[order],
            position[order],
            np.concatenate(self._phase)[order],
            None if self._ahead is None else np.concatenate(self._ahead)[order],
            self._encoder,
        )
