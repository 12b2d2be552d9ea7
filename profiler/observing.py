"""Short runs beside the measuring, for what operations take in runs as plans make them."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from executor.device import Device
from executor.generation import Generation
from executor.memory import Backend
from executor.source import WeightSource
from planner.documents import ModelSpec, Policy, ThreadUse, Workload
from profiler.observed import Observed
from profiler.record import EnoughError, recording_policy

__all__ = ["DECODE", "observe"]

_SIZES = (8, 1)
"""Sequences of the runs after one of all that fit."""
DECODE = 24
"""Decode passes of each run, at most, where nothing else is asked for."""
_SECONDS = 0.8
"""After so long a run ends, but not before its first decode pass."""
_KEPT = 0.75
"""Of the experts that stay beside one sequence so many stay beside all that are run."""


def observe(
    source: WeightSource,
    prompts: Sequence[Sequence[int]],
    memory_bytes: int,
    *,
    backend: Backend | None = None,
    threads: ThreadUse | None = None,
    decode: int = DECODE,
) -> list[Observed]:
    """Run ``prompts`` for some passes: many at once, then eight, then one, as plans run them; then
    eight with experts copied ahead, where one comes while a layer is computed.

    The runs that record routing do not tell what operations take: they ask routers a layer ahead,
    and are the first to meet many shapes of products, which libraries then set up. How much longer
    than on a bench an operation takes in a run is another ratio for few rows than for many.

    Parameters
    ----------
    source
        Weights.
    prompts
        Token ids, all equally many, at least one; those that run at once under ``memory_bytes``
        are taken.
    memory_bytes
        Device budget.
    backend, threads
        As of ``record_routing``.
    decode
        Decode passes of each run, at most.

    Returns
    -------
    list[Observed]
        A run each; none if not even one sequence fits.
    """
    model, longest = source.model, len(prompts[0])
    limit = min(1 + decode, model.max_context - longest)
    found = recording_policy(model, Workload(1, longest, limit), memory_bytes)
    if found is None:
        return []
    beside_one = _residents(found[0])
    # where a large group's keys and values take the room of experts, everything is copied on demand
    # and operations are as slow as hardly a plan has them: each comes after a wait
    for size in (len(prompts) >> halved for halved in range(len(prompts).bit_length())):
        larger = recording_policy(model, Workload(size, longest, limit), memory_bytes)
        if larger is not None and _residents(larger[0]) >= _KEPT * beside_one:
            found = larger
            break
    policy, workload = found
    policy, most = replace(policy, threads=threads), workload.requests
    how = source, policy, workload, memory_bytes, backend
    sizes = (most, *(size for size in _SIZES if size < most))
    runs = _run(*how, [prompts[:size] for size in sizes])
    few = min(most, _SIZES[0])
    copying = _copying_ahead(model, policy, runs[sizes.index(few)])
    if copying is not None:
        runs += _run(source, copying, *how[2:], [prompts[:few]], ahead=True)
    return runs


def _run(
    source: WeightSource,
    policy: Policy,
    workload: Workload,
    memory_bytes: int,
    backend: Backend | None,
    groups: Sequence[Sequence[Sequence[int]]],
    *,
    ahead: bool = False,
) -> list[Observed]:
    """Each group for some passes."""
    # the memory of a device before this one
    gc.collect()
    with torch.inference_mode():
        device = Device(source, policy, workload, memory_bytes, backend=backend)
    limit, longest = workload.new_tokens, workload.prompt_tokens
    runs: list[Observed] = []
    for prompts in groups:
        group = [list(tokens) for tokens in prompts]
        run = Generation(device, group, limit, frozenset(), kept_passes=limit)
        begun = time.monotonic()

        def enough(made: int, _: int, size: int = len(group), begun: float = begun) -> None:
            if made > size and time.monotonic() - begun > _SECONDS:
                raise EnoughError

        with suppress(EnoughError):
            run.run(enough)
        events = tuple(run.recorder.timeline().events())
        # the first passes are slow, as memory and code are touched first: of decode the later half
        first = 1 + max(event.pass_index for event in events) // 2
        runs.append(
            Observed(
                tuple(one for one in events if not 0 < one.pass_index < first),
                limit,
                longest,
                device.policy.head_tiles,
                uniform=True,
                encoder=source.model.encoder_depth,
                lengths=1,
                ahead=ahead,
            )
        )
    return runs


def _copying_ahead(model: ModelSpec, policy: Policy, run: Observed) -> Policy | None:
    """The same with as many experts of each layer copied ahead as come while a pass is computed;
    None where that is not even one."""
    working = [event for event in run.working if run.phase(event) == "decode"]
    passes = len({event.pass_index for event in working})
    copied = sum(event.size_bytes for event in run.copies)
    if not passes or not copied or policy.slots < 2:
        return None
    computed = sum(event.end_ns - event.start_ns for event in working) / passes
    rate = copied / sum(event.end_ns - event.start_ns for event in run.copies)
    pairs = tuple(zip(model.layers, policy.layers, strict=True))
    streamed = sum(one.expert_bytes for one, own in pairs if one.experts > len(own.resident))
    each = int(computed * rate / streamed) if streamed else 0
    if not each:
        return None
    # the residents are the first ones
    return replace(
        policy,
        layers=tuple(
            replace(own, prefetch=tuple(range(first, min(first + each, one.experts))))
            for one, own in pairs
            for first in (len(own.resident),)
        ),
    )


def _residents(policy: Policy) -> int:
    return sum(len(layer.resident) for layer in policy.layers)
