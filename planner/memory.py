"""Peak bytes of the device tier, purpose by purpose: one formula for planner and executor.

The planner constrains it, the checker recomputes it, and the executor reserves exactly these
amounts from its ledger before it loads anything; so a plan that was accepted does not run out.

Every term is an upper bound of what the executor's operations hold at one time. Weights lie in
units whose layout does not depend on where they were read from: an expert is ``gate | up | down``
without gaps, a dense part is its tensors one after another, each at a multiple of 64 bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from planner.documents import (
    OWN,
    FormName,
    LayerPolicy,
    LayerSpec,
    MemoryAccount,
    ModelSpec,
    Policy,
    Workload,
)
from planner.kv_memory import (
    batch_sequences,
    kv_columns_bytes,
    kv_device_bytes,
    kv_layer_bytes,
    kv_token_bytes,
)
from planner.span import context_tokens, kept_tokens
from planner.workspace import (
    ALIGNMENT_BYTES,
    ATTENTION_TILE_ROWS,
    CONTEXT_STEPS,
    EXPANDED_TILE_ROWS,
    EXPERT_TILE_ROWS,
    ROUTER_TILE_ROWS,
    ROW_BUCKETS,
    aligned,
    attention_tile_rows,
    expands_context,
    expert_tile_rows,
    group_sequences,
    library_bytes,
    operation_bytes,
)

Forms = tuple[tuple[FormName, ...], ...]
"""By layer: the form of each expert, or nothing where all are as in the checkpoint; empty: so are
all layers'."""

__all__ = [
    "ALIGNMENT_BYTES",
    "ATTENTION_TILE_ROWS",
    "BLOCK_BYTES",
    "CONTEXT_STEPS",
    "DECODERS",
    "DECODE_STEP_BYTES",
    "DENSE_TENSORS",
    "EMBEDDING_CACHE_BYTES",
    "EMBEDDING_READS",
    "EMBEDDING_SPAN_BYTES",
    "EXPANDED_TILE_ROWS",
    "EXPERT_TILE_ROWS",
    "PURPOSES",
    "ROUTER_TILE_ROWS",
    "ROW_BUCKETS",
    "TENSOR_ALIGNMENT_BYTES",
    "Forms",
    "account_device",
    "aligned",
    "attention_tile_rows",
    "batch_sequences",
    "context_tokens",
    "decode_bytes",
    "default_head_tiling",
    "dense_slot_bytes",
    "embedding_bytes",
    "embedding_read_bytes",
    "expands_context",
    "expert_tile_rows",
    "group_sequences",
    "head_tile_bytes",
    "held_expert_bytes",
    "held_form_bytes",
    "kept_tokens",
    "kv_columns_bytes",
    "kv_layer_bytes",
    "kv_token_bytes",
    "operation_bytes",
    "outside_bytes",
    "read_buffer_bytes",
    "slot_bytes",
    "smallest_budget",
    "smallest_policy",
    "start_slot_bytes",
    "workspace_bytes",
]

TENSOR_ALIGNMENT_BYTES = 64
"""Where a tensor of a dense part may begin: a cache line."""

DENSE_TENSORS = 32
"""Most tensors that a dense part may have."""

EMBEDDING_CACHE_BYTES = 2 << 20
"""Embedding rows that are kept once read (all of them where they fit)."""

EMBEDDING_READS = 16
"""Reads of embedding rows in flight at once."""

EMBEDDING_SPAN_BYTES = 28 << 10
"""Rows that lie close together are read at once, up to so many bytes (one row at least)."""

BLOCK_BYTES = 256 << 10
"""Weights in a block of a compressed store (fewer in a unit's last)."""

DECODERS = 2
"""Threads that decode blocks while the next are read."""

DECODE_STEP_BYTES = 1 << 20
"""Most compressed bytes that are read at once; two such steps have a buffer."""

_ZSTD_BYTES = 512 << 10
"""Most that zstandard keeps for one thread (its context has 94 KiB; the rest would be windows)."""

PURPOSES = (
    "dense",
    "dense_slots",
    "experts",
    "slots",
    "head",
    "kv",
    "hidden",
    "workspace",
    "logits",
    "embedding",
)
"""The purposes of the device account, in the order in which they are reserved."""


def held_expert_bytes(layer: LayerSpec) -> int:
    """Device bytes of one of a layer's experts, in a slot or to stay; 0 where it has none."""
    return aligned(layer.expert_bytes)


