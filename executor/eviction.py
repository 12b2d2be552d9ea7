"""Which content of a slot goes first: the rules of expert buffering.

"Towards MoE Deployment" (arXiv 2303.06182), section 6, and its rivals; ``docs/runtime.md`` has the
rules to the letter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from executor.units import Unit, Units
from planner.documents import Policy
from solvers.errors import OptionError

__all__ = ["Needs", "Worths"]

Needs = Mapping[Unit, Sequence[int]]
"""The layers, counted through all passes and with the head as one, that needed each expert or tile
in a run; ascending."""


class Worths:
    """What each content is worth, by the policy's eviction.

    Parameters
    ----------
    policy, units
        What is carried out.
    needs
        Of a recorded run, for ``belady``.

    Raises
    ------
    OptionError
        If ``belady`` has nothing recorded.
    """

    def __init__(self, policy: Policy, units: Units, needs: Needs | None) -> None:
        self._eviction = policy.eviction
        if needs is None and policy.eviction == "belady":
            raise OptionError(
                "eviction belady needs to know what an earlier run of the same prompts chose: "
                "give its recording, or another eviction"
            )
        self._stages, self._stage = len(units.chain), units.stage
        layers = units.layers + 1
        self._needs = {
            unit: [use // layers * self._stages + units.stage(use % layers) for use in uses]
            for unit, uses in (needs or {}).items()
        }
        self._places = {unit: place for stage in units.chain for place, unit in enumerate(stage)}
        self._uses: Counter[Unit] = Counter()
        self._turned: dict[Unit, int] = {}

    def used(self, unit: Unit, sequence: int) -> None:
        """Compute's stage, whose router has spoken, has computed from ``unit``."""
        self._uses[unit] += 1
        self._turned[unit] = self._turns(unit, sequence, True)

    def of(
        self, unit: Unit, age_ns: int, arrival: int, sequence: int, routed: bool
    ) -> tuple[Any, ...]:
        """Of two contents that may be evicted, the one with the smaller worth goes first.

        Parameters
        ----------
        unit
            What lies in the slot.
        age_ns
            When it was used last.
        arrival
            As which copy of the run it came.
        sequence
            Compute's stage, counted through all passes.
        routed
            Whether that stage's router has spoken.
        """
        if self._eviction == "lifo":
            return (-arrival,)
        if self._eviction == "fifo":
            return (arrival,)
        if self._eviction == "frequency":
            return self._uses[unit], age_ns, unit
        if self._eviction == "plan":
            ahead = self._stages_ahead(unit, sequence, routed)
            return -ahead, -self._places.get(unit, 0), age_ns, unit
        if self._eviction == "stale":
            turns = self._turns(unit, sequence, routed) - self._turned.get(unit, 0)
            return -turns, -self._turn_ahead(unit, sequence, routed), age_ns, unit
        if self._eviction == "belady":
            uses = self._needs.get(unit, ())
            index = bisect_left(uses, sequence + routed)
            following = uses[index] if index < len(uses) else inf
            return -following, age_ns, unit
        # the least recently used; equal ages go by stage, then index
        return age_ns, unit

    def _stages_ahead(self, unit: Unit, sequence: int, routed: bool) -> float:
        """How many stages until the chain comes to a unit again; infinite where it never does."""
        if unit not in self._places:
            return inf
        return self._turn_ahead(unit, sequence, routed)

    def _turn_ahead(self, unit: Unit, sequence: int, routed: bool) -> int:
        """How many stages until the router of a unit's stage speaks next."""
        ahead = (self._stage(unit.stage) - sequence) % self._stages
        return self._stages if not ahead and routed else ahead

    def _turns(self, unit: Unit, sequence: int, routed: bool) -> int:
        """How often the router of a unit's stage has spoken in this run."""
        passes, stage = divmod(sequence, self._stages)
        own = self._stage(unit.stage)
        return passes + (own < stage or (own == stage and routed))
