"""A placement put right while it is used: swaps that pay for the bytes they move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers.errors import OptionError

__all__ = ["rebalance_layer"]

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def rebalance_layer(
    load: Int64, held: Bools, *, passes_left: int, row_ns: float, copy_ns: float
) -> tuple[Bools, int]:
    """Swap copies between the fullest device of one layer and others, while that pays.

    A swap is found on every other pass and judged on those between, so that noise is not followed:
    it must save more than ``copy_ns`` (both devices read their copy at the same time) in the passes
    that are left, where a pass lasts as long as its fullest device. Each device keeps as many
    copies as it has, so that its memory suffices.

    Parameters
    ----------
    load
        [passes, experts]: rows that chose each expert, so far.
    held
        [experts, devices]: which device holds a copy; copies take equal parts.
    passes_left
        Passes to come.
    row_ns, copy_ns
        Time of a row in an expert, and of reading an expert.

    Returns
    -------
    held, swaps
        The placement from now on, and how many swaps lead there.

    Raises
    ------
    OptionError
        If the shapes do not fit or an expert is nowhere.
    """
    if load.ndim != 2 or held.ndim != 2 or load.shape[1] != len(held) or not held.any(axis=1).all():
        raise OptionError("load is not [passes, experts], or an expert is on no device")
    held, swaps = held.copy(), 0
    # a copy's part of its expert's rows, which swaps do not change
    part = load / held.sum(axis=1)
    fit, judge = part[0::2], part[1::2]
    while len(judge):
        swap = _best_swap(fit, held)
        if swap is None:
            break
        changed = held.copy()
        out, to, back, here = swap
        changed[out, [here, to]] = False, True
        changed[back, [here, to]] = True, False
        saved = (judge @ held).max(axis=1).mean() - (judge @ changed).max(axis=1).mean()
        if saved * row_ns * passes_left <= copy_ns:
            break
        held, swaps = changed, swaps + 1
    return held, swaps


def _best_swap(part: Floats, held: Bools) -> tuple[int, int, int, int] | None:
    """Expert that leaves, its new device, the expert that comes for it, and the fullest device."""
    loads = part @ held
    here = int(loads.mean(axis=0).argmax())
    best = float(loads.max(axis=1).mean())
    found: tuple[int, int, int, int] | None = None
    for to in range(held.shape[1]):
        leaving = np.flatnonzero(held[:, here] & ~held[:, to])
        coming = np.flatnonzero(held[:, to] & ~held[:, here])
        if not len(leaving) or not len(coming):
            continue
        others = np.delete(loads, [here, to], axis=1).max(axis=1, initial=0.0)
        # [passes, leaving, coming]
        moved = part[:, leaving, None] - part[:, None, coming]
        most = np.maximum(loads[:, here, None, None] - moved, loads[:, to, None, None] + moved)
        means = np.maximum(most, others[:, None, None]).mean(axis=0)
        at = np.unravel_index(means.argmin(), means.shape)
        if means[at] < best - 1e-9:
            best = float(means[at])
            found = int(leaving[at[0]]), to, int(coming[at[1]]), here
    return found
