"""The executor's own modules: bit for bit what transformers' compute, and nothing loads these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import open_weights
from executor.adapters import Adapter, make_adapter, plain
from executor.adapters.modules import DecoderLayer
from executor.families import own_modules

FAMILIES = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
CASES = [
    *((family, {}) for family in FAMILIES),
    ("mixtral", {"head_dim": 12}),
    # torch does not share key heads this wide by itself
    ("mixtral", {"head_dim": 260, "num_attention_heads": 2, "num_key_value_heads": 1}),
    ("mixtral", {"num_key_value_heads": 4}),
    ("olmoe", {"attention_bias": True, "norm_topk_prob": True, "num_key_value_heads": 2}),
    ("olmoe", {"clip_qkv": None}),
    ("qwen2_moe", {"qkv_bias": False, "norm_topk_prob": True}),
    ("qwen3_moe", {"attention_bias": True, "norm_topk_prob": False}),
]


class Cache:
    """Keys and values from before, and those that come."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values = keys, values

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = torch.cat((self.keys, keys), dim=2)
        self.values = torch.cat((self.values, values), dim=2)
        return self.keys, self.values


def both(
    checkpoint: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> tuple[Adapter, Adapter]:
    """A checkpoint's adapter of our modules and of transformers', bound to the same weights."""
    with open_weights(checkpoint) as source:
        model, config = source.model, source.checkpoint.config
    ours = make_adapter(config, model, dtype)
    with monkeypatch.context() as patch:
        patch.setattr(plain, "own_modules", lambda *_: False)
        theirs = make_adapter(config, model, dtype)
    assert isinstance(ours._layers[0], DecoderLayer)
    assert type(theirs._layers[0]).__module__.startswith("transformers.")
    draw = torch.Generator().manual_seed(3)
    for layer in range(len(model.layers)):
        assert ours._owners[layer].keys() == theirs._owners[layer].keys()
        tensors = {}
        for role, (table, name) in theirs._owners[layer].items():
            values = torch.randn(table[name].shape, generator=draw) * 0.3
            tensors[role] = (values + 1 if "norm" in role else values).to(dtype)
        ours.bind(layer, tensors)
        theirs.bind(layer, tensors)
    norm = (torch.rand(model.hidden_size, generator=draw) + 0.5).to(dtype)
    for adapter in (ours, theirs):
        adapter.bind_outside({"model.norm.weight": norm})
    return ours, theirs


def shared(adapter: Adapter, layer: int) -> tuple[Any, ...]:
    return tuple(adapter.shared_experts(layer))


def dense(adapter: Adapter, layer: int) -> tuple[Any, ...]:
    """Without a switch, which none has."""
    *matrices, switch = adapter.dense_mlp(layer)
    assert switch is None
    return tuple(matrices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "changes"), CASES)
