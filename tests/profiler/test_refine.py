"""Costs corrected by a run, by hand."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.documents import (
    Burst,
    Channel,
    CostProfile,
    Curve,
    Event,
    Figure,
    Hardware,
    Inputs,
    KvWrites,
    ProfileIndex,
    RawCopies,
    Surface,
    Timeline,
    Trace,
    TraceTotals,
    document_hash,
)
from planner.profiles import Profile
from profiler.correct import corrected, weight
from profiler.refine import observed, refine
from solvers.errors import OptionError, StaleError


def curve(*points: tuple[int, int]) -> Curve:
    rows, durations = zip(*points, strict=True)
    return Curve(rows, durations, (10,) * len(rows), (5,) * len(rows), "measured")


def line(each: int) -> Curve:
    return curve((1, each), (2000, 2000 * each))


def profile(**changed: Any) -> Profile:
    """All curves 100 ns a row, half as long again for experts beside copies; a copy takes 1 ns a
    byte and 100 ns a piece."""
    one = Figure(1.0, "measured", None, 1)
    channel = Channel("disk", Figure(1e9, "measured", 1e8, 7), Figure(100.0, "measured", None, 7))
    hardware = Hardware("here", "cpu", "some", 2, (), (replace(channel, **changed),))
    kinds = ("embed", "router", "expert", "combine", "head", "sample")
    surface = Surface((8, 16), (line(10), line(20)))
    costs = CostProfile(
        model_hash="a" * 64,
        hardware_hash=document_hash(hardware),
        dtype="float32",
        curves={kind: line(100) for kind in kinds},  # type: ignore[misc]
        attention_decode=surface,
        attention_prefill=surface,
        copy_slowdown=one,
        compute_slowdown=one,
        reference_ns=Figure(50.0, "measured", 4.0, 9),
        slowdown_by_kind={"expert": Figure(1.5, "measured", None, 1)},
    )
    index = ProfileIndex(
        "checkpoint",
        None,
        "f" * 64,
        None,
        1,
        document_hash(hardware),
        "a" * 64,
        document_hash(costs),
        "d" * 64,
    )
    # of the model only this is asked: units are stored as they are
    model: Any = SimpleNamespace(stored_share=lambda _: 1.0, encoder_depth=0)
    return Profile(Path("profile"), index, hardware, model, costs, None, None)  # type: ignore[arg-type]


def events(*rows: tuple[str, int, int, int, int]) -> list[Event]:
    """(kind, pass, start, end, rows or bytes)."""
    return [
        Event(kind, "disk", index, 0, 0, start, end, 0, size)
        if kind.startswith("copy")
        else Event(kind, "compute", index, 0, 0, start, end, size, 0)
        for kind, index, start, end, size in rows
    ]


EVENTS = events(
    # two sequences of two tokens
    ("embed", 0, 0, 400, 4),
    ("attention", 0, 400, 480, 4),
    ("router", 0, 480, 880, 4),
    # 300 ns beside a copy are 200 ns alone, as its curve says of two rows
    ("expert", 0, 880, 1180, 2),
    # all along, nine pieces of 100 bytes: 9 x 100 + 900 ns are expected
    ("copy_demand", 0, 0, 1980, 900),
    ("combine", 0, 1180, 1580, 4),
    ("head", 0, 1580, 1780, 2),
    ("sample", 0, 1780, 1980, 2),
    ("embed", 1, 1980, 2180, 2),
    ("attention", 1, 2180, 2200, 2),
    ("router", 1, 2200, 2400, 2),
    # each twice what its curve says of one row
    ("expert", 1, 2400, 2600, 1),
    ("expert", 1, 2600, 2800, 1),
    ("expert", 1, 2800, 3000, 1),
    ("combine", 1, 3000, 3200, 2),
    ("head", 1, 3200, 3400, 2),
    ("sample", 1, 3400, 3600, 2),
    # a pass in which a third sequence begins: five tokens, three sequences
    ("embed", 2, 3600, 99_600, 5),
    ("expert", 2, 99_600, 299_600, 5),
    ("sample", 2, 299_600, 399_600, 3),
)


def trace(of: Profile, rows: list[Event] = EVENTS, **changed: Any) -> Trace:
    index = of.index
    inputs = Inputs(
        index.model_hash, index.hardware_hash, index.costs_hash, "d" * 64, "f" * 64, None
    )
    whole = {field.name for field in fields(TraceTotals)}
    whole -= {"duration_by_kind_ns", "count_by_kind", "pass_ns", "requests"}
    zeros = dict.fromkeys(whole, 0)
    totals = TraceTotals(**zeros, duration_by_kind_ns={}, count_by_kind={}, pass_ns=())
    made = Trace(
        "e" * 64, "cpu", None, 3, totals, Timeline.of(rows), (60, 60, 70), inputs, chunk_bytes=100
    )
    return replace(made, **changed)


def several(expert: Curve, **forms: Curve) -> Profile:
    """The same of a store with forms of its two experts."""
    plain = profile()
    curves = {**plain.costs.curves, "expert": expert}
    named = {name.replace("_", "-"): one for name, one in forms.items()}
    costs = replace(plain.costs, curves=curves, forms=named or None)  # type: ignore[arg-type]
    model: Any = SimpleNamespace(
        stored_share=lambda _: 1.0, encoder_depth=0, layers=[SimpleNamespace(experts=2)]
    )
    index = replace(plain.index, costs_hash=document_hash(costs))
    return replace(plain, model=model, costs=costs, index=index)


def test_a_form_moves_as_the_only_one_would() -> None:
    """All experts are in int8: its curve becomes what it would as the checkpoint's own."""
    alone = several(line(50))
    expected = refine(alone, trace(alone)).costs.curves["expert"]
    assert expected != line(50)
    among = several(line(100), int8_1=line(50), int4_1=line(70))
    found = refine(among, trace(among, forms=(("int8-1", "int8-1"),)))
    assert found.costs.forms == {"int8-1": expected, "int4-1": line(70)}
    assert found.costs.curves["expert"] == line(100)
    assert "expert in int8-1" in [step.kind for step in found.steps]
    assert "expert" not in [step.kind for step in found.steps]


