"""The engine: what it refuses, how it ends sequences, what it reports."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from executor import Engine, open_weights, pack
from executor.adapters import FAMILIES, make_adapter
from executor.prompts import encode
from executor.reference import Reference
from planner.documents import LayerPolicy, Plan, Policy, Workload, document_hash
from planner.memory import smallest_budget, smallest_policy
from solvers.errors import (
    BudgetError,
    CheckpointError,
    DocumentError,
    OptionError,
    RunError,
    StaleError,
    UnsupportedError,
)

TRANSLATORS = ("nllb-moe", "switch_transformers")
WORKLOAD = Workload(4, 8, 6)


@pytest.fixture(scope="module")
def checkpoint(checkpoint_of: Callable[..., Path]) -> Path:
    return checkpoint_of("mixtral")


@pytest.fixture(scope="module")
def plan(checkpoint: Path, helpers: Any) -> Plan:
    with open_weights(checkpoint) as source:
        policy = replace(smallest_policy(source.model, 4), batch_size=4)
    made: Plan = helpers.plan(checkpoint, policy, WORKLOAD)
    return made


def with_policy(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, policy=replace(plan.policy, **changes))


def run(plan: Plan, prompts: list[list[int]], tokens: int | None = None) -> list[list[int]]:
    with Engine.from_plan(plan) as engine:
        return [list(output.token_ids) for output in engine.generate(prompts, tokens)]


# --- other documents ----------------------------------------------------------------------------


def test_refuses_another_checkpoint(plan: Plan, checkpoint_of: Callable[..., Path]) -> None:
    with pytest.raises(StaleError, match="not the checkpoint") as caught:
        Engine.from_plan(plan, checkpoint=checkpoint_of("olmoe"))
    assert caught.value.document == "checkpoint"


def test_refuses_a_changed_checkpoint(plan: Plan, checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "config.json").read_text())
    config["rms_norm_eps"] = 0.25
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(StaleError) as caught:
        Engine.from_plan(plan, checkpoint=copy)
    assert caught.value.document == "checkpoint"


def test_refuses_another_store(
    plan: Plan, checkpoint: Path, checkpoint_of: Callable[..., Path], tmp_path: Path
) -> None:
    pack(checkpoint, tmp_path / "one")
    pack(checkpoint_of("olmoe"), tmp_path / "other")
    with pytest.raises(StaleError, match="without a store") as caught:
        Engine.from_plan(plan, store=tmp_path / "one")
    assert caught.value.document == "store"
    with pytest.raises(StaleError, match="another checkpoint"):
        Engine.from_plan(plan, store=tmp_path / "other")
    stored = replace(plan, inputs=replace(plan.inputs, store_fingerprint="1" * 64))
    with pytest.raises(StaleError, match="fingerprint differs"):
        Engine.from_plan(stored, store=tmp_path / "one")
    with pytest.raises(CheckpointError, match="no such store"):
        Engine.from_plan(stored, store=tmp_path / "none")


def test_refuses_a_changed_profile(plan: Plan, tmp_path: Path) -> None:
    """The index's hashes count: each document is compared with what the plan says."""
    from planner.documents import (
        Channel,
        CostProfile,
        Curve,
        Figure,
        Hardware,
        ProfileIndex,
        Surface,
        write_document,
    )
    from planner.routing import TraceArrays, write_trace

    with open_weights(Path(plan.locations.checkpoint)) as source:
        model = source.model
    figure = Figure(1.0, "measured")
    link = Channel("disk", figure, figure)
    hardware = Hardware("here", "cpu", "some", 2, (), (link,))
    curve = Curve((1,), (1,), (0,), (1,), "measured")
    surface = Surface((1,), (curve,))
    kinds = ("embed", "router", "expert", "combine", "head", "sample")
    costs = CostProfile(
        document_hash(model),
        document_hash(hardware),
        "float32",
        dict.fromkeys(kinds, curve),
        surface,
        surface,
        figure,
        figure,
        figure,
    )
    for document, name in ((hardware, "hardware"), (model, "model"), (costs, "costs")):
        write_document(document, tmp_path / f"{name}.json")
    arrays = TraceArrays(
        np.zeros((1, 3, 2), np.uint16),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.zeros(1, np.uint8),
    )
    trace = write_trace(
        tmp_path, arrays, model_hash=document_hash(model), moe_layers=(0, 1, 2), expert_count=8
    )
    hashes = [document_hash(document) for document in (hardware, model, costs, trace)]
    index = ProfileIndex("here", None, model.fingerprint, None, 1, *hashes)
    write_document(index, tmp_path / "profile.json")
    inputs = replace(
        plan.inputs, hardware=hashes[0], model=hashes[1], costs=hashes[2], routing=hashes[3]
    )
    right = replace(plan, inputs=inputs)
    Engine.from_plan(right, profile=tmp_path).close()
    for name in ("hardware", "model", "costs", "routing"):
        wrong = replace(right, inputs=replace(inputs, **{name: "0" * 64}))
        with pytest.raises(StaleError, match=f"its {name} document") as caught:
            Engine.from_plan(wrong, profile=tmp_path)
        assert caught.value.document == name
        # the plan's own hint is followed as well
        hinted = replace(wrong, locations=replace(plan.locations, profile=str(tmp_path)))
        with pytest.raises(StaleError, match=f"its {name} document"):
            Engine.from_plan(hinted)
    with pytest.raises(DocumentError, match="no such folder"):
        Engine.from_plan(right, profile=tmp_path / "none")


