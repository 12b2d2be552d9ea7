"""With an encoder: what each side computes and sees in a pass, and what a plan of it predicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.check import check_plan
from planner.documents import RoutingTrace, Surface, Workload, document_hash
from planner.encode import Encoding
from planner.exports.base import Sources
from planner.factors import Factors
from planner.interval import extrapolated
from planner.predictor_report import check_judgeable
from planner.profiles import Profile, assemble
from planner.routing import (
    TraceArrays,
    coactivation,
    load_trace,
    popularity,
    write_trace,
)
from planner.routing_sources import load_source
from planner.routing_statistics import activated, drift
from planner.scenarios import PassShape, Sequences, draw_counts
from planner.sides import attended, embedded, tokens_each
from planner.solve import make_plan
from solvers.errors import DocumentError, UnsupportedError

PREFILL, DECODE = PassShape("prefill", 0, 6, 20, 1), PassShape("decode", 0, 6, 25, 3)
WORKLOAD = Workload(6, 20, 8)


def trace(*sequences: tuple[list[int], list[tuple[int, int]]]) -> TraceArrays:
    """One MoE layer of the encoder, two of the decoder; of each sequence what its prompt's tokens
    chose, and what the decoder's did."""
    rows, places = [], []
    for number, (prompt, decoded) in enumerate(sequences):
        rows += [(expert, 0, 0) for expert in prompt] + [(0, *pair) for pair in decoded]
        phases = [0] * len(prompt) + [1] * len(decoded)
        places += [(number, position, phase) for position, phase in enumerate(phases)]
    sequence, position, phase = np.array(places).T
    return TraceArrays(
        np.array(rows, dtype=np.uint16)[:, :, None],
        sequence.astype(np.int32),
        position.astype(np.int32),
        phase.astype(np.uint8),
        encoder=1,
    )


TWO = trace(([1, 1, 2], [(3, 0), (0, 2), (0, 3)]), ([1], [(3, 1), (2, 2)]))


def test_only_those_are_counted_that_met_a_router() -> None:
    # the encoder's: 1, 1, 2, 1; the decoder's first: 3, 0, 0, 3, 2; its second: 0, 2, 3, 1, 2
    want = [[0, 3 / 4, 1 / 4, 0], [2 / 5, 0, 1 / 5, 2 / 5], [1 / 5, 1 / 5, 2 / 5, 1 / 5]]
    assert popularity(TWO, 4).tolist() == want
    table = coactivation(TWO, 4)
    assert not table[0].any()
    assert table[1].tolist() == [[0, 0, 0.5, 0.5], [0] * 4, [0, 0, 1, 0], [0.5, 0.5, 0, 0]]
    # of one token each: an expert of four
    assert activated(TWO, 4, (1,)) == pytest.approx(0.25)
    assert drift(TWO, 4) is None


def test_a_trace_keeps_its_sides(tmp_path: Path) -> None:
    written = write_trace(tmp_path, TWO, model_hash="0" * 64, moe_layers=(1, 5, 6), expert_count=4)
    loaded, arrays = load_trace(tmp_path / "routing.json")
    assert loaded == written
    assert loaded.encoder == arrays.encoder == 1
    source = load_source(tmp_path / "routing.json")
    assert source.sequences["all"].tolist() == [
        [[0, 2, 1, 0], [2, 0, 0, 1], [1, 0, 1, 1]],
        [[0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]],
    ]
    with pytest.raises(ValueError, match="no MoE layer is left to the decoder"):
        replace(written, encoder=3)
    with pytest.raises(UnsupportedError, match="predictors are neither judged nor followed"):
        check_judgeable(written)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (replace(TWO, experts=TWO.experts + 1), "a token of the other side has not met"),
        (replace(TWO, ahead=TWO.experts), "which nobody asks with an encoder"),
        (trace(([1], [])), "a sequence has no token of the decoder"),
        (trace(([1], [(1, 1)]), ([], [(1, 1)])), "a sequence has no token of the encoder"),
    ],
)
def test_a_trace_whose_sides_are_mixed_up_is_refused(
    arrays: TraceArrays, message: str, tmp_path: Path
) -> None:
    write_trace(tmp_path, arrays, model_hash="0" * 64, moe_layers=(1, 5, 6), expert_count=8)
    with pytest.raises(DocumentError, match=message):
        load_trace(tmp_path / "routing.json")


