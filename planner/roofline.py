"""How long operations take on a machine that is not at hand: a roofline with fitted efficiencies.

An operation takes

    max(flops / (peak x matmul x operation x whole_run), bytes / (bandwidth x memory)) + launches

where ``matmul`` and ``memory`` are what is reached of a data sheet's limit (1 where the catalogue's
figure was measured), ``operation`` what a layer's products reach of the best product,
``whole_run`` what whole runs reach of operations alone, and launches the calls that an operation
is made of. All of them come from ``data/efficiencies.json``, which ``benchmarks/roofline.py`` fits
and which says on what, with the error on what was held out. ``system`` is no factor: it says how
far published runs lie from such a prediction, and makes the interval wide.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from typing import Literal

from planner.documents import Channel, Curve, Figure, Machine, ModelSpec, Surface
from planner.documents.base import Source
from planner.documents.costs import OperationKind

__all__ = ["CALLS", "Efficiency", "OperationCosts", "Roofline", "efficiencies", "reached"]

CALLS = {
    "embed": 2,
    "attention": 18,
    "router": 5,
    "dense_mlp": 4,
    "shared_expert": 4,
    "expert": 4,
    "combine": 2,
    "head": 3,
    "sample": 2,
}
"""Calls of a tensor library that make up an operation, about."""

_ROWS = tuple(sorted({1, *(step << power for power in range(1, 20) for step in (2, 3))}))
_BATCHES = tuple(1 << power for power in range(13))
_CONTEXTS = tuple(1 << power for power in range(4, 18))
_PACKED = 1.5
"""An expert of fewer stored values than this times hidden x inner is packed below 8 bits."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """One fitted number.

    Attributes
    ----------
    value
        The share that is reached (``launch``: ns a call).
    spread
        Nine tenths of what was held out is off by less, as a share.
    held_out_error
        Median relative error on what was held out; None where nothing could be.
    samples
        Rows that it was fitted on.
    fitted_on
        Which, in words.
    """

    value: float
    spread: float
    held_out_error: float | None
    samples: int
    fitted_on: str


@cache
def efficiencies() -> dict[str, Efficiency]:
    """``matmul``, ``memory``, ``link``, ``disk``, ``operation``, ``launch``, ``whole_run``,
    ``system``."""
    text = (files("planner") / "data" / "efficiencies.json").read_text(encoding="utf-8")
    return {name: Efficiency(**one) for name, one in json.loads(text).items()}


def reached(figure: Figure, name: Literal["matmul", "memory", "link", "disk"]) -> Figure:
    """What a limit of a data sheet gives: ``fitted``, with the median error on what was held out as
    its spread; any other figure stays as it is."""
    if figure.source != "spec":
        return figure
    fit = efficiencies()[name]
    value = figure.value * fit.value
    return Figure(value, "fitted", value * (fit.held_out_error or 0.0), fit.samples)


@dataclass(frozen=True)
class Roofline:
    """What a machine reaches in one type.

    Attributes
    ----------
    flops_per_second, bytes_per_second
        Of an operation's products, and of its memory traffic.
    call_ns
        Of one call.
    error
        Median relative error of an operation.
    source
        ``spec`` where a data sheet's limit is in it, else ``fitted``.
    """

    flops_per_second: float
    bytes_per_second: float
    call_ns: float
    error: float
    source: Source

    @classmethod
    def of(cls, machine: Machine, dtype: str) -> Roofline:
        """A machine's, for a type that its figures include."""
        peak = machine.compute_flops_per_second[dtype]  # type: ignore[index]
        memory = machine.device_bandwidth_bytes_per_second
        compute, bandwidth = reached(peak, "matmul"), reached(memory, "memory")
        fit = efficiencies()
        wide = max((one.spread or 0.0) / one.value for one in (compute, bandwidth))
        return cls(
            compute.value * fit["operation"].value * fit["whole_run"].value,
            bandwidth.value,
            fit["launch"].value,
            math.hypot(wide, fit["operation"].held_out_error or 0.0),
            "spec" if "spec" in (peak.source, memory.source) else "fitted",
        )

    @classmethod
    def of_host(cls, machine: Machine, dtype: str) -> Roofline | None:
        """Of the CPU beside a GPU; None where the machine names none. A type that its figures lack
        is computed at the speed of float32."""
        host = machine.host
        if host is None:
            return None
        speeds = {"float32": host.compute_flops_per_second["float32"]}
        speeds.update({str(name): one for name, one in host.compute_flops_per_second.items()})
        alike = replace(
            machine,
            compute_flops_per_second={dtype: speeds.get(dtype, speeds["float32"])},  # type: ignore[dict-item]
            device_bandwidth_bytes_per_second=host.bandwidth_bytes_per_second,
        )
        return cls.of(alike, dtype)

    def ns(self, kind: str, flops: float, moved_bytes: float) -> float:
        """One operation of ``kind``."""
        busy = max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)
        return busy * 1e9 + CALLS[kind] * self.call_ns


