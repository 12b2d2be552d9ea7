"""Fabricated profiles of any size: a machine, a model and recorded routing, without running one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner.solve
from planner.documents import (
    Channel,
    CostProfile,
    Curve,
    Figure,
    Hardware,
    LayerSpec,
    ModelSpec,
    ProfileIndex,
    RoutingTrace,
    Surface,
    Tier,
    document_hash,
)
from planner.profiles import Profile
from planner.routing import TraceArrays


def curve(*points: tuple[int, int]) -> Curve:
    rows, durations = zip(*points, strict=True)
    count = len(points)
    return Curve(rows, durations, tuple(d // 50 for d in durations), (9,) * count, "synthetic")


def line(fixed_ns: int, each_ns: int) -> Curve:
    return curve((1, fixed_ns + each_ns), (1024, fixed_ns + 1024 * each_ns))


def figure(value: float, spread: float = 0.0) -> Figure:
    return Figure(value, "synthetic", spread, 9)


def make_model(
    *,
    layers: int = 4,
    experts: int = 8,
    top_k: int = 2,
    hidden: int = 64,
    intermediate: int = 128,
    vocabulary: int = 512,
    dense_layers: int = 0,
    shared: bool = False,
    dtype_bytes: int = 4,
) -> ModelSpec:
    expert = 3 * hidden * intermediate * dtype_bytes
    attention = 4 * hidden * hidden * dtype_bytes
    specs = []
    for index in range(layers):
        dense = index < dense_layers
        specs.append(
            LayerSpec(
                index=index,
                attention_bytes=attention,
                router_bytes=0 if dense else hidden * experts * dtype_bytes,
                norm_bytes=2 * hidden * dtype_bytes,
                shared_expert_bytes=expert if shared and not dense else 0,
                mlp_bytes=2 * expert if dense else 0,
                experts=0 if dense else experts,
                top_k=0 if dense else top_k,
                expert_bytes=0 if dense else expert,
                expert_intermediate=0 if dense else intermediate,
                kv_bytes_per_token=2 * hidden * dtype_bytes,
            )
        )
    return ModelSpec(
        name="made-up",
        family="mixtral",
        dtype="float32" if dtype_bytes == 4 else "bfloat16",
        dtype_bytes=dtype_bytes,
        hidden_size=hidden,
        vocab_size=vocabulary,
        attention_heads=4,
        kv_heads=4,
        head_dim=hidden // 4,
        max_context=4096,
        layers=tuple(specs),
        embedding_bytes=vocabulary * hidden * dtype_bytes,
        head_bytes=vocabulary * hidden * dtype_bytes,
        final_norm_bytes=hidden * dtype_bytes,
        other_bytes=0,
        tied=False,
        parameters=1 + sum(spec.total_bytes for spec in specs) // dtype_bytes,
        active_parameters=1,
        bytes_source="config",
        fingerprint="0" * 64,
    )


def make_routing(
    model: ModelSpec,
    *,
    sequences: int,
    prompt: int,
    new: int,
    skew: float,
    persistence: float,
    seed: int,
) -> tuple[RoutingTrace, TraceArrays]:
    """Choices by a Zipf popularity of exponent ``skew``; a token keeps its predecessor's choices
    in a layer with probability ``persistence``."""
    rng = np.random.default_rng(seed)
    moe = [layer for layer in model.layers if layer.experts]
    experts, top_k = moe[0].experts, moe[0].top_k
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    logits = np.log(weights)[None, :] + np.zeros((len(moe), 1))
    logits = np.stack([row[rng.permutation(experts)] for row in logits])
    length = prompt + new
    chosen = np.zeros((sequences, length, len(moe), top_k), dtype=np.uint16)
    for position in range(length):
        noise = rng.gumbel(size=(sequences, len(moe), experts))
        fresh = np.argsort(-(logits[None] + noise), axis=2)[:, :, :top_k]
        if position:
            keep = rng.random((sequences, len(moe), 1)) < persistence
            fresh = np.where(keep, chosen[:, position - 1], fresh)
        chosen[:, position] = fresh
    arrays = TraceArrays(
        chosen.reshape(sequences * length, len(moe), top_k),
        np.repeat(np.arange(sequences, dtype=np.int32), length),
        np.tile(np.arange(length, dtype=np.int32), sequences),
        np.tile((np.arange(length) >= prompt).astype(np.uint8), sequences),
    )
    trace = RoutingTrace(
        model_hash=document_hash(model),
        source="synthetic",
        tokens=sequences * length,
        sequences=sequences,
        moe_layers=tuple(layer.index for layer in moe),
        experts=experts,
        top_k=top_k,
        arrays_file="routing.npz",
        arrays_hash=hashlib.sha256(arrays.experts.tobytes()).hexdigest(),
    )
    return trace, arrays


def make_profile(
    *,
    bandwidth: float = 1e9,
    latency_ns: float = 20_000,
    copy_slowdown: float = 1.0,
    compute_slowdown: float = 1.0,
    expert_ns: tuple[int, int] = (30_000, 4_000),
    sequences: int = 24,
    prompt: int = 16,
    new: int = 16,
    skew: float = 0.8,
    persistence: float = 0.3,
    seed: int = 0,
    paced: int | None = None,
    **model_options: Any,
) -> Profile:
    """A whole profile; see ``make_model`` and ``make_routing`` for what else may be given."""
    model = make_model(**model_options)
    hardware = Hardware(
        name="made-up",
        device="cpu",
        processor="none",
        threads=2,
        tiers=(
            Tier("device", 1 << 34, "synthetic"),
            Tier("host", 1 << 35, "synthetic"),
            Tier("disk", 1 << 40, "synthetic"),
        ),
        channels=(Channel("disk", figure(bandwidth, bandwidth / 50), figure(latency_ns), paced),),
    )
    contexts = (16, 256, 1024)
    costs = CostProfile(
        model_hash=document_hash(model),
        hardware_hash=document_hash(hardware),
        dtype="float32" if model.dtype_bytes == 4 else "bfloat16",
        curves={
            "embed": line(5_000, 200),
            "router": line(8_000, 100),
            "dense_mlp": line(20_000, 3_000),
            "shared_expert": line(15_000, 2_000),
            "expert": line(*expert_ns),
            "combine": line(4_000, 100),
            "head": line(20_000, 3_000),
            "sample": line(6_000, 300),
        },
        attention_decode=Surface(contexts, tuple(line(40_000, 10 * c) for c in contexts)),
        attention_prefill=Surface(contexts, tuple(line(50_000, 60 * c) for c in contexts)),
        copy_slowdown=figure(copy_slowdown),
        compute_slowdown=figure(compute_slowdown),
        reference_ns=figure(1_000_000, 20_000),
    )
    trace, arrays = make_routing(
        model,
        sequences=sequences,
        prompt=prompt,
        new=new,
        skew=skew,
        persistence=persistence,
        seed=seed,
    )
    index = ProfileIndex(
        checkpoint="checkpoint",
        store=None,
        checkpoint_fingerprint=model.fingerprint,
        store_fingerprint=None,
        memory_bytes=1 << 30,
        hardware_hash=document_hash(hardware),
        model_hash=document_hash(model),
        costs_hash=document_hash(costs),
        routing_hash=document_hash(trace),
    )
    return Profile(Path("profile"), index, hardware, model, costs, trace, arrays)


@pytest.fixture(scope="session")
def profile_factory() -> Any:
    return make_profile


@pytest.fixture(scope="session")
def small_profile() -> Profile:
    return make_profile()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are compared with no baselines, which take most of the time of a rule's plan: where
    only the plan itself matters."""
    monkeypatch.setattr(planner.solve, "run_baselines", lambda *_: [])
