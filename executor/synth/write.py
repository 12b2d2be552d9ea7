"""Synthetic checkpoints: a real model's shapes, random weights, modelled routing.

For speed and size, never for what they say: every one is labelled synthetic in its configuration
and in its weight files.

**Construction.** Attention and experts add little to the residual stream, so the hidden state is
the token's embedding, nearly: ``c 1 + sqrt(1 - c^2) a_p``, where p is the token's place on a cycle
through the vocabulary and ``a_p = rho a_(p-1) + sqrt(1 - rho^2) noise``. The head's row of the
token at p + 1 is dual to ``a_p`` (by the autoregression's precision matrix), so greedy decoding
walks along the cycle and never loops. A router's rows are random directions, plus a multiple of 1
that sets how often the expert is chosen: see ``executor.synth.routing``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from executor.synth.files import SPECIAL_TOKENS, Shards, Tensor, write_side_files
from executor.synth.routing import (
    Choice,
    fit_correlation,
    fit_routers,
    grouped_choice,
    target_routing,
)
from executor.synth.weights import Filler, Walk
from planner.architectures import Architecture, LayerShape, Weight, describe
from planner.checkpoint import load_config
from planner.documents import writing
from planner.documents.writing import take_over_mode
from planner.files import exists, is_dir, is_file, led_to
from solvers.counting import counted
from solvers.errors import OptionError, RunError, UnsupportedError

__all__ = ["FAMILIES", "SyntheticSummary", "write_synthetic"]

Progress = Callable[[int, int], None]

FAMILIES = (
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5_moe",
    "glm4_moe",
    "gpt_oss",
    "granitemoe",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
)
"""Model types that can be synthesized: all whose router is one matrix that scores experts."""

_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_SHARD_BYTES = 1 << 30
_SPARE_BYTES = 64 << 20
_PROMPTS, _PROMPT_TOKENS = 64, 64
_NOTE = "moeplan_synthetic"
_DROPPED = ("quantization_config", "auto_map", "num_nextn_predict_layers", "_name_or_path")


@dataclass(frozen=True, slots=True)
class SyntheticSummary:
    """What was written.

    Attributes
    ----------
    folder, files, size_bytes
        Where, how many weight files, and the bytes of their tensors.
    family, layers, vocab_size
        What it looks like.
    routing
        Where popularity and persistence come from, in words.
    shares
        Expected shares of choices of the experts, most popular first, mean over layers.
    persistence, expected_persistence
        Asked for, and expected of the weights: how often an expert chosen by a token is chosen
        again by the next.
    """

    folder: Path
    files: int
    size_bytes: int
    family: str
    layers: int
    vocab_size: int
    routing: str
    shares: tuple[float, ...]
    persistence: float
    expected_persistence: float


def write_synthetic(
    config: Path,
    out: Path,
    *,
    layers: int | None = None,
    seed: int = 0,
    dtype: str = "bfloat16",
    skew: float | None = None,
    persistence: float | None = None,
    routing: Path | None = None,
    vocab_size: int | None = None,
    progress: Progress | None = None,
) -> SyntheticSummary:
    """Write a checkpoint with the layer shapes of a real configuration.

    Beside the weights it has a tokenizer of whole words (``t3 t4 ...``), and ``prompts.jsonl`` with
    prompts that walk along the cycle that generation follows. An untied head is written even where
    the configuration ties it, since a tied one would make every token follow itself.

    Parameters
    ----------
    config
        A ``config.json``, or a folder with one.
    out
        The checkpoint's folder; an older synthetic checkpoint there is replaced.
    layers
        Fewer layers than the configuration has.
    seed
        The same seed gives the same files.
    dtype
        ``bfloat16``, ``float16`` or ``float32``.
    skew, persistence
        How unequal experts are, and how often one is chosen again by the next token; the defaults
        resemble real models (``executor.synth.routing.target_routing`` says which).
    routing
        A routing document whose popularity and persistence are taken instead.
    vocab_size
        Fewer words than the configuration has.
    progress
        Called with bytes written and bytes in all.

    Raises
    ------
    OptionError
        If an option is out of range, ``out`` is something else than a synthetic checkpoint, or it
        cannot be written.
    RunError
        If the disk is full, or has too little room.
    CheckpointError, UnsupportedError
        If the configuration cannot be read, or its family cannot be synthesized.
    """
    source = load_config(config / "config.json" if is_dir(config) else config)
    body = _cut(config, source, layers, vocab_size, dtype)
    architecture = _describe(config, body)
    choice, groups, top_k = _rule(architecture, body)
    moe = [index for index, layer in enumerate(architecture.layers) if layer.experts]
    target = target_routing(
        architecture.layers[moe[0]].experts,
        top_k,
        skew=skew,
        persistence=persistence,
        routing=routing,
    )
    _check_place(out)
    rng = np.random.default_rng([seed, 1])
    routers = fit_routers(target, len(moe), choice, groups, top_k, rng)
    rho, expected = fit_correlation(routers, target.persistence, choice, seed)
    body[_NOTE] = {
        "note": "random weights, modelled routing: for speed and size, not for what it says",
        "source": config.name if is_file(config) else config.resolve().name,
        "source_layers": source.get("num_hidden_layers"),
        "seed": seed,
        "routing": target.source,
        "persistence": round(expected, 4),
    }
    place = led_to(out)
    temporary = _temporary(place)
    try:
        with writing(out, OptionError):
            size, files = _write(
                temporary,
                architecture,
                body,
                dtype,
                seed,
                rho,
                dict(zip(moe, routers, strict=True)),
                progress,
            )
            _move(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return SyntheticSummary(
        folder=out,
        files=files,
        size_bytes=size,
        family=architecture.family,
        layers=len(architecture.layers),
        vocab_size=architecture.vocab_size,
        routing=target.source,
        shares=tuple(
            float(share) for share in np.mean([-np.sort(-r.shares) for r in routers], axis=0)
        ),
        persistence=target.persistence,
        expected_persistence=expected,
    )


def _cut(
    path: Path, source: dict[str, Any], layers: int | None, vocab_size: int | None, dtype: str
) -> dict[str, Any]:
    """The configuration of the checkpoint: fewer layers and words, no quantization."""
    if dtype not in _DTYPES:
        raise OptionError(f"dtype {dtype!r} cannot be written; use {', '.join(_DTYPES)}")
    body = {key: value for key, value in source.items() if key not in _DROPPED}
    for key, asked, least in (
        ("num_hidden_layers", layers, 1),
        ("vocab_size", vocab_size, 2 * len(SPECIAL_TOKENS) + 2),
    ):
        known = source.get(key)
        if not isinstance(known, int) or isinstance(known, bool):
            raise UnsupportedError(f"{path}: the configuration has no {key}")
        if asked is not None and not least <= asked <= known:
            raise OptionError(f"{key}: {asked} is not between {least} and the {known} of {path}")
        if asked is not None:
            body[key] = asked
    if isinstance(body.get("layer_types"), list):
        body["layer_types"] = body["layer_types"][: body["num_hidden_layers"]]
    body.pop("dtype", None)
    body |= {
        "torch_dtype": dtype,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    return body


def _describe(path: Path, body: dict[str, Any]) -> Architecture:
    try:
        architecture = describe(body)
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: {error}") from error
    if architecture.family not in FAMILIES:
        raise UnsupportedError(
            f"{path}: model type {architecture.family!r} cannot be synthesized "
            f"(only {', '.join(FAMILIES)})"
        )
    return architecture


def _rule(architecture: Architecture, body: dict[str, Any]) -> tuple[Choice, int, int]:
    """How the family's router chooses, in how many groups of experts, and how many."""
    layer = next(layer for layer in architecture.layers if layer.experts)
    groups, kept = 1, 1
    method = body.get("topk_method")
    if architecture.family in ("deepseek_v3", "glm4_moe") or method == "group_limited_greedy":
        groups, kept = int(body.get("n_group") or 1), int(body.get("topk_group") or 1)
    if layer.experts % groups or not 1 <= kept <= groups:
        raise UnsupportedError(
            f"model type {architecture.family!r}: {kept} of {counted(groups, 'group')} do not fit "
            f"{counted(layer.experts, 'expert')}"
        )
    best = 2 if architecture.family in ("deepseek_v3", "glm4_moe") else 1
    return grouped_choice(layer.top_k, groups, kept, best), groups, layer.top_k


