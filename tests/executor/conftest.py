"""Tiny random checkpoints, and plans made by hand."""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import gc
import secrets
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor import open_weights, pack
from executor.store import StoreIndex
from planner.documents import (
    Inputs,
    LayerPolicy,
    Locations,
    ModelSpec,
    Plan,
    Policy,
    Predicted,
    PredictedTotals,
    Range,
    Timeline,
    Workload,
    load_document,
)
from planner.memory import account_device, smallest_policy

SHAPES: dict[str, dict[str, Any]] = {
    "mixtral": {
        "num_hidden_layers": 3,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "qwen3_moe": {
        "num_hidden_layers": 5,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
        "decoder_sparse_step": 2,
    },
    "olmoe": {
        "num_hidden_layers": 3,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "clip_qkv": 2.0,
    },
    "qwen2_moe": {
        "num_hidden_layers": 5,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "mlp_only_layers": [3],
        "decoder_sparse_step": 2,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 3,
    },
    "deepseek_v2": {
        "num_hidden_layers": 3,
        "n_routed_experts": 12,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "first_k_dense_replace": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 16,
        },
    },
    "deepseek_v3": {
        "num_hidden_layers": 3,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 24,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
    },
    "glm4_moe": {
        "num_hidden_layers": 3,
        "n_routed_experts": 12,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "attention_bias": True,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": True,
    },
    "gpt_oss": {
        "num_hidden_layers": 4,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "intermediate_size": 40,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 8,
        "swiglu_limit": 1.5,
        "initializer_range": 0.3,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 16,
        },
    },
    "granitemoe": {
        "num_hidden_layers": 3,
        "num_local_experts": 10,
        "num_experts_per_tok": 3,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "embedding_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "residual_multiplier": 1.4,
        "logits_scaling": 4.0,
        "tie_word_embeddings": True,
    },
    "minimax_m2": {
        "num_hidden_layers": 3,
        "num_local_experts": 12,
        "num_experts_per_tok": 3,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "ernie4_5_moe": {
        "num_hidden_layers": 4,
        "moe_num_experts": 12,
        "moe_k": 3,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 2,
        "moe_intermediate_size": 24,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "phimoe": {
        "num_hidden_layers": 3,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "lm_head_bias": True,
        "router_jitter_noise": 0.05,
        "sliding_window": 20,
    },
    "switch_transformers": {
        "d_model": 64,
        "d_ff": 48,
        "d_kv": 12,
        "num_heads": 4,
        "num_layers": 4,
        "num_decoder_layers": 3,
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 3,
        "num_experts": 8,
        # fewer than some of the prompts want of an expert
        "expert_capacity": 3,
        "router_bias": True,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 5,
    },
    "nllb-moe": {
        "d_model": 64,
        "encoder_layers": 4,
        "decoder_layers": 5,
        "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 56,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 4,
        "encoder_sparse_step": 2,
        "decoder_sparse_step": 2,
        "num_experts": 8,
        "router_bias": True,
        # less than some of the prompts want of an expert
        "moe_eval_capacity_token_fraction": 0.2,
        "batch_prioritized_routing": True,
        "decoder_start_token_id": 2,
    },
}
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "vocab_size": 211,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


def network(config: Any) -> Any:
    """The class of transformers for a model of this configuration."""
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


def reference(folder: Path) -> Any:
    """transformers' model of a checkpoint.

    Of NLLB-MoE with the experts that transformers 4.46 had (whose own tokens ``test_nllb_moe.py``
    has): 5.24 makes one-hot rows of the router's one-hot rows, and so sends all tokens to experts 0
    and 1.
    """
    model = network(transformers.AutoConfig.from_pretrained(folder)).from_pretrained(folder)
    for module in model.modules():
        if type(module).__name__ == "NllbMoeExperts":
            module.forward = partial(_nllb_experts, module)
    return model


def _nllb_experts(
    experts: Any, rows: torch.Tensor, _: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Each expert's outputs for the tokens that give it a weight, times the share that training
    left unmasked."""
    sums = torch.zeros_like(rows)
    for number in range(experts.num_experts):
        mine = weights[:, number].nonzero().flatten()
        outputs = experts[f"expert_{number}"](rows[mine]) * (1 - experts.moe_token_dropout)
        sums[mine] += weights[mine, number, None] * outputs
    return sums


def write_checkpoint(family: str, folder: Path, dtype: torch.dtype, **changes: Any) -> None:
    """A checkpoint of random weights, written by transformers."""
    config = transformers.AutoConfig.for_model(family, **{**COMMON, **SHAPES[family], **changes})
    torch.manual_seed(7)
    model = network(config).from_config(config)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if config.is_encoder_decoder:
            # as transformers begins it, a tied model says its input again
            torch.nn.init.normal_(tensor, std=0.6 if family == "nllb-moe" else 0.3)
        if name == "model.shared.weight":
            tensor.data.div_(config.d_model**0.5)  # scaled up again as it is looked up
        # what transformers initialises to 0 or 1 would hide that it is there at all
        if name.endswith((".bias", "_bias", "sinks")):
            torch.nn.init.normal_(tensor, std=0.2)
        elif "norm" in name:
            torch.nn.init.uniform_(tensor, 0.7, 1.3)
    model.to(dtype).save_pretrained(folder)


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``checkpoint_of(family, dtype, **changes)``: each made once a session."""
    made: dict[tuple[Any, ...], Path] = {}

    def make(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
        key = (family, dtype, *sorted((k, str(v)) for k, v in changes.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp(family)
            write_checkpoint(family, folder, dtype, **changes)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="session")
def store_of(
    checkpoint_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """``store_of(family)``: the store of its checkpoint, each made once a session."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp("stores") / family
            pack(checkpoint_of(family), made[family])
        return made[family]

    return make


def make_plan(
    checkpoint: Path,
    policy: Policy,
    workload: Workload,
    *,
    store: Path | None = None,
    budget_bytes: int | None = None,
) -> Plan:
    """A plan with this policy; its budget is what the policy needs unless given."""
    with open_weights(checkpoint, store) as source:
        model, store_fingerprint = source.model, source.store_fingerprint
    account = account_device(model, policy, workload, model.dtype_bytes, 0)
    capacity = account.peak_bytes if budget_bytes is None else budget_bytes
    nothing = PredictedTotals(0, 0, 0, 0, 0, 0, {})
    return Plan(
        solver="by hand",
        stop="rule",
        objective_name="throughput",
        objective=1.0,
        bound=None,
        bound_class=None,
        gap=None,
        inputs=Inputs(
            *("0" * 64,) * 4,
            checkpoint_fingerprint=model.fingerprint,
            store_fingerprint=store_fingerprint,
        ),
        locations=Locations("no profile", str(checkpoint), None if store is None else str(store)),
        workload=workload,
        device="cpu",
        dtype=model.dtype,
        policy=policy,
        memory={"device": replace(account, capacity_bytes=capacity)},
        predicted=Predicted(Range(0, 0, 0), Range(0, 0, 0), 0, nothing, Timeline.of([])),
        chosen_over={},
        notes=(),
    )


def everything_resident(model: ModelSpec, **changes: Any) -> Policy:
    """Nothing streams."""
    base = smallest_policy(model, model.dtype_bytes)
    return replace(
        base,
        layers=tuple(LayerPolicy(True, tuple(range(spec.experts)), ()) for spec in model.layers),
        resident_head_tiles=base.head_tiles,
        slots=0,
        dense_slots=0,
        reserve=0,
        **changes,
    )


def greedy(
    checkpoint: Path, prompts: list[list[int]], new_tokens: int, **options: Any
) -> list[list[int]]:
    """What transformers generates, prompt by prompt (so without any padding)."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    return [continuation(model, prompt, new_tokens, **options) for prompt in prompts]


def continuation(model: Any, prompt: list[int], new_tokens: int, **options: Any) -> list[int]:
    """What transformers' ``model`` generates greedily."""
    ids = torch.tensor([prompt])
    whole = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        **options,
    )
    found: list[int] = whole[0, len(prompt) :].tolist()
    return found


def crash_pack(checkpoint: Path, store: Path, syncs: int, compress: str = "none") -> None:
    """Pack in a process that kills itself at its n-th fsync."""
    program = Path(__file__).with_name("crashing_pack.py")
    command = [sys.executable, str(program), str(checkpoint), str(store), str(syncs), compress]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL


def damage(store: Path, name: str, place: int) -> None:
    """Another bit at ``place`` of a unit's bytes in a store's data."""
    index = load_document(StoreIndex, store / "store.json")
    offset = place + next(unit.offset_bytes for unit in index.units if unit.name == name)
    with open(store / "weights.bin", "r+b") as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), offset)
        os.fsync(file.fileno())


@pytest.fixture
def capped() -> Iterator[Any]:
    """``capped(limit, command)`` runs a command in a memory group of its own (cgroup v1, in which
    the page cache counts)."""
    group = Path("/sys/fs/cgroup/memory") / f"moeplan_test_{os.getpid()}_{secrets.token_hex(4)}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(4 << 30))
    except OSError as error:
        pytest.skip(f"no cgroup v1 memory group can be made here: {error.strerror}")

    def run(limit: int, command: list[str]) -> tuple[subprocess.CompletedProcess[str], int]:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        script = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", script, "sh", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env={**os.environ, "GOMP_SPINCOUNT": "0"},
        )
        return done, int((group / "memory.max_usage_in_bytes").read_text())

    yield run
    group.rmdir()


def freed(kind: type[Exception], ask: Callable[[], object]) -> bool:
    """Whether an error of ``ask`` goes once nobody names it, without a collection."""
    gc.disable()
    try:
        try:
            ask()
        except kind as error:
            held = weakref.ref(error)
        else:
            pytest.fail("no error")
        # a thread that raised it may not have come to its end
        end = time.monotonic() + 60
        while held() is not None and time.monotonic() < end:
            time.sleep(0.005)
        return held() is None
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def helpers() -> Any:
    """The functions above, for test modules (which cannot import this file)."""

    class Helpers:
        plan = staticmethod(make_plan)
        resident = staticmethod(everything_resident)
        network = staticmethod(network)
        reference = staticmethod(reference)
        write_checkpoint = staticmethod(write_checkpoint)
        greedy = staticmethod(greedy)
        continuation = staticmethod(continuation)
        crash_pack = staticmethod(crash_pack)
        damage = staticmethod(damage)
        freed = staticmethod(freed)

    return Helpers