def test_each_form_moves_by_its_own_experts() -> None:
    """Expert 0 takes the 100 ns a row of its curve; expert 1, in int8, 100 ns where 50 are said:
    three times, which is believed as above."""
    rows = [
        *(("embed", 0, 0, 200, 2), ("expert", 0, 200, 300, 1), ("sample", 0, 300, 500, 2)),
        *(("embed", 1, 500, 700, 2), ("expert", 1, 700, 800, 1), ("sample", 1, 800, 1000, 2)),
        *(("embed", 2, 1000, 1200, 2), ("expert", 2, 1200, 1300, 1), ("sample", 2, 1300, 1500, 2)),
    ]
    made = events(*rows)
    both = [
        one
        for event in made
        for one in ([event, other(event)] if event.kind == "expert" else [event])
    ]
    among = several(line(100), int8_1=line(50))
    found = refine(among, trace(among, both, forms=(("own", "int8-1"),)))
    assert found.costs.curves["expert"].duration_ns == line(100).duration_ns
    moved = (found.costs.forms or {})["int8-1"]
    assert moved(1) == pytest.approx(50 * 2**0.75, abs=1)
    steps = {step.kind: step for step in found.steps}
    assert steps["expert"].before_ratio == steps["expert"].after_ratio == 1.0
    assert steps["expert in int8-1"].before_ratio == 2.0
    assert steps["expert in int8-1"].events == 3


def other(event: Event) -> Event:
    """As long again, of expert 1."""
    return event._replace(item=1)


def test_a_trace_that_says_no_forms_corrects_no_expert() -> None:
    among = several(line(100), int8_1=line(50))
    found = refine(among, trace(among))
    assert found.costs.forms == among.costs.forms
    assert found.costs.curves["expert"] == line(100)
    assert "expert" not in [step.kind for step in found.steps]


@pytest.mark.parametrize("forms", [(), (("own",),), (("own", "int4-1"),)])
def test_forms_of_another_store_are_refused(forms: Any) -> None:
    among = several(line(100), int8_1=line(50))
    with pytest.raises(OptionError, match="forms are not of the experts that the profile's store"):
        refine(among, trace(among, forms=forms))


