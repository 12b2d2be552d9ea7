"""The competitors: a policy each, by a solver or a strategy, with the n and b that suit it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from planner.budget import Budget
from planner.candidate import Candidate
from planner.credit import credit_of
from planner.formats import settle_format, split_formats, variants
from planner.host import host_stays
from planner.klotski import klotski_batches
from planner.objectives import Objective
from planner.profiles import Profile
from solvers.outcome import Schedule, Stop
from solvers.registry import HOSTED, Feature, Limits, Progress, load
from solvers.sets import Search, optimistic, unit_order
from solvers.variate import corrected

__all__ = [
    "BASELINES",
    "TRIED",
    "Entry",
    "Looks",
    "Patience",
    "aimed",
    "baselines",
    "first_looks",
    "mixed",
    "run_baselines",
    "run_solver",
    "run_strategy",
    "stage",
    "told",
]

T = TypeVar("T")

BASELINES: tuple[str, ...] = (
    "all-experts",
    "on-demand",
    "frequency",
    "lru",
    "lifo",
    "flexgen",
    "klotski",
)
"""What people use today: a searching solver's plan must beat all of them, and ``fiddler``, where a
host computes."""

ALWAYS: tuple[str, ...] = ("all-experts", "on-demand")
"""Those that any time is enough for, on the most promising n and b: they take two replays each, and
a plan that was compared with nothing may be worse than what everybody has."""
TRIED = 6
"""How many n and b, the most promising, each baseline is given."""
_MIXES = 2
"""How often formats are chosen by expert, and the policy solved once more for them."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One policy in the competition; ``chosen_value`` is its objective on the choosing sequences,
    with the credit of a link that has one, and with copies and computation slowing each other as
    they overlap under this policy.
    """

    solver: str
    candidate: Candidate
    schedule: Schedule
    stop: Stop
    chosen_value: float
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        solver: str,
        candidate: Candidate,
        schedule: Schedule,
        stop: Stop,
        notes: tuple[str, ...] = (),
    ) -> Entry:
        """A policy, with its value."""
        own = candidate.under(schedule)
        return cls(solver, own, schedule, stop, own.promised("choose", schedule), notes)


class Patience:
    """What Control-C does to a search: the first ends it, the second ends everything.

    Parameters
    ----------
    enabled
        Without it the first one ends everything, too.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.interrupted = False

    @contextmanager
    def once(self) -> Iterator[None]:
        """What is inside is given up at the first Control-C."""
        try:
            yield
        except KeyboardInterrupt:
            self.note()

    def note(self) -> None:
        """Control-C was pressed.

        Raises
        ------
        KeyboardInterrupt
            If that ends everything.
        """
        if not self.enabled or self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def finish(self, work: Callable[[], T]) -> T:
        """Work that is done even so, from the start again if the first Control-C falls into it."""
        with self.once():
            return work()
        return work()


def housed(entry: Entry, memory_bytes: int) -> Entry:
    """The same policy within a larger budget, where it is as valid."""
    encoding = replace(entry.candidate.encoding, memory_bytes=memory_bytes)
    return replace(entry, candidate=replace(entry.candidate, encoding=encoding))


def aimed(entry: Entry, goal: Objective) -> Entry:
    """The same policy under another objective."""
    old = entry.candidate
    candidate = Candidate(old.encoding, old.sequences, old.split, old.seed, goal, old.factors)
    chosen = candidate.promised("choose", entry.schedule)
    return replace(entry, candidate=candidate, chosen_value=chosen)


def first_looks(
    found: list[Candidate], deadline: float, patience: Patience, cut: list[str] | None = None
) -> list[tuple[Candidate, Schedule]]:
    """Candidates with a first schedule, the most promising first.

    They are looked at in the order of what they could reach at best, until that is more than what
    one of them has reached; ``cut`` gets the words for those that there was no time for.

    Raises
    ------
    KeyboardInterrupt
        If there is none yet.
    """
    reach = [
        min(
            one.value("fit", optimistic(one.problem("fit"), credit_of(one.encoding)))
            for one in variants(each)
        )
        for each in found
    ]
    results: list[tuple[float, int, Candidate, Schedule]] = []
    best = float("inf")
    for done, index in enumerate(sorted(range(len(found)), key=lambda at: (reach[at], at))):
        if patience.interrupted or (results and reach[index] >= best):
            break
        if results and time.monotonic() > deadline:
            if cut is not None:
                cut.append(f"of {len(found)} n and b {len(found) - done} were not looked at")
            break
        candidate = found[index]
        with patience.once():
            results += _look(candidate, index)
            best = min([best, *(entry[0] for entry in results)])
    if not results and patience.interrupted:
        raise KeyboardInterrupt
    results.sort(key=lambda entry: entry[:2])
    return [(candidate, schedule) for _, _, candidate, schedule in results]