def held_form_bytes(model: ModelSpec, layer: int, form: FormName) -> int:
    """Likewise, of one in a form that a store has beside the checkpoint's own."""
    return aligned(model.form_bytes(layer, form))


def head_tile_bytes(model: ModelSpec, tile_rows: int, dtype_bytes: int) -> int:
    """Device bytes of one head tile (``tile_rows`` x hidden), with the blocks it shares."""
    return aligned(tile_rows * model.hidden_size * dtype_bytes + 2 * ALIGNMENT_BYTES)


def outside_bytes(model: ModelSpec) -> int:
    """Bytes of the final norm and of the head's bias: both are always there."""
    bias = model.head_bytes % (model.vocab_size * model.hidden_size * model.dtype_bytes)
    return model.final_norm_bytes + bias


def slot_bytes(model: ModelSpec, tile_rows: int, dtype_bytes: int, forms: Forms = ()) -> int:
    """Device bytes of one streaming slot: the largest expert, of those in ``forms``, or head
    tile."""
    expert = max(
        max((held_form_bytes(model, layer.index, form) for form in set(own)), default=0)
        if own
        else held_expert_bytes(layer)
        for layer, own in zip(model.layers, forms or ((),) * len(model.layers), strict=True)
    )
    return max(expert, head_tile_bytes(model, tile_rows, dtype_bytes))


def dense_slot_bytes(model: ModelSpec, layer: int) -> int:
    """Device bytes of one layer's dense part."""
    return aligned(model.layers[layer].dense_bytes + DENSE_TENSORS * TENSOR_ALIGNMENT_BYTES)


def start_slot_bytes(
    model: ModelSpec, policy: Policy, workload: Workload, layer: int, dtype_bytes: int
) -> int:
    """Device bytes of what is copied before a layer begins: its dense part, and its keys and values
    where they lie below."""
    size = dense_slot_bytes(model, layer)
    if policy.kv != "below":
        return size
    sequences = group_sequences(policy, workload)
    return size + kv_layer_bytes(model, layer, sequences, workload, dtype_bytes)


def embedding_bytes(model: ModelSpec) -> int:
    """Device bytes for embedding rows: those kept, and those being read."""
    return aligned(min(model.embedding_bytes, EMBEDDING_CACHE_BYTES)) + embedding_read_bytes(model)


