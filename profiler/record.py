"""Recording routing: prompts are really run, prefill and some decode, and each choice is kept."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from executor.device import DTYPES, Device
from executor.generation import Generation
from executor.memory import Backend
from executor.source import WeightSource
from planner.documents import LayerPolicy, ModelSpec, Policy, ThreadUse, Workload
from planner.memory import account_device, default_head_tiling, smallest_budget
from planner.routing import TraceArrays
from planner.smallest import CHUNK_BYTES
from solvers.counting import counted
from solvers.errors import BudgetError, OptionError

__all__ = ["EnoughError", "Recording", "longest_prompt", "record_routing", "recording_policy"]

_NEW_TOKENS = 16
_SLOTS = 6


_LEAST_DECODE = 4
"""Decode passes that are made in any case."""


@dataclass(frozen=True, eq=False)
class Recording:
    """What a recorded run leaves.

    ``decoded`` are the generated tokens in the order in which decode passes embedded them.
    """

    arrays: TraceArrays
    decoded: tuple[int, ...]


class EnoughError(Exception):
    """Ends a run after a pass."""


def recording_policy(
    model: ModelSpec, workload: Workload, memory_bytes: int
) -> tuple[Policy, Workload] | None:
    """A simple policy under which ``workload`` runs, and the workload of one group.

    The group is the largest that leaves room for a few slots; then dense parts stay if they fit,
    then experts, layer by layer. None where not even one sequence fits.
    """
    group = workload.requests
    while True:
        some = Workload(group, workload.prompt_tokens, workload.new_tokens)
        # slots first: where they are few, a smaller group is better than fewer still
        for slots in (_SLOTS, 1) if group == 1 else (_SLOTS,):
            for chunk in CHUNK_BYTES:
                policy = _policy(model, group, slots, chunk, dense=False, experts=0)
                if _fits(model, policy, some, memory_bytes):
                    return _with_residents(model, policy, some, memory_bytes), some
        if group == 1:
            return None
        group = -(-group // 2)


def longest_prompt(model: ModelSpec, new_tokens: int, memory_bytes: int) -> int:
    """Most prompt tokens of one sequence that run under ``memory_bytes``; 0 if not one does."""
    width = DTYPES[model.dtype].itemsize

    def too_large(tokens: int) -> bool:
        return smallest_budget(model, Workload(1, tokens, new_tokens), width) > memory_bytes

    # memory grows with the prompt, so the first length that is too large ends the search
    return bisect_left(range(1, model.max_context - new_tokens + 1), True, key=too_large)


def _with_residents(
    model: ModelSpec, policy: Policy, workload: Workload, memory_bytes: int
) -> Policy:
    best = policy
    most = max(layer.experts for layer in model.layers)
    for experts in range(most + 1):
        candidate = _policy(
            model, policy.batch_size, policy.slots, policy.chunk_bytes, dense=True, experts=experts
        )
        if not _fits(model, candidate, workload, memory_bytes):
            break
        best = candidate
    return best


def _policy(
    model: ModelSpec, group: int, slots: int, chunk_bytes: int, *, dense: bool, experts: int
) -> Policy:
    rows, tiles = default_head_tiling(model, DTYPES[model.dtype].itemsize)
    return Policy(
        n_batches=1,
        batch_size=group,
        layers=tuple(
            LayerPolicy(dense, tuple(range(min(experts, layer.experts))), ())
            for layer in model.layers
        ),
        head_tile_rows=rows,
        head_tiles=tiles,
        resident_head_tiles=0,
        slots=slots,
        dense_slots=0 if dense else 1,
        reserve=1,
        eviction="lru",
        chunk_bytes=chunk_bytes,
    )


def _fits(model: ModelSpec, policy: Policy, workload: Workload, memory_bytes: int) -> bool:
    width = DTYPES[model.dtype].itemsize
    return account_device(model, policy, workload, width, 0).peak_bytes <= memory_bytes


def record_routing(
    source: WeightSource,
    prompts: Sequence[Sequence[int]],
    memory_bytes: int,
    *,
    new_tokens: int = _NEW_TOKENS,
    most_seconds: float = 20.0,
    ahead: bool = False,
    backend: Backend | None = None,
    threads: ThreadUse | None = None,
) -> Recording:
    """Run ``prompts`` and keep which experts each token chose, and the tokens generated.

    Parameters
    ----------
    source
        Weights. Reads are not paced: routing does not depend on speed.
    prompts
        Token ids of each.
    memory_bytes
        Device budget.
    new_tokens
        Tokens generated for each.
    most_seconds
        No further pass is begun after this, once there is prefill and a few passes of decode.
    ahead
        Keep, too, what each router says one MoE layer ahead. Where dense parts do not all fit and
        layers without experts lie between others, nobody is asked, nor with an encoder.
    backend
        Kind of device; the CPU if not given.
    threads
        How many of a CPU compute what.

    Raises
    ------
    OptionError
        If there is no prompt, an empty one, or one longer than the model's context.
    BudgetError
        If not even one sequence fits.
    """
    model = source.model
    longest = max((len(tokens) for tokens in prompts), default=0)
    if not prompts or not all(prompts):
        raise OptionError("routing is recorded on prompts, of one token at least each")
    if longest + new_tokens > model.max_context:
        raise OptionError(
            f"a prompt of {counted(longest, 'token')} and {new_tokens} new ones exceed the model's "
            f"context of {model.max_context}"
        )
    found = recording_policy(model, Workload(len(prompts), longest, new_tokens), memory_bytes)
    if found is None:
        need = smallest_budget(
            model, Workload(1, longest, new_tokens), DTYPES[model.dtype].itemsize
        )
        raise BudgetError(
            f"a prompt of {counted(longest, 'token')} does not run in {memory_bytes:,} bytes of "
            f"memory; give shorter prompts, or {need:,} bytes",
            need,
        )
    policy, workload = replace(found[0], threads=threads), found[1]
    stay = all(layer.dense_resident for layer in policy.layers)
    ahead = ahead and (stay or _together(model)) and not model.encoder
    with torch.inference_mode():
        device = Device(source, policy, workload, memory_bytes, backend=backend)
    begun = time.monotonic()
    parts: list[TraceArrays] = []
    tokens: list[int] = []
    for start in range(0, len(prompts), workload.requests):
        if parts and time.monotonic() - begun > most_seconds:
            break
        group = [list(tokens) for tokens in prompts[start : start + workload.requests]]
        run = Generation(device, group, new_tokens, frozenset(), ahead=ahead)

        _run(run, len(group), begun + most_seconds)
        parts.append(run.routing.arrays())
        # step by step, as decode passes embed them
        tokens += [token for step in zip(*run.results, strict=True) for token in step]
    return Recording(_joined(parts, workload.requests), tuple(tokens))


def _together(model: ModelSpec) -> bool:
    """Whether no layer without experts lies between two that have them."""
    layers = model.moe_layers
    return not layers or layers[-1] - layers[0] == len(layers) - 1


def _run(run: Generation, sequences: int, deadline: float) -> None:
    """To the end, or to the first pass behind a moment of ``time.monotonic``, but prefill and a few
    passes of decode."""

    def enough(made: int, _: int) -> None:
        if made > _LEAST_DECODE * sequences and time.monotonic() > deadline:
            raise EnoughError

    with suppress(EnoughError):
        run.run(enough)


def _joined(parts: Sequence[TraceArrays], group: int) -> TraceArrays:
    """Traces of groups one after the other, their sequences counted on."""
    looked = [part.ahead for part in parts if part.ahead is not None]
    return TraceArrays(
        np.concatenate([part.experts for part in parts]),
        np.concatenate([part.sequence + index * group for index, part in enumerate(parts)]).astype(
            np.int32
        ),
        np.concatenate([part.position for part in parts]),
        np.concatenate([part.phase for part in parts]),
        np.concatenate(looked) if len(looked) == len(parts) else None,
        parts[0].encoder,
    )
