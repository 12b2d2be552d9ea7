"""Measured against predicted: by operation kind, and the whole run.

Everywhere the same way round: a ratio is measured / predicted, an error (measured - predicted) /
predicted, so that 2.0 or +100% is twice what was predicted.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from typing import Any, get_args

from planner.comparable import not_comparable
from planner.documents import CostProfile, Hardware, Plan, Range, Trace, document_hash
from planner.documents.costs import OperationKind
from planner.documents.timeline import EventKind, on_compute
from planner.kv import NOT_MEASURED
from planner.sizes import typed_size
from solvers.counting import counted
from solvers.errors import StaleError

__all__ = ["REFINE", "Comparison", "RateComparison", "Verification", "verify"]


_STEADY = 1.15
"""A machine whose fixed operation takes up to so much longer or shorter is the same machine."""

_FIRST_DECODE = 1
"""The pass behind the first prefill."""

REFINE = (
    "the costs of the profile are off for this run: 'moeplan profile PROFILE_DIR --refine TRACE "
    "--out NEW_DIR' corrects them by it; plan from NEW_DIR then"
)
"""What a run outside of what was promised for it is good for."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number, predicted and measured.

    Attributes
    ----------
    name
        An operation kind, or what was counted.
    predicted, measured
        In ns or bytes.
    ratio
        measured / predicted; None where nothing was predicted.
    """

    name: str
    predicted: int
    measured: int
    ratio: float | None

    @classmethod
    def of(cls, name: str, predicted: int, measured: int) -> Comparison:
        """With its ratio."""
        return cls(name, predicted, measured, measured / predicted if predicted else None)


@dataclass(frozen=True, slots=True)
class RateComparison:
    """Tokens/s, predicted with an interval and measured.

    ``error`` = (measured - predicted) / predicted; None where either is missing. ``inside``:
    whether the interval, meant for nine of ten runs, holds what was measured.
    """

    predicted: Range
    measured: float
    error: float | None
    inside: bool

    @classmethod
    def of(cls, predicted: Range, tokens: int, duration_ns: int) -> RateComparison:
        """From a count and the time that it took."""
        measured = tokens * 1e9 / duration_ns if duration_ns else 0.0
        error = measured / predicted.value - 1 if measured and predicted.value else None
        return cls(predicted, measured, error, predicted.holds(measured))


@dataclass(frozen=True, slots=True)
class Verification:
    """A plan held against the trace of its run.

    Attributes
    ----------
    tokens_per_second, decode_tokens_per_second
        New tokens over the whole run ("in all", prefill included), and over decode passes alone.
    kinds
        Total time of each operation kind in ns, compute first, then copies and waits.
    wall, prefill, decode, bubble_inter_layer, bubble_intra_layer
        In ns.
    unaccounted_ns
        Measured wall time that no event on the compute channel covers, waits included.
    bytes_read
        From the disk for copies, in bytes: rows of the embedding, which are known once tokens are,
        are predicted by their time alone.
    embedding_bytes
        Read for those; 0 where the trace does not say, and they are in ``bytes_read``.
    notes
        Sentences for the reader: where the run was not what the plan was made for.
    not_comparable
        Why nothing here judges the prediction: the run did other work than planned, or the disk
        was paced otherwise; None where it judges.
    wasted_prefetch_bytes
        Bytes of ``bytes_read`` that were copied before a router spoke and that it did not choose.
    served
        Active experts by how they were met, over all layers and passes; empty where the trace has
        no such counts.
    drift
        Time of a fixed operation beside the run over its time while profiling: the machine's own
        share of an error. None where either is not known. It corrects nothing.
    """

    tokens_per_second: RateComparison
    decode_tokens_per_second: RateComparison
    kinds: tuple[Comparison, ...]
    wall: Comparison
    prefill: Comparison
    decode: Comparison
    bubble_inter_layer: Comparison
    bubble_intra_layer: Comparison
    bytes_read: Comparison
    unaccounted_ns: int
    device_peak_bytes: Comparison
    notes: tuple[str, ...]
    not_comparable: str | None
    wasted_prefetch_bytes: int
    served: dict[str, int]
    drift: float | None = None
    embedding_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def verify(
    plan: Plan,
    trace: Trace,
    hardware: Hardware | None = None,
    costs: CostProfile | None = None,
) -> Verification:
    """Compare what ``trace`` measured with ``plan``'s prediction.

    With the ``hardware`` that the plan was made for, the disk's pace is compared, too; with its
    ``costs``, the machine's drift.

    Raises
    ------
    StaleError
        If the trace is of a run of another plan.
    """
    if trace.plan_hash != document_hash(plan):
        raise StaleError(
            "plan", "the trace is of a run of another plan: run this plan again, or give that one"
        )
    predicted, measured = plan.predicted.totals, trace.totals
    rows_bytes = measured.embedding_bytes or 0
    kinds = sorted(
        predicted.duration_by_kind_ns.keys() | measured.duration_by_kind_ns.keys(), key=_order
    )
    spent = {str(kind): total for kind, total in measured.duration_by_kind_ns.items()}
    accounted = sum(spent.get(kind, 0) for kind in kinds if on_compute(kind))
    account = plan.memory["device"]
    asked = plan.workload.requests * plan.workload.new_tokens
    notes = []
    apart = not_comparable(plan, trace, hardware)
    if apart is not None:
        notes.append(apart)
    elif measured.new_tokens != asked:
        notes.append(
            f"the plan is for {counted(asked, 'new token')}, the run made {measured.new_tokens:,}: "
            "times and bytes are not of the same work"
        )
    drift, steady = None, True
    if costs is not None and costs.reference_ns.value and trace.reference_ns:
        drift = statistics.median(trace.reference_ns) / costs.reference_ns.value
        if not 1 / _STEADY <= drift <= _STEADY:
            notes.append(
                f"a fixed operation, timed just before and after the run, took {drift:.2f} times "
                "as long as while profiling: other programs share the machine, or its clock "
                "changed, so a prediction may be off; profile again when it is quiet"
            )
            steady = False
    if "write_kv" in kinds and costs is not None and costs.kv_writes is None:
        notes.append(f"write_kv: {NOT_MEASURED}, and a write is slower; profile again")
    # each request's first new token comes out of prefill
    requests = plan.workload.requests if measured.requests is None else measured.requests
    decoded = max(measured.new_tokens - requests, 0)
    notes += _unequal(plan, trace)
    speed = RateComparison.of(
        plan.predicted.tokens_per_second, measured.new_tokens, measured.wall_ns
    )
    decode = RateComparison.of(plan.predicted.decode_tokens_per_second, decoded, measured.decode_ns)
    outside = any(rate.error is not None and not rate.inside for rate in (speed, decode))
    # what refining would refuse, or learn a busy machine from, is not advised
    if outside and apart is None and steady and trace.inputs is not None:
        notes.append(REFINE)
    return Verification(
        tokens_per_second=speed,
        decode_tokens_per_second=decode,
        kinds=tuple(
            Comparison.of(kind, predicted.duration_by_kind_ns.get(kind, 0), spent.get(kind, 0))
            for kind in kinds
        ),
        wall=Comparison.of("wall", predicted.wall_ns, measured.wall_ns),
        prefill=Comparison.of("prefill", predicted.prefill_ns, measured.prefill_ns),
        decode=Comparison.of("decode", predicted.decode_ns, measured.decode_ns),
        bubble_inter_layer=Comparison.of(
            "bubble_inter_layer", predicted.bubble_inter_layer_ns, measured.bubble_inter_layer_ns
        ),
        bubble_intra_layer=Comparison.of(
            "bubble_intra_layer", predicted.bubble_intra_layer_ns, measured.bubble_intra_layer_ns
        ),
        bytes_read=Comparison.of(
            "bytes_read", predicted.bytes_read, measured.bytes_read - rows_bytes
        ),
        unaccounted_ns=max(measured.wall_ns - accounted, 0),
        device_peak_bytes=Comparison.of(
            "device_peak_bytes", account.peak_bytes, measured.device_peak_bytes
        ),
        notes=tuple(notes),
        not_comparable=apart,
        wasted_prefetch_bytes=measured.wasted_prefetch_bytes,
        served={str(how): count for how, count in measured.served.items()},
        drift=drift,
        embedding_bytes=rows_bytes,
    )


def _unequal(plan: Plan, trace: Trace) -> list[str]:
    """Whether prompts of different lengths made writes larger than they were planned."""
    said, ran = (
        [row for row in timeline.events() if row.pass_index == _FIRST_DECODE]
        for timeline in (plan.predicted.timeline, trace.timeline)
    )
    planned, made = (
        sum(row.size_bytes for row in rows if row.kind == "write_kv") for rows in (said, ran)
    )
    fed, alive = (sum(row.rows for row in ran if row.kind == kind) for kind in ("embed", "sample"))
    # where a sequence begins meanwhile all is written; a column of new tokens may lie in two blocks
    if not planned or fed != alive or made <= 2 * planned:
        return []
    return [
        f"write_kv: the first decode pass wrote back {typed_size(made)} of keys and values, where "
        f"{typed_size(planned)} are planned for prompts of one length: new tokens of sequences of "
        "different lengths lie apart"
    ]


_ORDER = (*get_args(OperationKind), *get_args(EventKind))


def _order(kind: str) -> tuple[int, str]:
    """Compute in the order of a pass, then copies and waits, then what is unknown."""
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind)
