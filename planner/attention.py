"""What attention takes in a whole workload, by which batch sizes are chosen."""

from __future__ import annotations

from planner.encode import Encoding
from planner.scenarios import pass_shapes

__all__ = ["attention_ns"]


def attention_ns(encoding: Encoding) -> int:
    """Attention of the whole workload in all layers."""
    workload = encoding.workload
    shapes = pass_shapes(
        requests=workload.requests,
        prompt_tokens=workload.prompt_tokens,
        new_tokens=workload.new_tokens,
        group=encoding.group,
        decode_passes=2,
    )
    model = encoding.profile.model
    # of a side all are alike
    sides = {model.encoder_depth: len(model.layers) - model.encoder_depth}
    if model.encoder:
        sides[0] = model.encoder
    return sum(
        shape.weight * layers * step[3]
        for shape in shapes
        for layer, layers in sides.items()
        for step in encoding.lead(shape, layer, 1.0).steps
        if step[0] in ("attention", "cross_attention")
    )
