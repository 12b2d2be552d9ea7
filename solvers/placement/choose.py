"""What to place by: a rule or a search, whichever did better on scenarios that it had not seen.

A search fits the noise of scenarios as well as what they have in common. So scenarios are split
into a part to learn from and a part to choose by, which share no sequence; every rule and the
search learn from the one and are compared on the other. What wins then learns from all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solvers.placement.problem import Bools, Floats, Int64, Placement, PlacementProblem, fullest
from solvers.placement.rules import RULES
from solvers.placement.search import search
from solvers.registry import Limits

__all__ = ["SEARCH", "Candidate", "Choice", "Origins", "choose"]

SEARCH = "search"
_SURE = 3.0
"""Standard errors of a gain that is not chance."""
_LEAST_SCENARIOS = 16
"""With fewer, no part is left to choose by."""
_MANY_KINDS = 16
"""With fewer kinds, how much two of them differ is not known well enough to judge a stage alone."""
_LEAST = 1e-12
"""A gain below it is rounding."""


@dataclass(frozen=True, eq=False)
class Origins:
    """What scenarios have in common with each other.

    Attributes
    ----------
    kinds
        [scenarios]: what each is of (a text domain, a part of the sequences); two scenarios of
        different kinds share no sequence. None: no two scenarios of all do.
    batches
        How many of the scenarios share no sequence with each other: the others are the same
        sequences, drawn again, and make nothing surer. None: all of them.
    """

    kinds: Int64 | None = None
    batches: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule or a search on the scenarios that chose: mean load of the fullest device, and in how
    many stages it was taken."""

    name: str
    average_max_load: float
    stages: int


@dataclass(frozen=True, eq=False)
class Choice:
    """What won.

    Attributes
    ----------
    start
        The winning rule's placement of each stage, learnt from all scenarios.
    searched
        [stages]: where searching won.
    candidates
        All that were compared; none where there was nothing to compare on.
    """

    start: Placement
    searched: Bools
    candidates: tuple[Candidate, ...] = ()


def choose(problem: PlacementProblem, limits: Limits, origins: Origins) -> Choice:
    """The rule of each stage, and where searching pays.

    Of few kinds each is left out in turn, see ``_by_left_out_kind``. Otherwise every other kind (or
    scenario) chooses. There a stage's rule is ``replicate`` (without replicas: greedy by mean load)
    unless another surely beats it, and searching is used where it surely beats that rule: by more
    than three standard errors of the paired difference, since with many stages chance passes a
    lower bar. Fewer than 16 scenarios are searched as they are.
    """
    rules = [rule(problem) for rule in RULES.values()]
    kinds = origins.kinds
    if len(problem.load) < _LEAST_SCENARIOS:
        values = np.stack([fullest(problem, one).mean(axis=0) for one in rules])
        everywhere = np.ones(values.shape[1], dtype=np.bool_)
        return Choice(_pick(rules, np.argmin(values, axis=0)), everywhere)
    if kinds is not None and 2 < len(np.unique(kinds)) < _MANY_KINDS:
        return _by_left_out_kind(problem, rules, limits, kinds)
    even = (np.arange(len(problem.load)) if kinds is None else kinds) % 2 == 0
    if even.all() or not even.any():
        even = np.arange(len(problem.load)) % 2 == 0
    seen, other = problem.take(even), problem.take(~even)
    alone = len(other.load)
    if origins.batches is not None:
        alone = min(alone, origins.batches * alone // len(problem.load))
    learnt = [rule(seen) for rule in RULES.values()]
    loads = np.stack([fullest(other, one) for one in learnt])
    plain = list(RULES).index("replicate")
    # rules learn noise, too: anti-correlation fits correlations that are none
    sure = np.stack([_sure_gain(loads[plain], one, alone) for one in loads])
    picked = np.where(sure.max(axis=0) > 0, np.argmax(sure, axis=0), plain)
    ours = fullest(other, search(seen, learnt, seed=limits.seed, seconds=limits.seconds / 3))
    gain = _sure_gain(fullest(other, _pick(learnt, picked)), ours, alone)
    taken = np.where(gain > 0, len(RULES), picked)
    means = [float(one.mean()) for one in (*loads, ours)]
    return Choice(_pick(rules, picked), gain > 0, _candidates(means, taken))


def _by_left_out_kind(
    problem: PlacementProblem, rules: list[Placement], limits: Limits, kinds: Int64
) -> Choice:
    """The search, or a rule that did clearly better on kinds that it had not seen; of all stages
    alike, since a single one's best is chance.

    Each kind is left out in turn, and all kinds count alike. Of few kinds the best so far is
    mostly chance, too, and following it costs more than it brings. So a rule must beat the search
    by more than one standard error of the paired difference over the kinds (the one-standard-error
    rule of Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).
    """
    names = np.unique(kinds)
    seconds = limits.seconds / 3 / len(names)
    found = []
    for name in names:
        seen, left_out = problem.take(kinds != name), problem.take(kinds == name)
        learnt = [rule(seen) for rule in RULES.values()]
        learnt.append(search(seen, learnt, kicks=2, seed=limits.seed, seconds=seconds))
        found.append([float(fullest(left_out, one).mean()) for one in learnt])
    values = np.array(found)
    ahead = values[:, -1:] - values[:, :-1]
    clear = ahead.mean(axis=0) - ahead.std(axis=0, ddof=1) / math.sqrt(len(names))
    best = int(np.argmax(clear)) if clear.max() > _LEAST else len(rules)
    stages = len(rules[0].held)
    return Choice(
        rules[0] if best == len(rules) else rules[best],
        np.full(stages, best == len(rules)),
        _candidates(values.mean(axis=0).tolist(), np.full(stages, best)),
    )


def _candidates(means: list[float], taken: Int64) -> tuple[Candidate, ...]:
    """``taken`` [stages] numbers the candidate of each."""
    return tuple(
        Candidate(name, mean, int((taken == at).sum()))
        for at, (name, mean) in enumerate(zip((*RULES, SEARCH), means, strict=True))
    )


def _sure_gain(before: Floats, after: Floats, alone: int) -> Floats:
    """[stages]: mean of before - after [scenarios, stages], less what may be chance; ``alone`` is
    how many of the scenarios share no sequence."""
    if alone < 2:
        return np.full(before.shape[1], -np.inf)
    gain = before - after
    error = gain.std(axis=0, ddof=1) / math.sqrt(alone)
    sure: Floats = gain.mean(axis=0) - _SURE * error
    return sure


def _pick(placements: list[Placement], which: Int64) -> Placement:
    """Stage by stage one of several placements."""
    held = [placements[at].held[stage] for stage, at in enumerate(which.tolist())]
    return Placement(np.stack(held))