def _look(candidate: Candidate, index: int) -> list[tuple[float, int, Candidate, Schedule]]:
    """The first schedule of one candidate, with its value; nothing where none fits."""
    problem = candidate.problem("fit")
    few = problem.replace(scenarios=problem.scenarios.take_runs(1))
    search = Search(few, unit_order(problem, None))
    search.run_few()
    if search.best is None:
        return []
    candidate.set_factors(search.best)
    settle_format(candidate, search.best)
    return [(candidate.promised("fit", search.best), index, candidate, search.best)]


def stage(progress: Progress | None, name: str) -> None:
    """Tell what is done before or after the search, which the time limit is not of."""
    if progress is not None:
        progress(name, 0, None)


def told(progress: Progress | None, candidate: Candidate) -> Progress | None:
    """A progress callback whose name says which n and b is being solved."""
    if progress is None:
        return None
    tell, encoding = progress, candidate.encoding
    group = f"n x b = {encoding.n_batches} x {encoding.batch_size}"
    return lambda name, objective, bound: tell(f"{name}, {group}", objective, bound)


def run_solver(
    name: str,
    candidate: Candidate,
    limits: Limits,
    hint: Schedule | None = None,
    progress: Progress | None = None,
) -> Entry:
    """Let a back end solve one n and b, by times corrected for what few passes demand by chance."""
    problem = corrected(candidate.problem("fit"))
    # what is proven of a plan is of other passes: here a bound is for progress alone
    outcome = load(name).solve(problem, replace(limits, bound=False), hint, progress)
    if outcome.schedule is None:
        raise AssertionError(f"{name} found nothing where a schedule exists: {outcome}")
    return Entry.of(name, candidate, outcome.schedule, outcome.stop, outcome.notes)


def mixed(entry: Entry, limits: Callable[[], Limits], deadline: float) -> Entry:
    """With each expert in a format of its own, where that is faster on the choosing sequences: the
    policy as it is, or solved once more for the mix by a solver that searches; and again from
    there."""
    searching = Feature.BOUND in load(entry.solver).features
    best = entry
    for _ in range(_MIXES):
        found = split_formats(best.candidate, best.schedule, deadline)
        if found is None:
            break
        tried = [Entry.of(best.solver, found, best.schedule, best.stop, best.notes)]
        if searching and time.monotonic() < deadline:
            tried.append(run_solver(entry.solver, found, limits(), best.schedule))
        better = min(tried, key=lambda one: one.chosen_value)
        if better.chosen_value >= best.chosen_value:
            break
        best = better
    if best is entry:
        return entry
    more = entry.chosen_value / best.chosen_value - 1
    whole = "as they are" if entry.candidate.encoding.raw else "compressed"
    said = f"each expert has a format of its own: all of them {whole} would be {more:.2%} worse"
    stop = Stop.TIME_LIMIT if time.monotonic() >= deadline else best.stop
    return replace(best, stop=stop, notes=(*entry.notes, said))