def embedding_read_bytes(model: ModelSpec) -> int:
    """Buffers through which embedding rows reach their place, one for each read in flight."""
    row = aligned(model.embedding_bytes // model.vocab_size) + ALIGNMENT_BYTES
    whole = min(model.embedding_bytes, EMBEDDING_SPAN_BYTES)
    return EMBEDDING_READS * max(aligned(whole) + ALIGNMENT_BYTES, row)


def read_buffer_bytes(model: ModelSpec, policy: Policy) -> int:
    """Buffer through which a checkpoint's unaligned tensors reach their slots, or compressed blocks
    the decoders."""
    if model.stored is not None:
        return 2 * (DECODE_STEP_BYTES + 2 * ALIGNMENT_BYTES)
    largest = max(
        max(max(layer.dense_bytes, layer.expert_bytes) for layer in model.layers),
        policy.head_tile_rows * model.hidden_size * model.dtype_bytes,
    )
    return aligned(min(policy.chunk_bytes, largest)) + 2 * ALIGNMENT_BYTES


def decode_bytes(model: ModelSpec) -> int:
    """What the decoders of a compressed store work in: each has a block, as many bytes for words
    that are being put together, and half as many for exponents."""
    if model.stored is None:
        return 0
    return DECODERS * (BLOCK_BYTES * 5 // 2 + _ZSTD_BYTES)


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
        ``dense`` (resident dense parts), ``dense_slots`` (with the keys and values that are copied
        there), ``experts`` (residents), ``slots``,
        ``head`` (resident tiles and the final norm), ``kv`` (of the whole group at its longest,
        in the layers where they stay; batch by batch those that stay, and slots for the others),
        ``hidden`` (residual stream, expert input, expert sum in float32, routing),
        ``workspace`` (the largest operation's temporaries, the read buffer and decoders),
        ``logits``, ``embedding``.
    """
    sequences = group_sequences(policy, workload)
    streamed = [
        start_slot_bytes(model, policy, workload, index, dtype_bytes)
        for index, layer in enumerate(policy.layers)
        if not layer.dense_resident
    ]
    by_purpose = {
        "dense": sum(
            dense_slot_bytes(model, index)
            for index, layer in enumerate(policy.layers)
            if layer.dense_resident
        ),
        "dense_slots": policy.dense_slots * max(streamed, default=0),
        "experts": sum(
            held_form_bytes(model, index, layer.form(expert))
            for index, layer in enumerate(policy.layers)
            for expert in layer.resident
        ),
        "slots": policy.slots
        * slot_bytes(model, policy.head_tile_rows, dtype_bytes, policy.expert_forms),
        "head": policy.resident_head_tiles
        * head_tile_bytes(model, policy.head_tile_rows, dtype_bytes)
        + aligned(outside_bytes(model)),
        "kv": kv_device_bytes(model, policy, workload, dtype_bytes),
        "hidden": _hidden_bytes(model, sequences * workload.prompt_tokens, dtype_bytes)
        + _decoder_bytes(model, sequences, dtype_bytes),
        "workspace": workspace_bytes(model, policy, workload, dtype_bytes)
        + read_buffer_bytes(model, policy)
        + decode_bytes(model),
        "logits": aligned(
            sequences
            * (policy.head_tile_rows * dtype_bytes + 3 * model.hidden_size * (dtype_bytes + 4))
        ),
        "embedding": embedding_bytes(model),
    }
    return MemoryAccount(capacity_bytes=capacity_bytes, by_purpose=by_purpose)


def _hidden_bytes(model: ModelSpec, tokens: int, dtype_bytes: int) -> int:
    """What the group's tokens hold through a layer of prefill."""
    top_k = max(layer.top_k for layer in model.layers)
    values = tokens * model.hidden_size
    # residual and expert input in the computing type, sum over experts in float32;
    # of each choice its expert, weight, place in the order, token, and the sort's own copies;
    # and the token's number, a few times over
    bookkeeping = tokens * (top_k * 48 + 64)
    return 2 * aligned(values * dtype_bytes) + aligned(values * 4) + aligned(bookkeeping)


def _decoder_bytes(model: ModelSpec, sequences: int, dtype_bytes: int) -> int:
    """Residual stream of a decoder beside that of its encoder: one token of each sequence."""
    return aligned(sequences * model.hidden_size * dtype_bytes) if model.encoder else 0


def workspace_bytes(model: ModelSpec, policy: Policy, workload: Workload, dtype_bytes: int) -> int:
    """Temporaries of the largest operation, as operations run one at a time, and what the
    libraries behind them keep."""
    tokens = group_sequences(policy, workload) * workload.prompt_tokens
    return aligned(
        library_bytes(model, policy, tokens, dtype_bytes)
        + operation_bytes(model, policy, workload, dtype_bytes)
    )


def default_head_tiling(model: ModelSpec, dtype_bytes: int) -> tuple[int, int]:
    """Rows of a head tile and number of tiles, so that a tile fits where an expert does, in
    whichever form."""
    row_bytes = model.hidden_size * dtype_bytes
    names = (OWN, *(form.name for form in model.forms or ()))
    expert = min(
        max(held_form_bytes(model, layer.index, name) for layer in model.layers) for name in names
    )
    room = expert - 2 * ALIGNMENT_BYTES
    rows = min(max(room // row_bytes, 1), model.vocab_size)
    tiles = -(-model.vocab_size // rows)
    # as even as they can be, so that no tile is a sliver
    rows = -(-model.vocab_size // tiles)
    return rows, tiles


def smallest_policy(model: ModelSpec, dtype_bytes: int) -> Policy:
    """The policy that needs the least memory: one sequence, one slot of each kind, no residents."""
    rows, tiles = default_head_tiling(model, dtype_bytes)
    return Policy(
        n_batches=1,
        batch_size=1,
        layers=tuple(LayerPolicy(False, (), ()) for _ in model.layers),
        head_tile_rows=rows,
        head_tiles=tiles,
        resident_head_tiles=0,
        slots=1,
        dense_slots=1,
        reserve=1,
        eviction="none",
        chunk_bytes=256 << 10,
    )


def smallest_budget(
    model: ModelSpec,
    workload: Workload,
    dtype_bytes: int,
    kv: Literal["below"] | None = None,
) -> int:
    """The smallest device budget, in bytes, under which ``workload`` runs at all, where keys and
    values lie there or, as ``Policy.kv`` has it, below."""
    policy = replace(smallest_policy(model, dtype_bytes), kv=kv)
    return account_device(model, policy, workload, dtype_bytes, 0).peak_bytes
