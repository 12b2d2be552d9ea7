"""An offload plan's experts on one device: what is copied ahead, and what overtakes it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from executor import open_weights
from executor.device import Device
from executor.parallel.rank import RankOptions, rank_account, rank_policy
from executor.parallel.serving import PlannedExperts
from executor.recorder import Recorder
from executor.schedule import Chunk
from executor.transfers import Following, Transfers
from executor.units import Unit, Units
from planner.documents import LayerPolicy, Policy
from planner.memory import aligned, read_buffer_bytes
from tests.waiting import until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pycode-moe"
CHUNK = 4096


def expert(layer: int, item: int) -> Unit:
    return Unit(layer, "expert", item)


class Channel:
    """Copies chunk by chunk, each when it is let."""

    def __init__(self) -> None:
        self.copied: list[Unit] = []
        self._let = threading.Semaphore(0)
        self._began = threading.Semaphore(0)

    def copy(self, chunk: Chunk, following: Following) -> None:
        self._began.release()
        assert self._let.acquire(timeout=60)
        self.copied.append(chunk.unit)

    def began(self) -> None:
        """Wait until a chunk is on the channel."""
        assert self._began.acquire(timeout=60)

    def let(self, chunks: int) -> None:
        self._let.release(chunks)


def device_of(channel: Channel, layers: tuple[LayerPolicy, ...], slots: int) -> Device:
    """A device of as many MoE layers, with experts of two chunks."""
    policy = Policy(
        n_batches=1,
        batch_size=1,
        layers=layers,
        head_tile_rows=1,
        head_tiles=1,
        resident_head_tiles=1,
        slots=slots,
        dense_slots=0,
        reserve=1,
        eviction="none",
        chunk_bytes=CHUNK,
    )
    units = Units(
        len(layers),
        {expert(layer, item): 2 * CHUNK for layer in range(len(layers)) for item in range(4)},
        frozenset(expert(layer, item) for layer, one in enumerate(layers) for item in one.resident),
        (
            *(
                tuple(expert(layer, item) for item in one.prefetch)
                for layer, one in enumerate(layers)
            ),
            (),
        ),
    )
    memory = SimpleNamespace(recorder=Recorder, transfers=Transfers)
    return cast(
        Device, SimpleNamespace(policy=policy, units=units, memory=memory, copy=channel.copy)
    )


OWN = frozenset(expert(layer, item) for layer in range(2) for item in range(3))


def test_demand_overtakes_what_is_copied_ahead_and_what_is_wrong_is_counted() -> None:
    channel = Channel()
    layers = (LayerPolicy(True, (0,), ()), LayerPolicy(True, (), (0, 1)))
    planned = PlannedExperts(device_of(channel, layers, 3), OWN, 1)
    planned.enter(0, 0)
    # beside layer 0's attention the chain copies for layer 1
    channel.began()
    planned.known([expert(0, 1), expert(0, 0)])
    channel.let(3)
    served = planned.serve([])
    # the resident is there at once; the other overtook the second chunk of layer 1's first
    assert next(served) == (expert(0, 0), None)
    assert next(served)[0] == expert(0, 1)
    assert channel.copied == [expert(1, 0), expert(0, 1), expert(0, 1)]
    assert next(served, None) is None
    # the chain goes on beside the exchange, and comes to both
    channel.let(3)
    until(lambda: len(channel.copied) == 6)
    until(lambda: planned.prefetched_bytes == 4 * CHUNK)
    planned.enter(0, 1)
    # of the two only one is wanted: the other's two chunks are wasted
    planned.known([expert(1, 1)])
    assert [unit for unit, _ in planned.serve([])] == [expert(1, 1)]
    planned.enter(0, 2)
    planned.close()
    assert channel.copied[3:] == [expert(1, 0), expert(1, 1), expert(1, 1)]
    assert (planned.hits, planned.misses) == (2, 1)
    assert (planned.prefetched_bytes, planned.wasted_bytes) == (4 * CHUNK, 2 * CHUNK)


def test_what_is_copied_for_a_pass_that_never_comes_is_wasted() -> None:
    channel = Channel()
    layers = (LayerPolicy(True, (), (2,)), LayerPolicy(True, (), ()))
    planned = PlannedExperts(device_of(channel, layers, 2), OWN, 2)
    channel.let(8)
    until(lambda: planned.prefetched_bytes == 2 * CHUNK)
    planned.enter(0, 0)
    planned.known([expert(0, 2)])
    assert [unit for unit, _ in planned.serve([])] == [expert(0, 2)]
    planned.enter(0, 1)
    planned.known([])
    # for the second pass
    until(lambda: planned.prefetched_bytes == 4 * CHUNK)
    assert planned.wasted_bytes == 0
    planned.close()
    assert planned.wasted_bytes == 2 * CHUNK


def test_a_copy_that_fails_ends_the_run() -> None:
    class Gone(Channel):
        def copy(self, chunk: Chunk, following: Following) -> None:
            raise OSError("the disk is gone")

    layers = (LayerPolicy(True, (), (2,)),)
    planned = PlannedExperts(device_of(Gone(), layers, 2), OWN, 1)

    def layer() -> None:
        planned.known([expert(0, 2)])
        list(planned.serve([]))

    with pytest.raises(RuntimeError, match="the reader thread failed"):
        layer()
    planned.close()


def test_a_ranks_policy_is_the_plans() -> None:
    with open_weights(EXAMPLE) as source:
        model = source.model
    plain = RankOptions(5, "lru", 2, 2, 9, 4)
    kept = [(layer, (1, 2), (0,)) for layer in model.moe_layers]
    planned = replace(plain, eviction="none", layers=kept, reserve=2, chunk_bytes=8192)
    policy = rank_policy(model, planned, 4)
    assert [(one.resident, one.prefetch) for one in policy.layers] == [((1, 2), (0,))] * 8
    assert (policy.slots, policy.reserve, policy.eviction) == (5, 2, "none")
    assert policy.chunk_bytes == 8192
    # residents are held beside the slots
    size = aligned(model.layers[0].expert_bytes)
    more = rank_account(model, planned).peak_bytes - rank_account(model, plain).peak_bytes
    # with a smaller piece the read buffer is smaller, too
    spared = read_buffer_bytes(model, rank_policy(model, plain, 4)) - read_buffer_bytes(
        model, policy
    )
    assert more == 2 * 8 * size - spared