def run_strategy(
    name: str,
    profile: Profile,
    found: list[Candidate],
    ranked: list[tuple[Candidate, Schedule]],
    seed: int,
    most: int = TRIED,
) -> Entry:
    """A strategy with the n and b that suit it best on the fitted sequences, of the ``most``
    promising ones.

    Klotski chooses its n itself; where that does not fit, n is cut to the largest that does.
    """
    notes: dict[int, str] = {}
    promising = [id(candidate) for candidate, _ in ranked[:most]]
    allowed = [index for index, one in enumerate(found) if id(one) in promising]
    if name == "klotski":
        allowed = []
        batches = found if most == TRIED else [candidate for candidate, _ in ranked[:most]]
        for batch in sorted({one.encoding.batch_size for one in batches}):
            fitting = [i for i, one in enumerate(found) if one.encoding.batch_size == batch]
            wanted = klotski_batches(profile, found[0].encoding.workload, batch)
            small = [i for i in fitting if wanted and found[i].encoding.n_batches <= wanted]
            pick = max(small or fitting, key=lambda i: found[i].encoding.n_batches)
            if wanted is None:
                notes[pick] = f"no n up to all requests hides the copies of batches of {batch}"
            elif found[pick].encoding.n_batches != wanted:
                cut = found[pick].encoding.n_batches
                notes[pick] = f"its inequalities ask for n = {wanted}; n = {cut} is what fits"
            allowed.append(pick)
    best: tuple[float, int, Schedule, tuple[str, ...]] | None = None
    limits = Limits(seed=seed)
    for index in allowed:
        problem = found[index].problem("fit")
        outcome = load(name).solve(problem, limits)
        if outcome.schedule is None:
            continue
        if id(found[index]) not in promising:
            # nobody has looked at this n and b: copies and computation slow each other here, too
            found[index].set_factors(outcome.schedule)
        # one alone needs no comparing
        value = found[index].promised("fit", outcome.schedule) if len(allowed) > 1 else 0.0
        said = outcome.notes + ((notes[index],) if index in notes else ())
        if best is None or value < best[0]:
            best = (value, index, outcome.schedule, said)
    if best is None:
        raise AssertionError(f"{name} found nothing where a schedule exists")
    _, index, schedule, said = best
    return Entry.of(name, found[index], schedule, Stop.RULE, said)


@dataclass(frozen=True, eq=False)
class Looks:
    """What searches of one workload, budget, objective and seed share, however long they take.

    Attributes
    ----------
    found
        All n and b that fit.
    ranked
        As ``first_looks`` has them.
    made
        Strategies' policies so far, by name.
    """

    found: list[Candidate]
    ranked: list[tuple[Candidate, Schedule]]
    made: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        found: list[Candidate],
        deadline: float = float("inf"),
        patience: Patience | None = None,
        progress: Progress | None = None,
        cut: list[str] | None = None,
    ) -> Looks:
        """With no policy yet."""
        stage(progress, f"a first look at {len(found)} sizes of groups")
        return cls(found, first_looks(found, deadline, patience or Patience(False), cut))

    def strategy(self, name: str, profile: Profile, seed: int) -> Entry:
        """As ``run_strategy``, once."""
        if name not in self.made:
            self.made[name] = run_strategy(name, profile, self.found, self.ranked, seed)
        return self.made[name]


def run_baselines(
    skip: str,
    profile: Profile,
    looks: Looks,
    seed: int,
    patience: Patience,
    progress: Progress | None = None,
    budget: Budget | None = None,
) -> list[Entry]:
    """All baselines but ``skip``; once interrupted, with the most promising n and b alone. Those
    that ``budget`` has no time for are left out, or tried on fewer n and b, and it is told."""
    rivals, fewer, left_out = [], [], []
    names = baselines(skip, profile)
    for at, name in enumerate(names, 1):
        most = TRIED
        if budget is not None and not patience.interrupted and name not in looks.made:
            most = budget.tries(TRIED, len(names) + 1 - at, least=int(name in ALWAYS))
        if not most:
            left_out.append(name)
            continue
        if most < min(TRIED, len(looks.ranked)):
            fewer.append(name)
        stage(progress, f"comparing with {name}, {at} of {len(names)}")

        def work(name: str = name, most: int = most) -> Entry:
            if patience.interrupted:
                first = looks.ranked[:1]
                return run_strategy(name, profile, [first[0][0]], first, seed)
            if most < TRIED:
                return run_strategy(name, profile, looks.found, looks.ranked, seed, most)
            return looks.strategy(name, profile, seed)

        rivals.append(patience.finish(work))
    if budget is not None:
        for said, which in (("on fewer n and b", fewer), ("not at all", left_out)):
            if which:
                budget.cut.append(f"compared {said}: {', '.join(which)}")
        budget.compared()
    return rivals


def baselines(skip: str, profile: Profile) -> list[str]:
    """What a plan of a solver is compared with."""
    hosted = () if host_stays(profile.hardware, profile.costs) is not None else HOSTED
    return [name for name in (*BASELINES, *hosted) if name != skip]
