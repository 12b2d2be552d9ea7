"""What a profile says of its own measurements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from moeplan.commands.profiled import doubts, measured_table, spreads
from planner.documents import (
    Channel,
    Curve,
    Figure,
    FormName,
    FormSlowdown,
    KvWrites,
    Surface,
    ThreadRatio,
    ThreadTimes,
    ThreadUse,
)
from planner.profiles import Profile
from planner.threads import thread_words


def curve(*spread_ns: int) -> Curve:
    """Points of 1, 2, ... rows that take 100 ns each."""
    count = len(spread_ns)
    return Curve(
        tuple(range(1, count + 1)), (100,) * count, spread_ns, (9,) * count, "measured", None
    )


def profile(
    drift: float = 4.0,
    attention: int = 12,
    slowed: float = 0.5,
    cross: Surface | None = None,
    writes: KvWrites | None = None,
    forms: dict[FormName, FormSlowdown] | None = None,
    threads: ThreadTimes | None = None,
) -> Profile:
    costs = SimpleNamespace(
        curves={"expert": curve(10, 20, 90), "head": curve(5)},
        attention_prefill=Surface((8,), (curve(7),)),
        attention_decode=Surface((32, 64), (curve(attention), curve(attention))),
        cross_prefill=cross,
        cross_decode=cross,
        reference_ns=Figure(100.0, "measured", drift, 5),
        copy_slowdown=Figure(1.5, "measured", 0.15, 5),
        slowdown_by_kind={"expert": Figure(2.0, "measured", slowed, 5)},
        kv_writes=writes,
        form_slowdowns=forms,
        threads=threads,
    )
    disk = Channel("disk", Figure(1e9, "measured", 2e8, 9), Figure(0.0, "measured"))
    hardware: Any = SimpleNamespace(channels=(disk,), threads=2)
    return cast(Profile, SimpleNamespace(costs=costs, hardware=hardware))


def test_spreads_are_shares_of_the_figures() -> None:
    assert spreads(profile()) == pytest.approx(
        {
            "reference": 0.04,
            "disk": 0.2,
            "attention, prefill": 0.07,
            "attention, decode": 0.12,
            "expert": 0.2,  # the median of 10%, 20% and 90%
            "head": 0.05,
            "copies beside computation": 0.1,
            "expert beside copies": 0.25,
        }
    )


def test_a_decoders_attention_to_its_prompts_is_told_apart() -> None:
    cross = Surface((8, 32), (curve(3), curve(3)))
    added = {
        name: spread for name, spread in spreads(profile(cross=cross)).items() if "cross" in name
    }
    assert added == {"cross attention, prefill": 0.03, "cross attention, decode": 0.03}


def test_a_quiet_machine_raises_no_doubt() -> None:
    assert doubts(profile(), 2.0, 2) == []


def test_wide_spreads_and_a_busy_machine_are_named() -> None:
    assert doubts(profile(drift=64.0, attention=30, slowed=0.8), 3.25, 2) == [
        "the load average was 3.2 on 2 cores at the start",
        "spread above 25%: reference 64%, attention, decode 30%, expert beside copies 40%",
    ]


def test_the_table_has_every_figure_with_its_spread() -> None:
    table = measured_table(profile())
    names, words, shares = (list(column.cells) for column in table.columns)
    assert names == [*list(spreads(profile()))[1:], "reference"]
    assert words[2] == "100 ns for 1 sequence, 100 ns for 1, at contexts of 32 and 64"
    assert words[-2] == "2.00 times as long as alone"
    assert shares == ["± 20%", "± 7%", "± 12%", "± 20%", "± 5%", "± 10%", "± 25%", "± 4%"]


def test_writes_of_keys_and_values_have_a_row_of_their_own() -> None:
    alone = Curve((4096,), (40_000,), (2_000,), (9,), "measured", None)
    beside = Curve((4096,), (200_000,), (70_000,), (9,), "measured", None)
    table = measured_table(profile(writes=KvWrites(alone, beside)))
    names, words, shares = (list(column.cells) for column in table.columns)
    at = names.index("writes of keys, values")
    # the median of 5% and 35%
    assert (words[at], shares[at]) == ("40 us for 4.0 KiB, 200 us beside reads", "± 20%")
    lost = Curve((4096,), (30_000,), (2_000,), (9,), "measured", None)
    table = measured_table(profile(writes=KvWrites(alone, beside, lost)))
    words = list(table.columns[1].cells)
    assert words[at] == "40 us for 4.0 KiB, 200 us beside reads, which are 30 us later"


def test_threads_are_told_with_what_they_were_chosen_by() -> None:
    def ratio(rows: int, value: float, spread: float) -> ThreadRatio:
        return ThreadRatio("expert", rows, 2, Figure(value, "measured", spread, 5))

    use = ThreadUse(2, {"expert": 8, "shared_expert": 4, "head": 4})
    chosen = ThreadTimes(use, (ratio(8, 1.5, 0.15), ratio(1, 0.5, 0.15)))
    columns = measured_table(profile(threads=chosen)).columns
    rows = list(zip(*(column.cells for column in columns), strict=True))
    assert (
        "threads",
        "2 threads compute shared expert, head from 4 rows on; expert from 8 rows on; one thread "
        "computes all else",
        "",
    ) in rows
    # the median of 10% and 30%
    told = ("2 threads, expert", "times as fast as one: 0.50 at 1, 1.50 at 8 rows", "± 20%")
    assert told in rows


def test_one_number_of_threads_for_everything() -> None:
    assert thread_words(ThreadUse(1)) == "one thread computes everything"
    every = ThreadUse(3, {"expert": 1, "head": 1})
    assert thread_words(every) == "3 threads compute expert, head, of any size"


def test_forms_beside_copies_have_spreads_too() -> None:
    copy, decode = Figure(2.0, "measured", 0.5, 5), Figure(1.2, "measured", 0.12, 5)
    found = spreads(profile(forms={"int8-1": FormSlowdown(copy, decode, decode)}))
    assert found["copies beside experts in int8-1"] == pytest.approx(0.25)
    assert found["expert in int8-1 beside copies"] == pytest.approx(0.1)
    assert found.keys() - spreads(profile()).keys() == {
        "copies beside experts in int8-1",
        "expert in int8-1 beside copies",
    }
