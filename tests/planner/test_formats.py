"""Formats by expert: never worse than one for all, and better where both channels count."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from planner.candidate import Candidate
from planner.documents import Figure, RawCopies, StoredShares, Workload
from planner.encode import Encoding
from planner.entries import Entry, Patience, first_looks, mixed
from planner.factors import Factors
from planner.formats import (
    format_words,
    in_one_format,
    split_formats,
    streamed,
    variants,
)
from planner.groups import candidates
from planner.memory import smallest_budget
from planner.objectives import objective_named
from planner.profiles import Profile
from planner.sweep import by_group
from solvers.outcome import Schedule, Stop
from solvers.registry import Limits

WORKLOAD = Workload(16, 16, 8)


def figure(value: float) -> Figure:
    return Figure(value, "synthetic", 0.0, 9)


def both(plain: Profile, *, share: float = 0.66, packed: float = 1.0, raw: float = 1.0) -> Profile:
    """A profile of a store with both formats: bytes are read at 1 GB/s in either; ``packed`` and
    ``raw`` are what their copies make of computation beside them."""
    model = replace(plain.model, stored=StoredShares(1.0, share, 1.0))
    link = plain.hardware.channels[0]
    costs = replace(
        plain.costs,
        compute_slowdown=figure(packed),
        raw=RawCopies(link, figure(1.0), figure(raw)),
    )
    return replace(plain, model=model, costs=costs)


def looked(profile: Profile, more: int = 1_500_000) -> tuple[Candidate, Schedule]:
    """All requests as one group, with a first schedule in the format that suits all experts."""
    budget = smallest_budget(profile.model, WORKLOAD, 4) + more
    goal = objective_named("throughput", WORKLOAD)
    found = candidates(profile, WORKLOAD, budget, 0, goal)
    whole = max(found, key=lambda one: one.encoding.group)
    ((candidate, schedule),) = first_looks([whole], math.inf, Patience(False))
    return candidate, schedule


def test_copies_as_they_are_take_what_was_measured_of_them(profile_factory: Any) -> None:
    # 98,304 bytes in chunks of 65,536 and 32,768, each 20 us and bytes at 1 GB/s; compressed half
    profile = both(profile_factory(), share=0.5)
    raw = (frozenset({1}), *(frozenset[int](),) * 3)
    one = Encoding(profile, WORKLOAD, 1, 16, 8 << 20, 65536, raw=raw)
    items = one.stages(Factors(raw=1.5))[0].items
    assert (items[1].chunk_ns, items[1].last_ns) == (128_304, 79_152)
    assert (items[0].chunk_ns, items[0].last_ns) == (52_768, 36_384)
    assert one.stages(Factors())[1].items == (items[0],) * 8


def test_a_head_that_is_not_compressed_is_copied_as_it_is(profile_factory: Any) -> None:
    """Where decoding takes longest the link of what is decoded is slower by the byte."""
    profile = both(profile_factory())
    fast = profile.hardware.channels[0]
    slow = replace(fast, bandwidth_bytes_per_second=figure(1e8))
    hardware = replace(profile.hardware, channels=(slow,))
    # dense parts in half, the head as it is: 1,000 bytes at 100 MB/s and at 1 GB/s, 20 us a piece
    for head, head_ns in ((1.0, 21_000), (0.5, 25_000)):
        model = replace(profile.model, stored=StoredShares(0.5, 0.5, head))
        one = Encoding(replace(profile, hardware=hardware, model=model), WORKLOAD, 1, 16, 1 << 23,
                       65536)  # fmt: skip
        assert one.copy_ns(1000, kind="head") == head_ns
        assert one.copy_ns(1000, kind="dense") == one.copy_ns(1000, kind="expert") == 25_000
        assert one.copy_ns(1000, kind="raw") == 21_000


def test_the_format_with_no_drawback_is_taken_for_all(profile_factory: Any) -> None:
    """Fewer bytes at no price; and decoding so slow that compressed copies take longer."""
    candidate, schedule = looked(both(profile_factory()), 600_000)
    assert candidate.encoding.raw == ()
    assert split_formats(candidate, schedule, math.inf) is None
    slow = both(profile_factory(), share=1.0, packed=1.5)
    link = replace(slow.hardware.channels[0], bandwidth_bytes_per_second=figure(2e9))
    slow = replace(slow, costs=replace(slow.costs, raw=RawCopies(link, figure(1.0), figure(1.1))))
    candidate, schedule = looked(slow, 600_000)
    assert candidate.encoding.raw == (frozenset(range(8)),) * 4
    assert split_formats(candidate, schedule, math.inf) is None
    # what is resident is not copied, so that no format is stated for it
    policy = streamed(candidate, schedule).encoding.policy(schedule)
    for layer in policy.layers:
        assert {*layer.raw, *layer.resident} == set(range(8))
        assert not {*layer.raw} & {*layer.resident}


def test_between_the_channels_a_mix_is_best(profile_factory: Any) -> None:
    """Compressed copies make computation twice as long and are a third shorter: with all experts
    compressed computation binds, with none the channel does, and a mix is faster than either."""
    profile = both(profile_factory(expert_ns=(20_000, 1_000), latency_ns=0), packed=2.0)
    candidate, schedule = looked(profile, 900_000)
    entry = Entry.of("frequency", candidate, schedule, Stop.RULE)
    found = mixed(entry, Limits, math.inf)
    assert found.schedule == schedule
    raw = sum(map(len, streamed(found.candidate, schedule).encoding.raw))
    assert 0 < raw < sum(8 - len(choice.resident) for choice in schedule.stages[:-1])
    for one in variants(candidate):
        one.set_factors(schedule)
        assert one.score("choose", schedule) > 1.01 * found.chosen_value
    assert "each expert has a format of its own" in found.notes[-1]
    own = streamed(found.candidate, schedule)
    words = format_words(own, own.encoding.policy(schedule))
    assert f"{raw} are read as they are and {32 - raw} compressed" in words
    whole = in_one_format(own, schedule)
    assert set(whole) == {"compressed", "raw"}
    assert min(whole.values()) > own.score("judge", schedule)


def test_a_group_size_has_the_mix_that_suits_it(profile_factory: Any) -> None:
    """Better than what a store with either format alone has, where experts take twice as long."""
    profile = both(profile_factory(expert_ns=(40_000, 2_000), latency_ns=0), packed=2.0)
    budget = smallest_budget(profile.model, WORKLOAD, 4) + 900_000
    group = looked(profile, 900_000)[0].encoding.group
    raw = profile.costs.raw
    assert raw is not None
    packed = replace(profile, costs=replace(profile.costs, raw=None))
    slow = raw.compute_slowdown
    plain = replace(
        profile,
        model=replace(profile.model, stored=StoredShares(1.0, 1.0, 1.0)),
        costs=replace(profile.costs, raw=None, compute_slowdown=slow),
    )
    best = []
    for one in (profile, packed, plain):
        (point,) = by_group(
            one, WORKLOAD, memory_bytes=budget, only=[group], seconds_each=0.1, cap_seconds=600.0
        )
        assert point.objective is not None
        best.append(point.objective)
    assert 1.01 * best[0] < min(best[1:])


def test_computation_beside_a_mix_is_slowed_by_what_lies_beside_it(profile_factory: Any) -> None:
    """Between the factors of all compressed and of all as they are, which overlap as much here:
    copies take the same time in both formats."""
    profile = both(profile_factory(latency_ns=0), share=1.0, packed=2.0, raw=1.2)
    candidate, schedule = looked(profile, 1_500_000)
    packed, raw = variants(replace(candidate, encoding=replace(candidate.encoding, raw=())))
    half = replace(raw, encoding=replace(raw.encoding, raw=(frozenset({0, 2, 4, 6}),) * 4))
    start = Factors()
    for one in (packed, raw, half):
        one.factors = start
        one.set_factors(schedule)
    share = packed.factors.decode - 1.0
    assert raw.factors.decode == pytest.approx(1.0 + 0.2 * share, rel=0.05)
    assert raw.factors.decode < half.factors.decode < packed.factors.decode