def test_a_point_moves_by_what_was_measured_near_it() -> None:
    assert [weight(events) for events in (0, 1, 3, 27)] == [0, 1 / 4, 1 / 2, 9 / 10]
    old = curve((10, 1000), (100, 10_000), (1000, 100_000))
    # three events are believed by half, for their kind and for their size: 1/2 + 1/2 x 1/2 of a
    # ratio of 4, in logarithms; what is not measured goes along
    new = corrected(old, [(10, 4000.0, 1000.0)] * 3)
    ratio = 4**0.75
    assert new.duration_ns == tuple(round(ratio * one) for one in old.duration_ns)
    assert new.spread_ns == (28, 28, 28)
    assert new.samples == (8, 5, 5)
    # 1000 rows were right. Six events of the kind say half of 4, believed by 2/3: a third; 10 rows
    # are half way from there to 4, 1000 rows half way to 1; 100 lie midway
    new = corrected(old, [(10, 4000.0, 1000.0), (1000, 1e5, 1e5)] * 3)
    assert new.duration_ns == (
        round(1000 * 4 ** (2 / 3)),
        round(10_000 * 4 ** (5 / 12)),
        round(100_000 * 4 ** (1 / 6)),
    )
    # 40 rows are nearer to 100 than to 10, 30 are not
    assert corrected(old, [(40, 1.0, 1.0)]).samples == (5, 6, 5)
    assert corrected(old, [(30, 1.0, 1.0)]).samples == (6, 5, 5)


def test_a_larger_size_becomes_a_point_where_that_is_wanted() -> None:
    samples = [(4, 1600.0, 400.0)] * 3
    new = corrected(curve((1, 100), (2, 200)), samples, longer=True)
    assert (new.rows, new.duration_ns, new.samples) == ((1, 2, 4), (283, 566, 1131), (5, 5, 3))
    assert corrected(curve((1, 100), (2, 200)), samples).rows == (1, 2)


def test_a_corrected_curve_does_not_decrease() -> None:
    new = corrected(curve((10, 1000), (20, 1100)), [(10, 1.0, 1.0)] * 3 + [(20, 1.0, 4.0)] * 3)
    # as above: a sixth and two thirds of a quarter, in logarithms; three events of each
    first, second = 1000 * 0.25 ** (1 / 6), 1100 * 0.25 ** (2 / 3)
    assert new.duration_ns == (round((first + second) / 2),) * 2


def test_few_events_of_one_size_do_not_make_many_of_another_cheaper() -> None:
    old = curve((1, 1000), (2, 1000), (4, 1000))
    # 897 experts of one row took twice as long, 3 of four rows half as long: 900 events, of which
    # the kind's ratio is 2 ** (894 / 900), believed by 900 / 903; by far most are of one row
    new = corrected(old, [(1, 2000.0, 1000.0)] * 897 + [(4, 500.0, 1000.0)] * 3)
    kind = 894 / 903
    first, last = 1000 * 2 ** (kind + 897 / 900 * (1 - kind)), 1000 * 2 ** (kind + (-1 - kind) / 2)
    # two rows lie midway, and no event was near them: they weigh as one
    middle = math.sqrt(first * last)
    assert new.duration_ns == (round((897 * first + middle + 3 * last) / 901),) * 3
    assert new(1) == pytest.approx(2000, rel=0.01)


def test_only_passes_of_one_kind_count() -> None:
    run = observed(trace(profile()))
    assert {event.pass_index for event in run.events} == {0, 1}
    assert (run.prompt_tokens, run.head_tiles, run.uniform) == (2, 1, True)
    with pytest.raises(OptionError, match="no whole pass"):
        observed(trace(profile(), EVENTS[:3]))


def test_costs_and_link_follow_a_run() -> None:
    old = profile()
    found = refine(old, trace(old))
    new = found.costs
    # experts took 200 + 3 x 200 ns where 200 + 3 x 100 were expected: four events near one row
    ratio = (800 / 500) ** (1 - (3 / 7) ** 2)
    assert new.curves["expert"].duration_ns == (round(100 * ratio), round(200_000 * ratio))
    assert new.curves["expert"].samples == (9, 5)
    for kind in ("embed", "router", "combine", "head", "sample"):
        assert new.curves[kind].duration_ns == (100, 200_000)
    # prefill: two sequences of two tokens take 20 ns and took 80, once; decode was right
    assert new.attention_prefill.curves[0].duration_ns[1] == round(
        20_000 * 4 ** (1 / 4 + 1 / 4 * 3 / 4)
    )
    assert new.attention_decode == old.costs.attention_decode
    # the copy took 1980 ns instead of 1800
    link = found.hardware.channels[0]
    slower = 1.1 ** (1 / 4)
    assert link.bandwidth_bytes_per_second.value == pytest.approx(1e9 / slower)
    assert link.bandwidth_bytes_per_second.spread == pytest.approx(1e8 / slower)
    assert link.latency_ns == replace(link.latency_ns, value=100 * slower, samples=8)
    assert new.hardware_hash == document_hash(found.hardware)
    assert found.drift == 60 / 50
    assert new.reference_ns.value == 60
    assert new.reference_ns.spread == pytest.approx(4 * 60 / 50)


