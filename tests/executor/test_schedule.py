"""The schedule as a state machine: rules by hand, and properties under random orders of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from executor.schedule import Chunk, Schedule
from executor.units import Unit, Units
from planner.documents import LayerPolicy, Policy
from solvers.errors import RunError

CHUNK = 4096
LAYERS, EXPERTS, TILES = 3, 5, 2

POLICY = Policy(
    n_batches=1,
    batch_size=1,
    layers=(LayerPolicy(False, (), ()),) * LAYERS,
    head_tile_rows=1,
    head_tiles=TILES,
    resident_head_tiles=0,
    slots=3,
    dense_slots=2,
    reserve=1,
    eviction="none",
    chunk_bytes=CHUNK,
)


def dense(layer: int) -> Unit:
    return Unit(layer, "dense", -1)


def expert(layer: int, index: int) -> Unit:
    return Unit(layer, "expert", index)


def tile(index: int) -> Unit:
    return Unit(LAYERS, "head", index)


def units_of(prefetch: tuple[int, ...], resident: tuple[int, ...] = ()) -> Units:
    """The same sets in each layer; dense parts of one chunk, experts of two, tiles of one."""
    sizes = {dense(layer): CHUNK for layer in range(LAYERS)}
    sizes |= {expert(layer, e): CHUNK + 1 for layer in range(LAYERS) for e in range(EXPERTS)}
    sizes |= {tile(index): CHUNK for index in range(TILES)}
    layers = [
        (dense(layer), *(expert(layer, e) for e in prefetch if e not in resident))
        for layer in range(LAYERS)
    ]
    kept = frozenset(expert(layer, e) for layer in range(LAYERS) for e in resident)
    return Units(LAYERS, sizes, kept, (*layers, tuple(tile(index) for index in range(TILES))))


def copy_all(schedule: Schedule) -> list[Chunk]:
    """Let the channel go on until nothing may start; what it would copy next is known before."""
    chunks = []
    chunk = schedule.next_chunk()
    while chunk is not None:
        chunks.append(chunk)
        guess = schedule.following()
        schedule.chunk_copied()
        chunk = schedule.next_chunk()
        assert chunk == guess
    assert schedule.following() is None
    return chunks


def names(chunks: list[Chunk]) -> list[tuple[str, int, int]]:
    """(kind, stage, item) of each unit that was completed."""
    return [(c.kind, c.unit.stage, c.unit.item) for c in chunks if c.last]


def test_chain_keeps_its_order_and_the_reserve() -> None:
    schedule = Schedule(POLICY, units_of((2, 0)), 2)
    # three slots with one in reserve hold two prefetches; then the second dense part, and behind it
    # the chain waits for a slot
    assert names(copy_all(schedule)) == [
        ("copy_dense", 0, -1),
        ("copy_prefetch", 0, 2),
        ("copy_prefetch", 0, 0),
        ("copy_dense", 1, -1),
    ]


def test_demand_overtakes_at_a_chunk_and_goes_first() -> None:
    schedule = Schedule(POLICY, units_of((0, 1)), 2)
    for _ in range(4):  # dense 0, expert 0 whole, first chunk of expert 1
        chunk = schedule.next_chunk()
        assert chunk is not None
        if chunk.unit == expert(0, 1):
            break
        schedule.chunk_copied()
    # the router speaks while a chunk of expert 1 is on the channel; 4 has most tokens
    routed = schedule.route([expert(0, 4), expert(0, 0), expert(0, 1)])
    assert routed.ready == (expert(0, 0),)
    # the one that is partly copied comes first, whatever its tokens
    assert routed.demanded == (expert(0, 1), expert(0, 4))
    schedule.chunk_copied()
    kinds = names(copy_all(schedule))
    assert kinds[:2] == [("copy_demand", 0, 1), ("copy_demand", 0, 4)]
    schedule.check_integrity()


def test_what_follows_is_what_compute_has_said_by_then() -> None:
    schedule = Schedule(POLICY, units_of((0, 1)), 2)
    while (chunk := schedule.next_chunk()) is not None and chunk.unit != expert(0, 0):
        schedule.chunk_copied()
    # the chain goes on with the rest of what is on the channel
    rest = schedule.following()
    assert rest is not None
    assert (rest.unit, rest.offset_bytes, rest.kind) == (expert(0, 0), CHUNK, "copy_prefetch")
    # it is not wanted, and 4 is: that comes, in the slot that is free
    schedule.route([expert(0, 4)])
    then = schedule.following()
    assert then is not None
    assert (then.unit, then.offset_bytes, then.kind) == (expert(0, 4), 0, "copy_demand")
    schedule.chunk_copied()
    assert schedule.next_chunk() == then


def test_dropped_prefetches() -> None:
    schedule = Schedule(POLICY, units_of((0, 1)), 2)
    chunks = []
    while (chunk := schedule.next_chunk()) is not None:
        chunks.append(chunk)
        if chunk.unit == expert(0, 1):
            break
        schedule.chunk_copied()
    routed = schedule.route([expert(0, 3)])
    assert routed.ready == ()
    assert routed.demanded == (expert(0, 3),)
    # expert 0 whole, and the chunk of expert 1 that is still on the channel
    assert schedule.wasted_bytes == CHUNK + 1 + CHUNK
    assert not schedule.chunk_copied()
    schedule.check_integrity()
    following = schedule.next_chunk()
    assert following is not None
    assert (following.unit, following.kind) == (expert(0, 3), "copy_demand")


def test_never_a_whole_pass_ahead_nor_beyond_the_end() -> None:
    roomy = replace(POLICY, slots=40, dense_slots=9)
    schedule = Schedule(roomy, units_of((0,)), 3)
    stages = {(c.pass_index, c.unit.stage) for c in copy_all(schedule)}
    # while stage 0 of pass 0 computes, the last one is the head of pass 0
    assert stages == {(0, stage) for stage in range(LAYERS + 1)}
    schedule.route([expert(0, 0)])
    schedule.computed(expert(0, 0))
    schedule.release_dense(0)
    schedule.enter(0, 1)
    assert {(c.pass_index, c.unit.stage) for c in copy_all(schedule)} == {(1, 0)}
    last = Schedule(roomy, units_of((0,)), 1)
    copy_all(last)
    last.release_dense(0)
    last.route([expert(0, 0)])
    last.computed(expert(0, 0))
    last.enter(0, 1)
    assert copy_all(last) == []


def test_lifo_gives_up_what_came_last() -> None:
    # all layers stream, the tiles stay: of six slots each layer has two
    policy = replace(POLICY, eviction="lifo", slots=2 * LAYERS, resident_head_tiles=TILES)
    base = units_of(())
    units = Units(LAYERS, base.sizes, frozenset({tile(0), tile(1)}), (*base.chain[:-1], ()))
    schedule = Schedule(policy, units, 3)

    def demand(experts: list[int]) -> list[int]:
        routed = schedule.route([expert(0, e) for e in experts])
        copied = [row[2] for row in names(copy_all(schedule)) if row[0] == "copy_demand"]
        for unit in (*routed.ready, *routed.demanded):
            schedule.computed(unit)
        schedule.check_integrity()
        return copied

    def next_pass(index: int) -> None:
        for stage in range(1, LAYERS + 1):
            schedule.enter(index - 1, stage)
            schedule.route([tile(t) for t in range(TILES)] if stage == LAYERS else [])
        schedule.enter(index, 0)

    assert demand([3, 1]) == [3, 1]
    next_pass(1)
    # four slots are free, but the layer has its share: 1 came last and goes
    assert demand([4]) == [4]
    next_pass(2)
    assert demand([3]) == []


def test_lru_keeps_and_evicts() -> None:
    clock = iter(range(1000))
    policy = replace(POLICY, eviction="lru", slots=2, resident_head_tiles=TILES)
    base = units_of(())
    units = Units(LAYERS, base.sizes, frozenset({tile(0), tile(1)}), (*base.chain[:-1], ()))
    schedule = Schedule(policy, units, 3, lambda: next(clock))
    for layer, used in ((0, [1, 2]), (1, []), (2, [])):
        if layer:
            schedule.enter(0, layer)
        copy_all(schedule)
        active = [expert(layer, e) for e in used]
        assert schedule.route(active).demanded == tuple(active)
        copy_all(schedule)
        for unit in active:
            schedule.computed(unit)
        schedule.release_dense(layer)
    schedule.enter(0, 3)
    schedule.route([tile(0), tile(1)])
    schedule.enter(1, 0)
    copy_all(schedule)
    # 1 and 2 are still there; 3 takes the slot of the older one that is not wanted
    routed = schedule.route([expert(0, 2), expert(0, 3)])
    assert routed.ready == (expert(0, 2),)
    copy_all(schedule)
    assert schedule.ready(expert(0, 3))
    assert not schedule.ready(expert(0, 1))
    schedule.check_integrity()


def test_use_before_copy_is_an_error() -> None:
    schedule = Schedule(POLICY, units_of(()), 1)
    with pytest.raises(RunError, match="before it was copied"):
        schedule.slot(expert(0, 0))


class Driver(RuleBasedStateMachine):
    """Compute and channel take turns in any order; whatever they do, the rules hold."""

    @initialize(
        slots=st.integers(1, 6),
        dense_slots=st.integers(1, 3),
        reserve=st.integers(1, 3),
        eviction=st.sampled_from(["none", "lru", "lifo", "fifo", "frequency", "plan"]),
        prefetch=st.permutations(range(EXPERTS)).flatmap(
            lambda order: st.integers(0, EXPERTS).map(lambda n: tuple(order[:n]))
        ),
        resident=st.sets(st.integers(0, EXPERTS - 1), max_size=3).map(lambda s: tuple(sorted(s))),
        hold=st.sampled_from([None, 0, 1, 2]),
    )
    def begin(self, slots, dense_slots, reserve, eviction, prefetch, resident, hold) -> None:  # type: ignore[no-untyped-def]
        self.passes = 4
        self.units = units_of(prefetch, resident)
        policy = replace(
            POLICY,
            slots=slots,
            dense_slots=dense_slots,
            reserve=min(reserve, slots),
            eviction=eviction,
            hold=hold,
        )
        self.policy = policy
        self.leading = False
        self.time = 0
        self.schedule = Schedule(policy, self.units, self.passes, lambda: self.time)
        self.flying: Chunk | None = None
        self.contents: dict[tuple[bool, int], Unit] = {}
        self.progress: dict[Unit, int] = {}
        self.pass_index = self.stage = 0
        self.todo: list[Unit] | None = None
        self.done = False

    # the channel -------------------------------------------------------------------------------

    @precondition(lambda self: self.flying is None)
    @rule()
    def choose(self) -> None:
        # by slot: a unit that is needed now may have lain elsewhere long ago
        needed = {self.schedule.slot(unit) for unit in self.todo or [] if self.schedule.ready(unit)}
        chunk = self.schedule.next_chunk()
        self.flying = chunk
        if chunk is None:
            return
        key = (chunk.unit.kind == "dense", chunk.slot)
        assert chunk.slot < (self.policy.dense_slots if key[0] else self.policy.slots)
        if self.leading and self.policy.hold is not None:
            on = (chunk.pass_index - self.pass_index) * (LAYERS + 1) + chunk.unit.stage - self.stage
            assert on <= self.policy.hold
        if chunk.offset_bytes == 0:
            # a slot that compute still needs is never taken
            assert key[0] or chunk.slot not in needed
            self.contents[key] = chunk.unit
            self.progress[chunk.unit] = 0
        assert self.contents[key] == chunk.unit
        assert self.progress[chunk.unit] == chunk.offset_bytes
        assert chunk.size_bytes == min(CHUNK, self.units.sizes[chunk.unit] - chunk.offset_bytes)
        self.progress[chunk.unit] += chunk.size_bytes

    @precondition(lambda self: self.flying is not None)
    @rule()
    def land(self) -> None:
        self.time += 1
        self.schedule.chunk_copied()
        self.flying = None

    # compute -----------------------------------------------------------------------------------

    @precondition(lambda self: not self.done and self.todo is None and self.stage < LAYERS)
    @rule()
    def lead(self) -> None:
        if self.schedule.ready(dense(self.stage)):
            self.schedule.lead_begins()
            self.leading = True

    @precondition(lambda self: not self.done and self.todo is None)
    @rule(data=st.data())
    def route(self, data: st.DataObject) -> None:
        self.time += 1
        if self.stage == LAYERS:
            active = [tile(index) for index in range(TILES)]
        else:
            if not self.schedule.ready(dense(self.stage)):
                return
            chosen = data.draw(st.lists(st.integers(0, EXPERTS - 1), unique=True))
            active = [expert(self.stage, e) for e in chosen]
            self.schedule.release_dense(self.stage)
        routed = self.schedule.route(active)
        self.leading = False
        assert sorted((*routed.ready, *routed.demanded)) == sorted(active)
        assert all(self.schedule.ready(unit) for unit in routed.ready)
        assert not any(self.schedule.ready(unit) for unit in routed.demanded)
        # each group keeps the order that was asked for, but for the one that is partly copied
        assert list(routed.ready) == [unit for unit in active if unit in routed.ready]
        assert list(routed.demanded[1:]) == [unit for unit in active if unit in routed.demanded[1:]]
        self.todo = [*routed.ready, *routed.demanded]

    @precondition(lambda self: bool(self.todo))
    @rule()
    def compute(self) -> None:
        assert self.todo is not None
        unit = self.todo[0]
        if not self.schedule.ready(unit):
            # no standstill: a chunk is under way, or one may start
            if self.flying is None:
                self.choose()
                assert self.flying is not None
            return
        slot = self.schedule.slot(unit)
        if slot is not None:
            assert self.contents[False, slot] == unit
            assert self.progress[unit] == self.units.sizes[unit]
        self.time += 1
        self.todo.pop(0)
        self.schedule.computed(unit)

    @precondition(lambda self: not self.done and self.todo == [])
    @rule()
    def go_on(self) -> None:
        self.todo = None
        self.stage += 1
        if self.stage > LAYERS:
            self.stage, self.pass_index = 0, self.pass_index + 1
        if self.pass_index == self.passes:
            self.done = True
        else:
            self.schedule.enter(self.pass_index, self.stage)

    @invariant()
    def books_add_up(self) -> None:
        if hasattr(self, "schedule"):
            self.schedule.check_integrity()


TestDriver = Driver.TestCase
TestDriver.settings = settings(max_examples=40, stateful_step_count=150, deadline=None)
