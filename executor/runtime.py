"""The pass loop: carry a policy out on the routing that is met, as ``docs/runtime.md`` says."""

from __future__ import annotations

from collections.abc import Callable

from executor.device import Device
from executor.encoder_decoder import EncoderDecoderOperations
from executor.host import HostWorker
from executor.recorder import Recorder
from executor.schedule import Named
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
    aside
        Called as each layer begins, once its dense part is there; what it does counts with no
        operation. Keys and values must not be copied batch by batch.
    predict
        Called after each router with pass and layer: what a predictor now says of a later layer.
    """

    def __init__(
        self,
        device: Device,
        transfers: Transfers,
        recorder: Recorder,
        routed: Callable[[int], None],
        aside: Callable[[int], None] | None = None,
        predict: Callable[[int, int], Named | None] | None = None,
    ) -> None:
        self._device, self._transfers, self._recorder = device, transfers, recorder
        self._operations, self._state = device.operations, device.state
        self._model = device.source.model
        self._routed, self._aside, self._predict = routed, aside, predict
        self._host = None
        if device.policy.host is not None:
            self._host = HostWorker(device, recorder)

    def close(self) -> None:
        """End what computes on the host."""
        if self._host is not None:
            self._host.close()

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
        with self._operations.threads:
            self.embed(pass_index, tokens)
            for layer in range(len(self._model.layers)):
                self.layer(pass_index, layer)
            return self.head(pass_index)

    def embed(self, pass_index: int, tokens: list[int]) -> None:
        """Begin a pass: the embedding rows of its tokens."""
        self._transfers.enter(pass_index, 0)
        if self._device.embedding.missing(tokens):
            with self._transfers.held():
                self._operations.embed(tokens)
        else:
            self._operations.embed(tokens)
        self._recorder.compute("embed", pass_index, -1, -1, len(tokens))

    def layer(self, pass_index: int, layer: int) -> None:
        """One layer, for the whole group."""
        transfers, operations, record = self._transfers, self._operations, self._recorder.compute
        state, batches = self._state, self._device.units.batches
        both = operations if isinstance(operations, EncoderDecoderOperations) else None
        if both is not None and layer == both.decoder:
            both.turn()
        for batch in range(batches):
            self._batch(pass_index, layer, batch)
        if stage := self._device.units.stage(layer):
            transfers.enter(pass_index, stage)
        dense = Unit(layer, "dense", -1)
        slot = self._wait(dense, "wait_dense", pass_index)
        if slot is not None:
            self._device.bind_dense(dense, slot)
        if self._aside is not None:
            self._aside(layer)
            self._recorder.resume()
        if not state.tokens:
            # an encoder's, in a pass in which no sequence begins
            transfers.release_dense(layer)
            if self._model.layers[layer].experts:
                transfers.route([], None)
            return
        for batch in range(0 if batches else state.batches):
            operations.attention(layer, batch)
            record("attention", pass_index, layer, batch, state.batch_tokens(batch))
            if both is not None and layer >= both.decoder:
                both.cross_attention(layer, batch)
                record("cross_attention", pass_index, layer, batch, state.batch_tokens(batch))
        if slot is not None and (written := self._device.write_kv(dense, slot)):
            record("write_kv", pass_index, layer, -1, state.tokens, written)
        if not self._model.layers[layer].experts:
            operations.dense_mlp(layer)
            transfers.release_dense(layer)
            record("dense_mlp", pass_index, layer, -1, state.tokens)
            return
        if self._model.layers[layer].shared_expert_bytes:
            operations.shared_expert(layer)
            record("shared_expert", pass_index, layer, -1, state.tokens)
        counts = operations.router(layer)
        active = sorted(
            (expert for expert, count in enumerate(counts) if count),
            key=lambda expert: (-counts[expert], expert),
        )
        named = None if self._predict is None else self._predict(pass_index, layer)
        units = [Unit(layer, "expert", expert) for expert in active]
        rows = {unit: counts[unit.item] for unit in units}
        routed = transfers.route(units, layer, named, rows)
        if self._host is not None:
            self._host.begin(routed.hosted)
        self._routed(layer)
        record("router", pass_index, layer, -1, state.tokens)
        for unit in (*routed.ready, *routed.demanded):
            slot = self._wait(unit, "wait_expert", pass_index)
            operations.expert(unit.item, self._device.expert(unit, slot))
            transfers.computed(unit)
            record("expert", pass_index, layer, unit.item, counts[unit.item])
        if self._host is not None and routed.hosted:
            waits = not self._host.ready
            last = self._host.wait()
            if waits:
                record("wait_expert", pass_index, layer, last.item, 0)
            self._host.add(pass_index)
        operations.combine()
        record("combine", pass_index, layer, -1, state.tokens)

    def _batch(self, pass_index: int, layer: int, batch: int) -> None:
        """Attention of one batch, whose keys and values are copied by themselves; a smaller group
        has none of the last ones."""
        transfers, state, record = self._transfers, self._state, self._recorder.compute
        stage = self._device.units.stage(layer, batch)
        if stage:
            transfers.enter(pass_index, stage)
        kept = Unit(layer, "kv", batch)
        slot = self._wait(kept, "wait_kv", pass_index)
        if batch < state.batches:
            tokens = state.batch_tokens(batch)
            self._device.bind_kv(kept, slot)
            self._operations.attention(layer, batch)
            record("attention", pass_index, layer, batch, tokens)
            if slot is not None and (written := self._device.write_kv(kept, slot)):
                record("write_kv", pass_index, layer, batch, tokens, written)
        transfers.release_start(kept)

    def head(self, pass_index: int, count: int | None = None) -> tuple[list[int], list[int]]:
        """The head and the choice of the next tokens.

        Parameters
        ----------
        pass_index
            Counts through the whole run.
        count
            Only so many of the tiles, for measuring.
        """
        transfers, operations, record = self._transfers, self._operations, self._recorder.compute
        stage = len(self._model.layers)
        transfers.enter(pass_index, self._device.units.stage(stage))
        tiles = [Unit(stage, "head", tile) for tile in range(self._device.policy.head_tiles)]
        tiles = tiles[:count]
        routed = transfers.route(tiles, None)
        alive: list[int] = []
        for number, tile in enumerate((*routed.ready, *routed.demanded)):
            slot = self._wait(tile, "wait_head", pass_index)
            if number == 0:
                alive = operations.head_begin()
            operations.head_tile(tile.item, self._device.head_tile(tile, slot))
            transfers.computed(tile)
            record("head", pass_index, stage, tile.item, len(alive))
        tokens = operations.sample()
        record("sample", pass_index, stage, -1, len(alive))
        return alive, tokens

    def _wait(self, unit: Unit, kind: str, pass_index: int) -> int | None:
        slot, waited = self._transfers.wait(unit)
        if waited:
            self._recorder.compute(kind, pass_index, unit.stage, unit.item, 0)
        return slot