# --- plans edited by hand -----------------------------------------------------------------------


def test_paths_may_be_strings(plan: Plan, checkpoint: Path, tmp_path: Path) -> None:
    Engine.from_plan(plan, checkpoint=str(checkpoint)).close()
    nowhere = str(tmp_path / "none")
    with pytest.raises(CheckpointError, match="none"):
        Engine.from_plan(plan, store=nowhere)
    with pytest.raises(DocumentError, match="no such folder"):
        Engine.from_plan(plan, profile=nowhere)


def test_refuses_overflow(plan: Plan) -> None:
    with open_weights(Path(plan.locations.checkpoint)) as source:
        # with keys and values on the device, or below it
        least = min(
            smallest_budget(source.model, WORKLOAD, 4),
            smallest_budget(source.model, WORKLOAD, 4, "below"),
        )
    with pytest.raises(BudgetError, match=str(least)) as caught:
        Engine.from_plan(with_policy(plan, slots=50))
    assert caught.value.smallest_bytes == least
    # its own account does not help it
    account = plan.memory["device"]
    small = replace(account, capacity_bytes=account.peak_bytes - 1)
    with pytest.raises(BudgetError):
        Engine.from_plan(replace(plan, memory={"device": small}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "policy.slots is 0"),
        ({"reserve": 0}, "policy.reserve is 0"),
        ({"reserve": 2}, "policy.reserve exceeds"),
        ({"dense_slots": 0}, "policy.dense_slots is 0"),
        ({"layers": (LayerPolicy(True, (), ()),) * 3, "hold": 1}, "policy.hold has no effect"),
        ({"head_tiles": 1, "head_tile_rows": 50}, "policy.head_tiles"),
        ({"head_tiles": 9, "head_tile_rows": 211}, "policy.head_tiles"),
        ({"head_tiles": 1, "head_tile_rows": 211, "resident_head_tiles": 2}, "resident_head_tiles"),
        ({"layers": (LayerPolicy(True, (), ()),)}, "policy.layers has 1 entry"),
        ({"layers": (LayerPolicy(True, (8,), ()),) * 3}, "names expert 8"),
        ({"layers": (LayerPolicy(True, (2,), (1, 2)),) * 3}, "twice"),
    ],
)
def test_refuses_impossible_policies(plan: Plan, changes: dict[str, Any], message: str) -> None:
    account = replace(plan.memory["device"], capacity_bytes=1 << 40)
    edited = replace(with_policy(plan, **changes), memory={"device": account})
    with pytest.raises(DocumentError, match=message) as caught:
        Engine.from_plan(edited)
    assert "\n" not in str(caught.value)


