"""What a real run says of the curves, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor import open_weights
from planner.documents import (
    CostProfile,
    Curve,
    Event,
    Figure,
    LayerPolicy,
    ModelSpec,
    Policy,
    Surface,
    Workload,
)
from planner.memory import smallest_budget
from profiler import observing
from profiler.observed import Observed, alone_ns, between_passes_ns
from profiler.observing import observe
from profiler.record import recording_policy


def line(each: int) -> Curve:
    """``each`` ns a row."""
    return Curve((1, 2000), (each, 2000 * each), (0, 0), (1, 1), "measured")


@pytest.fixture
def costs() -> CostProfile:
    one = Figure(1.0, "measured", None, 1)
    kinds = ("embed", "router", "expert", "combine", "head", "sample")
    surface = Surface((8, 16), (line(10), line(20)))
    return CostProfile(
        model_hash="0" * 64,
        hardware_hash="0" * 64,
        dtype="float32",
        curves={kind: line(100) for kind in kinds},  # type: ignore[misc]
        attention_decode=surface,
        attention_prefill=surface,
        copy_slowdown=one,
        compute_slowdown=one,
        reference_ns=one,
    )


def event(kind: str, pass_index: int, start: int, end: int, rows: int = 0) -> Event:
    channel = "disk" if kind.startswith("copy") else "compute"
    return Event(kind, channel, pass_index, 0, 0, start, end, rows, 0)


EVENTS = (
    event("attention", 0, 0, 500, 48),
    # 3 rows at 100 ns each, of which half the time lies beside the copy
    event("expert", 0, 500, 900, 3),
    event("copy_demand", 0, 700, 1100),
    event("wait_expert", 0, 900, 1000),
    # pass 1 of two is decode: 4 sequences of 12 + 1 positions
    event("attention", 1, 1100, 1200, 4),
    # one of 5 tiles for 10 rows: 200 ns
    event("head", 1, 1200, 1500, 10),
    event("copy_head", 1, 1200, 1500),
    # the next group's prefill
    event("expert", 2, 2000, 2100, 1),
)
RUN = Observed(EVENTS, 2, 12, 5)


def test_each_operation_is_held_against_its_curve(costs: CostProfile) -> None:
    expected = [None, 300, None, None, 65, 200, None, 100]
    assert [alone_ns(costs, RUN, one) for one in EVENTS] == expected
    # prompts of one length: 48 tokens are 4 sequences of 12; midway between 10 and 20 ns a row
    uniform = Observed(EVENTS, 2, 12, 5, uniform=True)
    assert alone_ns(costs, uniform, EVENTS[0]) == 60
    # more rows than a tile holds take two tiles
    assert alone_ns(costs, RUN, event("expert", 0, 0, 1, 1025)) == 102_500


def test_what_lies_between_passes_counts_with_the_embedding(costs: CostProfile) -> None:
    # decode passes of 2 rows take 200 ns by their curve: 50, 500 and 90 ns beyond; prefill is apart
    events = (
        event("embed", 0, 0, 9000, 20),
        event("embed", 1, 0, 250, 2),
        event("embed", 2, 0, 700, 2),
        event("embed", 3, 0, 290, 2),
        event("router", 3, 0, 9000, 2),
    )
    assert between_passes_ns(costs, [Observed(events, 4, 12, 1)]) == 90
    early = (event("embed", 1, 0, 150, 2),)
    assert between_passes_ns(costs, [Observed(early, 4, 12, 1)]) == 0
    assert between_passes_ns(costs, []) == 0


def test_what_is_observed_recorded_nothing(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routers that are asked a layer ahead, and shapes that are met first, count in no cost."""
    made: list[tuple[int, int, bool]] = []
    real = observing.Generation

    def noted(device: Any, group: Any, limit: int, *rest: Any, **options: Any) -> Any:
        made.append((len(group), limit, options.get("ahead", False)))
        return real(device, group, limit, *rest, **options)

    monkeypatch.setattr(observing, "Generation", noted)
    monkeypatch.setattr(observing, "_SECONDS", 60.0)
    length = min(map(len, prompts))
    several = [prompt[:length] for prompt in (prompts * 12)[:12]]
    with open_weights(checkpoint("mixtral")) as source:
        found = observe(source, several, 64 << 20)
        # prefill and 24 passes of decode of all, of eight, of one; of decode the later half counts
        assert made == [(size, 25, False) for size in (12, 8, 1)]
        for run, size in zip(found, (12, 8, 1), strict=True):
            assert {one.pass_index for one in run.events} == {0, *range(13, 25)}
            assert (run.passes, run.prompt_tokens, run.uniform) == (25, length, True)
            assert {one.rows for one in run.events if one.kind == "head"} == {size}
            assert {run.phase(one) for one in run.events} == {"prefill", "decode"}
            assert {"expert", "head", "router"} <= {one.kind for one in run.events}
        # of fewer prompts than eight: those, then one
        made.clear()
        observe(source, several[:3], 64 << 20)
        assert [size for size, _, _ in made] == [3, 1]
        # with fewer passes each where runs are made more often
        made.clear()
        (run, *_) = observe(source, several, 64 << 20, decode=10)
        assert {limit for _, limit, _ in made} == {11}
        assert {one.pass_index for one in run.events} == {0, *range(6, 11)}
        # where passes take long there is one of decode
        monkeypatch.setattr(observing, "_SECONDS", 0.0)
        found = observe(source, several, 64 << 20)
        assert [{one.pass_index for one in run.events} for run in found] == [{0, 1}] * 3


