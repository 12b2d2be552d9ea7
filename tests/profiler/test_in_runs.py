"""Benches' costs moved to what runs did, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.documents import CostProfile, Curve, Event, Figure, Surface
from planner.documents.costs import LEAST_SLOWDOWN
from profiler.contention import overlap
from profiler.in_runs import as_in_runs, as_runs_do, slowed_ahead
from profiler.observed import Observed


def line(each: int, most: int = 2000) -> Curve:
    """``each`` ns a row."""
    return Curve((1, most), (each, most * each), (0, 0), (1, 1), "measured")


def flat(each: int) -> Curve:
    """``each`` ns, however many rows."""
    return Curve((1, 2000), (each, each), (0, 0), (1, 1), "measured")


@pytest.fixture
def costs() -> CostProfile:
    one = Figure(1.0, "measured", None, 1)
    kinds = ("embed", "router", "expert", "combine", "head", "sample")
    return CostProfile(
        model_hash="0" * 64,
        hardware_hash="0" * 64,
        dtype="float32",
        curves={kind: line(100) for kind in kinds},  # type: ignore[misc]
        attention_decode=Surface((8, 16, 32), (line(10), line(20), line(30, most=3))),
        attention_prefill=Surface((8, 16), (line(10), line(20))),
        copy_slowdown=one,
        compute_slowdown=replace(one, value=1.5),
        reference_ns=one,
    )


def event(kind: str, pass_index: int, start: int, end: int, rows: int = 0) -> Event:
    channel = "disk" if kind.startswith("copy") else "compute"
    return Event(kind, channel, pass_index, 0, 0, start, end, rows, 0)


def test_a_share_is_of_all_computation() -> None:
    working = [event("router", 0, 0, 100), event("expert", 0, 100, 400)]
    assert overlap(working, [event("copy_demand", 0, 300, 900)]) == 0.25
    assert overlap([], [event("copy_demand", 0, 300, 900)]) == 0


def test_curves_move_to_what_operations_took_alone(costs: CostProfile) -> None:
    # half of the pass lies beside a copy, so all of it is 1.25 times as long as alone; routers of 4
    # rows (400 ns) took 1,000, which are 800 alone; so did experts of 8 rows, as long as they say
    events = [event("router", 1, turn * 2000, turn * 2000 + 1000, 4) for turn in range(6)]
    events += [event("expert", 1, turn * 2000 + 1000, turn * 2000 + 2000, 8) for turn in range(6)]
    events += [event("wait_expert", 1, 12_000, 90_000), event("copy_demand", 1, 6000, 99_000)]
    found = as_runs_do(costs, [Observed(tuple(events), 2, 12, 5)])
    # six events are believed by two thirds: so far goes the kind, and their size two thirds of the
    # way from there
    ratio = found.curves["router"](1) / costs.curves["router"](1)
    assert ratio == pytest.approx(2 ** (2 / 3 + 2 / 3 * 1 / 3), rel=0.01)
    assert found.curves["expert"] == replace(
        costs.curves["expert"], samples=found.curves["expert"].samples
    )
    # nothing was seen of the others
    assert found.curves["head"] == costs.curves["head"]
    assert found.attention_decode == costs.attention_decode


def test_other_forms_move_as_experts_do(costs: CostProfile) -> None:
    """Experts of 8 rows took twice as long; so do those of another form there, and the curve goes
    on rising."""
    costs = replace(costs, forms={"int8-1": Curve((8, 2000), (500, 501), (0, 0), (1, 1), "fitted")})
    events = tuple(event("expert", 1, turn * 1600, (turn + 1) * 1600, 8) for turn in range(6))
    found = as_runs_do(costs, [Observed(events, 2, 12, 5)])
    (moved,) = (found.forms or {}).values()
    for rows, before in ((8, 500), (2000, 501)):
        ratio = found.curves["expert"](rows) / costs.curves["expert"](rows)
        assert ratio > 1.5
        assert moved(rows) == pytest.approx(before * ratio, abs=1) or rows == 2000
    assert moved.duration_ns[0] <= moved.duration_ns[1]


def test_attention_moves_where_it_was_measured(costs: CostProfile) -> None:
    # 2 sequences of 12 + 1 positions: between 8 and 16, where 2 rows say 20 and 40 ns
    events = tuple(event("attention", 1, turn * 65, (turn + 1) * 65, 2) for turn in range(3))
    found = as_runs_do(costs, [Observed(events, 2, 12, 5)])
    # three events are believed by half: so far goes the kind, and their size half of the rest
    ratio = (65 / 33) ** (1 / 2 + 1 / 2 * 1 / 2)
    assert found.attention_decode(2000, 8) == pytest.approx(20_000 * ratio, rel=0.01)
    # 5 sequences of 20 positions: at 32 no more than 3 were measured, so nothing is said
    events = tuple(event("attention", 1, turn * 65, (turn + 1) * 65, 5) for turn in range(3))
    assert as_runs_do(costs, [Observed(events, 2, 19, 5)]) == costs


def test_attention_of_few_sequences_moves_by_itself(costs: CostProfile) -> None:
    """What many sequences take in a run says little of one: each number has its own ratio."""
    surface = Surface(
        (8, 16), tuple(Curve((1, 64), (50, each), (0, 0), (1, 1), "measured") for each in (60, 80))
    )
    costs = replace(costs, attention_decode=surface)
    # at 13 tokens 1 sequence says 50, 64 say 72.5 (rounded up); one took as long as that, 64 twice
    events = [event("attention", 1, turn * 50, (turn + 1) * 50, 1) for turn in range(97)]
    events += [event("attention", 1, turn * 146, (turn + 1) * 146, 64) for turn in range(100, 197)]
    found = as_runs_do(costs, [Observed(tuple(events), 2, 12, 5)]).attention_decode
    # 97 of 100 parts are their own; the kind's common ratio, the root of two, is the rest
    rest = 2 ** (1 / 2 * 194 / 197 * 3 / 100)
    assert found(1, 8) == pytest.approx(50 * rest, abs=1)
    assert found(64, 8) == pytest.approx(60 * rest * 2 ** (97 / 100), abs=1)
    assert found(64, 16) == pytest.approx(80 * rest * 2 ** (97 / 100), abs=1)


def test_a_pause_counts_as_four_times_the_curve(costs: CostProfile) -> None:
    events = (event("combine", 1, 0, 10**9, 1),)
    found = as_runs_do(costs, [Observed(events, 2, 12, 5)])
    long = (event("combine", 1, 0, 400, 1),)
    assert found == as_runs_do(costs, [Observed(long, 2, 12, 5)])
    assert found.curves["combine"](1) > costs.curves["combine"](1)


def test_copies_slow_what_runs_that_copy_ahead_say(costs: CostProfile) -> None:
    """Two runs of one truth, in which an operation takes 1,000 ns alone and 1,500 beside copies
    that never rest, where benches say 2,000 and twice as long: both are found."""
    two = replace(costs.compute_slowdown, value=2.0)
    costs = replace(
        costs, slowdown_by_kind={"router": two}, curves=costs.curves | {"router": flat(2000)}
    )

    def run(share: float, *, ahead: bool) -> Observed:
        each, many = round(1000 * (1 + share * 0.5)), 1000
        events = [event("router", 1, turn * each, (turn + 1) * each, 1) for turn in range(many)]
        copied = round(many * each * share)
        return Observed((*events, event("copy_prefetch", 1, 0, copied)), 2, 12, 5, ahead=ahead)

    found = as_in_runs(costs, [run(0.25, ahead=False), run(0.75, ahead=True)])
    # a thousand events are believed by 99.7%
    assert found.curves["router"](1) == pytest.approx(1000, rel=0.02)
    assert found.slowdown("router", "decode") == pytest.approx(1.5, rel=0.02)
    # without a run that copies ahead, benches say by how much copies slow
    alone = as_in_runs(costs, [run(0.25, ahead=False)])
    assert alone.slowdown("router", "decode") == 2.0
    assert alone.curves["router"](1) == pytest.approx(1125 / 1.25, rel=0.02)
    # what hardly lies beside copies tells nothing of them
    assert slowed_ahead(costs, costs, [run(0.15, ahead=True)]) == costs.slowdown_by_kind


def test_few_events_beside_copies_are_believed_little(costs: CostProfile) -> None:
    costs = replace(costs, slowdown_by_kind={"router": replace(costs.compute_slowdown, value=2.0)})
    # 4 rows say 400 ns; three events took 200 beside half of a copy: less than alone, so that
    # beside all of one they would take nothing, which no slowdown says: half of the way there
    events = [event("router", 1, turn * 200, (turn + 1) * 200, 4) for turn in range(3)]
    run = Observed((*events, event("copy_prefetch", 1, 0, 300)), 2, 12, 5, ahead=True)
    found = slowed_ahead(costs, costs, [run])["router"]
    assert found.value == pytest.approx(2 * (LEAST_SLOWDOWN / 2) ** 0.5)
    assert found.samples == costs.compute_slowdown.samples + 3