def test_refuses_other_devices_and_types(plan: Plan, checkpoint: Path) -> None:
    with pytest.raises(UnsupportedError, match="cuda"):
        Engine.from_plan(replace(plan, device="cuda"))
    with pytest.raises(UnsupportedError, match="bfloat16"):
        Engine.from_plan(replace(plan, dtype="bfloat16"))


def test_refuses_families_by_name(checkpoint: Path) -> None:
    with open_weights(checkpoint) as source:
        model, config = source.model, source.checkpoint.config
    with pytest.raises(UnsupportedError, match=r"'deepseek_v32'.*its indexer") as caught:
        make_adapter(config, replace(model, family="deepseek_v32"), torch.float32)
    assert all(family in str(caught.value) for family in FAMILIES)
    with pytest.raises(UnsupportedError, match="activation 'gelu'"):
        make_adapter({**config, "hidden_act": "gelu"}, model, torch.float32)


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "tokens", "message"),
    [
        ([[3]] * 5, 6, "--requests 5"),
        ([], 6, "0 prompts"),
        ([[3] * 9], 6, "--prompt-tokens 9"),
        ([[3], []], 6, "prompt 2 is empty"),
        ([[3], [211]], 6, "outside the vocabulary"),
        ([[-1]], 6, "outside the vocabulary"),
        ([[3]], 7, "--new-tokens 7"),
        ([[3]], 0, "1 to 6"),
        (["text"], 6, "no tokenizer.json"),
        (3, 6, "prompts is 3: give a list"),
    ],
)
def test_refuses_what_the_plan_is_not_for(
    plan: Plan, prompts: Any, tokens: int, message: str
) -> None:
    with (
        Engine.from_plan(plan) as engine,
        pytest.raises((OptionError, CheckpointError), match=message) as caught,
    ):
        engine.generate(prompts, tokens)
    assert "\n" not in str(caught.value)


def test_nothing_was_run(plan: Plan) -> None:
    with Engine.from_plan(plan) as engine, pytest.raises(OptionError, match="generate first"):
        engine.trace()


# --- generation ---------------------------------------------------------------------------------


def test_ends_at_end_tokens(checkpoint: Path, plan: Plan, helpers: Any, tmp_path: Path) -> None:
    """Sequences end apart: each at its own third token, which is made an end token."""
    prompts = [[5, 9], [17, 4, 60], [100], [31, 32, 33, 34]]
    free = helpers.greedy(checkpoint, prompts, 6, eos_token_id=None)
    ends = sorted({row[2] for row in free[:2]})
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    settings = json.loads((copy / "generation_config.json").read_text())
    settings["eos_token_id"] = ends
    (copy / "generation_config.json").write_text(json.dumps(settings))
    want = helpers.greedy(copy, prompts, 6)
    assert min(map(len, want)) < 6, "no sequence ends early: the test shows nothing"
    with open_weights(copy) as source:
        model = source.model
    for n_batches, batch_size in ((1, 4), (4, 1), (1, 2)):
        policy = replace(smallest_policy(model, 4), n_batches=n_batches, batch_size=batch_size)
        assert run(helpers.plan(copy, policy, WORKLOAD), prompts) == want


def test_fewer_prompts_and_tokens_than_planned(plan: Plan) -> None:
    prompts = [[5, 9], [17, 4, 60]]
    whole = run(plan, prompts)
    assert run(plan, prompts[1:], 2) == [whole[1][:2]]


