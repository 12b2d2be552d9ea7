"""Sets of residents, and moves that change them: what clocks measure and searches make."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.layout import START

__all__ = ["Move", "Sets"]

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sets:
    """Residents: ``items`` bool [stages, items], ``starts`` bool [stages]."""

    items: Bools
    starts: Bools


@dataclass(frozen=True, slots=True)
class Move:
    """Units (stage, item or ``START``) that leave and that come."""

    leave: tuple[tuple[int, int], ...]
    come: tuple[tuple[int, int], ...]

    def applied(self, sets: Sets) -> Sets:
        """The residents after it."""
        items, starts = sets.items.copy(), sets.starts.copy()
        for units, kept in ((self.leave, False), (self.come, True)):
            for stage, item in units:
                if item == START:
                    starts[stage] = kept
                else:
                    items[stage, item] = kept
        return Sets(items, starts)
