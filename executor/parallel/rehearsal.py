"""What a simulator needs to know of ranks that have loaded a placement: their experts' times, and
what exchanges take, by passes of random tokens with a sequence on each device."""

from __future__ import annotations

import itertools
import random

import numpy as np
import numpy.typing as npt

from executor.parallel.group import RankGroup
from executor.parallel.leader import Leader
from planner.balance_simulator import Links, links_of
from planner.documents import Curve, ExpertPlacement, ModelSpec

__all__ = ["SHORT_PASSES", "longest", "rehearse"]

SHORT_PASSES = 24
"""Passes of a token on each device."""

_LONG_PASSES, _LONG_TOKENS = 4, 128
"""And of many."""


def longest(model: ModelSpec) -> int:
    """Prompt tokens of a rehearsal."""
    return max(min(_LONG_TOKENS, model.max_context - SHORT_PASSES), 1)


def rehearse(
    ranks: RankGroup | Leader, model: ModelSpec, placement: ExpertPlacement
) -> tuple[Curve, Links]:
    """Measure them.

    Exchanges are measured in passes, where ranks that share cores wait for each other's dense parts
    and experts as well: one sequence on each device, of one token at a time (latency) and of many
    (bandwidth).

    Parameters
    ----------
    ranks
        With room for a sequence of ``longest`` and ``SHORT_PASSES`` tokens on each device.
    model, placement
        What they have loaded.

    Returns
    -------
    expert
        Time of one expert against its rows, while the other ranks wait.
    links
        A third of what a layer of next to no rows takes beside its experts, and the bandwidth of
        one rank's rows.
    """
    answers = ranks.ask([{"order": "measure"}] * placement.devices)
    rows, durations, spreads = zip(
        *next(one["expert"] for one in answers if one["expert"]), strict=True
    )
    curve = Curve(
        rows,
        # a few more rows may be measured faster, but do not take less
        tuple(itertools.accumulate(durations, max)),
        spreads,
        (answers[0]["samples"],) * len(rows),
        "measured",
    )
    short = _passes(ranks, model, placement, 1, SHORT_PASSES)
    long = longest(model)
    parts = [_passes(ranks, model, placement, long, 1) for _ in range(_LONG_PASSES)]
    many = tuple(np.concatenate(part) for part in zip(*parts, strict=True))
    row_bytes = model.hidden_size * model.dtype_bytes
    return curve, links_of(short, (many[0], many[1]), placement, row_bytes)


def _passes(
    ranks: RankGroup | Leader,
    model: ModelSpec,
    placement: ExpertPlacement,
    tokens: int,
    passes: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Rows [passes, layers, devices, experts] of a sequence on each device, and each layer's time
    beside its experts."""
    draw = random.Random(tokens)
    orders = [
        {
            "order": "generate",
            "prompts": [[draw.randrange(model.vocab_size) for _ in range(tokens)]],
            "limit": passes,
            "end_tokens": [],
            "record": True,
            "rebalance": None,
        }
        for _ in range(placement.devices)
    ]
    found = [answer["layers"] for answer in ranks.ask(orders)]
    load = np.array([one["counts"] for one in found[0]])
    took, experts = (
        np.array([[one[name] for one in rank] for rank in found])
        for name in ("duration_ns", "expert_ns")
    )
    # from the last rank's start to the end, which all share
    rest = (took.min(axis=0) - experts.max(axis=0)).astype(np.float64)
    layers = len(placement.layers)
    return load.reshape(passes, layers, *load.shape[1:]), rest.reshape(passes, layers)
