"""Every family that runs: tokens equal those of transformers' ``generate``, greedy, in float32.

Checkpoints are tiny and random, with what is special about each family switched on; policies are
a seeded sample from barely one layer in memory to everything, n from 1 to 8.
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
from executor.adapters import FAMILIES, make_adapter
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload
from planner.memory import account_device, context_tokens, smallest_policy
from solvers.errors import UnsupportedError

PROMPTS, LONGEST, NEW_TOKENS = 10, 21, 7
TRANSLATORS = ("nllb-moe", "switch_transformers")
CASES = [(family, number) for family in FAMILIES for number in range(7)]


def prompts_of(family: str) -> list[list[int]]:
    """Prompts of unequal length; the last is longer than every window."""
    draw = random.Random(family)
    lengths = [*(draw.randint(1, LONGEST) for _ in range(PROMPTS - 1)), LONGEST]
    return [[draw.randrange(3, 211) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def expected(checkpoint_of: Callable[..., Path], helpers: Any) -> Callable[[str], list[list[int]]]:
    """What transformers generates: all prompts at once, padded on the left (for an encoder on the
    right), and two of them alone, so that padding is known to change nothing."""
    known: dict[str, list[list[int]]] = {}

    def make(family: str) -> list[list[int]]:
        if family not in known:
            folder = checkpoint_of(family)
            model = helpers.reference(folder)
            prompts = prompts_of(family)
            if family == "nllb-moe":
                # an expert's room is a share of all tokens there, padding too
                known[family] = [generate(model, [prompt])[0] for prompt in prompts]
                return known[family]
            known[family] = generate(model, prompts)
            assert generate(model, prompts[-1:]) == known[family][-1:]
            assert generate(model, prompts[:1]) == known[family][:1]
        return known[family]

    return make


def generate(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, prompts))
    # an encoder's experts take tokens in their order, so padding would fill them
    right = model.config.is_encoder_decoder
    padded, mask = [], []
    for prompt in prompts:
        rest, ones = [0] * (longest - len(prompt)), [1] * len(prompt)
        padded.append([*prompt, *rest] if right else [*rest, *prompt])
        mask.append([*ones, *rest] if right else [*rest, *ones])
    whole = model.generate(
        torch.tensor(padded),
        attention_mask=torch.tensor(mask),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
    )
    results = []
    for tokens in whole[:, 1 if right else longest :].tolist():
        end = tokens.index(2) + 1 if 2 in tokens else len(tokens)
        results.append(tokens[:end])
    return results


def draw_policy(draw: random.Random, model: ModelSpec, number: int, workload: Workload) -> Policy:
    """A policy under a budget: of one layer, some layers, or all of them (by ``number``)."""
    base = smallest_policy(model, model.dtype_bytes)
    if number == 0:
        return replace(base, n_batches=draw.choice([1, 2]))
    slots = draw.choice([1, 2, 4, 7])
    n_batches = draw.randint(1, 8)
    base = replace(
        base,
        n_batches=n_batches,
        batch_size=draw.randint(-(-4 // n_batches), 6),
        slots=slots,
        reserve=draw.randint(1, slots),
        dense_slots=draw.randint(1, 3),
        eviction=draw.choice(["none", "lru", "lifo", "fifo", "frequency", "plan"]),
        chunk_bytes=draw.choice([4096, 12288, 1 << 20]),
        resident_head_tiles=draw.randint(0, base.head_tiles),
    )
    share = draw.choice([0.1, 0.3, 0.6]) if number < 6 else 1.0
    ahead = draw.choice([0, 2, 99])
    layers = []
    for spec in model.layers:
        experts = draw.sample(range(spec.experts), spec.experts)
        kept = round(share * spec.experts)
        layers.append(
            LayerPolicy(
                share == 1 or draw.random() < share,
                tuple(sorted(experts[:kept])),
                tuple(experts[kept : kept + ahead]),
            )
        )
    return replace(base, layers=tuple(layers))


@pytest.mark.parametrize(("family", "number"), CASES)
def test_tokens(
    family: str,
    number: int,
    checkpoint_of: Callable[..., Path],
    store_of: Callable[[str], Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
) -> None:
    draw = random.Random(f"{family} {number}")
    checkpoint = checkpoint_of(family)
    store = store_of(family) if draw.random() < 0.5 else None
    with open_weights(checkpoint) as source:
        model = source.model
    workload = Workload(PROMPTS, LONGEST, NEW_TOKENS)
    policy = draw_policy(draw, model, number, workload)
    prompts, want = prompts_of(family), expected(family)
    if number == 0:  # one sequence at a time is slow: two show as much
        prompts, want = prompts[-2:], want[-2:]
    plan = helpers.plan(checkpoint, policy, workload, store=store)
    with Engine.from_plan(plan, verify=store is not None) as engine:
        got = [list(output.token_ids) for output in engine.generate(prompts)]
        totals = engine.trace().totals
    assert got == want
    assert totals.device_peak_bytes <= totals.device_budget_bytes
    if number == 6 and policy.resident_head_tiles == policy.head_tiles:
        assert totals.count_by_kind.get("copy_demand", 0) == 0


@pytest.mark.parametrize("family", [one for one in FAMILIES if one not in TRANSLATORS])
def test_account_of_keys_and_values_is_exact(
    family: str, checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    """The account has what transformers' own cache holds, to the byte."""
    checkpoint = checkpoint_of(family)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    prompt = torch.arange(3, 8)[None]  # shorter than every window, which would cut the cache
    with torch.no_grad():
        cache = model(prompt, use_cache=True).cache
    held = sum(
        tensor.numel() * tensor.element_size()
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    )
    with open_weights(checkpoint) as source:
        spec = source.model
    assert held == 5 * sum(layer.kv_bytes_per_token for layer in spec.layers)
    workload = Workload(3, 5, 4)
    policy = replace(smallest_policy(spec, 4), n_batches=3)
    account = account_device(spec, policy, workload, 4, 0)
    assert 0 <= account.by_purpose["kv"] - 3 * context_tokens(workload) * held // 5 < 4096
    with Engine.from_plan(helpers.plan(checkpoint, policy, workload)) as engine:
        state = engine._device.state
        assert state._keys.nbytes + state._values.nbytes == 3 * context_tokens(workload) * held // 5


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
        ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported"),
        ("deepseek_v2", {"v_head_dim": 32}, "v_head_dim 32 above the 24 of a key"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ("glm4_moe", {"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ("gpt_oss", {"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok 3 is not supported"),
        ("granitemoe", {"residual_multiplier": "many"}, "does not take its configuration"),
    ],
)
def test_refuses_by_name(
    family: str, changes: dict[str, Any], message: str, checkpoint_of: Callable[..., Path]
) -> None:
    with open_weights(checkpoint_of(family)) as source:
        model, config = source.model, source.checkpoint.config
    with pytest.raises(UnsupportedError, match=message) as caught:
        make_adapter({**config, **changes}, model, torch.float32)
    assert "\n" not in str(caught.value)


def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 24, "kv_channels": 8, "vocab_size": 50}
    config = transformers.AutoConfig.for_model(
        "jetmoe", num_key_value_heads=2, num_attention_heads=4, **layers, **sizes
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    message = "'jetmoe'.*lacks its experts in attention"
    with pytest.raises(UnsupportedError, match=message):
        open_weights(tmp_path / "model")
    with pytest.raises(UnsupportedError, match=message):
        pack(tmp_path / "model", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_windows_follow_layer_types(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    """Qwen2-MoE's, where they are not those of its rule; with old names of the rotary scaling."""
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    checkpoint = checkpoint_of(
        "qwen2_moe", num_hidden_layers=4, layer_types=types, rope_scaling=rope, rope_theta=1000.0
    )
    with open_weights(checkpoint) as source:
        model, config = source.model, source.checkpoint.config
    assert [layer.window for layer in model.layers] == [None, 9, 9, None]
    policy = replace(smallest_policy(model, 4), n_batches=2, batch_size=5, slots=6)
    plan = helpers.plan(checkpoint, policy, Workload(PROMPTS, LONGEST, NEW_TOKENS))
    prompts = prompts_of("qwen2_moe")
    with Engine.from_plan(plan) as engine:
        got = [list(output.token_ids) for output in engine.generate(prompts)]
    reference = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    assert got == generate(reference, prompts)
    with pytest.raises(UnsupportedError, match="layer 1: layer_types has 'full_attention'"):
        make_adapter({**config, "layer_types": ["full_attention"] * 4}, model, torch.float32)


def test_refuses_contexts_that_change_the_rotary_embedding(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    """Phi-3.5-MoE's, beyond the original context; up to there tokens are transformers'."""
    size = 16 // 2
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * step for step in range(size)],
        "long_factor": [2.0 + 0.2 * step for step in range(size)],
        "short_mscale": 1.1,
        "long_mscale": 1.3,
        "original_max_position_embeddings": LONGEST + NEW_TOKENS,
    }
    checkpoint = checkpoint_of("phimoe", rope_parameters=rope)
    with open_weights(checkpoint) as source:
        model = source.model
    policy = replace(smallest_policy(model, 4), n_batches=2, batch_size=5, slots=6)
    prompts = prompts_of("phimoe")
    reference = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    plan = helpers.plan(checkpoint, policy, Workload(PROMPTS, LONGEST, NEW_TOKENS))
    with Engine.from_plan(plan) as engine:
        got = [list(output.token_ids) for output in engine.generate(prompts)]
    assert got == generate(reference, prompts)
    longer = helpers.plan(checkpoint, policy, Workload(PROMPTS, LONGEST + 1, NEW_TOKENS))
    with pytest.raises(UnsupportedError, match=r"context of 29 tokens.*beyond 28"):
        Engine.from_plan(longer)
