"""Warming up: what a first pass would pay once is paid before time counts.

Libraries choose kernels and generate code at a shape's first use, threads start, pages get their
memory. None of it belongs to a plan, so an engine has it behind it when a run begins.
"""

from __future__ import annotations

import torch

from executor.device import Device
from executor.encoder_decoder import EncoderDecoderOperations
from executor.operations import feed_expert, tile_of
from executor.units import Unit
from planner.memory import ATTENTION_TILE_ROWS, EXPERT_TILE_ROWS

__all__ = ["warm_up"]


def warm_up(device: Device) -> None:
    """Compute one layer of each kind once, in prefill and in decode, on few tokens.

    Nothing is read from the disk: a layer that streams is computed from whatever its slot holds.
    No output depends on it, since a group begins with an empty past.
    """
    state, operations = device.state, device.operations
    sequences = min(state.batch_size, state.capacity)
    prompt = min(state.prompt_tokens, state.context - 1)
    if prompt < 1:
        return
    few = max(min(sequences, ATTENTION_TILE_ROWS // prompt), 1)
    with torch.inference_mode(), operations.threads:
        if isinstance(operations, EncoderDecoderOperations):
            operations.begin([prompt + 1] * few, [0] * few)
            _zeros(device, range(operations.decoder))
            operations.turn()
            _zeros(device, range(operations.decoder, len(device.source.model.layers)))
            _head(device)
            _experts(device, min(state.capacity * prompt, EXPERT_TILE_ROWS))
            return
        for counts, past in (([prompt] * few, [0] * few), ([1] * sequences, [prompt] * sequences)):
            operations.begin(counts, past)
            _zeros(device, range(len(device.source.model.layers)))
            _head(device)
        _experts(device, min(state.capacity * prompt, EXPERT_TILE_ROWS))


def _zeros(device: Device, layers: range) -> None:
    """Of ``layers`` one with experts, and one without where there is one, computed of zeros."""
    device.state.hidden.zero_()
    specs = device.source.model.layers
    first = {specs[layer].experts > 0: layer for layer in reversed(layers)}
    for layer in sorted(first.values()):
        _layer(device, layer)


def _layer(device: Device, layer: int) -> None:
    operations = device.operations
    dense = Unit(layer, "dense", -1)
    device.bind_dense(dense, None if dense in device.units.resident else 0)
    if device.units.batches:
        first = Unit(layer, "kv", 0)
        device.bind_kv(first, None if first in device.units.resident else 0)
    operations.attention(layer, 0)
    if isinstance(operations, EncoderDecoderOperations) and layer >= operations.decoder:
        operations.cross_attention(layer, 0)
    if not device.source.model.layers[layer].experts:
        operations.dense_mlp(layer)
        return
    if device.source.model.layers[layer].shared_expert_bytes:
        operations.shared_expert(layer)
    operations.router(layer)
    operations.combine()


def _experts(device: Device, most_rows: int) -> None:
    """Both products of an expert at every row count that can occur."""
    layer = next(layer for layer in device.source.model.layers if layer.experts)
    resident = device.policy.layers[layer.index].resident
    unit = Unit(layer.index, "expert", resident[0] if resident else 0)
    weights = device.expert(unit, None if resident else 0)
    # a run may come with the most rows or with any number below; where all are allowed (float32)
    # a new one costs nothing
    width = device.dtype.itemsize
    counts = (1, most_rows) if width == 4 else (*range(1, 128), 128, 256, 512, most_rows)
    for rows in sorted({tile_of(count, width)[1] for count in counts if count <= most_rows}):
        width_in = device.source.model.hidden_size
        hidden = torch.zeros(rows, width_in, dtype=device.dtype, device=device.device)
        device.operations.threads("expert", rows)
        feed_expert(device.adapter, hidden, weights)


def _head(device: Device) -> None:
    tile = Unit(len(device.source.model.layers), "head", 0)
    device.operations.head_begin()
    slot = None if tile in device.units.resident else 0
    device.operations.head_tile(0, device.head_tile(tile, slot))
    device.operations.sample()
