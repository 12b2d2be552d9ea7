"""What a real run says of the curves, by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor import open_weights
from planner.documents import CostProfile, Curve, Event, Figure, Surface, Workload
from planner.memory import smallest_budget
from profiler import observing
from profiler.observed import Observed, alone_ns, between_passes_ns
from profiler.observing import observe


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
