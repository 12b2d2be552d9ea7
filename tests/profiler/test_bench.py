"""Benches: what lies on them, and that they really run what they say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import torch

from executor import embedding, open_weights
from planner.documents import Workload
from planner.memory import account_device
from profiler.bench import Bench, Tokens, assign_rows
from profiler.compute import Cell
from profiler.contention import Turn, contend, kind_slowdowns, slowdowns
from profiler.layout import Layout, first_layers
from profiler.link import CopySample, copies_alone, fit_link, one_moment

LARGE = 1 << 30


def test_rows_are_dealt_evenly_and_no_token_has_an_expert_twice() -> None:
    # 6 tokens, top-2 of 4 experts, 3 rows each: columns take turns, so each expert gets 3
    chosen = assign_rows(6, 2, [0, 1, 2, 3], 3, turn=0)
    assert chosen.tolist() == [[0, 1]] * 3 + [[2, 3]] * 3
    for tokens, rows in ((1, 1), (7, 2), (50, 16)):
        for turn in range(5):
            chosen = assign_rows(tokens, 3, [1, 2, 4, 5, 7], rows, turn)
            assert all(len(set(row)) == 3 for row in chosen.tolist())
            counts = torch.bincount(chosen.flatten(), minlength=8)
            assert int(counts.sum()) == 3 * tokens
            assert (counts == min(rows, tokens)).any()


def test_a_bench_with_room_holds_the_whole_model(checkpoint: Callable[[str], Path]) -> None:
    with open_weights(checkpoint("mixtral")) as source:
        layout = Layout(source.model, LARGE)
        plan = layout.plan(Workload(4, 8, 8))
        assert plan is not None
        assert plan.layers == 3
        assert all(layer.resident == tuple(range(8)) for layer in plan.policy.layers)
        assert layout.roomy(plan)


def test_a_bench_keeps_its_budget(checkpoint: Callable[[str], Path]) -> None:
    workload = Workload(4, 8, 8)
    with open_weights(checkpoint("mixtral")) as source:
        smallest = None
        for budget in range(1 << 16, 16 << 20, 1 << 16):
            plan = Layout(source.model, budget).plan(workload)
            if plan is None:
                continue
            smallest = smallest or budget
            part = first_layers(source.model, plan.layers)
            account = account_device(part, plan.policy, workload, 4, budget)
            assert account.peak_bytes <= budget
        assert smallest is not None
        # the smallest bench is one layer, whose experts are copied on demand, and it runs
        plan = Layout(source.model, smallest).plan(workload)
        assert plan is not None
        assert plan.layers == 1
        with Bench(source, plan, smallest, Tokens([1, 2, 3], 211)) as bench:
            events = bench.run([1, 1], [4, 5], rows=1)
            assert bench.device.ledger.peak_bytes <= smallest
        kinds = Counter(event.kind for event in events)
        assert kinds["attention"] == kinds["router"] == kinds["combine"] == 1


def test_every_kind_of_layer_is_on_a_bench(checkpoint: Callable[[str], Path]) -> None:
    with open_weights(checkpoint("qwen3_moe")) as source:
        for budget in range(1 << 18, 4 << 20, 1 << 18):
            plan = Layout(source.model, budget).plan(Workload(1, 1, 8))
            assert plan is None or plan.layers >= 2
        assert plan is not None
        with Bench(source, plan, budget, Tokens([1, 2, 3], 211)) as bench:
            kinds = Counter(event.kind for event in bench.run([1], [4], rows=1))
        assert kinds["dense_mlp"] == 1


def test_a_pass_gives_each_expert_the_rows_wanted(checkpoint: Callable[[str], Path]) -> None:
    with open_weights(checkpoint("mixtral")) as source:
        plan = Layout(source.model, LARGE).plan(Workload(16, 1, 8))
        assert plan is not None
        with Bench(source, plan, LARGE, Tokens([1, 2, 3], 211)) as bench:
            events = bench.run([1] * 16, [3] * 16, rows=4, batch_size=8, head_tiles=None)
            tiles = bench.plan.policy.head_tiles
        rows = [event.rows for event in events if event.kind == "expert"]
        # 16 tokens in each of the two columns: four experts of four rows each, in three layers
        assert rows == [4] * 8 * 3
        kinds = Counter(event.kind for event in events)
        assert kinds["attention"] == 2 * 3
        assert kinds["head"] == tiles
        assert kinds["sample"] == kinds["embed"] == 1
        starts = [event.start_ns for event in events if event.channel == "compute"][1:]
        ends = [event.end_ns for event in events if event.channel == "compute"][:-1]
        assert starts == ends


def test_the_channel_copies_only_when_it_shall(checkpoint: Callable[[str], Path]) -> None:
    with open_weights(checkpoint("mixtral")) as source:
        plan = Layout(source.model, LARGE, slots=4, stream=True).plan(Workload(4, 1, 8))
        assert plan is not None
        assert all(len(layer.prefetch) == 4 for layer in plan.policy.layers)
        with Bench(source, plan, LARGE, Tokens([1, 2, 3], 211)) as bench:
            assert all(e.channel == "compute" for e in bench.run([1] * 4, [3] * 4, rows=2))
            # enough of them for the reader to get a turn on a busy machine
            rest, busy = contend(bench, Cell(4, None, 8), 2, passes=40, turns=1)[0]
        assert rest.beside_share == 0
        assert rest.rate is None
        assert 0 < busy.beside_share <= 1
        assert busy.rate is not None
        assert set(rest.compute_ns) >= {"attention", "router", "expert", "combine"}
        assert "head" not in busy.compute_ns


def test_the_head_is_computed_beside_copies_where_it_is_there(
    checkpoint: Callable[[str], Path],
) -> None:
    with open_weights(checkpoint("mixtral")) as source:
        layout = Layout(source.model, LARGE, slots=4, stream=True, head=True)
        plan = layout.plan(Workload(4, 1, 8))
        assert plan is not None
        with Bench(source, plan, LARGE, Tokens([1, 2, 3], 211)) as bench:
            rest, busy = contend(bench, Cell(4, None, 8), 2, passes=5, turns=1)[0]
        assert rest.compute_ns["head"] > 0
        assert busy.compute_ns["head"] > 0


def test_copies_alone_are_of_whole_units(checkpoint: Callable[[str], Path]) -> None:
    with open_weights(checkpoint("mixtral")) as source:
        layout = Layout(source.model, LARGE, slots=5, reserve=0, stream=True, chunk_bytes=16 << 10)
        plan = layout.widest(Workload(1, 1, 8))
        assert plan is not None
        assert plan.layers == 3
        assert not any(layer.resident for layer in plan.policy.layers)
        with Bench(source, plan, LARGE, Tokens([1], 211)) as bench:
            samples = copies_alone(bench, Random(0))
        # an expert is 3 x 64 x 48 x 4 bytes = 36,864: three pieces of 16 KiB
        assert [(one.chunks, one.size_bytes) for one in samples] == [(3, 36_864)] * 5
        assert all(one.duration_ns > 0 for one in samples)


def test_a_link_is_a_latency_and_a_bandwidth() -> None:
    # 5,000 ns a chunk and 2 ns a byte, exactly
    samples = [
        CopySample(chunks, size, 5_000 * chunks + 2 * size)
        for chunks, size in ((1, 100_000), (4, 100_000), (1, 30_000)) * 3
    ]
    fit = fit_link(samples)
    assert fit.latency_ns.value == pytest.approx(5_000)
    assert fit.bandwidth_bytes_per_second.value == pytest.approx(5e8)
    assert fit.held_out_error == pytest.approx(0, abs=1e-9)


def test_a_moment_is_worth_its_mean() -> None:
    # of a throttled disk: two of three reads pass at once, the third waits for all
    copies = [CopySample(1, 100, 10), CopySample(1, 100, 10), CopySample(1, 100, 280)]
    other = CopySample(2, 500, 70)
    assert one_moment([*copies, other]) == [CopySample(1, 100, 100)] * 3 + [other]


def test_moments_of_all_pieces_say_how_the_disk_wanders() -> None:
    # two rounds, in the second of which the disk is a fifth slower; in each three moments of four
    # copies in one, two and four pieces
    fills = [
        CopySample(chunks, 100_000, round(per * size) + beside)
        for per in (90, 110)
        for chunks, size in ((1, 2_000), (2, 2_100), (4, 2_300))
        for beside in (-1, 0, 1)
    ]
    fit = fit_link([one for one in fills for _ in range(4)])
    # 18 moments, in six blocks 10% below and above what is usual of their shape: a standard
    # deviation of 0.1095; of six blocks nine of ten lie within 2.015 of it, of one more draw
    wide = 2.015 / 1.645 * math.sqrt(7 / 6)
    bandwidth = fit.bandwidth_bytes_per_second
    expected = 0.6745 * wide * math.sqrt(6 * 0.1**2 / 5)
    assert bandwidth.spread == pytest.approx(bandwidth.value * expected, rel=0.01)


def test_one_shape_of_copy_gives_bandwidth_alone() -> None:
    fit = fit_link([CopySample(2, 1_000, 4_000)] * 4)
    assert fit.latency_ns.value == 0
    assert fit.bandwidth_bytes_per_second.value == pytest.approx(0.25e9)
    with pytest.raises(ValueError, match="no copies"):
        fit_link([])


def test_slowdowns_by_hand() -> None:
    rest = Turn({"expert": 100.0, "attention": 100.0}, {"expert": 0.0, "attention": 0.0}, None)
    # 200 become 240, of which 70 + 60 = 130 lie beside copies: 1 + 0.2 / (130 / 240) with the
    # channel busy in all of it; of experts alone 1 + 0.4 / (130 / 240): their own share is not the
    # one that the planner applies
    busy = Turn({"expert": 140.0, "attention": 100.0}, {"expert": 0.5, "attention": 0.6}, 8e8)
    found = slowdowns([(rest, busy)], alone_rate=1e9)
    common = 1 + 0.2 * 240 / 130
    assert found.compute_slowdown.value == pytest.approx(common)
    assert found.copy_slowdown.value == pytest.approx(1.25)
    # one pair is believed a quarter, the rest is what all kinds say
    kinds = kind_slowdowns([(rest, busy)])
    assert kinds["expert"].value == pytest.approx(common**0.75 * (1 + 0.4 * 240 / 130) ** 0.25)
    assert kinds["attention"].value == pytest.approx(common**0.75)
    # faster beside than alone is the machine's noise, not a gain
    quick = Turn({"expert": 90.0, "attention": 90.0}, {"expert": 1.0, "attention": 0.1}, 2e9)
    found = slowdowns([(rest, quick)], alone_rate=1e9)
    assert (found.compute_slowdown.value, found.copy_slowdown.value) == (1.001, 1.0)
    # nor is slower, where as many are faster: what noise lengthens is not all that counts
    slow = Turn({"expert": 110.0, "attention": 110.0}, {"expert": 1.0, "attention": 1.0}, 5e8)
    found = slowdowns([(rest, quick), (rest, slow)], alone_rate=1e9)
    # medians of 2 and 0.5, and of 0.9 (beside copies in 99 of 180) and 1.1
    assert found.copy_slowdown.value == pytest.approx(1.25)
    assert found.compute_slowdown.value == pytest.approx(max(1 - 0.1 * 180 / 99 + 1.1, 2.002) / 2)
    # a tenth beside copies says nothing
    little = Turn({"expert": 190.0, "attention": 190.0}, {"expert": 0.1, "attention": 0.1}, 1e9)
    assert kind_slowdowns([(rest, little)]) == {}
    # nothing measured: no slowdown is known, and the figure says that it has no samples
    assert slowdowns([], 1e9).compute_slowdown.samples == 0


def test_noise_alone_slows_nothing() -> None:
    # computation that copies do not slow, in turns whose times scatter by a fifth
    generator = Random(3)

    def turn(beside: float) -> Turn:
        kinds = ("attention", "router", "expert")
        times = {kind: 1e6 * math.exp(generator.gauss(0, 0.2)) for kind in kinds}
        shares = {"attention": 0.9, "router": 0.2, "expert": 1.0}
        return Turn(times, {kind: beside * share for kind, share in shares.items()}, 1e9)

    pairs = [(turn(0.0), turn(1.0)) for _ in range(400)]
    found = {**kind_slowdowns(pairs), "all": slowdowns(pairs, 1e9).compute_slowdown}
    assert all(one.value < 1.06 for one in found.values())


def test_tokens_come_in_turn_and_say_when_they_begin_again() -> None:
    tokens = Tokens([1, 2, 3], 211)
    assert tokens.take(2, decode=False) == ([1, 2], True)
    # a third and a fourth are not there: from the start, rather than torn
    assert tokens.take(2, decode=False) == ([1, 2], True)
    assert tokens.take(1, decode=False) == ([3], False)
    assert tokens.take(2, decode=True) == ([1, 2], True)
    tokens.add_decoded([7, 8, 9])
    assert tokens.take(2, decode=True) == ([7, 8], True)
    assert tokens.take(1, decode=True) == ([9], False)


def test_more_tokens_than_there_are_repeat_as_the_first_do() -> None:
    # four different ones of four, two of two: none repeats, so no further one does
    every, _ = Tokens([5, 3, 8, 1], 211).take(20, decode=False)
    assert every[:4] == [5, 3, 8, 1]
    assert len(set(every)) == 20
    # two of two, two of four: nothing new comes
    same, _ = Tokens([5, 3, 5, 3], 211).take(20, decode=False)
    assert same == [5, 3] * 10
    # eight of sixteen, four of eight's half: 4 ** (log2(8 / 4) = 1) times as many among 64
    half = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    many, _ = Tokens(half, 211).take(64, decode=False)
    assert len(set(many)) == 8 * 4
    # and no more than the vocabulary holds
    few, _ = Tokens([0, 1], 6).take(50, decode=False)
    assert set(few) == set(range(6))


def test_rows_of_the_embedding_are_as_warm_as_in_a_run(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill finds none of its rows, decode those of the prompts and of the passes before."""
    # 40 rows of 64 values
    monkeypatch.setattr(embedding, "EMBEDDING_CACHE_BYTES", 40 * 64 * 4)
    with open_weights(checkpoint("mixtral")) as source:
        plan = Layout(source.model, LARGE).plan(Workload(4, 4, 8))
        assert plan is not None
        tokens = Tokens([10, 11, 12, 13], 211)
        with Bench(source, plan, LARGE, tokens) as bench:
            found: list[bool] = []
            really = bench.device.embedding.missing

            def missing(wanted: Sequence[int]) -> bool:
                found.append(really(wanted))
                return found[-1]

            monkeypatch.setattr(bench.device.embedding, "missing", missing)
            bench.run([4], [0], rows=1)
            bench.run([4], [0], rows=1)
            assert found == [True, True]
            tokens.add_decoded([10, 13, 70, 80, 80, 70])
            for _ in range(3):
                # 10 and 13 are in the prompts, 70 and 80 are new, and then kept
                bench.run([1, 1], [4, 4], rows=1)
            assert found[2:] == [False, True, False]
            for _ in range(3):
                bench.run([1, 1], [4, 4], rows=1)
            assert found[5:] == [False, True, False]
