"""NLLB-MoE: tokens of transformers as it was before its experts went wrong, and each quirk alone.

``nllb_moe_tokens.json`` has what transformers 4.46.3, as it was published, generates from the
checkpoints that ``written`` writes, prompt by prompt, 32 tokens each in float32. That tokens equal
those of the installed version, with its experts mended, over many policies is in
``test_architectures.py``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from executor import Engine, open_weights
from executor.adapters import make_adapter
from planner.documents import Plan, Policy, Workload
from planner.memory import account_device, smallest_policy
from solvers.errors import CheckpointError, UnsupportedError

FAMILY = "nllb-moe"
PUBLISHED = json.loads(Path(__file__).with_name("nllb_moe_tokens.json").read_text())
PROMPTS: list[list[int]] = PUBLISHED["prompts"]
WORKLOAD = Workload(16, 30, 32)

SHAPE: dict[str, Any] = {
    "vocab_size": 211,
    "max_position_embeddings": 256,
    "d_model": 48,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 56,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 4,
    "num_experts": 8,
    "encoder_sparse_step": 2,
    "decoder_sparse_step": 2,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
"""As the published checkpoint's, but small."""

CHANGES: dict[str, dict[str, Any]] = {
    "as published": {},
    "a share of the tokens": {"moe_eval_capacity_token_fraction": 0.15, "router_bias": True},
    "likeliest first": {
        "moe_eval_capacity_token_fraction": 0.15,
        "batch_prioritized_routing": True,
        "scale_embedding": False,
    },
    "a number of tokens": {
        "moe_eval_capacity_token_fraction": -1.0,
        "expert_capacity": 2,
        "normalize_router_prob_before_dropping": True,
        "moe_token_dropout": 0.0,
    },
}


def written(folder: Path, changes: dict[str, Any]) -> Path:
    """A checkpoint whose weights no version of anything decides: NumPy keeps ``RandomState``."""
    config = transformers.NllbMoeConfig(**SHAPE, **changes)
    with torch.device("meta"):
        model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    draw = np.random.RandomState(5)
    weights = {}
    for name, tensor in sorted(model.named_parameters()):
        values = draw.standard_normal(tuple(tensor.shape))
        if "norm" in name:
            values = 0.1 * values + name.endswith(".weight")
        elif name == "model.shared.weight":
            values *= 0.1 if config.scale_embedding else 0.7
        else:
            # large enough for tokens to be more than those before them said again
            values *= 0.1 if name.endswith(".bias") else 0.6
        weights[name] = torch.from_numpy(values.astype(np.float32))
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    values = {**config.to_dict(), "architectures": ["NllbMoeForConditionalGeneration"]}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def checkpoint(checkpoint_of: Callable[..., Path]) -> Path:
    return checkpoint_of(FAMILY)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("nllb") / "published", {})


def policy_of(folder: Path) -> Policy:
    with open_weights(folder) as source:
        base = smallest_policy(source.model, 4)
    return replace(base, n_batches=2, batch_size=3, slots=3, eviction="lru")


