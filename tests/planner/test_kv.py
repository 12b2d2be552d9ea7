"""Keys and values below the device: sizes, prices, what is chosen, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.check import check_plan
from planner.documents import (
    Curve,
    KvWrites,
    Plan,
    StoredShares,
    Workload,
    document_hash,
    to_json,
)
from planner.encode import Encoding, schedule_of
from planner.factors import Factors
from planner.kv import (
    NOT_MEASURED,
    Written,
    check_place,
    kv_stays,
    token_blocks,
    written_column,
)
from planner.memory import aligned
from planner.overlap import most_beside_writes, overlap
from planner.predict import predict
from planner.recompute import candidate_of
from planner.scenarios import PassShape, split_sequences
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from solvers.errors import BudgetError, MoeplanError, OptionError, UnsupportedError
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Scenarios

WORK = Workload(requests=8, prompt_tokens=64, new_tokens=192)
pytestmark = pytest.mark.usefixtures("alone")


def planned(profile: Any, memory_bytes: int, **options: Any) -> Plan:
    return make_plan(profile, WORK, memory_bytes=memory_bytes, solver="lru", **options)


@pytest.fixture(scope="module")
def offloaded(small_profile: Any) -> Plan:
    """Of a budget that is a byte short for keys and values on the device."""
    return planned(small_profile, smallest_budget_bytes(small_profile, WORK, "device") - 1)


def test_sizes_and_prices(small_profile: Any) -> None:
    model, chunk = small_profile.model, 64 << 10
    below, here = (
        Encoding(small_profile, WORK, 2, 2, 8 << 20, chunk, kv) for kv in ("below", None)
    )
    # 4 sequences of 256 tokens
    token = model.layers[0].kv_bytes_per_token
    kv = 4 * aligned(256 * token)
    assert here.fixed.by_purpose["kv"] - below.fixed.by_purpose["kv"] == aligned(
        4 * 256 * token * len(model.layers)
    )
    prefill, decode = PassShape("prefill", 0, 4, 64, 1), PassShape("decode", 0, 3, 100, 1)
    shapes = prefill, decode, PassShape("decode", 0, 3, 256, 1), decode
    (first, *_), (plain, *_) = (one.stages(Factors(), shapes) for one in (below, here))
    assert first.start is not None
    assert plain.start is not None
    assert first.start.size_bytes == aligned(plain.start.size_bytes) + kv
    assert first.start.held_bytes == plain.start.held_bytes + kv
    # where sequences begin, the dense part alone comes into the same slot
    bare, hundred, last = first.short_starts
    assert bare == replace(plain.start, held_bytes=first.start.held_bytes)
    assert plain.short_starts == ()
    # 99 columns of 4 x 512 bytes are 49.5 blocks, 255 are 127.5
    assert token == 512
    assert hundred.size_bytes == aligned(plain.start.size_bytes) + 50 * 4096
    assert last.size_bytes == aligned(plain.start.size_bytes) + 128 * 4096
    assert {hundred.held_bytes, last.held_bytes} == {first.start.held_bytes}
    counts = np.zeros((4, len(model.moe_layers), model.layers[0].experts), dtype=np.int32)
    assert below.scenarios(shapes, counts, Factors()).shortened == [1, 2, 3, 2]
    assert here.scenarios(shapes, counts, Factors()).short is None
    # written in chunks, 64 columns of 2,048 bytes; then the block that holds the tokens of three
    assert 2 * chunk == 64 * 2048
    assert below.write_kv_ns(prefill, 0, Factors()) == 2 * below.copy_ns(chunk)
    assert below.write_kv_ns(decode, 0, Factors()) == below.copy_ns(4096)
    assert below.write_kv_ns(decode, 0, Factors(copy=1.5)) == below.copy_ns(4096, 1.5)
    assert here.write_kv_ns(decode, 0, Factors()) == 0


def line(times: int) -> Curve:
    """So many times what a read of the small profile takes: 20 us and 1 ns a byte."""
    rows = (4096, 1 << 20)
    durations = tuple(times * (20_000 + size) for size in rows)
    return Curve(rows, durations, (0, 0), (5, 5), "measured")


def written(profile: Any, alone: int, beside: int, **changes: Any) -> Any:
    """The profile with writes so many times as slow as reads."""
    costs = replace(profile.costs, kv_writes=KvWrites(line(alone), line(beside)), **changes)
    index = replace(profile.index, costs_hash=document_hash(costs))
    return replace(profile, costs=costs, index=index)


def test_writes_cost_more_beside_copies(small_profile: Any) -> None:
    slowed = replace(small_profile.costs.compute_slowdown, value=1.4)
    priced = written(small_profile, 2, 6, compute_slowdown=slowed)
    encoding = Encoding(priced, WORK, 2, 2, 8 << 20, 64 << 10, "below")
    decode = PassShape("decode", 0, 3, 100, 1)
    # a block, 2 x 24,096 ns alone and 6 x 24,096 beside; of 1.4 at most computation is slowed 1.0
    # times where none of it lies beside copies, 1.1 times where a quarter does
    for factor, times in ((1.0, 2), (1.1, 3), (1.4, 6), (1.5, 6)):
        took = encoding.write_kv_ns(decode, 0, Factors(copy=9.0, decode=factor))
        assert took == pytest.approx(times * 24_096, abs=1)
    # 64 columns of 4 x 512 bytes in two chunks
    prefill = PassShape("prefill", 0, 4, 64, 1)
    assert encoding.write_kv_ns(prefill, 0, Factors()) == 2 * 2 * (20_000 + 65_536)
    assert encoding.kept.written(prefill, 0).size_bytes == 2 * 65_536
    assert encoding.kept.written(decode, 0).size_bytes == 4096
    # where nothing slows computation, nothing tells how much of it lies beside copies
    still = Encoding(written(small_profile, 2, 6), WORK, 2, 2, 8 << 20, 64 << 10, "below")
    assert still.write_kv_ns(decode, 0, Factors()) == 6 * 24_096


def losing(profile: Any) -> Any:
    """Copies that are slowed by writes alone: by 1 us for a block, 2 us for 64 KiB."""
    lost = Curve((4096, 65_536), (1_000, 2_000), (0, 0), (5, 5), "measured")
    slowed = replace(profile.costs.copy_slowdown, value=1.0)
    priced = written(profile, 2, 6, copy_slowdown=slowed)
    costs = replace(priced.costs, kv_writes=replace(priced.costs.kv_writes, lost=lost))
    index = replace(priced.index, costs_hash=document_hash(costs))
    return replace(priced, costs=costs, index=index)


@pytest.mark.parametrize("part", [1.0, 0.25])
def test_what_copies_lose_beside_writes_by_hand(small_profile: Any, part: float) -> None:
    """Of four layers one streams its start unit, and nothing else is copied: d ns in a prefill, s
    and t ns in two decodes, which weigh 9 and 1.

    A prefill of 4 sequences writes 2 chunks (4 us lost), a decode of 3 one block (1 us). The first
    pass waits d, then computes for s / part, and the channel copies the second's start unit beside
    that; so do the second pass, for t / part, and the third's. The third computes nothing. So a
    part of all computation lies beside copies, in either phase, and as much of the writes: copies
    are later by part x (4 + 10 x 1) us. The channel copies for d + s in the first pass and for t in
    the second, nine times; what passes need of it is d + 9 s + t, which is less.
    """
    encoding = Encoding(losing(small_profile), WORK, 2, 2, 8 << 20, 64 << 10, "below")
    shapes = (
        PassShape("prefill", 0, 4, 64, 1),
        PassShape("decode", 0, 3, 100, 9),
        PassShape("decode", 0, 3, 200, 1),
    )
    assert [encoding.lost_beside_ns(shape, 0) for shape in shapes] == [4_000, 1_000, 1_000]
    stages = encoding.stages(Factors(), shapes)
    first = stages[0]
    d, s, t = (one.copy_ns for one in first.short_starts)
    assert d < s < t
    shape = (3, len(stages))
    nothing, lead = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    lead[:2, 1] = round(s / part), round(t / part)
    demand = np.zeros((*shape, max(len(stage.items) for stage in stages)), dtype=np.int32)
    weight, short = np.array([1, 9, 1]), np.array([1, 2, 3])
    work = demand.astype(np.int64)
    scenarios = Scenarios(nothing, lead, demand, work, nothing, weight, short=short)
    problem = Problem(stages, scenarios, 1 << 40, 1 << 20)
    kept = tuple(
        StageChoice(0 < index < len(stages) - 1, tuple(range(len(stage.items))))
        for index, stage in enumerate(stages)
    )
    found = overlap(encoding, lambda: problem, shapes, Schedule(kept, 0, 1, 0), Factors())
    assert found.copy == pytest.approx(1 + part * 14_000 / (d + s + 9 * t), rel=1e-9)
    most = 14_000 / (d + 9 * s + t)
    assert most_beside_writes(encoding, shapes) == pytest.approx(most, rel=1e-12)
    here = Encoding(losing(small_profile), WORK, 2, 2, 8 << 20, 64 << 10, None)
    assert here.lost_beside_ns(shapes[0], 0) == 0
    assert most_beside_writes(here, shapes) == 0.0


def test_plans_pay_for_what_copies_lose(small_profile: Any, offloaded: Plan) -> None:
    """The same budget, with and without: slower where it counts, and checked."""
    budget = offloaded.memory["device"].capacity_bytes
    none, some = (
        planned(one, budget) for one in (written(small_profile, 1, 1), losing(small_profile))
    )
    assert (none.policy.kv, some.policy.kv) == ("below", "below")
    profile = losing(small_profile)
    assert check_plan(some, profile) == []
    assert some.predicted.slowdown.copy > 1.0
    more = replace(some.predicted, slowdown=replace(some.predicted.slowdown, copy=2.0))
    faults = check_plan(replace(some, predicted=more), profile)
    assert [fault.reason for fault in faults] == ["slowdown"]
    note = next(note for note in none.notes if note.startswith("keys and values"))
    assert "what copies lose beside them was not measured and is not priced" in note
    note = next(note for note in some.notes if note.startswith("keys and values"))
    assert "not priced" not in note


def test_a_plan_of_an_earlier_version_is_told_in_one_line(
    small_profile: Any, offloaded: Plan
) -> None:
    """What it says of its bound or its reads differs: one line that says what to do."""
    old = replace(offloaded, bound=None, bound_class=None, gap=None)
    totals = replace(
        offloaded.predicted.totals, bytes_read=offloaded.predicted.totals.bytes_read + 1
    )
    several = replace(old, predicted=replace(offloaded.predicted, totals=totals))
    for one in (old, several):
        (fault,) = check_plan(one, small_profile)
        assert fault.reason == "prediction"
        assert fault.message.endswith("bounds): plan again")


def test_a_paced_link_is_paced_in_both_directions(profile_factory: Any) -> None:
    paced = written(profile_factory(paced=1_000_000), 1, 1)
    decode = PassShape("decode", 0, 3, 100, 1)
    # 4,096 bytes at a megabyte a second, and half of what is being read: an expert's 98,304 bytes,
    # or a chunk of them
    for chunk, waits in ((64 << 10, 32 << 10), (1 << 20, 49_152)):
        encoding = Encoding(paced, WORK, 2, 2, 8 << 20, chunk, "below")
        assert encoding.write_kv_ns(decode, 0, Factors()) == 1000 * (4096 + waits)
    # of a compressed store half of that
    encoding = Encoding(compressed(paced), WORK, 2, 2, 8 << 20, 64 << 10, "below")
    assert encoding.write_kv_ns(decode, 0, Factors()) == 1000 * (4096 + (16 << 10))
    # with no copy beside it none
    slowed = replace(paced.costs.compute_slowdown, value=1.5)
    still = written(paced, 1, 1, compute_slowdown=slowed)
    encoding = Encoding(still, WORK, 2, 2, 8 << 20, 64 << 10, "below")
    assert encoding.write_kv_ns(decode, 0, Factors()) == 1000 * 4096
    assert encoding.write_kv_ns(decode, 0, Factors(decode=1.25)) == 1000 * (4096 + (16 << 10))


@pytest.mark.parametrize(
    ("column", "size", "chunk", "sizes", "per"),
    [
        (4096, 4096, 1 << 20, ((4096, 1),), 1),
        # a column of five blocks, in one write or in pieces of two blocks
        (20_480, 20_480, 1 << 20, ((20_480, 1),), 1),
        (20_480, 20_480, 8192, ((4096, 1), (8192, 2)), 1),
        # of 32 columns in five blocks each of the four borders lies within one
        (640, 640, 1 << 20, ((4096, 28), (8192, 4)), 32),
        # of two in three blocks both lie in two
        (6144, 6144, 1 << 20, ((8192, 2),), 2),
        # and where a smaller group has two thirds of them, the first in one
        (6144, 4096, 1 << 20, ((4096, 1), (8192, 1)), 2),
    ],
)
def test_a_column_lies_in_few_blocks(
    column: int, size: int, chunk: int, sizes: tuple[tuple[int, int], ...], per: int
) -> None:
    found = written_column(column, size, chunk)
    assert found == Written(sizes, per)
    assert found.total_ns(lambda size: size // 4096) == -(
        -sum(s // 4096 * n for s, n in sizes) // per
    )


def test_where_writes_are_slow_they_stay(small_profile: Any) -> None:
    """The least budget that keeps them: those of two sequences at once lie below where writes take
    as long as reads, and where they take eight times as long one at a time is faster."""
    work = replace(WORK, requests=2)
    budget = smallest_budget_bytes(small_profile, work, "device")
    same, slower = (written(small_profile, times, times) for times in (1, 8))
    fast, slow = (make_plan(one, work, memory_bytes=budget, solver="lru") for one in (same, slower))
    assert (fast.policy.kv, slow.policy.kv) == ("below", None)
    # four layers: 191 decode passes write a block with both sequences' tokens, a prefill 64 KiB
    assert (fast.policy.n_batches, fast.policy.batch_size) == (2, 1)
    assert fast.policy.chunk_bytes == 4 << 20
    once = 4 * (191 * 24_096 + 20_000 + (64 << 10))
    again = predict(candidate_of(fast, slower).judged(), schedule_of(fast.policy))
    totals = fast.predicted.totals, slow.predicted.totals, again.totals
    assert [one.duration_by_kind_ns.get("write_kv", 0) for one in totals] == [once, 0, 8 * once]
    # nothing hides behind a write: it holds the only slot of start units
    assert totals[2].wall_ns == pytest.approx(totals[0].wall_ns + 7 * once, rel=1e-3)
    assert totals[0].wall_ns < totals[1].wall_ns < totals[2].wall_ns
    note = next(note for note in fast.notes if note.startswith("keys and values"))
    share = once / totals[0].wall_ns
    assert f"writing back what is new takes {share:.1%} of the time, as measured" in note


def test_where_the_device_is_too_small_they_lie_below(small_profile: Any, offloaded: Plan) -> None:
    assert check_plan(offloaded, small_profile) == []
    assert offloaded.policy.kv == "below"
    memory = offloaded.memory["device"]
    assert memory.peak_bytes <= memory.capacity_bytes
    assert memory.by_purpose["kv"] == 0
    note = next(note for note in offloaded.notes if note.startswith("keys and values"))
    assert "of 4 of 4 layers lie below the device" in note
    assert "with all of them on the device nothing works below" in note
    assert NOT_MEASURED in note
    spent = offloaded.predicted.totals.duration_by_kind_ns
    assert spent["write_kv"] > 0
    rows = [row for row in offloaded.predicted.timeline.events() if row.kind == "write_kv"]
    assert {row.layer for row in rows} == {0, 1, 2, 3}
    with pytest.raises(BudgetError, match="the smallest that works is"):
        planned(small_profile, memory.capacity_bytes, kv="device")


def test_the_smallest_budget_is_exact_wherever_they_lie(small_profile: Any) -> None:
    least = {kv: smallest_budget_bytes(small_profile, WORK, kv) for kv in ("device", "below")}
    assert least["below"] < least["device"]
    assert smallest_budget_bytes(small_profile, WORK) == least["below"]
    made = planned(small_profile, least["below"])
    assert made.memory["device"].peak_bytes == least["below"]
    with pytest.raises(BudgetError) as caught:
        planned(small_profile, least["below"] - 1)
    assert caught.value.smallest_bytes == least["below"]


def test_a_place_that_is_asked_for(small_profile: Any) -> None:
    roomy = smallest_budget_bytes(small_profile, WORK, "device") + (1 << 20)
    for kv, want in (("device", None), ("below", "below")):
        made = planned(small_profile, roomy, kv=kv)
        assert made.policy.kv == want
        assert check_plan(made, small_profile) == []
    # with room for everything, every dense part and so every layer's keys and values stay
    made = planned(small_profile, 1 << 30, kv="below")
    assert made.predicted.totals.bytes_read == 0
    assert any("all stay on the device" in note for note in made.notes)


def test_plans_from_before_keep_their_hash(small_profile: Any, offloaded: Plan) -> None:
    assert to_json(offloaded)["policy"]["kv"] == "below"
    assert (
        "kv" not in to_json(replace(offloaded, policy=replace(offloaded.policy, kv=None)))["policy"]
    )


def test_a_plan_that_says_otherwise_is_found_out(small_profile: Any, offloaded: Plan) -> None:
    edited = replace(offloaded, policy=replace(offloaded.policy, kv=None))
    assert "memory_account" in {one.reason for one in check_plan(edited, small_profile)}
    assert "memory_account" in {one.reason for one in check_plan(edited)}
    moved = replace(offloaded, device="cuda")
    assert "kv" in {one.reason for one in check_plan(moved, small_profile)}


@pytest.mark.parametrize(
    ("kv", "device", "error", "said"),
    [
        ("host", "cpu", OptionError, "--kv 'host' is unknown; choose from auto, device, below"),
        ("below", "cuda", UnsupportedError, "stay on the device where that is 'cuda'"),
    ],
)
def test_what_is_refused(
    kv: str, device: str, error: type[MoeplanError], said: str, small_profile: Any
) -> None:
    model = small_profile.model
    with pytest.raises(error, match=said):
        check_place(kv, model, device)
    check_place("auto", model, device)
    assert kv == "host" or kv_stays(model, device) is not None


@pytest.mark.parametrize(
    ("tokens", "column", "token", "apart", "columns", "writes"),
    [
        # equally long: one column, in one write
        ([(7, place) for place in range(4)], 4096, 1024, 0, 0, [(28_672, 32_768)]),
        # sequences that have ended leave a hole, which is written with the rest
        ([(7, 0), (7, 3)], 16_384, 4096, 8192, 0, [(114_688, 131_072)]),
        ([(7, 0), (7, 3)], 16_384, 4096, 8191, 0, [(114_688, 118_784), (126_976, 131_072)]),
        # three columns apart, in blocks 0 and 3: two blocks lie between
        ([(0, 0), (3, 1)], 4096, 1024, 8192, 0, [(0, 16_384)]),
        ([(0, 0), (3, 1)], 4096, 1024, 8191, 0, [(0, 4096), (12_288, 16_384)]),
        # neighbours touch, and a block that holds two columns is written once
        ([(1, 0), (2, 0)], 4096, 4096, 0, 0, [(4096, 12_288)]),
        ([(5, 0), (0, 0), (6, 5)], 640, 64, 0, 0, [(0, 8192)]),
        # two columns whole, of sequences that begin, and a token of one that goes on behind them
        ([(2, 1)], 4096, 1024, 2048, 2, [(0, 12_288)]),
        ([(3, 1)], 4096, 1024, 2048, 2, [(0, 8192), (12_288, 16_384)]),
        # or in one of them
        ([(0, 3)], 4096, 1024, 2048, 2, [(0, 8192)]),
    ],
)
def test_new_tokens_that_lie_close_are_one_write(
    tokens: list[tuple[int, int]],
    column: int,
    token: int,
    apart: int,
    columns: int,
    writes: list[tuple[int, int]],
) -> None:
    assert token_blocks(tokens, column, token, apart, columns) == writes


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=40),
    st.sampled_from([16, 96, 512, 4096, 5000]),
    st.sampled_from([0, 5000, 8192, 65_536]),
)
def test_writes_hold_all_new_tokens_and_lie_far_apart(
    lengths: list[int], token: int, apart: int
) -> None:
    """Block by block: those with a token, and every gap that is no wider."""
    column = token * len(lengths)
    tokens = [(length, place) for place, length in enumerate(lengths)]
    blocks = {
        block
        for length, place in tokens
        for block in range(
            (length * column + place * token) // 4096,
            (length * column + place * token + token - 1) // 4096 + 1,
        )
    }
    filled: set[int] = set()
    for one, following in zip(sorted(blocks), [*sorted(blocks)[1:], None], strict=True):
        filled.add(one)
        if following is not None and (following - one - 1) * 4096 <= apart:
            filled.update(range(one, following))
    writes = token_blocks(tokens, column, token, apart)
    got = [block for begin, end in writes for block in range(begin // 4096, end // 4096)]
    assert got == sorted(filled)
    assert len(writes) == sum(block - 1 not in filled for block in filled)


def of_lengths(profile: Any, lengths: tuple[int, ...]) -> Any:
    """The profile with recorded prompts that have so many tokens, in turn; the rest is new ones."""
    arrays = profile.arrays
    prompt = np.array([lengths[one % len(lengths)] for one in arrays.sequence.tolist()])
    phase = (arrays.position >= prompt).astype(np.uint8)
    return replace(profile, arrays=replace(arrays, phase=phase))


def test_a_plan_tells_what_unequal_prompts_make_of_writing(profile_factory: Any) -> None:
    even = profile_factory(prompt=16, new=16)
    budget = smallest_budget_bytes(even, WORK, "device") + 800_000

    def words(profile: Any) -> tuple[Plan, str]:
        made = planned(profile, budget, kv="below")
        assert check_plan(made, profile) == []
        assert made.policy.kv == "below"
        return made, next(note for note in made.notes if note.startswith("keys and values"))

    assert "one length" not in words(even)[1]
    made, note = words(of_lengths(even, (4, 14)))
    # a group is drawn in turn from the six that judge; in the middle of the first of eight parts of
    # 191 decode passes there are eleven new tokens
    judge = split_sequences(24, made.seed).judge.tolist()
    group = made.policy.n_batches * made.policy.batch_size
    assert 2 < group <= 8
    prompts = [(4, 14)[judge[place % 6] % 2] for place in range(group)]
    assert f"with those recorded, of 4 to {max(prompts)} tokens (longer ones count as 64)" in note
    lengths = [prompt + 11 for prompt in prompts]
    token = even.model.layers[0].kv_bytes_per_token
    writes = token_blocks(
        [(length, place) for place, length in enumerate(lengths)],
        group * token,
        token,
        64 << 10,
    )
    size = sum(end - begin for begin, end in writes)
    assert len(writes) == 1
    assert f"writes back {size / 1024:.1f} KiB a layer, in 1 write, instead of" in note


def compressed(profile: Any, **changes: Any) -> Any:
    """The profile of a store in which dense parts and experts take half."""
    model = replace(profile.model, stored=StoredShares(0.5, 0.5, 1.0))
    return replace(profile, model=model, **changes)


def test_of_a_compressed_store_keys_and_values_are_read_as_they_are(small_profile: Any) -> None:
    """Each read takes 20 us and 1 ns a byte in the file."""
    profile, chunk = compressed(small_profile), 64 << 10
    below, here = (Encoding(profile, WORK, 2, 2, 8 << 20, chunk, kv) for kv in ("below", None))
    shape = PassShape("decode", 0, 4, 100, 1)
    own = profile.model.layers[0].dense_bytes
    # 99 columns of 4 x 512 bytes in whole blocks, behind the dense part's
    kv = 50 * 4096
    (first, *_), (plain, *_) = (one.stages(Factors(), (shape,)) for one in (below, here))
    (short,) = first.short_starts
    assert short.size_bytes == aligned(own) + kv
    # chunk by chunk: what it has of either, in a read each
    total = chunks = 0
    for begin in range(0, short.size_bytes, chunk):
        end = min(begin + chunk, short.size_bytes)
        dense, kept = max(min(end, own) - begin, 0), max(end - max(begin, aligned(own)), 0)
        total += sum(20_000 + size for size in (-(-dense // 2), kept) if size)
        chunks += 1
    assert chunks > 2
    assert (short.chunks, short.copy_ns) == (chunks, total)
    assert short.chunk_ns == total // chunks
    # where nothing comes with it a dense part is what it was
    bare = below.stages(Factors(), (PassShape("prefill", 0, 4, 64, 1),))[0].start_in(1)
    assert plain.start is not None
    assert bare is not None
    assert bare == replace(plain.start, held_bytes=bare.held_bytes)
    # a write costs as much as a read of all its bytes
    assert below.write_kv_ns(shape, 0, Factors()) == 24_096


def test_plans_with_a_compressed_store_have_them_below(small_profile: Any) -> None:
    profile = compressed(small_profile)
    least = {kv: smallest_budget_bytes(profile, WORK, kv) for kv in ("device", "below")}
    assert least["below"] < least["device"]
    made = make_plan(profile, WORK, memory_bytes=least["device"] - 1, solver="on-demand")
    assert made.policy.kv == "below"
    assert check_plan(made, profile) == []
    # the same copies with nothing saved, and with half of dense parts: each streams once a pass
    shapes, layers = candidate_of(made, profile).shapes("judge"), profile.model.layers
    streams = [at for at, one in enumerate(made.policy.layers) if not one.dense_resident]
    dense = sum(shape.weight * layers[layer].dense_bytes for shape in shapes for layer in streams)
    kept = sum(
        shape.weight
        * aligned(
            (shape.context - 1)
            * made.policy.batch_size
            * made.policy.n_batches
            * layers[layer].kv_bytes_per_token
        )
        for shape in shapes
        for layer in streams
        if shape.phase == "decode"
    )

    def read(*shares: float) -> int:
        model = replace(profile.model, stored=StoredShares(*shares))
        candidate = candidate_of(made, replace(profile, model=model))
        return predict(candidate.judged(), schedule_of(made.policy)).totals.bytes_read

    whole = read(1.0, 1.0, 1.0)
    halves = [whole - read(*one) for one in ((0.5, 1.0, 1.0), (1.0, 0.5, 1.0), (1.0, 1.0, 0.5))]
    assert halves[0] == pytest.approx(dense / 2, abs=1)
    # what no share changes
    assert whole - 2 * sum(halves) == pytest.approx(kept, abs=9)