def test_sliding_window(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    """A window of 8 tokens, shorter than the longest prompt and than what is generated."""
    checkpoint = checkpoint_of("mixtral", sliding_window=8)
    prompts = [[7, 8, 9], list(range(20, 40))]
    workload = Workload(2, 20, 12)
    want = helpers.greedy(checkpoint, prompts, 12)
    without = helpers.greedy(checkpoint_of("mixtral"), prompts, 12)
    assert want != without, "the window changes nothing: the test shows nothing"
    with open_weights(checkpoint) as source:
        model = source.model
    assert model.layers[0].window == 8
    policy = replace(smallest_policy(model, 4), batch_size=2)
    assert run(helpers.plan(checkpoint, policy, workload), prompts) == want


def test_tied_head(checkpoint_of: Callable[..., Path], helpers: Any, tmp_path: Path) -> None:
    checkpoint = checkpoint_of("qwen3_moe", tie_word_embeddings=True)
    prompts = [[7, 8, 9], list(range(20, 28))]
    want = helpers.greedy(checkpoint, prompts, 6)
    pack(checkpoint, tmp_path / "store")
    with open_weights(checkpoint) as source:
        model = source.model
    assert model.tied
    policy = replace(smallest_policy(model, 4), batch_size=2, slots=2)
    for store in (None, tmp_path / "store"):
        assert run(helpers.plan(checkpoint, policy, WORKLOAD, store=store), prompts) == want


def test_routing_equals_transformers(checkpoint: Path, plan: Plan) -> None:
    prompts = [[5, 9, 101, 7], [17, 4]]
    with Engine.from_plan(plan) as engine:
        outputs = engine.generate(prompts, 3)
        routing = engine.routing()
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    row = 0
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        # the last new token is not computed from
        ids = [*prompt, *output.token_ids[:-1]]
        with torch.no_grad():
            logits = model(torch.tensor([ids]), output_router_logits=True).router_logits
        for position in range(len(ids)):
            assert routing.sequence[row] == index
            assert routing.position[row] == position
            assert routing.phase[row] == int(position >= len(prompt))
            for layer in range(3):
                want = logits[layer][position].topk(2).indices.tolist()
                assert routing.experts[row, layer].tolist() == want
            row += 1
    assert row == len(routing.sequence)


def test_the_reference_is_no_part_of_the_run(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was: it counted with the first embedding."""
    times: list[tuple[int, int]] = []
    really = Reference.take

    def take(self: Reference) -> None:
        begin = time.perf_counter_ns()
        really(self)
        times.append((begin, time.perf_counter_ns()))

    monkeypatch.setattr(Reference, "take", take)
    with Engine.from_plan(plan) as engine:
        engine.generate([[5, 9, 101, 7]], 2)
        totals = engine.trace().totals
    (_, before), (after, _) = times
    assert totals.wall_ns <= after - before


def test_trace_adds_up(plan: Plan, helpers: Any) -> None:
    prompts = [[5, 9, 101, 7], [17, 4]]
    with Engine.from_plan(plan) as engine:
        engine.generate(prompts, 3)
        trace = engine.trace()
    totals, events = trace.totals, list(trace.timeline.events())
    assert trace.plan_hash == document_hash(plan)
    assert trace.kept_passes == totals.passes == 3
    assert len(totals.pass_ns) == 3
    assert totals.prefill_ns == totals.pass_ns[0]
    assert totals.decode_ns == sum(totals.pass_ns[1:])
    assert totals.prefill_ns + totals.decode_ns <= totals.wall_ns
    assert (totals.prompt_tokens, totals.new_tokens) == (6, 6)
    compute = [event for event in events if event.channel == "compute"]
    # one channel does one thing at a time
    for channel in (compute, [event for event in events if event.channel == "disk"]):
        ordered = sorted(channel, key=lambda event: event.start_ns)
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(ordered))
    for kind, count in totals.count_by_kind.items():
        assert sum(event.kind == kind for event in events) == count
    copied = sum(event.size_bytes for event in events)
    # embedding rows are kept whole here, so all bytes are copies; direct reads are whole blocks
    assert copied <= totals.bytes_read
    for index in range(3):
        rows = [event.rows for event in compute if event.pass_index == index]
        tokens = 6 if index == 0 else 2
        routers = [e for e in compute if e.kind == "router" and e.pass_index == index]
        experts = [e for e in compute if e.kind == "expert" and e.pass_index == index]
        assert [event.rows for event in routers] == [tokens] * 3
        assert sum(event.rows for event in experts) == tokens * 2 * 3
        assert max(rows) == tokens


def test_rows_of_the_embedding_are_read_beside_copies(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_read = []
    for kept in (1 << 20, 1):  # all rows, and one at a time
        monkeypatch.setattr("executor.embedding.EMBEDDING_CACHE_BYTES", kept)
        with Engine.from_plan(plan) as engine:
            engine.generate([[5, 9, 101], [7]], 3)
            trace = engine.trace()
        assert trace.totals.embedding_bytes is not None
        rows_read.append(trace.totals.embedding_bytes)
        copied = sum(
            event.size_bytes for event in trace.timeline.events() if event.channel == "disk"
        )
        assert copied <= trace.totals.bytes_read - rows_read[-1]
    # one by one those of four tokens, in whole blocks, and of those that were made
    assert rows_read[0] == 0
    assert rows_read[1] >= 4 * 4096


@pytest.mark.parametrize("seed", range(16))
def test_any_policy_gives_the_same_tokens(
    seed: int, checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    """Random sets, slots and groups, keys and values anywhere: what is copied when changes nothing
    but time."""
    checkpoint = checkpoint_of("qwen3_moe")
    draw = random.Random(seed)
    with open_weights(checkpoint) as source:
        model = source.model
    layers = []
    for spec in model.layers:
        order = draw.sample(range(spec.experts), spec.experts)
        first, second = sorted(draw.randint(0, spec.experts) for _ in range(2))
        dense = draw.random() < 0.3
        names = ["plan", "coactivation", "popularity", *(["lookahead"] if dense else [])]
        layers.append(
            LayerPolicy(
                dense,
                tuple(sorted(order[:first])),
                tuple(order[first:second]),
                # the first layer with experts, 1, has none before it
                draw.choice(names) if second > first and spec.index > 1 else "plan",  # type: ignore[arg-type]
            )
        )
        if layers[-1].predictor == "lookahead":
            layers[-1] = replace(layers[-1], waits=draw.random() < 0.5)
    base = smallest_policy(model, 4)
    slots = draw.randint(1, 12)
    policy = replace(
        base,
        n_batches=draw.randint(1, 4),
        batch_size=draw.randint(1, 4),
        layers=tuple(layers),
        resident_head_tiles=draw.randint(0, base.head_tiles),
        slots=slots,
        dense_slots=draw.randint(1, 3),
        reserve=draw.randint(1, slots),
        eviction=draw.choice(["none", "lru", "lifo", "fifo", "frequency", "plan"]),
        chunk_bytes=draw.choice([4096, 12288, 1 << 20]),
    )
    place = draw.choice([None, "below", "batches"])
    if place == "batches":
        layers = [
            replace(
                layer,
                dense_resident=True,
                predictor="plan",
                kv_resident=tuple(k for k in range(policy.n_batches) if draw.random() < 0.3),
            )
            for layer in layers
        ]
        layers[0] = replace(layers[0], kv_resident=())
        policy = replace(policy, dense_slots=0, kv_slots=draw.randint(1, 4))
    policy = replace(policy, kv=place, layers=tuple(layers))
    if policy.starts_stream:
        policy = replace(policy, hold=draw.choice([None, 0, 1, 2]))
    prompts = [[draw.randrange(3, 211) for _ in range(draw.randint(1, 9))] for _ in range(7)]
    plain = replace(helpers.resident(model), n_batches=1, batch_size=7)
    workload = Workload(7, 9, 6)
    want = run(helpers.plan(checkpoint, plain, workload), prompts)
    assert run(helpers.plan(checkpoint, policy, workload), prompts) == want


def test_importing_the_executor_does_not_load_torch() -> None:
    code = "import sys, executor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "dtype", "tolerance"),
    [
        *((one, torch.bfloat16, 0.03) for one in FAMILIES if one not in TRANSLATORS),
        ("mixtral", torch.float16, 0.004),
    ],
)
def test_logits_in_reduced_precision(
    family: str,
    dtype: torch.dtype,
    tolerance: float,
    checkpoint_of: Callable[..., Path],
    helpers: Any,
) -> None:
    """Logits agree with transformers' within 3% of their spread in bfloat16, 0.4% in float16: the
    mean over the vocabulary, for the median prompt.

    bfloat16 keeps 8 bits and float16 11, so each rounding is off by up to 1/256 or 1/2048, and
    there are tens of them in a row; the executor sums experts in float32 where transformers sums in
    the computing type. Where routing flips (scores equal to within rounding) a prompt differs by
    more, so the median is held.
    """
    checkpoint = checkpoint_of(family, dtype)
    prompts = [[3 + (11 * i + 5 * j) % 200 for j in range(3 + i)] for i in range(12)]
    with open_weights(checkpoint) as source:
        model = source.model
    policy: Policy = replace(smallest_policy(model, 2), n_batches=3, batch_size=4, slots=3)
    plan = helpers.plan(checkpoint, policy, Workload(12, 14, 1))
    logits: list[torch.Tensor] = []
    with Engine.from_plan(plan) as engine:
        operations = engine._device.operations
        plain = operations.head_tile

        def keep(tile: int, weight: torch.Tensor) -> torch.Tensor:
            part = plain(tile, weight)
            logits.append(part.float().clone())
            return part

        operations.head_tile = keep  # type: ignore[method-assign]
        engine.generate(prompts)
    got = torch.cat(logits, dim=1)
    reference = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)
    with torch.no_grad():
        want = torch.stack(
            [reference(torch.tensor([prompt])).logits[0, -1].float() for prompt in prompts]
        )
    assert got.shape == want.shape
    off = (got - want).abs().mean(dim=1) / want.std(dim=1)
    assert float(off.median()) < tolerance


@pytest.mark.parametrize(
    ("tensor", "value"), [("gate", "nan"), ("gate", "inf"), ("lm_head", "nan")]
)
def test_logits_that_are_no_numbers_end_a_run(
    checkpoint: Path, plan: Plan, helpers: Any, tmp_path: Path, tensor: str, value: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    (file,) = copy.glob("*.safetensors")
    weights = load_file(file)
    name = next(one for one in weights if tensor in one)
    weights[name][1] = float(value)
    save_file(weights, file, {"format": "pt"})
    broken = helpers.plan(copy, plan.policy, WORKLOAD)
    with Engine.from_plan(broken) as engine:
        with pytest.raises(RunError, match=r"pass 0: the logits of prompt 1 are NaN or infinite"):
            engine.generate([[5, 9], [17, 4, 60]])
        assert [output.token_ids for output in engine.outputs] == [(), ()]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_new_tokens": 7}, "7 new tokens"),
        ({"prompts": [[5]] * 5}, "5 prompts"),
        ({"prompts": [[5] * 9]}, "has 9 tokens"),
        ({"prompts": [[10**6]]}, "outside the vocabulary"),
        ({"prompts": 3}, "prompts is 3: give a list"),
    ],
)
def test_what_is_asked_is_refused_before_weights_are_loaded(
    plan: Plan, asked: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*_: object, **__: object) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(Engine, "__init__", loads)
    with pytest.raises(OptionError, match=said):
        Engine.from_plan(plan, **asked)


def test_a_text_without_end_is_not_tokenized(plan: Plan) -> None:
    class Words:
        longest = 10

        def encode(self, text: str) -> list[int]:
            assert len(text) <= 80
            return [1] * (len(text) // 10)

        def decode(self, ids: list[int]) -> str:
            return ""

    model = open_weights(Path(plan.locations.checkpoint)).model
    assert encode(["a" * 80], WORKLOAD, model, Words) == [[1] * 8]
    with pytest.raises(OptionError, match="81 characters, more than 8 tokens"):
        encode(["a" * 81], WORKLOAD, model, Words)


def test_a_prompt_longer_than_the_context_is_not_told_to_plan_for_it(plan: Plan) -> None:
    model = replace(open_weights(Path(plan.locations.checkpoint)).model, max_context=16)
    room = 16 - WORKLOAD.new_tokens
    with pytest.raises(OptionError, match=f"again with --prompt-tokens {room}$"):
        encode([[5] * room], WORKLOAD, model, lambda: pytest.fail("no text"))
    with pytest.raises(OptionError, match=f"16 has room for {room} before .*: shorten it$"):
        encode([[5] * (room + 1)], WORKLOAD, model, lambda: pytest.fail("no text"))


def test_a_file_is_no_checkpoint_whatever_the_plan_was_made_from(
    plan: Plan, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    with pytest.raises(CheckpointError, match="is no folder; a checkpoint folder was expected"):
        Engine.from_plan(plan, checkpoint=file)
