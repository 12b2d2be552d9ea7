"""Where keys and values may lie: on the device, or in the tier below."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, get_args

from planner.documents import CostProfile, ModelSpec, Policy, PredictedTotals
from planner.memory import ALIGNMENT_BYTES, aligned
from solvers.counting import counted
from solvers.errors import OptionError, UnsupportedError

__all__ = [
    "APART_BYTES",
    "KV_PLACES",
    "NOT_MEASURED",
    "Below",
    "Place",
    "Written",
    "below_words",
    "check_place",
    "kv_places",
    "kv_stays",
    "left_of_read",
    "share_beside",
    "token_blocks",
    "write_price",
    "writes_words",
    "written_column",
    "written_layer",
]

Place = Literal["auto", "device", "below", "batches"]

Below = Literal["below", "batches"] | None
"""As ``Policy.kv`` has it."""

KV_PLACES: tuple[Place, ...] = get_args(Place)
"""What can be asked for; ``auto``: below only where the device is small for them. ``below``: by
layers, with dense parts that stream; ``batches``: each batch's by themselves."""

APART_BYTES = 64 << 10
"""New tokens that lie no farther apart are one write: on one drive 64 KiB took 0.10 ms and a block
0.07, so that a write saved is worth the bytes between, to the link as to computation."""

NOT_MEASURED = (
    "writes of keys and values were not measured and are priced as reads of as many bytes"
)


def writes_words(costs: CostProfile | None, totals: PredictedTotals) -> str:
    """What writing back takes of a run, and where its price is from (None: that is not said)."""
    share = totals.duration_by_kind_ns.get("write_kv", 0) / max(totals.wall_ns, 1)
    text = f"writing back what is new takes {share:.1%} of the time"
    if costs is None:
        return text
    writes = costs.kv_writes
    if writes is None:
        return f"{text}; {NOT_MEASURED}"
    if writes.alone.source != "measured":
        return f"{text}, by a drive's figures ({writes.alone.source})"
    text += ", as measured alone and beside copies"
    if writes.lost is None:
        text += "; what copies lose beside them was not measured and is not priced"
    return text


def below_words(policy: Policy, totals: PredictedTotals) -> str:
    """How keys and values that lie below the device come and go."""
    written = f"what attention adds is written back ({writes_words(None, totals)})"
    if policy.kv != "batches":
        return (
            "Keys and values of the layers whose dense parts are copied lie below the device, too: "
            f"they come with the dense part, and {written}"
        )
    every = f"{counted(policy.n_batches, 'batch')} x {counted(len(policy.layers), 'layer')}"
    stay = sum(len(layer.kv_resident) for layer in policy.layers)
    return (
        f"Keys and values lie below the device, but for {stay:,} of {every}: "
        f"those of a batch are copied while batches before it are attended to, and {written}"
    )


