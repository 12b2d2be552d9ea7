"""A model with an encoder: from measuring to a run that is held against its plan; and benches."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from executor import Engine, open_weights
from planner import groups
from planner.check import check_plan
from planner.documents import Event, Workload, document_hash
from planner.encode import schedule_of
from planner.memory import account_device
from planner.profiles import Profile, load_profile
from planner.recompute import candidate_of
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from profiler import profile_checkpoint, verify
from profiler.bench import Bench, Tokens
from profiler.compute import Cell, decode_cells
from profiler.effort import Effort
from profiler.layout import Layout, bench_layers, first_layers
from profiler.observed import Observed, surface_of
from profiler.refine import observed, refine
from profiler.samples import PassSamples, add_pass
from solvers.replay import replay

PROMPT, NEW_TOKENS = 12, 4
"""A run keeps the events of so many passes."""
FIXED = ("embed", "attention", "cross_attention", "router", "dense_mlp", "combine", "sample")
DECODER = ("decoder.block.0", "decoder.block.1")
QUICK = Effort(cell_ns=1, rounds=1, fills=1, moment_ns=1, turns=1, passes=1, stream_ns=0)


def prompts_of(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 211) for _ in range(PROMPT)] for _ in range(count)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers of an encoder, three of a decoder; experts in every other one and in all."""
    torch.manual_seed(7)
    config = transformers.SwitchTransformersConfig(
        d_model=64,
        d_ff=48,
        d_kv=12,
        num_heads=4,
        num_layers=4,
        num_decoder_layers=3,
        num_sparse_encoder_layers=2,
        num_sparse_decoder_layers=3,
        num_experts=8,
        expert_capacity=4,
        vocab_size=211,
        n_positions=40,
        decoder_start_token_id=5,
        eos_token_id=None,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    model = transformers.SwitchTransformersForConditionalGeneration(config)
    for name, tensor in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(tensor, std=0.3)
    folder = tmp_path_factory.mktemp("switch")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def profile(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    folder = tmp_path_factory.mktemp("profiles") / "profile"
    profile_checkpoint(
        checkpoint, folder, memory_bytes=12 << 20, prompts=prompts_of(6), effort=QUICK
    )
    return load_profile(folder)


def test_a_profile_has_both_sides(profile: Profile) -> None:
    """Prompts of 8 and 32 of at most 40 positions; contexts likewise, and 1 of a first token."""
    costs, routing = profile.costs, profile.routing
    assert costs.cross_decode is not None
    assert costs.cross_prefill is not None
    assert costs.attention_prefill.second == costs.cross_prefill.second == (8, 32)
    assert costs.attention_decode.second == (1, 8, 32)
    assert costs.cross_decode.second == (8, 32)
    assert "dense_mlp" in costs.curves
    assert (routing.moe_layers, routing.encoder) == ((1, 3, 4, 5, 6), 2)
    # 16 new tokens each, the first of which a start token gives
    assert np.bincount(profile.arrays.phase).tolist() == [6 * PROMPT, 6 * 16]
    assert routing.tokens == 6 * (PROMPT + 16)


def computed(events: list[Event]) -> set[tuple[str, int, int, int, int]]:
    """Operations that routing does not decide, each with its rows."""
    return {
        (event.kind, event.pass_index, event.layer, event.item, event.rows)
        for event in events
        if event.kind in FIXED
    }


@pytest.mark.parametrize("room_bytes", [100_000, 4 << 20])
def test_a_plan_is_run_as_it_was_predicted(
    checkpoint: Path, profile: Profile, room_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are transformers'. Of the passes that were predicted each operation occurs as often,
    on as many rows; and with the routing that the run met, a replay copies the same experts."""
    # all in one group, whatever this machine's figures say is quicker
    monkeypatch.setattr(groups, "group_sizes", lambda requests: [requests])
    workload = Workload(4, PROMPT, NEW_TOKENS)
    budget = smallest_budget_bytes(profile, workload) + room_bytes
    plan = make_plan(profile, workload, memory_bytes=budget, solver="on-demand")
    assert check_plan(plan, profile) == []
    assert plan.policy.n_batches * plan.policy.batch_size == 4
    prompts = prompts_of(4, seed=1)
    with Engine.from_plan(plan) as engine:
        outputs = [list(one.token_ids) for one in engine.generate(prompts)]
        trace, arrays = engine.trace(), engine.routing()
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    for prompt, made in zip(prompts, outputs, strict=True):
        whole = network.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
        assert made == whole[0, 1:].tolist()
    done = list(trace.timeline.events())
    assert computed(done) == computed(list(plan.predicted.timeline.events()))
    verified = verify(plan, trace, profile.hardware, profile.costs)
    kinds = {one.name: one for one in verified.kinds}
    assert kinds["cross_attention"].predicted > 0
    assert kinds["cross_attention"].measured > 0
    assert verified.not_comparable is None
    counts = np.zeros((NEW_TOKENS, 5, 8), dtype=np.int32)
    for column in range(5):
        for row in np.flatnonzero(arrays.met(column)):
            step = max(arrays.position[row] - PROMPT, 0) if arrays.phase[row] else 0
            counts[step, column, arrays.experts[row, column, 0]] += 1
    candidate = candidate_of(plan, profile)
    shapes = candidate.shapes("judge")
    assert len(shapes) == NEW_TOKENS
    scenarios = candidate.encoding.scenarios(shapes, counts, candidate.factors)
    problem = candidate.problem("judge", plain=True).replace(scenarios=scenarios, ahead=None)
    result = replay(problem, schedule_of(plan.policy), record=True)

    replayed = {(p.pass_index, p.stage, p.item) for p in result.copies if p.kind == "demand"}
    experts = [event for event in done if event.kind == "copy_demand"]
    assert {(e.pass_index, e.layer, e.item) for e in experts} == {
        one for one in replayed if one[1] < 7
    }
    account = account_device(profile.model, plan.policy, workload, 4, budget)
    assert trace.totals.device_peak_bytes <= account.peak_bytes <= budget


def test_a_plan_for_nllb_is_run_as_it_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two experts a token, with biases and of other sizes on each side; its tokens are held in
    ``tests/executor/test_nllb_moe.py``."""
    torch.manual_seed(7)
    config = transformers.NllbMoeConfig(
        d_model=64,
        encoder_layers=4,
        decoder_layers=3,
        encoder_ffn_dim=40,
        decoder_ffn_dim=56,
        encoder_attention_heads=8,
        decoder_attention_heads=4,
        encoder_sparse_step=2,
        decoder_sparse_step=1,
        num_experts=8,
        vocab_size=211,
        max_position_embeddings=40,
        eos_token_id=None,
    )
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / "model")
    profile_checkpoint(
        tmp_path / "model",
        tmp_path / "profile",
        memory_bytes=12 << 20,
        prompts=prompts_of(6),
        effort=QUICK,
    )
    profile = load_profile(tmp_path / "profile")
    routing = profile.routing
    assert (routing.moe_layers, routing.encoder, routing.top_k) == ((1, 3, 4, 5, 6), 2, 2)
    monkeypatch.setattr(groups, "group_sizes", lambda requests: [requests])
    workload = Workload(4, PROMPT, NEW_TOKENS)
    budget = smallest_budget_bytes(profile, workload) + 400_000
    plan = make_plan(profile, workload, memory_bytes=budget, solver="on-demand")
    assert check_plan(plan, profile) == []
    with Engine.from_plan(plan) as engine:
        engine.generate(prompts_of(4, seed=1))
        trace, arrays = engine.trace(), engine.routing()
    done = list(trace.timeline.events())
    assert computed(done) == computed(list(plan.predicted.timeline.events()))
    assert verify(plan, trace, profile.hardware, profile.costs).not_comparable is None
    assert any(event.kind == "copy_demand" for event in done)
    # each expert has the tokens that chose it, whichever of their two choices it was
    rows = {
        (event.pass_index, event.layer, event.item): event.rows
        for event in done
        if event.kind == "expert"
    }
    wanted: dict[tuple[int, int, int], int] = {}
    for column, layer in enumerate(routing.moe_layers):
        for row in np.flatnonzero(arrays.met(column)):
            step = int(max(arrays.position[row] - PROMPT, 0)) if arrays.phase[row] else 0
            for expert in arrays.experts[row, column].tolist():
                wanted[step, layer, expert] = wanted.get((step, layer, expert), 0) + 1
    assert rows == wanted
    assert trace.totals.device_peak_bytes <= budget


def test_a_run_corrects_both_sides(profile: Profile, checkpoint: Path) -> None:
    plan = make_plan(
        profile, Workload(4, PROMPT, NEW_TOKENS), memory_bytes=6 << 20, solver="on-demand"
    )
    with Engine.from_plan(plan) as engine:
        engine.generate(prompts_of(4, seed=2))
        trace = engine.trace()
    run = observed(trace, 4)
    assert (run.prompt_tokens, run.passes, run.encoder) == (PROMPT, NEW_TOKENS, 4)
    found = refine(profile, trace)
    assert {"attention", "cross_attention"} <= {step.kind for step in found.steps}
    assert found.costs.cross_decode != profile.costs.cross_decode
    assert found.costs.cross_prefill != profile.costs.cross_prefill
    assert found.costs.attention_prefill != profile.costs.attention_prefill
    assert document_hash(found.hardware) == found.costs.hardware_hash


def test_what_surfaces_an_event_is_held_against() -> None:
    run = Observed((), 3, 10, 1, uniform=True, encoder=2)

    def at(kind: str, number: int, layer: int, rows: int) -> tuple[str, int, int] | None:
        return surface_of(run, Event(kind, "compute", number, layer, 0, 0, 1, rows, 0))

    assert at("attention", 0, 1, 40) == ("attention_prefill", 4, 10)
    assert at("attention", 0, 2, 4) == ("attention_decode", 4, 1)
    assert at("attention", 2, 2, 4) == ("attention_decode", 4, 3)
    assert at("cross_attention", 0, 2, 4) == ("cross_prefill", 4, 10)
    assert at("cross_attention", 1, 3, 4) == ("cross_decode", 4, 10)
    assert at("router", 1, 3, 4) is None


def test_samples_of_a_prefill_pass_are_told_apart() -> None:
    samples = PassSamples()
    events = [
        Event(kind, "compute", 0, layer, 0, 0, ns, rows, 0)
        for kind, layer, ns, rows in (
            ("attention", 0, 100, 16),
            ("attention", 1, 7, 2),
            ("cross_attention", 1, 30, 2),
        )
    ]
    shape = {"batch_size": 2, "head_tiles": 1, "expert_rows": frozenset({1}), "encoder": 1}
    add_pass(samples, events, prompt_tokens=8, context=8, **shape)  # type: ignore[arg-type]
    add_pass(samples, events[1:], prompt_tokens=None, context=9, **shape)  # type: ignore[arg-type]
    assert samples.prefill == {(2, 8): [100]}
    assert samples.decode == {(2, 1): [7], (2, 9): [7]}
    assert samples.cross_prefill == {(2, 8): [30]}
    assert samples.cross_decode == {(2, 9): [30]}


def test_a_bench_has_some_layers_of_each_side(checkpoint: Path) -> None:
    """Of seven: in turn, as long as a side has any. Its weights are those of the layers that it
    has, and a pass in decode computes the decoder's alone, behind prompts of any length."""
    stored = load_file(checkpoint / "model.safetensors")
    with open_weights(checkpoint) as source:
        model = source.model
        assert bench_layers(model, 4) == (0, 1, 4, 5)
        assert bench_layers(model, 5) == (0, 1, 2, 4, 5)
        assert bench_layers(model, 7) == tuple(range(7))
        part = first_layers(model, 4)
        assert (part.encoder, [layer.experts for layer in part.layers]) == (2, [0, 8, 8, 8])
        layout = Layout(model, 8 << 20)
        (cells, *_) = decode_cells(model)
        cell = cells[2]
        assert (cell.sequences, cell.context, cell.behind) == (4, 8, 8)
        assert cell.counts() == ([1] * 4, [15, 14, 13, 12])
        plan = layout.bench(cell.workload, 4, 8)
        with Bench(source, plan, 8 << 20, Tokens(list(range(3, 99)), 211)) as bench:
            state = bench.device.state
            layers = bench.device.adapter._layers
            for layer, name in enumerate(("encoder.block.0", "encoder.block.1", *DECODER)):
                weight = layers[layer].layer[0].SelfAttention.o.weight
                assert torch.equal(weight, stored[f"{name}.layer.0.SelfAttention.o.weight"])
            begins = Cell(4, 8, 8, encoder=True)
            for one in (begins, cell):
                events = bench.run(*one.counts(), 1, prompt=one.behind)
                rows = {(e.kind, e.layer): e.rows for e in events if e.kind.endswith("attention")}
                encoder = {("attention", layer): 32 for layer in (0, 1)}
                decoder = {
                    (kind, layer): 4
                    for kind in ("attention", "cross_attention")
                    for layer in (2, 3)
                }
                assert rows == (encoder | decoder if one is begins else decoder)
            assert state.behind == [8] * 4
