"""The hardware and cost-profile documents: what a machine has, and how long it takes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from planner.documents.base import (
    STRICT,
    Added,
    Document,
    Figure,
    Hash,
    Keyed,
    Name,
    Nanoseconds,
    Positive,
    Source,
)
from planner.documents.links import Channel, Tier
from planner.documents.model import FormName
from planner.documents.slowdowns import LEAST_SLOWDOWN, FormSlowdown
from planner.documents.threads import Threaded, ThreadTimes

__all__ = [
    "LEAST_SLOWDOWN",
    "CostProfile",
    "Curve",
    "Hardware",
    "HostExperts",
    "KvWrites",
    "OperationKind",
    "RawCopies",
    "Surface",
]

OperationKind = Literal["embed", Threaded, "sample"]


@dataclass(frozen=True, slots=True)
class RawCopies:
    """Copies of experts as they are, where a store has them compressed, too.

    Attributes
    ----------
    link
        Alone on the channel, on which compressed ones take what ``hardware`` says.
    copy_slowdown, compute_slowdown
        As of a ``CostProfile``, with such copies.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: Channel
    copy_slowdown: Figure
    compute_slowdown: Figure

    def __post_init__(self) -> None:
        if min(self.copy_slowdown.value, self.compute_slowdown.value) < 1:
            raise ValueError("a slowdown is below 1")


