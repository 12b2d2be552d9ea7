"""Every field of a plan, changed: refused as a document, found by the checker, or free by name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from planner.check import check_plan
from planner.documents import Plan, Workload, parse_document, to_json
from planner.profiles import Profile
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from solvers.errors import DocumentError

FREE = {
    # what reads nothing else of the plan
    "locations": "hints; the hashes in inputs say what must lie there",
    "notes": "sentences for the reader, made from the numbers",
    "chosen_over": "rivals' objectives, which only planning again could tell",
    "asked.predictors": "layers may follow one, and none need be better",
    # another legal choice, which need not make a difference to a replay
    "policy.reserve": "as many slots for demanded copies as can be had",
    "policy.chunk_bytes": "units of one chunk are the same in larger ones",
}


@pytest.fixture(scope="module")
def profile(profile_factory: Any) -> Profile:
    made: Profile = profile_factory(layers=2, sequences=4)
    return made


@pytest.fixture(scope="module")
def value(profile: Profile) -> Any:
    """A plan with a bound, residents and copies."""
    workload = Workload(requests=2, prompt_tokens=4, new_tokens=2)
    budget = smallest_budget_bytes(profile, workload) + profile.model.expert_bytes // 2
    plan = make_plan(profile, workload, memory_bytes=budget, solver="on-demand")
    assert plan.bound is not None
    assert check_plan(plan, profile) == []
    return to_json(plan)


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Values that hold no others; the first of a list, two kinds of durations."""
    if isinstance(value, dict) and value:
        few = sorted(value)[:2] if at[-1:] == ("duration_by_kind_ns",) else value
        for key in few:
            yield from leaves(value[key], (*at, key))
    elif isinstance(value, list) and value:
        yield from leaves(value[0], (*at, 0))
    else:
        yield at, value


def others(old: Any) -> list[Any]:
    """What a field might be instead."""
    if isinstance(old, bool):
        return [not old]
    if isinstance(old, int):
        return [old + 1, max(old - 1, 0), 2 * old + 3]
    if isinstance(old, float):
        return [old * 1.01, old / 2, 0.0]
    if isinstance(old, str):
        return [f"{old}x", "f" * 64]
    return [0, "x", 0.5] if old is None else [[0]]


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    made = json.loads(json.dumps(value))
    inner = made
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = new
    return made


def test_no_field_can_be_changed_unseen(profile: Profile, value: Any) -> None:
    draw, unseen, seen = random.Random(0), [], 0
    for at, old in leaves(value):
        name = ".".join(map(str, at))
        free = any(name == one or name.startswith(f"{one}.") for one in FREE)
        new = draw.choice([one for one in others(old) if one != old])
        try:
            plan = parse_document(Plan, changed(value, at, new), "here")
        except DocumentError:
            seen += 1
            continue
        # the replay costs much, and is only asked where nothing else can tell
        if free or check_plan(plan, profile, replayed=False) or check_plan(plan, profile):
            seen += not free
        else:
            unseen.append(f"{name}: {old!r} -> {new!r}")
    assert unseen == []
    assert seen > 70