def test_each_side_draws_its_own_tokens() -> None:
    """Prefill has prompts and first tokens; decode goes on with the others, over again."""
    sequences = Sequences.of(TWO, 4)
    shapes = (
        PassShape("prefill", 0, 2, 3, 1),
        *(PassShape("decode", 0, 2, 4 + step, 1) for step in range(2)),
    )
    counts = draw_counts(sequences, np.array([0, 1]), shapes, np.random.default_rng(0))
    # the second prompt's one token three times; both decoders begin with expert 3, then 0 or 1
    assert counts[0].tolist() == [[0, 5, 1, 0], [0, 0, 0, 2], [1, 1, 0, 0]]
    assert not counts[1:, 0].any()
    # the first sequence's two others in either order, the second's only one in both passes
    assert counts[1:, 1].tolist() == [[1, 0, 1, 0]] * 2
    assert sorted(counts[1:, 2].tolist()) == [[0, 0, 1, 1], [0, 0, 2, 0]]
    shares = sequences.token_shares(np.array([0, 1]))
    assert shares.tolist() == [[0] * 4, [0.5, 0, 0.5, 0], [0, 0, 0.75, 0.25]]


@pytest.fixture(scope="module")
def both(profile_factory: Any) -> Profile:
    """Two layers of an encoder, the first without experts, and three of a decoder."""
    plain: Profile = profile_factory(layers=5, dense_layers=1, experts=8, top_k=1)
    model = replace(
        plain.model,
        encoder=2,
        layers=tuple(
            replace(layer, kv_bytes_per_token=0 if layer.index < 2 else layer.kv_bytes_per_token)
            for layer in plain.model.layers
        ),
    )
    surface = plain.costs.attention_decode
    costs = replace(
        plain.costs,
        model_hash=document_hash(model),
        cross_decode=surface,
        cross_prefill=Surface(
            surface.second,
            tuple(
                replace(curve, duration_ns=tuple(3 * ns for ns in curve.duration_ns))
                for curve in surface.curves
            ),
        ),
    )
    old = plain.arrays
    experts = old.experts.copy()
    arrays = TraceArrays(experts, old.sequence, old.position, old.phase, encoder=1)
    for column in range(4):
        experts[~arrays.met(column), column] = 0
    routing: RoutingTrace = replace(plain.routing, model_hash=document_hash(model), encoder=1)
    index = replace(
        plain.index,
        model_hash=document_hash(model),
        costs_hash=document_hash(costs),
        routing_hash=document_hash(routing),
    )
    return replace(plain, index=index, model=model, costs=costs, routing=routing, arrays=arrays)


def test_a_pass_goes_through_both_sides(both: Profile) -> None:
    model = both.model
    assert [tokens_each(model, PREFILL, layer) for layer in range(5)] == [20, 20, 1, 1, 1]
    assert [tokens_each(model, DECODE, layer) for layer in range(5)] == [0, 0, 1, 1, 1]
    assert embedded(model, PREFILL) == 6 * 21
    assert embedded(model, DECODE) == 6
    costs = both.costs

    def seen(shape: PassShape, layer: int) -> list[tuple[str, Surface, int]]:
        return [tuple(one) for one in attended(both, WORKLOAD, shape, layer)]  # type: ignore[misc]

    assert costs.cross_prefill is not None
    assert costs.cross_decode is not None
    assert seen(PREFILL, 0) == [("attention", costs.attention_prefill, 20)]
    assert seen(DECODE, 0) == []
    # the decoder's start token alone; then it, and those behind the prompt: 21 to 25
    assert seen(PREFILL, 2) == [
        ("attention", costs.attention_decode, 1),
        ("cross_attention", costs.cross_prefill, 20),
    ]
    assert seen(DECODE, 4) == [
        ("attention", costs.attention_decode, 6),
        ("cross_attention", costs.cross_decode, 20),
    ]


