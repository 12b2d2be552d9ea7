"""Expert buffering against a simulation of the cache alone, without slots, chunks or a clock."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor import open_weights
from executor.engine import Engine
from executor.routing import check_recorded
from executor.schedule import Schedule
from executor.units import Unit, Units
from executor.virtual import VirtualResult, VirtualStage, run_virtual
from planner.documents import LayerPolicy, Policy, Workload
from solvers.errors import OptionError
from solvers.outcome import Eviction

LAYERS, EXPERTS, ACTIVE = 3, 8, 3
COPY_NS = 1000
Key = tuple[int, int]
Passes = list[list[list[tuple[int, int]]]]
"""For each pass and layer (expert, rows), most rows first."""


@dataclass
class Cache:
    """What lies in memory, with what each rule asks about it; ``time`` counts events."""

    room: int
    time: int = 0
    came: dict[Key, int] = field(default_factory=dict)
    used: dict[Key, int] = field(default_factory=dict)
    uses: Counter[Key] = field(default_factory=Counter)
    turned: dict[Key, int] = field(default_factory=dict)
    needed: dict[Key, list[int]] = field(default_factory=dict)

    def next_need(self, key: Key, here: int) -> float:
        return min((at for at in self.needed[key] if at > here), default=float("inf"))

    def stale(self, key: Key, here: int) -> tuple[int, ...]:
        """Turns of its layer since it was used, and stages until the next; most of both go first.

        Layers and the head are ``LAYERS + 1`` stages, and the router of ``here`` has spoken.
        """
        turns = here // LAYERS + (key[0] <= here % LAYERS)
        far = (key[0] - here % LAYERS - 1) % (LAYERS + 1)
        return self.turned[key] - turns, -far, self.used[key]


Rule = Callable[[Cache, Key, int], tuple[float, ...]]
FIRST_OUT: dict[Eviction, Rule] = {
    "lru": lambda cache, key, here: (cache.used[key],),
    "plan": lambda cache, key, here: (cache.used[key],),  # nothing is planned here
    "fifo": lambda cache, key, here: (cache.came[key],),
    "frequency": lambda cache, key, here: (cache.uses[key], cache.used[key]),
    "stale": lambda cache, key, here: cache.stale(key, here),
    "belady": lambda cache, key, here: (-cache.next_need(key, here), cache.used[key]),
    "lifo": lambda cache, key, here: (-cache.came[key],),
}
"""What leaves first has the smallest value."""


def simulate(passes: Passes, slots: int, eviction: Eviction) -> Counter[str]:
    cache = Cache(slots)
    stages = [stage for one in passes for stage in one]
    for here, stage in enumerate(stages):
        for expert, _ in stage:
            cache.needed.setdefault((here % LAYERS, expert), []).append(here)
    found: Counter[str] = Counter()
    for here, stage in enumerate(stages):
        keys = [(here % LAYERS, expert) for expert, _ in stage]
        hits = [key for key in keys if key in cache.came]
        misses = [key for key in keys if key not in cache.came]
        found += Counter(cached=len(hits), on_demand=len(misses))
        # copies are slow: when the first is chosen no hit has been computed yet, at each later one
        # the expert that has just come is being computed, and all before it are done
        busy = set(hits)
        if not misses:
            _compute(cache, hits, here)
        for number, key in enumerate(misses):
            own = [one for one in cache.came if one[0] == key[0]]
            full = eviction == "lifo" and len(own) >= slots // LAYERS
            if full or len(cache.came) == cache.room:
                among = [one for one in (own if full else cache.came) if one not in busy]
                rule = FIRST_OUT[eviction]
                victim = min(among, key=lambda one: rule(cache, one, here))
                del cache.came[victim]
            if number == 0:
                _compute(cache, hits, here)
            cache.time += 1
            cache.came[key] = cache.time
            # its computation ends after the next copy was chosen
            busy = {key}
            _compute(cache, [key], here)
    return found


def _compute(cache: Cache, keys: list[Key], here: int) -> None:
    for key in keys:
        cache.time += 1
        cache.used[key] = cache.time
        cache.uses[key] += 1
        cache.turned[key] = here // LAYERS + 1


def run(passes: Passes, slots: int, eviction: Eviction) -> VirtualResult:
    policy = Policy(
        n_batches=1,
        batch_size=1,
        layers=(LayerPolicy(True, (), ()),) * LAYERS,
        head_tile_rows=1,
        head_tiles=1,
        resident_head_tiles=1,
        slots=slots,
        dense_slots=0,
        reserve=1,
        eviction=eviction,
        chunk_bytes=4096,
    )
    experts = [Unit(layer, "expert", item) for layer in range(LAYERS) for item in range(EXPERTS)]
    resident = frozenset(
        [Unit(LAYERS, "head", 0), *(Unit(layer, "dense", -1) for layer in range(LAYERS))]
    )
    sizes = dict.fromkeys([*experts, *resident], 4096)
    units = Units(LAYERS, sizes, resident, ((),) * (LAYERS + 1))
    head = VirtualStage(0, 0, ((0, 1, 1),), 1)
    stages = [
        [
            *(
                VirtualStage(1, 1, tuple((item, rows, 1) for item, rows in one), 1)
                for one in layers
            ),
            head,
        ]
        for layers in passes
    ]
    return run_virtual(policy, units, stages, lambda unit, size: COPY_NS)


def draw(rng: random.Random) -> Passes:
    passes = []
    for _ in range(12):
        layers = []
        for _ in range(LAYERS):
            # skewed, so that some come back often
            chosen = {min(int(rng.expovariate(0.4)), EXPERTS - 1) for _ in range(ACTIVE)}
            rows = [(expert, rng.randint(1, 3)) for expert in chosen]
            layers.append(sorted(rows, key=lambda one: (-one[1], one[0])))
        passes.append(layers)
    return passes


@pytest.mark.parametrize("eviction", list(FIRST_OUT))
def test_hits_equal_a_simulation(eviction: Eviction) -> None:
    different = 0
    for seed in range(40):
        rng = random.Random(seed)
        passes = draw(rng)
        # a layer's share holds what a stage needs and one more
        slots = rng.randint(LAYERS * (ACTIVE + 1), LAYERS * EXPERTS - 4)
        want = simulate(passes, slots, eviction)
        got = run(passes, slots, eviction)
        assert Counter(got.served) == want
        assert got.copied_bytes == 4096 * want["on_demand"]
        different += want != simulate(passes, slots, "lru")
    assert (different > 20) == (eviction not in ("lru", "plan"))


def test_nothing_beats_belady() -> None:
    """Over all draws together; one by one a slot that is busy may stand in its way."""
    hits: Counter[str] = Counter()
    for seed in range(15):
        passes = draw(random.Random(seed))
        for eviction in FIRST_OUT:
            hits[eviction] += run(passes, LAYERS * (ACTIVE + 1), eviction).served["cached"]
    assert hits.most_common(1)[0][0] == "belady"


def test_what_the_plan_copies_next_stays() -> None:
    """The plan prefetches expert 0 of each of three layers; all slots are in reserve, so that every
    copy is on demand. After layer 1 of the first pass both of its experts and 0 of layer 0 lie in
    the three slots. Layer 2 needs 0, which takes the place of the one that nothing plans. In the
    next pass layer 0 needs 1: of the three, layer 0's own expert is the one whose turn comes last.
    """
    policy = Policy(1, 1, (LayerPolicy(True, (), ()),) * 3, 1, 1, 1, 3, 0, 3, "plan", 4096)
    experts = [Unit(layer, "expert", item) for layer in range(3) for item in range(2)]
    head = Unit(3, "head", 0)
    resident = frozenset([head, *(Unit(layer, "dense", -1) for layer in range(3))])
    chain = (*((Unit(layer, "expert", 0),) for layer in range(3)), ())
    units = Units(3, dict.fromkeys([*experts, *resident], 4096), resident, chain)
    schedule = Schedule(policy, units, 2, lambda: 0)

    def stage(layer: int, *active: int, at: int = 0) -> None:
        schedule.enter(at, layer)
        routed = schedule.route([Unit(layer, "expert", item) for item in active])
        for unit in (*routed.ready, *routed.demanded):
            while not schedule.ready(unit):
                assert schedule.next_chunk() is not None
                schedule.chunk_copied()
            schedule.computed(unit)

    def there() -> set[tuple[int, int]]:
        return {(unit.stage, unit.item) for unit in experts if schedule.ready(unit)}

    stage(0, 0)
    stage(1, 0, 1)
    assert there() == {(0, 0), (1, 0), (1, 1)}
    stage(2, 0)
    assert there() == {(0, 0), (1, 0), (2, 0)}
    schedule.enter(0, 3)
    schedule.route([head])
    stage(0, 1, at=1)
    assert there() == {(0, 1), (1, 0), (2, 0)}


def test_runs_keep_their_tokens_and_count_their_hits(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    """In real runs, with room for half of the experts; ``belady`` is given what the
    first run chose, and finds more there than any other."""
    folder = checkpoint_of("mixtral")
    with open_weights(folder) as source:
        model = source.model
    layers = (LayerPolicy(True, (), ()),) * len(model.layers)
    base = replace(helpers.resident(model), layers=layers, n_batches=1, batch_size=1)
    prompts = [[3 + (7 * i + 5 * j) % 200 for j in range(3 + i)] for i in range(2)]
    wanted, hits, recording = [], {}, None
    evictions: tuple[Eviction, ...] = ("lru", "fifo", "stale", "belady")
    for eviction in evictions:
        policy = replace(base, slots=12, reserve=12, eviction=eviction)
        with Engine.from_plan(helpers.plan(folder, policy, Workload(2, 8, 8))) as engine:
            recorded = recording if eviction == "belady" else None
            wanted.append([one.token_ids for one in engine.generate(prompts, recorded=recorded)])
            recording = recording or engine.recording()
            served = engine.trace().totals.served
        assert sum(served.values()) == sum(
            len(np.unique(chosen[:, column])) for chosen in recording for column in range(3)
        )
        hits[eviction] = served.get("cached", 0)
    assert all(tokens == wanted[0] for tokens in wanted)
    assert max(hits, key=lambda one: hits[one]) == "belady"
    assert hits["belady"] > hits["lru"] > 0


def test_recordings_that_do_not_fit(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    folder = checkpoint_of("mixtral")
    with open_weights(folder) as source:
        model = source.model
    policy = helpers.resident(model)
    right, wrong = np.zeros((1, 3, 2), np.uint16), np.zeros((1, 2, 2), np.uint16)
    check_recorded([right], model, replace(policy, eviction="belady"))
    for recorded, eviction, words in (
        (None, "belady", "give what an earlier run"),
        ([right], "lru", "has no effect"),
        ([wrong], "belady", "is not of"),
        ([right + 99], "belady", "is not of"),
    ):
        with pytest.raises(OptionError, match=words):
            check_recorded(recorded, model, replace(policy, eviction=eviction))


def test_belady_needs_a_recording() -> None:
    policy = Policy(1, 1, (LayerPolicy(True, (), ()),), 1, 1, 1, 2, 0, 1, "belady", 4096)
    units = Units(1, {}, frozenset(), ((), ()))
    with pytest.raises(OptionError, match="belady needs to know"):
        Schedule(policy, units, 1)