@dataclass(frozen=True)
class Hardware(Document):
    """A machine: its memories and links, and the threads that its large operations are computed
    with (``CostProfile.threads`` says which these are)."""

    kind: ClassVar[str] = "hardware"

    name: Name
    device: Literal["cpu", "cuda"]
    processor: Name
    threads: Positive
    tiers: tuple[Tier, ...]
    channels: tuple[Channel, ...]

    def __post_init__(self) -> None:
        for what, names in (
            ("tiers", [tier.name for tier in self.tiers]),
            ("channels", [channel.name for channel in self.channels]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what}: a name stands twice ({', '.join(names)})")


@dataclass(frozen=True, slots=True)
class Curve:
    """Duration against one size, piecewise linear between measured points.

    Attributes
    ----------
    rows
        Increasing sizes (rows of a matrix product, bytes of a copy, ...).
    duration_ns
        Typical duration at each size (where measured: the median, raised by the ratio of mean to
        median that all sizes together have, since a run adds up many); never decreasing.
    spread_ns
        Half the distance between the quartiles at each size.
    samples
        Number of samples at each size.
    source
        Where the points come from.
    held_out_error
        Median relative error at measurements that the curve was not fitted to; None where none
        were held out.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    rows: Annotated[tuple[Positive, ...], Field(min_length=1)]
    duration_ns: tuple[Nanoseconds, ...]
    spread_ns: tuple[Nanoseconds, ...]
    samples: tuple[Positive, ...]
    source: Source
    held_out_error: Annotated[float, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.rows), len(self.duration_ns), len(self.spread_ns), len(self.samples)}
        if len(lengths) != 1:
            raise ValueError("rows, duration_ns, spread_ns and samples differ in length")
        if any(left >= right for left, right in pairwise(self.rows)):
            raise ValueError("rows do not increase")
        if any(left > right for left, right in pairwise(self.duration_ns)):
            raise ValueError("duration_ns decreases")

    def __call__(self, rows: int) -> int:
        """Duration in ns, rounded up; 0 rows take no time.

        Below the measured range the first duration holds; above it the last segment is continued
        (a single point: in proportion to its rows). See ``covers``.
        """
        return _interpolate(self.rows, self.duration_ns, rows)

    def tiled(self, rows: int, most: int) -> int:
        """Duration in ns where at most ``most`` rows are computed at once."""
        whole, rest = divmod(rows, most)
        return whole * self(most) + self(rest)

    def covers(self, rows: int) -> bool:
        """Whether ``rows`` lies inside the measured range."""
        return self.rows[0] <= rows <= self.rows[-1]


@dataclass(frozen=True, slots=True)
class Surface:
    """Duration against two sizes: one curve over ``rows`` for each value of ``second``.

    For ``attention`` in decode: rows = sequences of a batch, second = context in tokens. In
    prefill: rows = sequences of a batch, second = prompt tokens of each. For ``cross_attention``:
    the latter in either.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    second: Annotated[tuple[Positive, ...], Field(min_length=1)]
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        if len(self.second) != len(self.curves):
            raise ValueError("second and curves differ in length")
        if any(left >= right for left, right in pairwise(self.second)):
            raise ValueError("second does not increase")

    def __call__(self, rows: int, second: int) -> int:
        """Duration in ns, bilinear between measured points, rounded up; 0 rows take no time."""
        if rows <= 0:
            return 0
        durations = tuple(curve(rows) for curve in self.curves)
        return _interpolate(self.second, durations, max(second, 1))

    def covers(self, rows: int, second: int) -> bool:
        """Whether the point lies inside the measured range."""
        return self.second[0] <= second <= self.second[-1] and all(
            curve.covers(rows) for curve in self.curves
        )


@dataclass(frozen=True, slots=True)
class KvWrites:
    """One write of keys and values to the tier below, against its bytes.

    Attributes
    ----------
    alone
        With nothing else on the drive.
    beside
        While the copy channel reads from it without pause.
    lost
        Of what the channel reads meanwhile: how much later it is through for one write; None where
        that was not measured, and reads take no longer for writes.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    alone: Curve
    beside: Curve
    lost: Added[Curve] = None

    def __call__(self, size_bytes: int, share: float) -> float:
        """Duration in ns of one of which ``share`` lies beside reads."""
        alone = self.alone(size_bytes)
        return alone + share * (self.beside(size_bytes) - alone)


@dataclass(frozen=True, slots=True)
class HostExperts:
    """Of experts computed on the host, what is measured beside ``CostProfile.host_expert``.

    Attributes
    ----------
    beside
        One expert, against rows, while the channel copies without pause, as it does where others
        are copied.
    way
        The way of its rows from the device and back, against rows.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    beside: Curve
    way: Curve


def _interpolate(xs: tuple[int, ...], ys: tuple[int, ...], x: int) -> int:
    """Piecewise linear, rounded up, never negative; see ``Curve.__call__``."""
    if x <= 0:
        return 0
    if x <= xs[0]:
        return ys[0]
    if len(xs) == 1:
        return -(-ys[0] * x // xs[0])
    right = min(bisect_right(xs, x), len(xs) - 1)
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    return max(y0 + -(-(y1 - y0) * (x - x0) // (x1 - x0)), 0)


@dataclass(frozen=True)
class CostProfile(Document):
    """How long each operation takes on one machine for one model: one layer, one batch.

    Attributes
    ----------
    model_hash, hardware_hash
        Of the documents it was measured for.
    dtype
        Type the executor computes in.
    curves
        By operation kind, against rows (tokens): ``embed`` (embedding lookup, with disk
        reads and what lies between two passes), ``router`` (router, top-k, argsort by expert),
        ``dense_mlp``, ``shared_expert``, ``expert`` (one expert: gather, both products, weighted
        scatter), ``combine`` (closing a layer), ``head`` (final norm and all head tiles' products;
        rows = sequences), ``sample``.
    attention_decode, attention_prefill
        One layer's norms, attention and residual for one batch. With an encoder: ``prefill`` that
        of its layers, ``decode`` that of a decoder's to its own tokens (their number is the
        context), in the pass of the prompts, too.
    cross_decode, cross_prefill
        With an encoder: one decoder layer's attention to the prompts of one batch, by (sequences,
        prompt tokens), and in the pass of the prompts, where it makes what it keeps of them.
    copy_slowdown, compute_slowdown
        Measured ratios >= 1: a copy while compute runs, compute while a copy runs.
    slowdown_by_kind
        ``compute_slowdown`` of single operation kinds, where it was measured; the others share
        the common one. (What reads from the disk suffers most, what fits the caches least; below
        1 where what was just copied is at hand sooner than what was not.)
    prefill_slowdown_by_kind
        The same in prefill, where many rows make other things scarce; what is not in it is as in
        decode.
    host_expert
        One expert computed on the host, where it lies, against rows; from data sheets, with the way
        of its rows from the device and back. None where no host computes.
    hosting
        What is measured of it beside; None without measurements.
    kv_writes
        Of keys and values that lie below the device; None where none were measured, and they are
        priced as reads.
    reference_ns
        A fixed operation repeated through the profile; its spread tells the machine's drift.
    raw
        Copies of experts as they are, of a store that has them compressed, too; None without one.
    forms
        The curve ``expert`` of each quantized form that a store has beside the checkpoint's own;
        None without one. Copies differ by their bytes alone.
    form_slowdowns
        What copying costs experts in such a form, and they cost copying; of one that is not in it,
        as of the checkpoint's own.
    threads
        How many threads of a CPU computed what; None: as many as there were cores, everything.
    """

    kind: ClassVar[str] = "costs"

    model_hash: Hash
    hardware_hash: Hash
    dtype: Literal["float32", "bfloat16", "float16"]
    curves: Keyed[OperationKind, Curve]
    attention_decode: Surface
    attention_prefill: Surface
    copy_slowdown: Figure
    compute_slowdown: Figure
    reference_ns: Figure
    slowdown_by_kind: Keyed[OperationKind, Figure] = field(default_factory=dict)
    raw: Added[RawCopies] = None
    prefill_slowdown_by_kind: Keyed[OperationKind, Figure] = field(default_factory=dict)
    cross_decode: Added[Surface] = None
    cross_prefill: Added[Surface] = None

    host_expert: Added[Curve] = None
    kv_writes: Added[KvWrites] = None
    forms: Added[Keyed[FormName, Curve]] = None
    form_slowdowns: Added[Keyed[FormName, FormSlowdown]] = None
    hosting: Added[HostExperts] = None
    threads: Added[ThreadTimes] = None

    def __post_init__(self) -> None:
        missing = sorted(_ALWAYS_NEEDED - set(self.curves))
        if missing:
            raise ValueError(f"curves: no curve for {', '.join(missing)}")
        if (self.cross_decode is None) != (self.cross_prefill is None):
            raise ValueError("cross_decode and cross_prefill: one is there without the other")
        if self.hosting is not None and self.host_expert is None:
            raise ValueError("hosting is there without host_expert")
        for name in ("copy_slowdown", "compute_slowdown"):
            if getattr(self, name).value < 1:
                raise ValueError(f"{name} is below 1")
        for name in ("slowdown_by_kind", "prefill_slowdown_by_kind"):
            for kind, slowdown in getattr(self, name).items():
                if slowdown.value < LEAST_SLOWDOWN:
                    raise ValueError(f"{name}: {kind} is below {LEAST_SLOWDOWN}")

    def slowdown(self, kind: str, phase: str) -> float:
        """How much longer one kind takes in a phase while a copy runs."""
        known: list[dict[OperationKind, Figure]] = [self.slowdown_by_kind]
        if phase == "prefill":
            known.insert(0, self.prefill_slowdown_by_kind)
        for figures in known:
            if kind in figures:
                return figures[kind].value
        return self.compute_slowdown.value


_ALWAYS_NEEDED: frozenset[OperationKind] = frozenset(
    ("embed", "router", "expert", "combine", "head", "sample")
)
