"""What copies ahead cost for whom they tell nothing: see ``solvers.proof_charged``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.errors import OptionError

__all__ = ["PARTS", "AheadPrice"]

Int64 = npt.NDArray[np.int64]

PARTS = 1_000_000_000
"""Millionths of thousandths: of a ns, what a ``ppm`` of a ps is."""


@dataclass(frozen=True, eq=False, slots=True)
class AheadPrice:
    """The objective's correction for a copy made ahead, which is not waited for.

    Attributes
    ----------
    ppm
        [passes, stages, items], of either sign: millionths of what is not waited for, taken off.
    hidden_ns
        [passes, stages]: of an item's copy, how much at its end other work may hide.
    rest
        [passes]: how many thousandths of what may be hidden are waited for all the same.
    """

    ppm: Int64
    hidden_ns: Int64
    rest: Int64

    def __post_init__(self) -> None:
        passes, stages, _ = self.ppm.shape
        if self.hidden_ns.shape != (passes, stages) or self.rest.shape != (passes,):
            raise OptionError("a price's tables differ in passes or stages")
        for table in (self.hidden_ns, self.rest):
            if table.size and int(table.min()) < 0:
                raise OptionError("a price has a negative entry")

    def first_ns(self, copy_ns: Int64) -> Int64:
        """[passes, stages, items]: of copies of [stages, items] what nothing hides."""
        found: Int64 = np.maximum(copy_ns[None] - self.hidden_ns[:, :, None], 0)
        return found

    def waited_ps(self, copy_ns: Int64, ahead_ns: Int64) -> Int64:
        """[passes, stages, items]: what is not waited for where so much of a copy is made ahead."""
        first = np.minimum(self.first_ns(copy_ns), ahead_ns)
        found: Int64 = 1_000 * first + (ahead_ns - first) * self.rest[:, None, None]
        return found

    def taken_off(self, index: int, stage: int, item: int, copy_ns: int, ahead_ns: int) -> int:
        """Likewise of one item in one pass, times its ``ppm``: in ns / ``PARTS``."""
        first = min(max(copy_ns - int(self.hidden_ns[index, stage]), 0), ahead_ns)
        waited = 1_000 * first + (ahead_ns - first) * int(self.rest[index])
        return int(self.ppm[index, stage, item]) * waited

    def correction_ns(self, copy_ns: Int64) -> Int64:
        """[stages, items]: the correction for items that are not resident, rounded down."""
        whole = np.broadcast_to(copy_ns, self.ppm.shape)
        total = (self.ppm.astype(object) * self.waited_ps(copy_ns, whole)).sum(axis=0) // PARTS
        found: Int64 = np.asarray(total, dtype=np.int64).reshape(copy_ns.shape)
        return found

    def of(self, passes: list[int]) -> AheadPrice:
        """Only of these passes."""
        return AheadPrice(self.ppm[passes], self.hidden_ns[passes], self.rest[passes])
