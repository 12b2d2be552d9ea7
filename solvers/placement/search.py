"""Local search: swaps, moves and other replicas, while the fullest device's mean load falls.

Each step is evaluated on all scenarios at once. For two devices, the fullest of the others is known
beforehand, so that all swaps between them cost one pass over arrays.
"""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np

from solvers.placement.problem import Bools, Floats, Int64, Placement, PlacementProblem

__all__ = ["StageSearch", "search"]

_LEAST = 1e-12
"""A gain below it is rounding."""
_KICK = 3
"""Random swaps that a kick makes."""


class StageSearch:
    """One stage.

    Parameters
    ----------
    share
        [scenarios, items]; scenarios without load left out.
    room
        [devices].
    replicas
        Copies beyond one for each item.
    held
        [items, devices]: where to start; changed in place.
    """

    def __init__(self, share: Floats, room: Int64, replicas: int, held: Bools) -> None:
        self.share, self.room, self.replicas, self.held = share, room, replicas, held
        self.devices = held.shape[1]
        self._refresh()

    def _refresh(self) -> None:
        self.copies = self.held.sum(axis=1)
        self.weight: Floats = self.share / np.maximum(self.copies, 1)
        self.loads: Floats = self.weight @ self.held
        self.value = float(self.loads.max(axis=1).mean())

    def descend(self, deadline: float) -> None:
        """Improve until nothing does, or the time is over."""
        while time.monotonic() < deadline:
            better = False
            for left, right in combinations(range(self.devices), 2):
                if time.monotonic() >= deadline:
                    return
                better = self._swap(left, right) or better
            if self.replicas and not better:
                better = self._replica()
            if not better:
                return

    def _swap(self, left: int, right: int) -> bool:
        """Make the best swap or move between two devices, if it helps."""
        only_left = np.flatnonzero(self.held[:, left] & ~self.held[:, right])
        only_right = np.flatnonzero(self.held[:, right] & ~self.held[:, left])
        filled = self.held.sum(axis=0)
        none = np.zeros((len(self.share), 1))
        # the last column stands for nothing: a move instead of a swap
        gone = np.concatenate([self.weight[:, only_left], none], axis=1)
        come = np.concatenate([self.weight[:, only_right], none], axis=1)
        rest = np.delete(self.loads, (left, right), axis=1).max(axis=1, initial=0.0)
        change = come[:, None, :] - gone[:, :, None]
        new = np.maximum(self.loads[:, left, None, None] + change, rest[:, None, None])
        new = np.maximum(new, self.loads[:, right, None, None] - change).mean(axis=0)
        if filled[right] >= self.room[right]:
            new[:-1, -1] = np.inf
        if filled[left] >= self.room[left]:
            new[-1, :-1] = np.inf
        at = int(np.argmin(new))
        if new.flat[at] >= self.value - _LEAST:
            return False
        leaves, comes = divmod(at, new.shape[1])
        if leaves < len(only_left):
            self.held[only_left[leaves], left] = False
            self.held[only_left[leaves], right] = True
        if comes < len(only_right):
            self.held[only_right[comes], right] = False
            self.held[only_right[comes], left] = True
        self._refresh()
        return True

    def _replica(self) -> bool:
        """Give a replica to another item, the first that helps; spare ones first."""
        taken: list[tuple[int, int] | None] = []
        if self.copies.sum() < len(self.held) + self.replicas:
            taken.append(None)
        many = np.flatnonzero(self.copies > 1)
        taken += [(int(i), int(d)) for i in many for d in np.flatnonzero(self.held[i])]
        before = self.held.copy()
        value = self.value
        for copy in taken:
            if copy is not None:
                self.held[copy] = False
                self._refresh()
            place = self._best_copy()
            if place is not None and place[0] < value - _LEAST:
                self.held[place[1], place[2]] = True
                self._refresh()
                return True
            self.held[:] = before
        self._refresh()
        return False

    def _best_copy(self) -> tuple[float, int, int] | None:
        """Value, item and device of the best further copy; None where there is no room."""
        open_devices = np.flatnonzero(self.held.sum(axis=0) < self.room)
        best: tuple[float, int, int] | None = None
        # only an item that is large on a full device is worth a copy
        worth = (self.weight * self.loads.max(axis=1)[:, None]).mean(axis=0)
        for item in np.argsort(-worth, kind="stable")[:16].tolist():
            part = self.share[:, item] / (self.copies[item] + 1)
            loads = self.loads - (self.weight[:, item] - part)[:, None] * self.held[item]
            for device in open_devices[~self.held[item, open_devices]].tolist():
                alone = loads[:, device] + part
                value = float(np.maximum(loads.max(axis=1), alone).mean())
                if best is None or value < best[0]:
                    best = (value, item, device)
        return best

    def kick(self, random: np.random.Generator) -> None:
        """A few random swaps."""
        for _ in range(_KICK):
            left, right = random.choice(self.devices, size=2, replace=False)
            a = np.flatnonzero(self.held[:, left] & ~self.held[:, right])
            b = np.flatnonzero(self.held[:, right] & ~self.held[:, left])
            if len(a) and len(b):
                i, j = random.choice(a), random.choice(b)
                self.held[i, left] = self.held[j, right] = False
                self.held[i, right] = self.held[j, left] = True
        self._refresh()


def search(
    problem: PlacementProblem,
    starts: list[Placement],
    *,
    only: Bools | None = None,
    kicks: int = 8,
    seed: int = 0,
    seconds: float = 60.0,
) -> Placement:
    """The best that local search makes of several placements, stage by stage.

    Parameters
    ----------
    problem
        With the scenarios that are fitted.
    starts
        At least one valid placement; each is improved.
    only
        [stages]: stages to work on; the first start's others are kept. None: all.
    kicks
        Restarts from the best with a few random swaps: a limit that does not depend on the clock.
    seed
        Of the kicks.
    seconds
        A cap on the clock, shared evenly by the stages.
    """
    result = starts[0].held.copy()
    stages = list(range(len(result))) if only is None else np.flatnonzero(only).tolist()
    end = time.monotonic() + seconds
    for turn, stage in enumerate(stages):
        now = time.monotonic()
        deadline = now + max(end - now, 0.0) / (len(stages) - turn)
        asked = problem.asked[:, stage]
        if not asked.any():
            continue
        share, room = problem.share[asked, stage], problem.room[stage]
        tried = [StageSearch(share, room, problem.replicas, s.held[stage].copy()) for s in starts]
        for one in tried:
            one.descend(deadline)
        best = min(tried, key=lambda one: one.value)
        random = np.random.default_rng((seed, stage))
        for _ in range(kicks if problem.devices > 1 else 0):
            if time.monotonic() > deadline:
                break
            one = StageSearch(share, room, problem.replicas, best.held.copy())
            one.kick(random)
            one.descend(deadline)
            if one.value < best.value - _LEAST:
                best = one
        result[stage] = best.held
    return Placement(result)