def test_times_of_both_sides_by_hand(both: Profile) -> None:
    encoding = Encoding(both, WORKLOAD, 2, 4, 1 << 30, 1 << 20)
    costs, counts = both.costs, np.zeros((2, 4, 8), dtype=np.int32)
    counts[0, 0, 3] = 120
    counts[:, 1:, 5] = 6
    found = encoding.scenarios((PREFILL, DECODE), counts, Factors())
    curves, attention = costs.curves, costs.attention_decode
    assert found.prologue_ns[:, 0].tolist() == [curves["embed"](126), curves["embed"](6)]
    # batches of 4 and 2
    encoder = costs.attention_prefill(4, 20) + costs.attention_prefill(2, 20)
    assert costs.cross_prefill is not None
    assert costs.cross_decode is not None
    begins = sum(attention(size, 1) + costs.cross_prefill(size, 20) for size in (4, 2))
    goes_on = sum(attention(size, 6) + costs.cross_decode(size, 20) for size in (4, 2))
    router = curves["router"]
    assert found.lead_ns[0].tolist() == [
        encoder + curves["dense_mlp"](120),
        encoder + router(120),
        *[begins + router(6)] * 3,
        0,
    ]
    assert found.lead_ns[1].tolist() == [0, 0, *[goes_on + router(6)] * 3, 0]
    combine, sample = curves["combine"], curves["sample"](6)
    assert found.epilogue_ns[0].tolist() == [0, combine(120), *[combine(6)] * 3, sample]
    assert found.epilogue_ns[1].tolist() == [0, 0, *[combine(6)] * 3, sample]
    assert found.work_ns[0, 1, 3] == curves["expert"](120)
    steps = [step[:3] for step in encoding.lead(PREFILL, 2, 1.0).steps]
    assert steps == [
        *(("attention", 0, 4), ("cross_attention", 0, 4)),
        *(("attention", 1, 2), ("cross_attention", 1, 2)),
        ("router", -1, 6),
    ]


def test_what_was_not_measured_is_named_by_side(both: Profile) -> None:
    """Prompts of 20 are between 16 and 256; a decoder's own tokens lie below 16. The feed-forward
    without experts is the encoder's alone: its 6 rows of a decoder's token occur nowhere."""
    curve = both.costs.curves["dense_mlp"]
    few = replace(curve, rows=(100, 1024))
    costs = replace(both.costs, curves={**both.costs.curves, "dense_mlp": few})
    encoding = Encoding(replace(both, costs=costs), WORKLOAD, 2, 4, 1 << 30, 1 << 20)
    rows = np.array([6, 120])
    assert extrapolated(encoding, (PREFILL, DECODE), rows) == (
        "attention in prefill",
        "attention in decode",
    )


@pytest.mark.parametrize("room_bytes", [0, 1 << 30])
def test_a_plan_adds_up_and_is_checked(both: Profile, room_bytes: int) -> None:
    """With everything on the device, and with as little as works."""
    from planner.smallest import smallest_budget_bytes

    budget = smallest_budget_bytes(both, WORKLOAD) + room_bytes
    plan = make_plan(both, WORKLOAD, memory_bytes=budget, solver="on-demand")
    assert check_plan(plan, both) == []
    with pytest.raises(UnsupportedError, match="no other engine is known to place"):
        Sources(plan, both.model, both.hardware).known()
    events = list(plan.predicted.timeline.events())
    layers = {(e.kind, e.pass_index > 0): set[int]() for e in events}
    for event in events:
        layers[event.kind, event.pass_index > 0].add(event.layer)
    assert layers["attention", False] == {0, 1, 2, 3, 4}
    assert layers["attention", True] == layers["cross_attention", True] == {2, 3, 4}
    assert layers["cross_attention", False] == layers["expert", True] == {2, 3, 4}
    assert layers["combine", False] == {1, 2, 3, 4}
    by_kind = plan.predicted.totals.duration_by_kind_ns
    assert by_kind["cross_attention"] > 0
    ahead = replace(plan.policy.layers[3], prefetch=(0,), predictor="popularity")
    if 0 not in ahead.resident:
        layers_of = (*plan.policy.layers[:3], ahead, *plan.policy.layers[4:])
        wrong = replace(plan, policy=replace(plan.policy, layers=layers_of))
        assert "predictor" in {violation.reason for violation in check_plan(wrong, both)}


def test_documents_of_one_side_only_are_refused(both: Profile) -> None:
    assert assemble(both) is both
    costs = replace(both.costs, cross_decode=None, cross_prefill=None)
    index = replace(both.index, costs_hash=document_hash(costs))
    with pytest.raises(DocumentError, match="cross_decode: no surface, though the model has"):
        assemble(replace(both, costs=costs, index=index))
    routing = replace(both.routing, encoder=None)
    index = replace(both.index, routing_hash=document_hash(routing))
    with pytest.raises(DocumentError, match="encoder: 0 MoE layers are an encoder's"):
        assemble(replace(both, routing=routing, index=index))
    with pytest.raises(ValueError, match="one is there without the other"):
        replace(both.costs, cross_decode=None)
    encoding = Encoding(replace(both, costs=costs), WORKLOAD, 1, 4, 1 << 30, 1 << 20)
    with pytest.raises(UnsupportedError, match="the costs do not know attention to prompts"):
        encoding.lead(DECODE, 3, 1.0)