def of_both() -> Profile:
    """The same of a store that has its two experts compressed, in half their bytes, and as they
    are; a copy of these takes 2 ns a byte and 100 ns a piece."""
    plain = several(line(100))
    one = Figure(1.0, "measured", None, 1)
    link = Channel("disk", Figure(5e8, "measured", 1e8, 7), Figure(100.0, "measured", None, 7))
    costs = replace(plain.costs, raw=RawCopies(link, one, one))
    shares = {"expert": 0.5, "dense": 0.5, "head": 1.0}
    model: Any = SimpleNamespace(
        stored_share=shares.__getitem__, encoder_depth=0, layers=[SimpleNamespace(experts=2)]
    )
    index = replace(plain.index, costs_hash=document_hash(costs))
    return replace(plain, model=model, costs=costs, index=index)


def test_of_two_formats_each_moves_its_own_link() -> None:
    old = of_both()
    # 300 bytes of expert 1 as it is, and 200 of a head that is tied to what is not compressed
    raw = [
        Event("copy_demand", "disk", 1, 0, 1, 2000, 2600, 0, 300),
        Event("copy_head", "disk", 1, 1, 0, 2600, 3300, 0, 200),
    ]
    found = refine(old, trace(old, [*EVENTS, *raw], raw=((1,),)))
    # 900 bytes of expert 0: 9 pieces and 450 bytes to read are 1350 ns, and took 1980
    slower = (1980 / 1350) ** (1 / 4)
    link = found.hardware.channels[0]
    assert link.latency_ns.value == pytest.approx(100 * slower)
    assert link.bandwidth_bytes_per_second.value == pytest.approx(1e9 / slower)
    # 3 x 100 + 600 and 2 x 100 + 400 ns, and took 600 and 700: two copies count as two of five
    assert found.costs.raw is not None
    other = (1300 / 1500) ** (2 / 5)
    link = found.costs.raw.link
    assert link.latency_ns.value == pytest.approx(100 * other)
    assert link.bandwidth_bytes_per_second.value == pytest.approx(5e8 / other)
    steps = {step.kind: step for step in found.steps}
    assert (steps["copy"].events, steps["copy"].before_ns) == (1, 1350)
    assert (steps["copy as it is"].events, steps["copy as it is"].before_ns) == (2, 1500)
    assert steps["copy as it is"].measured_ns == 1300


def test_writes_of_a_paced_run_tell_of_its_pace() -> None:
    """As its copies do: nothing is corrected by either."""
    paced: dict[str, Any] = {"paced_bytes_per_second": 10**9}
    writes = KvWrites(curve((100, 100), (1000, 1000)), curve((100, 300), (1000, 3000)))
    old = writing(writes, **paced)
    wrote = [Event("write_kv", "compute", 0, 0, -1, 500_000, 501_800, 4, 250)]
    found = refine(old, trace(old, [*EVENTS, *wrote], **paced))
    assert found.costs.kv_writes == writes
    assert {"write_kv", "copy"}.isdisjoint(step.kind for step in found.steps)


def test_keys_and_values_behind_a_compressed_dense_part_are_read_whole() -> None:
    """400 bytes of it are 200 in the store, and take a block; 1,000 bytes are behind. The copy was
    paused, and chunks are of 100 bytes: 41 and 10 of them."""
    plain = profile()
    shares = {"expert": 0.5, "dense": 0.5, "head": 1.0}
    layers = [SimpleNamespace(experts=2, dense_bytes=400)]
    model: Any = SimpleNamespace(stored_share=shares.__getitem__, encoder_depth=0, layers=layers)
    old = replace(plain, model=model)
    copied = [
        Event("copy_dense", "disk", 1, 0, -1, 2000, 6000, 0, 4096),
        Event("copy_dense", "disk", 1, 0, -1, 7000, 9000, 0, 1000),
        # and a dense part alone
        Event("copy_dense", "disk", 0, 0, -1, 1980, 2000, 0, 400),
    ]
    (step,) = (
        step for step in refine(old, trace(old, [*EVENTS, *copied])).steps if step.kind == "copy"
    )
    # an expert 900 + 450 ns, then 5100 + 200 + 1000, and 400 + 200
    assert (step.events, step.before_ns) == (4, 1350 + 6300 + 600)


