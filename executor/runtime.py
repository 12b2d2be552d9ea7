"""The pass loop: carry a policy out on the routing that is met, as ``docs/runtime.md`` says."""

from __future__ import annotations

import time
from collections.abc import Callable

from executor.device import Device
from executor.recorder import Recorder
from executor.transfers import Transfers
from executor.units import Unit

__all__ = ["Runtime"]


class Runtime:
    """Runs passes of one device's group.

    Parameters
    ----------
    device
        Weights, buffers, operations.
    transfers
        The copy channel.
    recorder
        Where operations and waits are recorded.
    routed
        Called after each router with the layer; for recording routing.
    """

    def __init__(
        self,
        device: Device,
        transfers: Transfers,
        recorder: Recorder,
        routed: Callable[[int], None],
    ) -> None:
        self._device, self._transfers, self._recorder = device, transfers, recorder
        self._operations, self._state = device.operations, device.state
        self._model = device.source.model
        self._routed = routed

    def run_pass(self, pass_index: int, tokens: list[int]) -> tuple[list[int], list[int]]:
        """One traversal of all layers and the head.

        ``operations.begin`` has been called.

        Parameters
        ----------
        pass_index
            Counts through the whole run.
        tokens
            The pass's tokens, packed.

        Returns
        -------
        sequences, tokens
            Unfinished sequences and the next token of each.
        """
        self._embed(pass_index, tokens)
        for layer in range(len(self._model.layers)):
            self._layer(pass_index, layer)
        return self._head(pass_index)

    def _embed(self, pass_index: int, tokens: list[int]) -> None:
        self._transfers.enter(pass_index, 0)
        begin = time.perf_counter_ns()
        self._operations.embed(tokens)
        self._recorder.compute("embed", pass_index, -1, -1, begin, len(tokens))

    def _layer(self, pass_index: int, layer: int) -> None:
        transfers, operations, record = self._transfers, self._operations, self._recorder.compute
        state = self._state
        if layer:
            transfers.enter(pass_index, layer)
        dense = Unit(layer, "dense", -1)
        slot = self._wait(dense, "wait_dense", pass_index)
        if slot is not None:
            self._device.bind_dense(dense, slot)
        for batch in range(state.batches):
            begin = time.perf_counter_ns()
            operations.attention(layer, batch)
            record("attention", pass_index, layer, batch, begin, state.batch_tokens(batch))
        if not self._model.layers[layer].experts:
            begin = time.perf_counter_ns()
            operations.dense_mlp(layer)
            record("dense_mlp", pass_index, layer, -1, begin, state.tokens)
            transfers.release_dense(layer)
            return
        begin = time.perf_counter_ns()
        counts = operations.router(layer)
        record("router", pass_index, layer, -1, begin, state.tokens)
        active = sorted(
            (expert for expert, count in enumerate(counts) if count),
            key=lambda expert: (-counts[expert], expert),
        )
        routed = transfers.route([Unit(layer, "expert", expert) for expert in active], layer)
        self._routed(layer)
        for unit in (*routed.ready, *routed.demanded):
            slot = self._wait(unit, "wait_expert", pass_index)
            begin = time.perf_counter_ns()
            operations.expert(unit.item, self._device.expert(unit, slot))
            record("expert", pass_index, layer, unit.item, begin, counts[unit.item])
            transfers.computed(unit)
        begin = time.perf_counter_ns()
        operations.combine()
        record("combine", pass_index, layer, -1, begin, state.tokens)

    def _head(self, pass_index: int) -> tuple[list[int], list[int]]:
        transfers, operations, record = self._transfers, self._operations, self._recorder.compute
        stage = len(self._model.layers)
        transfers.enter(pass_index, stage)
        tiles = [Unit(stage, "head", tile) for tile in range(self._device.policy.head_tiles)]
        transfers.route(tiles, None)
        alive: list[int] = []
        for tile in tiles:
            # residents are the first tiles, so index order has them first
            slot = self._wait(tile, "wait_head", pass_index)
            begin = time.perf_counter_ns()
            if tile.item == 0:
                alive = operations.head_begin()
            operations.head_tile(tile.item, self._device.head_tile(tile, slot))
            record("head", pass_index, stage, tile.item, begin, len(alive))
            transfers.computed(tile)
        begin = time.perf_counter_ns()
        tokens = operations.sample()
        record("sample", pass_index, stage, -1, begin, len(alive))
        return alive, tokens

    def _wait(self, unit: Unit, kind: str, pass_index: int) -> int | None:
        begin = time.perf_counter_ns()
        slot, waited = self._transfers.wait(unit)
        if waited:
            self._recorder.compute(kind, pass_index, unit.stage, unit.item, begin, 0)
        return slot
