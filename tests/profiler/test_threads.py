"""How many threads serve a model: the choice, what it is made by, and where it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.source import open_weights
from planner.check import check_plan
from planner.documents import ThreadUse, Workload
from planner.documents.threads import Threaded
from planner.profiles import load_profile
from planner.solve import make_plan
from profiler import profile_checkpoint, threads
from profiler.bench import Bench, Tokens
from profiler.effort import Effort
from profiler.layout import BenchPlan, Layout
from profiler.threads import candidates, choose, given_threads, measure_threads
from solvers.errors import OptionError

QUICK = Effort(cell_ns=1, rounds=1, fills=1, moment_ns=20_000_000, turns=1, passes=1, stream_ns=0)
LARGE = 64 << 20


def expert(*ratios: tuple[int, float]) -> dict[tuple[Threaded, int], float]:
    return {("expert", rows): ratio for rows, ratio in ratios}


def test_few_numbers_are_tried() -> None:
    assert candidates(1) == (1,)
    assert candidates(2) == (1, 2)
    assert candidates(6) == (1, 2, 4, 6)
    assert candidates(8) == (1, 2, 4, 8)


def test_small_operations_are_one_threads_and_large_ones_are_shared() -> None:
    # half as fast at 1 and 2 rows, 1.5 times as fast from 8 on
    ratios = expert((1, 0.5), (2, 0.5), (8, 1.5), (32, 1.5))
    assert choose({2: ratios}) == ThreadUse(2, {"expert": 8})


def test_what_two_threads_gain_has_to_earn_the_second() -> None:
    # twice as many have to be faster by more than 5%: 1.05 exactly gains nothing, 1.06 does
    assert choose({2: expert((1, 1.05), (8, 1.05))}) == ThreadUse(1)
    assert choose({2: expert((1, 1.04), (8, 1.06))}) == ThreadUse(2, {"expert": 8})
    # no faster at any size, or nothing measured
    assert choose({2: expert((1, 1.0), (8, 1.0))}) == ThreadUse(1)
    assert choose({}) == ThreadUse(1)


def test_one_size_against_the_others_is_noise() -> None:
    # in logarithms, less 0.049 each: -0.74, +0.36, -0.15, +0.64; from 2 rows on they make 0.84,
    # from 32 on 0.64
    ratios = expert((1, 0.5), (2, 1.5), (8, 0.9), (32, 2.0))
    assert choose({2: ratios}) == ThreadUse(2, {"expert": 2})
    # -0.27, +0.05: from 2 rows on they would lose, and so the last alone remains
    assert choose({2: expert((2, 0.8), (8, 1.1))}) == ThreadUse(2, {"expert": 8})


def test_kinds_have_sizes_of_their_own() -> None:
    ratios: dict[tuple[Threaded, int], float] = {
        ("router", 1): 0.4,
        ("router", 64): 0.9,
        ("attention", 1): 1.2,
        ("attention", 64): 1.9,
    }
    assert choose({2: ratios}) == ThreadUse(2, {"attention": 1})


def test_four_threads_are_taken_where_they_gain_more_than_two() -> None:
    two = expert((8, 1.8), (32, 1.8))
    # each doubling has to earn its 5%: 1.8 * 1.05 = 1.89
    assert choose({2: two, 4: expert((8, 1.9), (32, 1.9))}) == ThreadUse(4, {"expert": 8})
    assert choose({2: two, 4: expert((8, 1.88), (32, 1.88))}) == ThreadUse(2, {"expert": 8})
    # of equals, fewer
    assert choose({4: two, 2: two}) == ThreadUse(2, {"expert": 8})


def test_a_given_number_is_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.threads.usable_cores", lambda: 4)
    three = given_threads(3)
    assert (three.use.count, three.ratios) == (3, ())
    assert three.use.of("expert", 1) == three.use.of("cross_attention", 1) == 3
    assert given_threads(1).use == ThreadUse(1)
    for count in (-1, 0, 5):
        with pytest.raises(OptionError, match=f"^{count} threads .* 4 of the .* give 1 to 4"):
            given_threads(count)


@pytest.mark.parametrize(
    ("family", "expert_rows"),
    # of Mixtral's 8 experts 4 are resident, two for each of a token's choices; of Qwen's 6 there
    # are 3, one for each, and it has all tokens
    [("mixtral", {1, 2, 8, 32, 128}), ("qwen3_moe", {1, 4, 16, 64, 256})],
)
def test_every_kind_is_measured_beside_copies(
    family: str,
    expert_rows: set[int],
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("profiler.threads.usable_cores", lambda: 2)
    with open_weights(checkpoint(family)) as source:

        def make(plan: BenchPlan) -> Bench:
            return Bench(source, plan, LARGE, Tokens([1, 2, 3], 211))

        found = measure_threads(source.model, LARGE, make, 1)
    assert found is not None
    sizes = {(one.kind, one.rows) for one in found.ratios}
    # decode of 1 to 64 sequences, prefill of 8 prompts of 32 tokens
    tokens = (1, 4, 16, 64, 256)
    assert {(kind, rows) for kind in ("router", "combine") for rows in tokens} <= sizes
    assert {rows for kind, rows in sizes if kind == "expert"} == expert_rows
    assert (("dense_mlp", 64) in sizes) == (family == "qwen3_moe")
    assert {("head", rows) for rows in (1, 4, 8, 16, 64)} <= sizes
    assert not {kind for kind, _ in sizes} & {"embed", "sample", "cross_attention"}
    # one warms up; three of each are made at least, but where they take long
    assert all(one.threads == 2 and one.ratio.samples >= 1 for one in found.ratios)
    assert all(one.ratio.value > 0 for one in found.ratios)
    by_size = {(one.kind, one.rows): one.ratio.value for one in found.ratios if one.kind != "copy"}
    assert found.use == choose({2: by_size})  # type: ignore[dict-item]


def test_one_core_needs_no_measuring(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiler.threads.usable_cores", lambda: 1)
    with open_weights(checkpoint("mixtral")) as source:
        found = measure_threads(source.model, LARGE, lambda _: pytest.fail("a bench was made"), 1)
    assert found is not None
    assert (found.use, found.ratios) == (ThreadUse(1), ())


def test_a_short_bench_has_as_few_layers_as_hold_enough(checkpoint: Callable[[str], Path]) -> None:
    workload = Workload(4, 1, 8)
    with open_weights(checkpoint("mixtral")) as source:
        layout = Layout(source.model, LARGE)
        whole = layout.streaming(workload)
        one = layout.streaming(workload, 1)
        # four of eight experts of 36,864 bytes: one layer holds less than 200,000, two hold more
        two = layout.streaming(workload, 200_000)
        assert (whole, one, two) != (None, None, None)
        assert [plan.layers for plan in (whole, one, two) if plan] == [3, 1, 2]
        assert layout.streaming(workload, 1 << 40) == whole


def test_what_was_chosen_reaches_the_plan(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    folder = tmp_path / "p"
    profile_checkpoint(
        checkpoint("mixtral"),
        folder,
        memory_bytes=LARGE,
        prompts=prompts,
        effort=QUICK,
        threads=1,
    )
    profile = load_profile(folder)
    assert profile.hardware.threads == 1
    assert profile.costs.threads is not None
    assert profile.costs.threads.use == ThreadUse(1)
    plan = make_plan(profile, Workload(4, 8, 4), memory_bytes=LARGE, solver="on-demand")
    assert plan.policy.threads == ThreadUse(1)
    assert check_plan(plan, profile) == []
    for other in (None, ThreadUse(2, {"expert": 1})):
        changed = replace(plan, policy=replace(plan.policy, threads=other))
        assert [one.reason for one in check_plan(changed, profile)] == ["threads"]


def test_a_number_of_threads_is_refused_where_it_has_no_effect(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    for device, count, words in (("cuda", 1, "no effect"), ("cpu", 0, "0 threads cannot")):
        with pytest.raises(OptionError, match=words):
            profile_checkpoint(
                checkpoint("mixtral"),
                tmp_path / "p",
                memory_bytes=LARGE,
                device=device,
                threads=count,
            )
    assert not (tmp_path / "p").exists()


def test_sizes_are_measured_again_while_others_have_the_cores(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times each, once is kept: the passes of 1, 4, 16 and 64 sequences and the prefill."""
    monkeypatch.setattr("profiler.threads.usable_cores", lambda: 2)
    monkeypatch.setattr("profiler.others.taken", lambda *_: 2.0)
    made: list[dict[tuple[int, str, int], list[float]]] = []

    def counted(*given: Any) -> dict[tuple[int, str, int], list[float]]:
        made.append(measure(*given))
        return made[-1]

    measure = threads._measure
    monkeypatch.setattr(threads, "_measure", counted)
    with open_weights(checkpoint("mixtral")) as source:

        def make(plan: BenchPlan) -> Bench:
            return Bench(source, plan, LARGE, Tokens([1, 2, 3], 211))

        found = measure_threads(source.model, LARGE, make, 1)
    assert found is not None
    assert len(made) == 3 * 5
    # of equals the first
    kept = [made[at] for at in range(0, 15, 3)]
    rounds = sum(len(one[2, "router", 16]) for one in kept if (2, "router", 16) in one)
    (router,) = [one for one in found.ratios if (one.kind, one.rows) == ("router", 16)]
    assert router.ratio.samples == rounds