def run(folder: Path, helpers: Any, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    plan: Plan = helpers.plan(folder, policy_of(folder), WORKLOAD)
    with Engine.from_plan(plan) as engine:
        return [list(output.token_ids) for output in engine.generate(prompts)]


def generated(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """What transformers generates, prompt by prompt."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        ones = torch.ones_like(ids)  # without a mask it would guess one from the padding's id
        whole = model.generate(
            ids, attention_mask=ones, max_new_tokens=32, do_sample=False, **options
        )
        found.append(whole[0, 1:].tolist())
    return found


@pytest.mark.parametrize("case", CHANGES)
def test_tokens_are_those_of_the_transformers_that_was_right(
    case: str, tmp_path: Path, helpers: Any
) -> None:
    folder = written(tmp_path / "model", CHANGES[case])
    want = PUBLISHED["tokens"][case]
    assert run(folder, helpers) == want
    # which the reference of other tests is, too
    assert generated(helpers.reference(folder), PROMPTS) == want


def test_the_cases_tell_each_other_apart() -> None:
    """All have the same weights but for one's router biases: tokens differ by what is switched."""
    tokens = [PUBLISHED["tokens"][case] for case in CHANGES]
    assert all(one != other for one in tokens for other in tokens if one is not other)
    assert len({token for tokens_of in tokens[0] for token in tokens_of}) > 20
    assert any(SHAPE["pad_token_id"] in prompt for prompt in PROMPTS)
    assert sorted(set(map(len, PROMPTS)))[-1] == 30


def test_transformers_sends_every_token_to_two_experts() -> None:
    """Why the installed version's own tokens are none to be equal to: of its router's choices
    one-hot rows are made twice. Where this fails, the reference needs no mending any more."""
    config = transformers.NllbMoeConfig(**{**SHAPE, "encoder_layers": 1, "encoder_sparse_step": 1})
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    feed, rows = model.model.encoder.layers[0].ffn, torch.randn(1, 60, 48)
    with torch.no_grad():
        chosen = feed.router(rows[0])[0].argmax(dim=1)
        before = feed(rows)
        assert set(chosen.tolist()) == set(range(8))
        for expert in range(2, 8):
            feed.experts[f"expert_{expert}"].fc2.weight.fill_(9.0)
        assert torch.equal(feed(rows), before)


def test_a_padded_batch_is_the_same_where_all_tokens_have_room(
    published: Path, helpers: Any
) -> None:
    """As published. Only with masks of numbers: of one that is true for tokens transformers' router
    takes them for padding, and drops them."""
    longest = max(map(len, PROMPTS))
    prompts = [[token for token in prompt if token != 1] for prompt in PROMPTS]
    ids = torch.tensor([[*prompt, *[1] * (longest - len(prompt))] for prompt in prompts])
    model = helpers.reference(published)
    model.set_attn_implementation("eager")
    options = {"attention_mask": ids.ne(1).long(), "max_new_tokens": 32, "do_sample": False}
    together = model.generate(ids, **options)[:, 1:].tolist()
    ends = [2 in tokens and tokens.index(2) + 1 for tokens in together]
    cut = [tokens[: end or None] for tokens, end in zip(together, ends, strict=True)]
    assert run(published, helpers, prompts) == cut


def test_names_of_the_published_checkpoint(published: Path, tmp_path: Path, helpers: Any) -> None:
    """It was saved without its (tied) head, so that no name begins with ``model.``."""
    whole = transformers.AutoModelForSeq2SeqLM.from_pretrained(published)
    whole.model.save_pretrained(tmp_path / "bare")
    config = json.loads((tmp_path / "bare" / "config.json").read_text())
    assert config["architectures"] == ["NllbMoeModel"]
    assert run(tmp_path / "bare", helpers) == PUBLISHED["tokens"]["as published"]


def test_routing_is_that_of_its_routers(checkpoint: Path, helpers: Any) -> None:
    """Both experts of every token, in the order of their weights, in each router that it meets."""
    draw = random.Random(1)
    prompts = [[draw.randrange(3, 211) for _ in range(draw.randint(1, 19))] for _ in range(7)]
    plan = helpers.plan(checkpoint, policy_of(checkpoint), Workload(7, 19, 6))
    with Engine.from_plan(plan) as engine:
        tokens = [list(output.token_ids) for output in engine.generate(prompts)]
        arrays, model = engine.routing(), engine._source.model
    assert (model.moe_layers, arrays.encoder) == ((1, 3, 5, 7), 2)
    network = helpers.reference(checkpoint)
    said: list[torch.Tensor] = []
    for name, module in network.named_modules():
        if name.endswith("router.classifier"):
            module.register_forward_hook(
                lambda _, __, logits: said.append(logits.topk(2).indices.clone())
            )
    for number, (prompt, made) in enumerate(zip(prompts, tokens, strict=True)):
        said.clear()
        network.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
        length, steps = len(prompt), len(made)
        assert len(said) == 2 + 2 * steps
        chosen = arrays.experts[arrays.sequence == number]
        for column in range(4):
            mine = slice(length) if column < 2 else slice(length, None)
            wanted = said[column : column + 1] if column < 2 else said[column::2]
            assert chosen[mine, column].tolist() == torch.cat(wanted).tolist()


def test_keys_and_values_are_transformers_to_the_byte(checkpoint: Path, helpers: Any) -> None:
    """Both caches of a decoder's five layers, for a prompt of 19 and 6 new tokens."""
    cache = (
        helpers.reference(checkpoint)
        .generate(
            torch.arange(3, 22)[None],
            max_new_tokens=6,
            min_new_tokens=6,
            return_dict_in_generate=True,
        )
        .cache
    )
    held = sum(
        tensor.nbytes
        for part in (cache.self_attention_cache, cache.cross_attention_cache)
        for layer in part.layers
        if layer.keys is not None
        for tensor in (layer.keys, layer.values)
    )
    # transformers keeps all new tokens but the last
    assert held == 5 * 2 * 64 * (19 + 6) * 4
    workload, policy = Workload(4, 19, 6), replace(policy_of(checkpoint), batch_size=2)
    with Engine.from_plan(helpers.plan(checkpoint, policy, workload)) as engine:
        state = engine._device.state
        assert state._keys.nbytes + state._values.nbytes == 4 * held
        account = account_device(engine._source.model, policy, workload, 4, 0)
        assert 0 <= account.by_purpose["kv"] - 4 * held < 4096


def test_every_output_begins_with_the_forced_token(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    """A target language, where ``generation_config.json`` names one; what follows is told by it."""
    folder = checkpoint_of(FAMILY, vocab_size=212)
    values = json.loads((folder / "generation_config.json").read_text())
    plain = run(folder, helpers)
    (folder / "generation_config.json").write_text(json.dumps({**values, "forced_bos_token_id": 9}))
    got = run(folder, helpers)
    assert got == generated(helpers.reference(folder), PROMPTS)
    assert {tokens[0] for tokens in got} == {9}
    assert got != plain
    (folder / "generation_config.json").write_text(
        json.dumps({**values, "forced_bos_token_id": 212})
    )
    with pytest.raises(CheckpointError, match="forced_bos_token_id 212 is no token"):
        run(folder, helpers)


def test_logits(checkpoint: Path, helpers: Any) -> None:
    prompt = [5, 9, 200, 17, 0, 31, 4]  # with the padding's id, which has no position
    parts: dict[int, torch.Tensor] = {}
    plan = helpers.plan(checkpoint, policy_of(checkpoint), Workload(1, 7, 1))
    with Engine.from_plan(plan) as engine:
        operations = engine._device.operations
        plain = operations.head_tile

        def keep(tile: int, weight: torch.Tensor) -> torch.Tensor:
            parts[tile] = plain(tile, weight).clone()
            return parts[tile]

        operations.head_tile = keep  # type: ignore[method-assign]
        engine.generate([prompt], 1)
    model, ids = helpers.reference(checkpoint), torch.tensor([prompt])
    with torch.no_grad():
        want = model(ids, decoder_input_ids=torch.tensor([[2]])).logits[0]
    got = torch.cat([parts[tile] for tile in sorted(parts)], dim=1)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "gelu"}, "activation 'gelu' is not supported"),
        ({"router_dtype": "bfloat16"}, "router_dtype 'bfloat16' is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False is not supported"),
        ({"second_expert_policy": "sampling"}, "second_expert_policy 'sampling' is not supported"),
        ({"second_expert_policy": "random"}, "second_expert_policy 'random' is not supported"),
        ({"pad_token_id": None}, "pad_token_id is null"),
        (
            {"moe_eval_capacity_token_fraction": -1.0, "expert_capacity": 0},
            "expert_capacity 0 takes no token",
        ),
    ],
)
def test_refuses_by_name(checkpoint: Path, changes: dict[str, Any], message: str) -> None:
    with open_weights(checkpoint) as source:
        model, config = source.model, source.checkpoint.config
    with pytest.raises(UnsupportedError, match=message):
        make_adapter({**config, **changes}, model, torch.float32)
    with pytest.raises(UnsupportedError, match="bfloat16 cannot be run yet"):
        make_adapter(config, replace(model, dtype="bfloat16", dtype_bytes=2), torch.bfloat16)
