"""Models with an encoder: what the sides keep of each other, capacity, and what is refused.

That tokens equal transformers' over many policies is in ``test_architectures.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor import Engine, open_weights, pack
from executor.adapters import make_adapter
from executor.parallel import ParallelEngine
from planner.documents import (
    BalanceFigures,
    ExpertPlacement,
    LayerPlacement,
    LayerPolicy,
    Plan,
    QuantizedExperts,
    Workload,
)
from planner.memory import account_device, smallest_policy
from solvers.errors import CheckpointError, DocumentError, UnsupportedError

FAMILY = "switch_transformers"
LONGEST, NEW_TOKENS = 19, 6


def prompts_of(count: int) -> list[list[int]]:
    draw = random.Random(count)
    lengths = [LONGEST, *(draw.randint(1, LONGEST) for _ in range(count - 1))]
    return [[draw.randrange(3, 211) for _ in range(length)] for length in lengths]


def generated(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates, prompt by prompt."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    results = []
    for prompt in prompts:
        whole = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
        results.append(whole[0, 1:].tolist())
    return results


@pytest.fixture(scope="module")
def checkpoint(checkpoint_of: Callable[..., Path]) -> Path:
    return checkpoint_of(FAMILY)


@pytest.fixture
def plan(checkpoint: Path, helpers: Any) -> Plan:
    with open_weights(checkpoint) as source:
        policy = replace(
            smallest_policy(source.model, 4), n_batches=2, batch_size=2, slots=3, eviction="lru"
        )
    made: Plan = helpers.plan(checkpoint, policy, Workload(9, LONGEST, NEW_TOKENS))
    return made


def run(plan: Plan, prompts: list[list[int]], limit: Any = None) -> list[list[int]]:
    with Engine.from_plan(plan) as engine:
        return [list(output.token_ids) for output in engine.generate(prompts, limit)]


def test_sequences_that_begin_while_others_go_on(checkpoint: Path, plan: Plan) -> None:
    """Four places for nine prompts that end at different times, in six orders of ending."""
    prompts = prompts_of(9)
    want = generated(checkpoint, prompts)
    draw = random.Random(2)
    with Engine.from_plan(plan) as engine:
        for _ in range(6):
            limits = [draw.randint(1, NEW_TOKENS) for _ in prompts]
            got = [list(output.token_ids) for output in engine.generate(prompts, limits)]
            assert got == [tokens[:most] for tokens, most in zip(want, limits, strict=True)]
        assert engine.trace().totals.prompt_tokens == sum(map(len, prompts))


def test_routing_is_transformers_own(checkpoint: Path, plan: Plan) -> None:
    """Every token's expert in each router that it meets, of nine prompts in four places."""
    prompts = prompts_of(9)
    with Engine.from_plan(plan) as engine:
        tokens = [list(output.token_ids) for output in engine.generate(prompts)]
        arrays, model = engine.routing(), engine._source.model
    assert (model.moe_layers, arrays.encoder) == ((1, 3, 4, 5, 6), 2)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    said: list[torch.Tensor] = []
    for name, module in network.named_modules():
        if name.endswith("router.classifier"):
            module.register_forward_hook(lambda _, __, logits: said.append(logits.argmax(-1)))
    for number, (prompt, made) in enumerate(zip(prompts, tokens, strict=True)):
        said.clear()
        # one token after the other: capacity counts along those that are computed at once
        network.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
        rows = arrays.sequence == number
        length, steps = len(prompt), len(made)
        assert len(said) == 2 + 3 * steps
        assert arrays.position[rows].tolist() == list(range(length + steps))
        assert arrays.phase[rows].tolist() == [0] * length + [1] * steps
        chosen = arrays.experts[rows, :, 0].T
        for column in range(5):
            mine = slice(length) if column < 2 else slice(length, None)
            wanted = said[column : column + 1] if column < 2 else said[column::3]
            assert chosen[column, mine].tolist() == torch.cat(wanted, dim=1).flatten().tolist()
        assert not chosen[:2, length:].any()
        assert not chosen[2:, :length].any()


def test_an_expert_takes_a_prompts_first_tokens(
    checkpoint: Path, checkpoint_of: Callable[..., Path], plan: Plan, helpers: Any
) -> None:
    """Three of each prompt, as transformers: with room for all of them tokens are others."""
    roomy = checkpoint_of(FAMILY, expert_capacity=LONGEST)
    prompts = prompts_of(9)
    want = {folder: generated(folder, prompts) for folder in (checkpoint, roomy)}
    assert want[checkpoint] != want[roomy]
    for folder in (checkpoint, roomy):
        assert run(helpers.plan(folder, plan.policy, plan.workload), prompts) == want[folder]


