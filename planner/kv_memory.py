"""Bytes of keys and values: of a token, of a layer, and of what of them lies on the device."""

from __future__ import annotations

from planner.documents import ModelSpec, Policy, Workload
from planner.span import kept_tokens
from planner.workspace import aligned, group_sequences

__all__ = [
    "batch_sequences",
    "kv_columns_bytes",
    "kv_device_bytes",
    "kv_layer_bytes",
    "kv_token_bytes",
]


def batch_sequences(policy: Policy, workload: Workload) -> int:
    """Sequences of a full batch."""
    return min(policy.batch_size, group_sequences(policy, workload))


def kv_token_bytes(model: ModelSpec, layer: int, dtype_bytes: int) -> int:
    """Keys and values of one token in one layer."""
    # the specification counts in the storage type; keys and values are kept in the computing type
    return model.layers[layer].kv_bytes_per_token // model.dtype_bytes * dtype_bytes


def kv_layer_bytes(
    model: ModelSpec, layer: int, sequences: int, workload: Workload, dtype_bytes: int
) -> int:
    """Room for the keys and values of so many sequences in one layer where they are copied: in
    whole blocks for each sequence, at its longest."""
    columns = kept_tokens(workload)
    return sequences * aligned(columns * kv_token_bytes(model, layer, dtype_bytes))


def kv_columns_bytes(
    model: ModelSpec, layer: int, sequences: int, columns: int, dtype_bytes: int
) -> int:
    """What a copy brings of them where each sequence has so many tokens: they lie column by column,
    in each those of all sequences, so these are the first blocks."""
    return aligned(columns * sequences * kv_token_bytes(model, layer, dtype_bytes))


def kv_device_bytes(model: ModelSpec, policy: Policy, workload: Workload, dtype_bytes: int) -> int:
    """Device bytes of keys and values at their longest, but for those in slots of dense parts.

    Those of the group in all layers where they stay; batch by batch those that stay, and as many
    slots as there are, each for those of a full batch in one layer.
    """
    layers = list(enumerate(policy.layers))
    if policy.kv == "batches":
        sequences = batch_sequences(policy, workload)
        sizes = [
            kv_layer_bytes(model, index, sequences, workload, dtype_bytes) for index, _ in layers
        ]
        stay = sum(sizes[index] * len(layer.kv_resident) for index, layer in layers)
        return stay + policy.start_slots * max(sizes)
    kept = [index for index, layer in layers if layer.dense_resident or policy.kv is None]
    token = sum(kv_token_bytes(model, index, dtype_bytes) for index in kept)
    return aligned(group_sequences(policy, workload) * kept_tokens(workload) * token)