@dataclass(frozen=True)
class OperationCosts:
    """The operations of one model on one machine.

    Attributes
    ----------
    roofline, model
        Of what.
    dtype_bytes
        Width of the computing type.
    embedding_bytes_per_second
        Where embedding rows come from.
    """

    roofline: Roofline
    model: ModelSpec
    dtype_bytes: int
    embedding_bytes_per_second: float

    def attention_ns(self, rows: int, second: int, phase: str) -> float:
        """Norms, projections, attention and residual of one batch, averaged over the layers.

        ``rows`` sequences with ``second`` tokens of context (decode) or prompt (prefill) each.
        """
        model, total = self.model, 0.0
        tokens = rows * (second if phase == "prefill" else 1)
        width = model.attention_heads * model.head_dim
        for layer in model.layers:
            seen = min(second, layer.window or second)
            pairs = rows * (second * seen / 2 if phase == "prefill" else seen)
            weights = layer.attention_bytes + layer.norm_bytes
            flops = 2 * weights / model.dtype_bytes * tokens + 4 * pairs * width
            kept = layer.kv_bytes_per_token / model.dtype_bytes * self.dtype_bytes
            kv = rows * (second if phase == "prefill" else seen) * kept
            moved = weights + kv + tokens * (6 * model.hidden_size + 4 * width) * self.dtype_bytes
            total += self.roofline.ns("attention", flops, moved)
        return total / len(model.layers)

    def expert_values(self) -> float:
        """Parameters of one expert (the largest)."""
        model = self.model
        largest = max(model.layers, key=lambda layer: layer.expert_bytes)
        plain = model.hidden_size * largest.expert_intermediate
        stored = largest.expert_bytes / model.dtype_bytes
        return 3 * plain if stored < _PACKED * plain else stored

    def row_ns(self, kind: OperationKind, rows: int) -> float:
        """An operation of ``rows`` rows (tokens; of the head and the sampling, sequences)."""
        model, layers, width = self.model, self.model.layers, self.dtype_bytes
        hidden = model.hidden_size
        moved: float
        if kind == "embed":
            size = rows * hidden * model.dtype_bytes
            alone = size / self.embedding_bytes_per_second * 1e9
            return alone + self.roofline.ns(kind, 0, 2 * size)
        if kind == "expert":
            inner = max(layer.expert_intermediate for layer in layers)
            moved = (
                max(layer.expert_bytes for layer in layers)
                + rows * (4 * hidden + 4 * inner) * width
            )
            return self.roofline.ns(kind, 2 * self.expert_values() * rows, moved)
        if kind == "combine":
            return self.roofline.ns(kind, 0, rows * hidden * (2 * width + 4))
        if kind == "sample":
            return self.roofline.ns(kind, 0, rows * model.vocab_size * width)
        weights = {
            "router": max(layer.router_bytes for layer in layers),
            "dense_mlp": max(layer.mlp_bytes for layer in layers),
            "shared_expert": max(layer.shared_expert_bytes for layer in layers),
            "head": model.vocab_size * hidden * model.dtype_bytes,
        }[kind]
        values = weights / model.dtype_bytes
        moved = weights + rows * (values / hidden + 2 * hidden) * width
        return self.roofline.ns(kind, 2 * values * rows, moved)

    def curves(self) -> dict[OperationKind, Curve]:
        """Every operation that the model has."""
        kinds: list[OperationKind] = ["embed", "router", "expert", "combine", "head", "sample"]
        if any(layer.shared_expert_bytes for layer in self.model.layers):
            kinds.append("shared_expert")
        if any(layer.mlp_bytes for layer in self.model.layers):
            kinds.append("dense_mlp")
        return {kind: self._curve(_ROWS, partial(self.row_ns, kind)) for kind in kinds}

    def host_curve(self, link: Channel) -> Curve:
        """An expert, where this is a host: its rows come from the device over ``link``, and its
        outputs go back in float32."""
        each = self.model.hidden_size * (self.dtype_bytes + 4)

        def duration(rows: int) -> float:
            return self.row_ns("expert", rows) + link.alone_ns(rows * each, chunks=2)

        return self._curve(_ROWS, duration)

    def surface(self, phase: str) -> Surface:
        """Attention."""
        most = self.model.max_context
        contexts = (*(one for one in _CONTEXTS if one < most), most)

        def curve(context: int) -> Curve:
            return self._curve(_BATCHES, lambda rows: self.attention_ns(rows, context, phase))

        return Surface(contexts, tuple(curve(context) for context in contexts))

    def _curve(self, rows: tuple[int, ...], duration_ns: Callable[[int], float]) -> Curve:
        durations = tuple(math.ceil(duration_ns(one)) for one in rows)
        return Curve(
            rows,
            durations,
            tuple(math.ceil(one * self.roofline.error) for one in durations),
            (1,) * len(rows),
            self.roofline.source,
            self.roofline.error,
        )