def test_keys_and_values_are_transformers_to_the_byte(
    checkpoint: Path, plan: Plan, helpers: Any
) -> None:
    """Both caches of a decoder's three layers, for a prompt of 19 and 6 new tokens."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    prompt = torch.arange(3, 3 + LONGEST)[None]
    cache = model.generate(
        prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, return_dict_in_generate=True
    ).cache
    held = sum(
        tensor.nbytes
        for part in (cache.self_attention_cache, cache.cross_attention_cache)
        # transformers makes as many as the encoder has
        for layer in part.layers[:3]
        for tensor in (layer.keys, layer.values)
    )
    assert held == 3 * 2 * 4 * 12 * (LONGEST + NEW_TOKENS) * 4
    with Engine.from_plan(plan) as engine:
        state = engine._device.state
        assert state._keys.nbytes + state._values.nbytes == 4 * held
        account = account_device(engine._source.model, plan.policy, plan.workload, 4, 0)
        assert 0 <= account.by_purpose["kv"] - 4 * held < 4096


def test_an_encoder_that_has_nothing_to_do_asks_for_no_expert(checkpoint: Path, plan: Plan) -> None:
    """Its layers are passed in decode, too: only what the policy streams is copied there."""
    with Engine.from_plan(plan) as engine:
        engine.generate(prompts_of(4))
        timeline = engine.trace().timeline
    events = [event for event in timeline.events() if event.pass_index > 0]
    assert {event.kind for event in events if 0 <= event.layer < 4} == {"copy_dense", "wait_dense"}
    for kind in ("attention", "cross_attention"):
        assert {event.layer for event in events if event.kind == kind} == {4, 5, 6}
    first = [event.layer for event in timeline.events() if event.pass_index == 0]
    assert {*first} == {-1, 0, 1, 2, 3, 4, 5, 6, 7}


def test_start_token(checkpoint_of: Callable[..., Path], plan: Plan, helpers: Any) -> None:
    """``generation_config.json`` counts where there is one, as for end tokens."""
    folder = checkpoint_of(FAMILY, decoder_start_token_id=7)
    with Engine.from_plan(helpers.plan(folder, plan.policy, plan.workload)) as engine:
        assert engine._device.start_tokens == (7,)
    (folder / "generation_config.json").write_text('{"bos_token_id": 300}')
    with pytest.raises(CheckpointError, match="bos_token_id 300 is no token"):
        Engine.from_plan(helpers.plan(folder, plan.policy, plan.workload))
    (folder / "generation_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no decoder_start_token_id"):
        Engine.from_plan(helpers.plan(folder, plan.policy, plan.workload))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dense_act_fn": "gelu"}, "activation 'gelu' is not supported"),
        ({"router_dtype": "bfloat16"}, "router_dtype 'bfloat16' is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False is not supported"),
        ({"expert_capacity": 0}, "expert_capacity 0 takes no token"),
    ],
)
def test_refuses_by_name(checkpoint: Path, changes: dict[str, Any], message: str) -> None:
    with open_weights(checkpoint) as source:
        model, config = source.model, source.checkpoint.config
    with pytest.raises(UnsupportedError, match=message):
        make_adapter({**config, **changes}, model, torch.float32)
    with pytest.raises(UnsupportedError, match="bfloat16 cannot be run yet"):
        make_adapter(config, replace(model, dtype="bfloat16", dtype_bytes=2), torch.bfloat16)


def test_what_an_encoder_does_not_have_yet_is_refused(
    checkpoint: Path, plan: Plan, helpers: Any, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="cannot be quantized yet"):
        pack(checkpoint, tmp_path / "store", quantize=QuantizedExperts("int8-1"))
    assert not any(tmp_path.iterdir())
    with open_weights(checkpoint) as source:
        moe = source.model.moe_layers
    figures = BalanceFigures(1.0, 1.0, 1.0, 1)
    placement = ExpertPlacement(
        method="by hand",
        devices=1,
        nodes=1,
        replicas=0,
        experts=8,
        layers=tuple(LayerPlacement(layer, ((0,),) * 8) for layer in moe),
        routing_hash="0" * 64,
        routing_source="synthetic",
        drawn="by hand",
        fitted=figures,
        held_out=figures,
        bound=1.0,
        gap=0.0,
        stop="rule",
    )
    with pytest.raises(UnsupportedError, match="cannot run on several devices yet"):
        ParallelEngine(checkpoint, placement)
    policy = plan.policy
    named = LayerPolicy(True, (), (0,), "coactivation")
    guesses = replace(policy, layers=(*policy.layers[:5], named, *policy.layers[6:]))
    with pytest.raises(DocumentError, match=r"layers\.5\.predictor: an encoder-decoder has"):
        Engine.from_plan(helpers.plan(checkpoint, guesses, plan.workload))
    window = Workload(9, LONGEST, NEW_TOKENS, attention_window=4, attention_sinks=1)
    with pytest.raises(UnsupportedError, match="contexts of their own"):
        Engine.from_plan(helpers.plan(checkpoint, policy, window))
    clairvoyant = helpers.plan(checkpoint, replace(policy, eviction="belady"), plan.workload)
    refused = pytest.raises(UnsupportedError, match="no plan can be clairvoyant")
    with Engine.from_plan(clairvoyant) as engine, refused:
        engine.generate(prompts_of(1))
    with Engine.from_plan(plan) as engine:
        engine.generate(prompts_of(1))
        with pytest.raises(UnsupportedError, match="cannot be recorded pass by pass yet"):
            engine.recording()


def test_logits(checkpoint: Path, plan: Plan) -> None:
    """Their scale, too, which the likeliest token does not tell."""
    (prompt,) = prompts_of(1)
    parts: dict[int, torch.Tensor] = {}
    with Engine.from_plan(plan) as engine:
        operations = engine._device.operations
        plain = operations.head_tile

        def keep(tile: int, weight: torch.Tensor) -> torch.Tensor:
            parts[tile] = plain(tile, weight).clone()
            return parts[tile]

        operations.head_tile = keep  # type: ignore[method-assign]
        engine.generate([prompt], 1)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    with torch.no_grad():
        want = model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([[5]])).logits[0]
    got = torch.cat([parts[tile] for tile in sorted(parts)], dim=1)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
