"""Which experts are read compressed and which as they are, where a store has both.

A compressed expert has fewer bytes to be read and takes decoding, which slows what is computed
beside it. So neither is better everywhere: where computation waits for copies the format with the
shorter copies wins, where copies hide behind computation the one that takes less of it. Both are
measured. In between a mix is best, since each expert that changes its format gives time to one
channel and takes it from the other: with the experts in the order in which they are waited for, the
best place to divide them is searched for by replays.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from planner.candidate import Candidate
from planner.documents import Policy
from planner.factors import Factors
from solvers.counting import counted
from solvers.outcome import Schedule
from solvers.replay import Replay, replay

__all__ = [
    "format_words",
    "in_one_format",
    "settle_format",
    "split_formats",
    "streamed",
    "variants",
]

_PARTS = 4
"""Places that are tried first; then the two around the best, twice as near, and again."""
_NEARER = 2


def variants(candidate: Candidate) -> tuple[Candidate, ...]:
    """All experts compressed, and where the store has both, all of them as they are, too."""
    profile = candidate.encoding.profile
    if profile.costs.raw is None or candidate.encoding.kv == "batches":
        return (candidate,)
    raw = tuple(frozenset(range(layer.experts)) for layer in profile.model.layers)
    return candidate, _with(candidate, raw)


def _with(candidate: Candidate, raw: tuple[frozenset[int], ...]) -> Candidate:
    encoding = replace(candidate.encoding, raw=raw if any(raw) else ())
    return replace(candidate, encoding=encoding)


def streamed(candidate: Candidate, schedule: Schedule) -> Candidate:
    """The same without formats of residents, which no pass copies."""
    pairs = zip(candidate.encoding.raw, schedule.stages, strict=False)
    return _with(candidate, tuple(raw - set(choice.resident) for raw, choice in pairs))


def settle_format(candidate: Candidate, schedule: Schedule) -> None:
    """Give a candidate the format of all experts with which ``schedule`` is faster.

    Its factors are those that follow from none, as they are then found for the other format.
    """
    if candidate.encoding.profile.costs.raw is None:
        return
    both = variants(candidate)
    for one in both[1:]:
        one.factors = Factors()
        one.set_factors(schedule)
    best = min(both, key=lambda one: one.promised("fit", schedule))
    candidate.encoding, candidate.factors = best.encoding, best.factors


def split_formats(candidate: Candidate, schedule: Schedule, deadline: float) -> Candidate | None:
    """A mix of formats with which ``schedule`` is faster on the fitted passes.

    Parameters
    ----------
    candidate, schedule
        All experts in the better of both formats, and what is to become faster.
    deadline
        By ``time.monotonic``: nothing is tried after it.

    Returns
    -------
    Candidate or None
        None where no mix is faster, as where one format has the shorter copies and takes no more
        of computation.
    """
    if len(variants(candidate)) == 1 or candidate.objective.measure == "memory":
        return None
    if not _trade(candidate):
        return None
    ranked, copies = _ranked(candidate, schedule)
    if len(ranked) < 2:
        return None
    ends = np.cumsum(copies) / max(float(copies.sum()), 1.0)

    def cut(share: float) -> Candidate:
        """That share of all copies is of experts as they are: of those waited for the least."""
        count = int(np.searchsorted(ends, share, side="right"))
        raw: list[set[int]] = [set() for _ in candidate.encoding.profile.model.layers]
        for stage, item in ranked[:count]:
            raw[stage].add(item)
        found = _with(candidate, tuple(map(frozenset, raw)))
        found.set_factors(schedule)
        return found

    best: tuple[float, float, Candidate] | None = None
    shares = [part / _PARTS for part in range(1, _PARTS)]
    for step in range(_NEARER + 1):
        for share in shares:
            if time.monotonic() >= deadline:
                break
            one = cut(share)
            value = one.promised("fit", schedule)
            if best is None or value < best[0]:
                best = value, share, one
        if best is None:
            return None
        near = 1 / (_PARTS << (step + 1))
        shares = [best[1] - near, best[1] + near]
    whole = candidate.promised("fit", schedule)
    return best[2] if best is not None and best[0] < whole else None


def format_words(candidate: Candidate, policy: Policy) -> str:
    """Which formats the copied experts have, and why; nothing where the store has one only."""
    encoding = candidate.encoding
    costs, layers = encoding.profile.costs, encoding.profile.model.layers
    if costs.raw is None:
        return ""
    streams = sum(
        spec.experts - len(layer.resident)
        for spec, layer in zip(layers, policy.layers, strict=True)
    )
    raw = sum(len(layer.raw) for layer in policy.layers)
    size = max(layer.expert_bytes for layer in layers)
    alone, packed = (encoding.copy_ns(size, kind=kind) / 1e6 for kind in ("raw", "expert"))
    return (
        f"of {counted(streams, 'expert')} to be copied {raw} are read as they are and "
        f"{streams - raw} compressed: that takes {alone:.3g} and {packed:.3g} ms alone, and "
        f"computation beside it {costs.raw.compute_slowdown.value:.2f} and "
        f"{costs.compute_slowdown.value:.2f} times as long as alone"
    )


def in_one_format(candidate: Candidate, schedule: Schedule) -> dict[str, float]:
    """What the same policy takes on the judging passes with all experts in one format."""
    found = {}
    both = variants(_with(candidate, ()))
    for name, one in zip(("compressed", "raw"), both, strict=True):
        one.factors = Factors()
        one.set_factors(schedule)
        found[name] = one.promised("judge", schedule)
    return found


def _trade(candidate: Candidate) -> bool:
    """Whether one format has the shorter copies and the other takes less of computation."""
    costs, encoding = candidate.encoding.profile.costs, candidate.encoding
    if costs.raw is None:
        return False
    size = max(layer.expert_bytes for layer in encoding.profile.model.layers)
    longer = encoding.copy_ns(size, kind="expert") - encoding.copy_ns(size, kind="raw")
    slower = costs.compute_slowdown.value - costs.raw.compute_slowdown.value
    return longer * slower < 0


def _ranked(
    candidate: Candidate, schedule: Schedule
) -> tuple[list[tuple[int, int]], npt.NDArray[np.float64]]:
    """Streamed experts as (layer, expert), those that computation waits for the least of their
    copies' time first; and how much each is copied."""
    problem = candidate.problem("fit", plain=True)
    result = replay(problem, schedule, record=True)
    copied, waited = (np.zeros(problem.scenarios.demand.shape[1:]) for _ in range(2))
    _add(result, problem.scenarios.weight, copied, waited)
    last = len(problem.stages) - 1
    places = [(int(s), int(i)) for s, i in np.argwhere(copied > 0) if s < last]
    places.sort(key=lambda at: (waited[at] / copied[at], at))
    return places, np.array([copied[at] for at in places])


def _add(
    result: Replay,
    weight: npt.NDArray[np.int64],
    copied: npt.NDArray[np.float64],
    waited: npt.NDArray[np.float64],
) -> None:
    """Sum time copied, and waited for, by item."""
    for part in result.copies:
        if part.kind != "start" and part.pass_index < len(weight):
            copied[part.stage, part.item] += (part.end_ns - part.start_ns) * weight[part.pass_index]
    for times in result.stages:
        if times.pass_index < len(weight):
            for item, asked, start, _ in times.works:
                waited[times.stage, item] += (start - asked) * weight[times.pass_index]