def test_a_trace_that_says_no_formats_corrects_no_link() -> None:
    old = of_both()
    found = refine(old, trace(old))
    assert found.hardware == old.hardware
    assert found.costs.raw == old.costs.raw
    assert not [step for step in found.steps if step.kind.startswith("copy")]


@pytest.mark.parametrize("raw", [(), ((2,),), ((0,), (0,))])
def test_formats_of_another_store_are_refused(raw: Any) -> None:
    old = of_both()
    with pytest.raises(OptionError, match="raw experts are none that the profile's store has"):
        refine(old, trace(old, raw=raw))
    with pytest.raises(OptionError, match="raw experts are none"):
        refine(several(line(100)), trace(several(line(100)), raw=((0,),)))


def test_each_step_shows_its_effect() -> None:
    old = profile()
    steps = {step.kind: step for step in refine(old, trace(old)).steps}
    assert set(steps) == {
        *("embed", "attention", "router", "expert", "combine", "head", "sample", "copy"),
    }
    expert = steps["expert"]
    # predicted with what ran beside: 1.5 x 200 + 3 x 100
    assert (expert.events, expert.measured_ns, expert.before_ns) == (4, 900, 600)
    assert expert.before_ratio == 1.5
    ratio = (800 / 500) ** (1 - (3 / 7) ** 2)
    assert expert.after_ns == pytest.approx(600 * ratio, rel=0.01)
    # the first and the third of them moved the curve: 400 ns of 300, two events; the others
    # took 400 ns, and 200 x that ratio is said of them
    half = (400 / 300) ** (1 - (3 / 5) ** 2)
    assert expert.held_out_ratio == pytest.approx(400 / (200 * half), rel=0.01)
    assert steps["router"].before_ratio == steps["router"].after_ratio == 1
    copy = steps["copy"]
    assert (copy.events, copy.measured_ns, copy.before_ns) == (1, 1980, 1800)
    assert copy.after_ns == pytest.approx(1800 * 1.1 ** (1 / 4), abs=1)
    assert copy.held_out_ratio is None


def test_what_the_host_computes_is_no_copy() -> None:
    old = profile()
    hosted = [Event("host_expert", "cpu", 1, 0, 2, 2400, 3000, 1, 0)]
    assert refine(old, trace(old, [*EVENTS, *hosted])) == refine(old, trace(old))


def test_a_link_with_a_burst_is_not_corrected() -> None:
    # a run's copies are some of the burst and some of what lasts, and do not say which
    burst = Burst(Figure(2e9, "fitted", None, 3), Figure(1e7, "fitted", None, 3))
    old = profile(burst=burst)
    found = refine(old, trace(old))
    assert found.hardware == old.hardware
    assert "copy" not in {step.kind for step in found.steps}
    assert "expert" in {step.kind for step in found.steps}


def test_a_paced_link_is_not_corrected() -> None:
    old = profile(paced_bytes_per_second=10**8)
    found = refine(old, trace(old, paced_bytes_per_second=10**8))
    assert found.hardware == old.hardware
    assert "copy" not in {step.kind for step in found.steps}


@pytest.mark.parametrize("name", ["model", "hardware", "costs"])
def test_a_run_of_something_else_is_refused_by_the_document_that_differs(name: str) -> None:
    old = profile()
    good = trace(old)
    assert good.inputs is not None
    other = replace(good, inputs=replace(good.inputs, **{name: "9" * 64}))
    with pytest.raises(StaleError, match=f"another {name} document"):
        refine(old, other)


def test_a_trace_that_does_not_say_enough_is_refused() -> None:
    old = profile()
    with pytest.raises(OptionError, match="older moeplan"):
        refine(old, trace(old, inputs=None))
    with pytest.raises(StaleError, match="paced to 1 GB/s"):
        refine(old, trace(old, paced_bytes_per_second=10**9))