class Written(NamedTuple):
    """Writes by their size: (bytes of one, how many of them in ``per`` times)."""

    sizes: tuple[tuple[int, int], ...]
    per: int = 1

    @property
    def size_bytes(self) -> int:
        """All bytes, rounded up."""
        return self.total_ns(lambda size: size)

    def total_ns(self, one_ns: Callable[[int], int]) -> int:
        """One after the other, by what one of a size takes; rounded up."""
        return -(-sum(one_ns(size) * count for size, count in self.sizes) // self.per)


def share_beside(costs: CostProfile, factor: float) -> float:
    """The share of computation that lies beside copies, by the factor that it is slowed by; all of
    it where nothing slows it, so that nothing tells."""
    general = costs.compute_slowdown.value - 1.0
    return min((factor - 1.0) / general, 1.0) if general > 0 else 1.0


def write_price(
    costs: CostProfile,
    factor: float,
    paced: int | None,
    as_read: Callable[[int], int],
    wait_bytes: float = 0.0,
) -> Callable[[int], int]:
    """What one write of so many bytes takes, in ns.

    Parameters
    ----------
    costs
        Where writes were measured.
    factor
        By which computation is slowed: as much of it as of that lies beside copies.
    paced
        Bandwidth that the link is held to.
    as_read
        What reading as many bytes takes: the price where writes were not measured.
    wait_bytes
        What is left of the read that a write meets beside copies: a paced link has it wait until
        that much, too, may have passed, which no write was measured with.
    """
    writes = costs.kv_writes
    if writes is None:
        return as_read
    share = share_beside(costs, factor)

    def one(size_bytes: int) -> int:
        floor = (size_bytes + share * wait_bytes) * 1e9 / paced if paced else 0.0
        return math.ceil(max(writes(size_bytes, share), floor))

    return one


def written_layer(size_bytes: int, chunk_bytes: int) -> Written:
    """Keys and values of a layer, in chunks: where sequences begin."""
    whole, rest = divmod(size_bytes, chunk_bytes)
    return Written(tuple((size, n) for size, n in ((chunk_bytes, whole), (rest, 1)) if size and n))


def written_column(column_bytes: int, size_bytes: int, chunk_bytes: int) -> Written:
    """The blocks that hold the first bytes of a column, in which the newest tokens of all sequences
    lie that are equally long: the mean over the columns that they may have.

    Columns lie one behind the other, so some begin in one block and end in the next.
    """
    columns = ALIGNMENT_BYTES // math.gcd(column_bytes, ALIGNMENT_BYTES)
    writes: Counter[int] = Counter()
    for begin in range(0, columns * column_bytes, column_bytes):
        blocks = -(-(begin + size_bytes) // ALIGNMENT_BYTES) - begin // ALIGNMENT_BYTES
        writes.update(dict(written_layer(blocks * ALIGNMENT_BYTES, chunk_bytes).sizes))
    return Written(tuple(sorted(writes.items())), columns)


def left_of_read(model: ModelSpec, chunk_bytes: int) -> int:
    """What is left on average of the read that a write meets: half of an expert, or of a chunk."""
    return min(chunk_bytes, max(layer.expert_bytes for layer in model.layers)) // 2


def token_blocks(
    tokens: Iterable[tuple[int, int]],
    column_bytes: int,
    token_bytes: int,
    apart_bytes: int,
    columns: int = 0,
) -> list[tuple[int, int]]:
    """Which bytes of a layer are written back: [begin, end) of each write, in whole blocks,
    ascending.

    What lies no farther apart than ``apart_bytes`` is one write, with what lies between: it is
    there as it was read.

    Parameters
    ----------
    tokens
        Column and sequence of each.
    column_bytes, token_bytes
        Of a column, in which those of all sequences lie, and of one of them.
    apart_bytes
        As ``APART_BYTES``.
    columns
        So many, the first ones, are written whole: those of sequences that begin.
    """
    starts = sorted(column * column_bytes + place * token_bytes for column, place in tokens)
    writes = [(0, aligned(columns * column_bytes))] if columns else []
    for start in starts:
        begin, end = start - start % ALIGNMENT_BYTES, aligned(start + token_bytes)
        if writes and begin - writes[-1][1] <= apart_bytes:
            writes[-1] = writes[-1][0], max(writes[-1][1], end)
        else:
            writes.append((begin, end))
    return writes


def kv_stays(model: ModelSpec, device: str) -> str | None:
    """Why keys and values can lie on the device alone; None where they can lie below."""
    if device != "cpu":
        return f"keys and values stay on the device where that is {device!r}"
    for layer in model.layers:
        if layer.state_bytes or not layer.kv_bytes_per_token:
            return f"layer {layer.index} keeps no keys and values of each token"
    return None


def kv_places(model: ModelSpec, device: str, kv: Place) -> list[Below]:
    """Where keys and values may lie that were asked for so."""
    if kv == "below" or kv == "batches":
        return [kv]
    either = kv == "auto" and kv_stays(model, device) is None
    return [None, "below", "batches"] if either else [None]


def check_place(kv: str, model: ModelSpec, device: str) -> None:
    """Refuse a place that is unknown or cannot be had.

    Raises
    ------
    OptionError
        If it is none of ``KV_PLACES``.
    UnsupportedError
        If keys and values are asked to lie below, and cannot.
    """
    if kv not in KV_PLACES:
        raise OptionError(f"--kv {kv!r} is unknown; choose from {', '.join(KV_PLACES)}")
    why = kv_stays(model, device) if kv in ("below", "batches") else None
    if why is not None:
        raise UnsupportedError(f"{model.name}: --kv {kv} cannot be had: {why}")