def test_no_group_is_observed_that_takes_the_room_of_experts(
    checkpoint: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    """All would then be copied on demand, and each operation come after a wait."""
    several = [prompts[0]] * 12
    with open_weights(checkpoint("mixtral")) as source:
        workload = Workload(12, len(prompts[0]), 25)
        least = smallest_budget(source.model, workload, 4)
        sizes = {
            one.rows
            for run in observe(source, several, least)
            for one in run.events
            if one.kind == "head"
        }
    assert 1 in sizes
    assert max(sizes) < 12


def test_where_not_one_sequence_fits_nothing_is_observed(
    checkpoint: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    with open_weights(checkpoint("mixtral")) as source:
        assert observe(source, prompts[:1], 1000) == []


def test_experts_are_copied_ahead_in_a_run_of_its_own(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    several = [prompts[0]] * 8
    given: list[Observed] = []

    def first(model: ModelSpec, policy: Policy, run: Observed) -> Policy:
        given.append(run)
        own = [len(layer.resident) for layer in policy.layers]
        assert max(own) < model.layers[0].experts
        layers = zip(policy.layers, own, strict=True)
        return replace(policy, layers=tuple(replace(one, prefetch=(at,)) for one, at in layers))

    monkeypatch.setattr(observing, "_copying_ahead", first)
    with open_weights(checkpoint("mixtral")) as source:
        least = smallest_budget(source.model, Workload(8, len(prompts[0]), 25), 4)
        found = observe(source, several, least + 2 * source.model.expert_bytes)
    assert [run.ahead for run in found] == [False] * (len(found) - 1) + [True]
    # of as many sequences, eight at most, and it does copy ahead
    (run,) = given
    assert {one.rows for one in run.working if one.kind == "head"} == {
        one.rows for one in found[-1].working if one.kind == "head"
    }
    assert "copy_prefetch" in {one.kind for one in found[-1].copies}
    assert all("copy_prefetch" not in {one.kind for one in run.copies} for run in found[:-1])


def test_as_much_is_copied_ahead_as_comes_while_a_pass_is_computed(
    checkpoint: Callable[[str], Path],
) -> None:
    """2 ns of computation a pass for each byte of a layer's experts, at a byte a ns."""
    with open_weights(checkpoint("mixtral")) as source:
        model = source.model
    found = recording_policy(model, Workload(1, 8, 8), 64 << 20)
    assert found is not None
    policy = replace(found[0], slots=4, layers=(LayerPolicy(True, (0,), ()),) * len(model.layers))
    each = sum(layer.expert_bytes for layer in model.layers)

    def run(copied: int) -> Observed:
        copy = event("copy_demand", 1, 0, copied, 0)._replace(size_bytes=copied)
        passes = (event("expert", index, 0, 2 * each + 1, 1) for index in (1, 2))
        return Observed((*passes, copy), 8, 12, 1)

    ahead = observing._copying_ahead(model, policy, run(1000))
    assert ahead is not None
    assert [layer.prefetch for layer in ahead.layers] == [(1, 2)] * len(model.layers)
    # no more than there are; none where nothing is copied, or a copy has no room beside another
    all_but_one = LayerPolicy(True, tuple(range(model.layers[0].experts - 1)), ())
    most = replace(policy, layers=(all_but_one,) * len(model.layers))
    many = observing._copying_ahead(model, most, run(1000))
    assert many is not None
    assert {len(layer.prefetch) for layer in many.layers} == {1}
    assert observing._copying_ahead(model, policy, run(0)) is None
    assert observing._copying_ahead(model, replace(policy, slots=1), run(1000)) is None
