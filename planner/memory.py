"""Peak bytes of the device tier, purpose by purpose: one formula for planner and executor.

The planner constrains it, the checker recomputes it, and the executor reserves exactly these
amounts from its ledger before it loads anything; so a plan that was accepted does not run out.
"""

from __future__ import annotations

from planner.documents import MemoryAccount, ModelSpec, Policy, Workload

__all__ = [
    "ALIGNMENT_BYTES",
    "EXPERT_TILE_ROWS",
    "account_device",
    "aligned",
    "context_tokens",
    "head_tile_bytes",
    "slot_bytes",
]

ALIGNMENT_BYTES = 4096
"""Granularity of direct reads, and so of every unit in a store and of every slot."""

EXPERT_TILE_ROWS = 1024
"""Most rows that one expert computes at once; more are computed in tiles."""

_READ_SLACK_BYTES = 3 * 2 * ALIGNMENT_BYTES
"""A unit read straight from a checkpoint is up to three spans, each starting and ending inside
a block."""


def aligned(size_bytes: int) -> int:
    """``size_bytes`` rounded up to the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def context_tokens(workload: Workload) -> int:
    """KV positions that one sequence needs at its longest."""
    return workload.prompt_tokens + workload.new_tokens


def head_tile_bytes(model: ModelSpec, tile_rows: int, dtype_bytes: int) -> int:
    """Device bytes of one head tile (``tile_rows`` x hidden)."""
    return aligned(tile_rows * model.hidden_size * dtype_bytes + 2 * ALIGNMENT_BYTES)


def slot_bytes(model: ModelSpec, tile_rows: int, dtype_bytes: int) -> int:
    """Device bytes of one streaming slot: the largest expert or head tile."""
    expert = max(layer.expert_bytes for layer in model.layers)
    return max(aligned(expert + _READ_SLACK_BYTES), head_tile_bytes(model, tile_rows, dtype_bytes))


def dense_slot_bytes(model: ModelSpec, layer: int) -> int:
    """Device bytes of one layer's dense part."""
    # one span a tensor in the worst case; dense parts have fewer than 32 tensors
    return aligned(model.layers[layer].dense_bytes + 32 * 2 * ALIGNMENT_BYTES)


def account_device(
    model: ModelSpec, policy: Policy, workload: Workload, dtype_bytes: int, capacity_bytes: int
) -> MemoryAccount:
    """Peak bytes of the device tier for ``policy``, in prefill and in decode.

    Parameters
    ----------
    model, policy, workload
        What runs.
    dtype_bytes
        Width of the computing type.
    capacity_bytes
        The budget.

    Returns
    -------
    MemoryAccount
        ``dense`` (resident dense parts), ``dense_slots``, ``experts`` (residents), ``slots``,
        ``head`` (resident tiles), ``kv``, ``hidden``, ``workspace``, ``logits``.
    """
    raise NotImplementedError
