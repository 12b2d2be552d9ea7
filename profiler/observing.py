"""Short runs beside the measuring, for what operations take in runs as plans make them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from executor.device import Device
from executor.generation import Generation
from executor.memory import Backend
from executor.source import WeightSource
from planner.documents import ThreadUse, Workload
from profiler.observed import Observed
from profiler.record import recording_policy

__all__ = ["observe"]

_SIZES = (8, 1)
"""Sequences of the runs after one of all that fit."""
_DECODE = 3
"""Decode passes of each run, at most."""
_SECONDS = 1.0
"""After so long a run ends with its first decode pass."""


class _EnoughError(Exception):
    """Ends a run after a pass."""


def observe(
    source: WeightSource,
    prompts: Sequence[Sequence[int]],
    memory_bytes: int,
    *,
    backend: Backend | None = None,
    threads: ThreadUse | None = None,
) -> list[Observed]:
    """Run ``prompts`` for a few passes, all at once, then eight and one, as plans run them.

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

    Returns
    -------
    list[Observed]
        A run each; none if not even one sequence fits.
    """
    model, longest = source.model, len(prompts[0])
    limit = min(1 + _DECODE, model.max_context - longest)
    found = recording_policy(model, Workload(len(prompts), longest, limit), memory_bytes)
    if found is None:
        return []
    policy, workload = found
    with torch.inference_mode():
        device = Device(
            source, replace(policy, threads=threads), workload, memory_bytes, backend=backend
        )
    most = workload.requests
    runs: list[Observed] = []
    for size in (most, *(size for size in _SIZES if size < most)):
        group = [list(tokens) for tokens in prompts[:size]]
        run = Generation(device, group, limit, frozenset(), kept_passes=limit)
        begun = time.monotonic()

        def enough(made: int, _: int, size: int = size, begun: float = begun) -> None:
            if made > size and time.monotonic() - begun > _SECONDS:
                raise _EnoughError

        with suppress(_EnoughError):
            run.run(enough)
        runs.append(
            Observed(
                tuple(run.recorder.timeline().events()),
                limit,
                longest,
                device.policy.head_tiles,
                uniform=True,
                encoder=model.encoder_depth,
                lengths=1,
            )
        )
    return runs