def test_every_module_is_transformers_bit_for_bit(
    family: str,
    changes: dict[str, Any],
    dtype: torch.dtype,
    checkpoint_of: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Norms, rotary embedding, attention of prompts (causal, and under a mask) and of single tokens
    with a past, routers, and which feed-forwards there are."""
    ours, theirs = both(checkpoint_of(family, **changes), dtype, monkeypatch)
    model = ours.model
    draw = torch.Generator().manual_seed(11)
    hidden = (torch.randn(3, 7, model.hidden_size, generator=draw) * 2).to(dtype)
    shape = ours.cache_shape()

    def equal(ask: Callable[[Adapter], Any]) -> None:
        with torch.inference_mode():
            found, want = ask(ours), ask(theirs)
        if isinstance(want, torch.Tensor):
            found, want = (found,), (want,)
        assert len(found) == len(want)
        for one, other in zip(found, want, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)

    prompt, last = torch.arange(7)[None], torch.tensor([[4], [9], [70]])
    causal = torch.ones(7, 7, dtype=torch.bool).tril()[None, None]
    narrow = causal & ~torch.ones(7, 7, dtype=torch.bool).tril(-3)[None, None]
    seen = torch.rand(3, 1, 1, 6, generator=draw) < 0.7
    seen[..., -1] = True
    past = [
        torch.randn(3, heads, 5, size, generator=draw).to(dtype)
        for heads, size in (
            (shape.key_heads, shape.key_size),
            (shape.value_heads, shape.value_size),
        )
    ]
    equal(lambda one: one.final_norm(hidden))
    equal(lambda one: one.rotary(hidden, prompt))
    equal(lambda one: one.rotary(hidden, last))
    rows = hidden.flatten(0, 1)
    for layer, spec in enumerate(model.layers):
        equal(partial(Adapter.input_norm, layer=layer, hidden=hidden))
        equal(partial(Adapter.post_norm, layer=layer, hidden=hidden))
        for mask in (None, causal, narrow):

            def prefill(one: Adapter, at: int = layer, mask: Any = mask) -> torch.Tensor:
                return one.attention(at, hidden, one.rotary(hidden, prompt), mask, None)

            equal(prefill)

        def decode(one: Adapter, at: int = layer) -> tuple[torch.Tensor, ...]:
            token, cache = hidden[:, :1], Cache(*past)
            mixed = one.attention(at, token, one.rotary(token, last), seen, cache)
            return mixed, cache.keys, cache.values

        equal(decode)
        if spec.experts:
            equal(partial(Adapter.route, layer=layer, rows=rows))
            if spec.shared_expert_bytes:
                equal(partial(shared, layer=layer))
        else:
            equal(partial(dense, layer=layer))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_configuration_leaves_out_is_as_in_transformers(
    family: str, checkpoint_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epsilon, rotary base, biases, activation, whether choices are normed."""
    with open_weights(checkpoint_of(family)) as source:
        model, config = source.model, dict(source.checkpoint.config)
    optional = ("rms_norm_eps", "rope_parameters", "hidden_act", "norm_topk_prob", "clip_qkv")
    for key in (*optional, "attention_bias", "qkv_bias", "use_sliding_window", "layer_types"):
        config.pop(key, None)
    model = replace(model, layers=tuple(replace(one, window=None) for one in model.layers))
    ours = make_adapter(config, model, torch.float32)
    assert isinstance(ours._layers[0], DecoderLayer)
    monkeypatch.setattr(plain, "own_modules", lambda *_: False)
    theirs = make_adapter(config, model, torch.float32)
    kind = ours.config.kind
    assert [layer.keys() for layer in ours._owners] == [layer.keys() for layer in theirs._owners]
    assert kind.epsilon == ours.config.rms_norm_eps == theirs.config.rms_norm_eps
    assert ours.config.theta == theirs.config.rope_parameters["rope_theta"]
    assert ours.config.hidden_act == theirs.config.hidden_act
    assert kind.normed_choice == (family == "mixtral" or theirs.config.norm_topk_prob)
    assert kind.clip is None
    assert getattr(theirs.config, "clip_qkv", None) is None


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, True),
        ({"rope_parameters": None, "rope_theta": 5000.0}, True),
        ({"rope_parameters": {"type": "default", "rope_theta": 5000}}, True),
        ({"rope_scaling": None}, True),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, False),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, False),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, False),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, False),
        ({"partial_rotary_factor": 0.5}, False),
        ({"rope_parameters": None, "rope_theta": "high"}, False),
        ({"rope_parameters": {"rope_theta": True}}, False),
        ({"rope_parameters": [1]}, False),
    ],
)
def test_only_plain_rotary_embeddings_are_ours(changes: dict[str, Any], own: bool) -> None:
    """Whatever depends on the context is transformers' to compute, and to judge."""
    config = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, **changes}
    assert [own_modules(family, config) for family in FAMILIES] == [own] * 4
    assert not own_modules("deepseek_v3", config)
