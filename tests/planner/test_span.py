"""Windows of attention: what they cost and where they are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.check import check_plan
from planner.documents import Workload, parse_document, to_json
from planner.encode import Encoding
from planner.interval import extrapolated
from planner.scenarios import PassShape
from planner.solve import make_plan
from planner.span import check_span
from solvers.errors import DocumentError, MoeplanError, OptionError, UnsupportedError

WORK = Workload(4, 300, 20, 16, 4)


def test_documents_without_a_window_are_as_before() -> None:
    plain = {"kind": "workload", "version": 1, "requests": 4, "prompt_tokens": 2, "new_tokens": 1}
    assert to_json(Workload(4, 2, 1)) == plain
    both = {**plain, "attention_window": 1, "attention_sinks": 0}
    assert to_json(parse_document(Workload, both, "here")) == both
    for key in ("attention_window", "attention_sinks"):
        with pytest.raises(DocumentError, match="go together"):
            parse_document(Workload, {**plain, key: 1}, "here")


def test_decode_costs_what_it_sees(profile_factory: Any) -> None:
    profile = profile_factory()
    lead = [
        Encoding(profile, work, 1, 2, 1 << 30, 1 << 20).lead(PassShape(*shape), 0, 1.0).steps[0][3]
        for work in (replace(WORK, attention_window=None, attention_sinks=None), WORK)
        for shape in (("prefill", 0, 2, 300, 1), ("decode", 0, 2, 310, 1), ("decode", 0, 2, 18, 1))
    ]
    # the fixture's attention: 50 us and 60 ns for each of two prompts' tokens; in decode 40 us and
    # 10 ns for each position of two sequences, of which the window leaves 16 + 4
    assert lead == [86_000, 46_200, 40_360, 86_000, 40_400, 40_360]


def test_what_was_measured_is_what_is_seen(profile_factory: Any) -> None:
    # contexts up to 1,024 were measured
    shapes = (PassShape("decode", 0, 2, 2_000, 1),)
    rows = profile_factory().arrays.experts[:0].astype("int32")
    for work, named in ((Workload(4, 1_990, 20), True), (Workload(4, 1_990, 20, 16, 4), False)):
        encoding = Encoding(profile_factory(), work, 1, 2, 1 << 30, 1 << 20)
        assert ("attention in decode" in extrapolated(encoding, shapes, rows)) == named


def test_a_plan_keeps_less(small_profile: Any) -> None:
    plans = [
        make_plan(small_profile, work, memory_bytes=12 << 20, solver="lru")
        for work in (WORK, replace(WORK, attention_window=150))
    ]
    for plan, tokens in zip(plans, (20, 154), strict=True):
        assert check_plan(plan, small_profile) == []
        group = min(plan.policy.n_batches * plan.policy.batch_size, 4)
        # 4 layers keep a key and a value of 64 numbers
        assert plan.memory["device"].by_purpose["kv"] == group * tokens * 4 * 2 * 64 * 4
    edited = replace(plans[0], workload=replace(WORK, attention_window=400))
    assert "attention_window" in {one.reason for one in check_plan(edited, small_profile)}


@pytest.mark.parametrize(
    ("changes", "window", "error", "said"),
    [
        ({"window": 8}, 16, UnsupportedError, r"\(mixtral\): layer 0 has a window of 8 tokens"),
        ({"state_bytes": 8}, 16, UnsupportedError, "layer 0 keeps a state instead"),
        ({}, 316, OptionError, "316 tokens and 4 sinks has no effect: no token has more than 319"),
        # the last of 320 tokens is never fed: 315 and 4 are all that any token could look at
        ({}, 315, OptionError, "315 tokens and 4 sinks has no effect: no token has more than 319"),
    ],
)
def test_what_is_refused(
    changes: dict[str, int],
    window: int,
    error: type[MoeplanError],
    said: str,
    small_profile: Any,
) -> None:
    model = small_profile.model
    layers = (replace(model.layers[0], **changes), *model.layers[1:])
    with pytest.raises(error, match=said):
        check_span(replace(model, layers=layers), replace(WORK, attention_window=window))
    check_span(model, replace(WORK, attention_window=314))