def test_refining_again_with_the_same_run_comes_nearer_and_stays() -> None:
    old = profile()
    for _ in range(40):
        found = refine(old, trace(old))
        changed = replace(found.costs)
        index = replace(
            old.index,
            hardware_hash=document_hash(found.hardware),
            costs_hash=document_hash(changed),
        )
        old = replace(old, index=index, hardware=found.hardware, costs=changed)
    assert math.isclose(old.costs.curves["expert"].duration_ns[0], 160, rel_tol=0.02)
    assert old.hardware.channels[0].latency_ns.value == pytest.approx(110, rel=0.02)


def writing(writes: KvWrites, **changed: Any) -> Profile:
    """The profile with writes of keys and values."""
    plain = profile(**changed)
    costs = replace(plain.costs, kv_writes=writes)
    index = replace(plain.index, costs_hash=document_hash(costs))
    return replace(plain, costs=costs, index=index)


def test_writes_of_unequal_prompts_are_left_out() -> None:
    """Nothing says how many a decode pass made: those of the prefill count."""
    old = writing(KvWrites(curve((100, 100), (1000, 1000)), curve((100, 300), (1000, 3000))))
    rows = [
        row._replace(rows=5) if (row.kind, row.pass_index) == ("embed", 0) else row
        for row in EVENTS
    ]
    wrote = [
        Event("write_kv", "compute", 0, 0, -1, 500_000, 501_800, 5, 250),
        Event("write_kv", "compute", 1, 0, -1, 510_000, 510_400, 2, 200),
    ]
    found = refine(old, trace(old, [*rows, *wrote]))
    step = next(step for step in found.steps if step.kind == "write_kv")
    # five tokens of two prompts; of the prefill 1980 of 3780 ns lie beside copies, so that each of
    # three writes takes 100 + 0.524 x 200 ns
    assert (step.events, step.measured_ns, step.before_ns) == (1, 1800, 3 * 205)


def test_writes_of_keys_and_values_move_alone_and_beside_by_one_ratio() -> None:
    plain = profile()
    # 1 ns a byte alone, 3 ns beside copies
    writes = KvWrites(curve((100, 100), (1000, 1000)), curve((100, 300), (1000, 3000)))
    old = writing(writes)
    wrote = [
        Event("write_kv", "compute", index, 0, -1, start, end, rows, size)
        for index, start, end, rows, size in (
            # a layer's 250 bytes in chunks of 100, all beside a copy: 300 + 300 + 300 ns (of 50
            # bytes the curve says what it says of 100)
            (0, 500_000, 501_800, 4, 250),
            # two sequences, 100 bytes of each, beside none: 100 + 100 ns
            (1, 510_000, 510_400, 2, 200),
            (1, 510_400, 510_800, 2, 200),
        )
    ]
    copied = Event("copy_dense", "disk", 0, 1, -1, 500_000, 501_800, 0, 900)
    found = refine(old, trace(old, [*EVENTS, copied, *wrote]))
    step = next(step for step in found.steps if step.kind == "write_kv")
    assert (step.events, step.measured_ns) == (3, 2600)
    # all computation of the prefill lay beside copies, none of the decode pass
    assert step.before_ns == 900 + 200 + 200
    # each took twice as long: three events are believed by 3/4, in logarithms
    ratio = 2**0.75
    assert found.costs.kv_writes is not None
    for was, new in (
        (writes.alone, found.costs.kv_writes.alone),
        (writes.beside, found.costs.kv_writes.beside),
    ):
        assert new.duration_ns == tuple(round(ratio * one) for one in was.duration_ns)
        assert new.samples == (8, 5)
    assert refine(plain, trace(plain, [*EVENTS, *wrote])).costs.kv_writes is None
    # reads are later by 60 ns for each write: for the three beside the copy, of 1800 and 1980 ns of
    # copies in all, and for none of the others
    losing = replace(writes, lost=curve((100, 60), (1000, 60)))
    priced = writing(losing)
    again = refine(priced, trace(priced, [*EVENTS, copied, *wrote]))
    before, after = (
        next(step for step in one.steps if step.kind == "copy").before_ns for one in (found, again)
    )
    assert after / before == pytest.approx(3780 / (3780 - 180), rel=1e-3)
    assert again.costs.kv_writes is not None
    assert again.costs.kv_writes.lost == losing.lost
    assert again.costs.kv_writes.alone == found.costs.kv_writes.alone