def _write(
    folder: Path,
    architecture: Architecture,
    body: dict[str, Any],
    dtype: str,
    seed: int,
    rho: float,
    routers: dict[int, Any],
    progress: Progress | None,
) -> tuple[int, int]:
    """Write everything into ``folder``; bytes of the tensors, and number of weight files."""
    stored = _DTYPES[dtype]
    head = Weight("lm_head.weight", architecture.embedding.shape, "outside")
    tensors = [Tensor(architecture.embedding.name, architecture.embedding.shape, stored)]
    fill: list[tuple[Tensor, int, Weight]] = []
    for index, layer in enumerate(architecture.layers):
        for weight, name, shape in _stored(layer):
            tensor = Tensor(layer.prefix + name, shape, weight.dtype or stored)
            tensors.append(tensor)
            fill.append((tensor, index, weight))
    for weight in (architecture.final_norm, *architecture.extra):
        tensor = Tensor(weight.name, weight.shape, stored)
        tensors.append(tensor)
        fill.append((tensor, -1, weight))
    tensors.append(Tensor(head.name, head.shape, stored))
    need = sum(tensor.size_bytes for tensor in tensors)
    free = shutil.disk_usage(folder).free
    if free < need + _SPARE_BYTES:
        raise RunError(f"{folder.parent}: {need + _SPARE_BYTES} bytes are needed, {free} are free")
    walk = Walk(architecture.vocab_size, architecture.hidden_size, rho, seed)
    shards = Shards(folder, tensors, {_NOTE: "true"}, _SHARD_BYTES)
    done = 0

    def wrote(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress(done, shards.size_bytes)

    try:
        filler = Filler(shards, architecture, float(body.get("routed_scaling_factor") or 1.0), seed)
        for tensor, index, weight in fill:
            filler.fill(tensor, weight, routers.get(index))
            wrote(tensor.size_bytes)
        walk.write(shards, architecture.embedding.name, head.name, stored, wrote)
        shards.close(sync=True)
    finally:
        shards.close(sync=False)
    write_side_files(folder, body, architecture.vocab_size, walk.prompts(_PROMPTS, _PROMPT_TOKENS))
    return shards.size_bytes, len(shards.files)


def _stored(layer: LayerShape) -> Iterator[tuple[Weight, str, tuple[int, ...]]]:
    """Each tensor of a layer once: a weight that lies in it, its name and its shape."""
    for weight in layer.dense:
        yield weight, weight.name, weight.shape
    names = set()
    for expert in range(layer.experts):
        for weight in layer.expert:
            name = weight.name.replace("{e}", str(expert))
            if "{e}" in weight.name:
                yield weight, name, weight.shape
            elif name not in names:
                # one tensor for all experts
                names.add(name)
                rows = weight.rows[2] if weight.rows else weight.shape[0]
                yield weight, name, (layer.experts, rows, *weight.shape[1:])


def _check_place(out: Path) -> None:
    """``out`` is free, empty, or an older synthetic checkpoint."""
    if not is_dir(led_to(out).parent):
        raise OptionError(f"{out}: the folder above it does not exist")
    if not exists(out):
        return
    if not is_dir(out):
        raise OptionError(f"{out}: is a file; name a folder")
    if any(out.iterdir()):
        try:
            known = bool(json.loads((out / "config.json").read_text()).get(_NOTE))
        except (OSError, ValueError, AttributeError):
            known = False
        if not known:
            raise OptionError(f"{out}: is not empty and no synthetic checkpoint; name another")


def _temporary(out: Path) -> Path:
    """A folder beside ``out``; those that killed processes left behind are removed."""
    prefix = f".{out.name}.synth-"
    for left in out.parent.glob(f"{prefix}*"):
        number = left.name.removeprefix(prefix).removesuffix("-old")
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = out.with_name(f"{prefix}{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    with writing(out, OptionError):
        folder.mkdir()
    return folder


def _move(temporary: Path, out: Path) -> None:
    """Put the finished folder in its place."""
    if exists(out):
        old = temporary.with_name(f"{temporary.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        for path in (*temporary.iterdir(), temporary):
            take_over_mode(out if path == temporary else out / path.name, path)
        out.rename(old)
        temporary.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(out)
    descriptor = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
