"""Bounds of problems whose host works on items: below every schedule with every use of the host,
and what their multipliers prove."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from solvers.checker import check_proofs
from solvers.host import physical_bound
from solvers.outcome import Bound, HostProof, HostShare, Proof, Schedule
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.proof import proven_ns
from solvers.proof_host import able
from solvers.relaxation import plan_bound, relax
from solvers.replay import measure, replay

TENTH_MS = 100_000
SHARES = [
    None,
    *(HostShare(rows, percent) for rows, percent in ((1, 100), (2, 100), (3, 50), (3, 100))),
]


def small(rng: np.random.Generator, *, starts: bool = False) -> Problem:
    """One stage of two or three items, or two of two, and a host about as fast as copies."""
    stages = 1 + int(rng.random() < 0.15)
    width = 3 if stages == 1 and rng.random() < 0.15 else 2
    shape = (int(rng.integers(1, 4)), stages)
    pieces = (TENTH_MS * rng.integers(1, 20, (stages, width + 1, 2))).tolist()
    chunks = rng.integers(1, 4, (stages, width + 1)).tolist()
    parts = []
    for durations, counts in zip(pieces, chunks, strict=True):
        pairs = list(zip(counts, durations, strict=True))
        first = Unit(3, 3, pairs[0][0], *pairs[0][1], 1) if starts else None
        parts.append(Stage(first, tuple(Unit(4, 4, n, *each, 1) for n, each in pairs[1:])))
    wide = (*shape, width)
    demand = (rng.random(wide) < rng.choice([0.3, 0.6, 0.9])) * rng.integers(1, 4, wide)
    work, host = (
        np.where(demand > 0, TENTH_MS * rng.integers(0, most, wide), 0).astype(np.int64)
        for most in (10, int(rng.choice([10, 40, 90])))
    )
    prologue, lead, epilogue = (
        TENTH_MS * rng.integers(0, most, shape).astype(np.int64) for most in (5, 30, 5)
    )
    scenarios = Scenarios(
        prologue,
        lead,
        demand.astype(np.int32),
        work,
        epilogue,
        rng.integers(1, 3, shape[0]).astype(np.int64),
        None,
        (0, shape[0] - 1) if shape[0] > 1 and rng.random() < 0.3 else (0,),
        None,
        host,
    )
    return Problem(
        tuple(parts), scenarios, int(rng.integers(4 + 3 * starts, 4 * stages * width)), 4
    )


def best_by_slots(problem: Problem, schedules: list[Schedule]) -> dict[int, int]:
    """The least of ``schedules`` with all shares, for each number of slots."""
    best: dict[int, int] = {}
    for one in schedules:
        for share in SHARES:
            taken = measure(problem, replay(problem, one.replace(host=share)))
            best[one.slots] = min(taken, best.get(one.slots, taken))
    return best


def any_use(
    make: Any, problem: Problem, schedules: list[Schedule], rng: np.random.Generator
) -> int:
    """One schedule, with a host that takes any of what is demanded and not begun, by no rule."""

    class Freely(make.slow):  # type: ignore[misc, name-defined]
        def _hosted(self, stage: int, rows: Any) -> list[int]:
            taken = [one for one in self.queue if not one[5] and rng.random() < 0.6]
            self.queue = [one for one in self.queue if one not in taken]
            return [one[2] for one in taken]

    ends = Freely(problem, schedules[int(rng.integers(len(schedules)))]).ends
    each = np.diff([0, *ends])
    return int((each * problem.scenarios.weight).sum())


def test_no_schedule_with_any_use_of_the_host_is_below_the_bounds(make: Any) -> None:
    sharper, near = 0, 0
    for seed in range(300):
        rng = np.random.default_rng([seed, 21])
        problem = small(rng, starts=seed % 20 == 0)
        schedules = make.every_schedule(problem)
        best = min(best_by_slots(problem, schedules).values())
        bound, wide = plan_bound(problem)
        assert bound is not None, seed
        assert wide is not None, seed
        assert (bound.policies, wide.policies) == ("plan", "clairvoyant")
        assert wide.value_ns <= bound.value_ns <= best, seed
        for one in (bound, wide):
            assert list(check_proofs(problem, one)) == [], seed
        for _ in range(3):
            assert bound.value_ns <= any_use(make, problem, schedules, rng), seed
        physical = physical_bound(problem).value_ns
        # but for the rounding of multipliers it knows all that the physical one does
        assert bound.value_ns >= physical - TENTH_MS // 100, seed
        sharper += wide.value_ns > physical + TENTH_MS
        near += bound.value_ns > 0.95 * best
    assert sharper > 60
    assert near > 60


@pytest.fixture
def problem(make: Any) -> Problem:
    """One pass, one stage of two demanded items of 8 ns and 1,000 bytes, 3 ns of work each on the
    device and 12 on the host; a lead of 2. One slot of 5 bytes fits, and no resident."""
    stage = Stage(None, (Unit(5, 1000, 1, 8, 8, 5),) * 2)
    scenarios = make.scenarios([[[1, 1]]], lead=2, work=lambda rows: 3)
    hosts = replace(scenarios, host_work_ns=np.full((1, 1, 2), 12, dtype=np.int64))
    return Problem((stage,), hosts, 7, 5)


def plain(slots: int, last: int | None, **changes: Any) -> Proof:
    """Multipliers of one stage of one pass, in quarters; 0 but for ``changes``."""
    zero = np.full((1, 1), 0, dtype=object)
    base = Proof(slots, last, 4, 0, zero[0], zero, zero, zero, None, HostProof(zero, zero))
    given = {name: np.full((1, 1), value, dtype=object) for name, value in changes.items()}
    hosts = HostProof(given.pop("work", zero), given.pop("host", zero))
    return replace(base, **given, host=hosts)


def priced(proof: Proof) -> Proof:
    """The same with memory at a quarter of a ns a byte."""
    return replace(proof, memory=1)


def test_by_hand(problem: Problem) -> None:
    # nothing used: the lead alone, as the host might take all work
    assert proven_ns(problem, plain(1, 1)) == 2
    # the channel alone: the host might take everything
    assert proven_ns(problem, plain(1, 1, busy=4)) == 0
    # all work, 8 ns, of which the host spares 6
    assert proven_ns(problem, plain(1, 1, work=4)) == 2
    # a quarter each of 8 (work) and 3/4 of 2 (host), less (3 - 3 * 12) / 4 of h, which is no gain
    assert proven_ns(problem, plain(1, 1, work=1, host=3)) == (8 + 3 * 2) // 4
    # the channel at 3/4, the host at 1/4: 3/4 of 16 and 1/4 of 2, less (3 * 8 - 12) / 4 for each
    # h, and less (3 * 8 - 12) / 4 for each resident, which costs nothing
    assert proven_ns(problem, plain(1, 1, busy=3, host=1)) == (48 + 2 - 24 - 24) // 4
    # with memory at a quarter a byte residents do not pay: less 7 of it, and 5 for the slot
    assert proven_ns(problem, priced(plain(1, 1, busy=3, host=1))) == (48 + 2 - 24 - 7 + 5) // 4
    # one slot, 1/2 of 22, and the host's 1/2 of 2, less (2 * 11 - 2 * 12) / 4: no gain again
    assert proven_ns(problem, priced(plain(1, 1, held=2, host=2))) == (44 + 4 - 7 + 5) // 4
    # more than the weight
    assert proven_ns(problem, plain(1, 1, work=3, host=2)) is None


def test_the_best_multipliers_by_hand(make: Any) -> None:
    """Four passes, all of which demand one item of 10 ms that cannot stay (and takes no part of a
    slot), with 1 ms of work, or 4 ms of the host's, and a lead of 1 ms. A part h of the host's: the
    channel needs 10 (1 - h), a pass 1 + 4 h with it: h = 9 / 14 makes both 25 / 7 ms."""
    unit = Unit(4, 1_000_000, 1, 10_000_000, 10_000_000, 4)
    scenarios = make.scenarios([[[1]]] * 4, lead=1_000_000, work=lambda rows: 1_000_000)
    hosts = replace(scenarios, host_work_ns=np.full((4, 1, 1), 4_000_000, dtype=np.int64))
    # apart, so that nothing is copied ahead of a run's beginning but in its own pass
    problem = Problem((Stage(None, (unit,)),), replace(hosts, run_starts=(0, 1, 2, 3)), 4, 4)
    relaxed = relax(problem)
    assert relaxed is not None
    # with one slot: 11 (1 - h) of 1 + 4 h, h = 2 / 3: 11 / 3 ms
    assert relaxed.bound.value_ns == pytest.approx(4 * 11e6 / 3, rel=1e-5)
    # what a plan can do is all or nothing: the host's 1 + 4 ms
    best = min(best_by_slots(problem, make.every_schedule(problem)).values())
    assert best == 4 * 5_000_000
    own, _ = plan_bound(problem)
    assert own is not None
    assert relaxed.bound.value_ns <= own.value_ns <= best


def test_a_sequential_stage_is_the_devices(make: Any) -> None:
    problem = make.hosting(make.problem(np.random.default_rng(3)), 3)
    places = able(problem)
    for index, stage in enumerate(problem.stages):
        asked = problem.scenarios.demand[:, index] > 0
        assert (places[:, index] == (asked & (not stage.sequential))).all()


def test_without_a_host_nothing_is_the_hosts(make: Any) -> None:
    problem = make.problem(np.random.default_rng(4))
    assert not able(problem).any()
    relaxed = relax(problem)
    assert relaxed is not None
    assert all(proof.host is None for proof in relaxed.bound.proofs)


def changed(rng: np.random.Generator, proof: Proof, host: HostProof) -> Proof:
    """A proof with one of its kinds of multipliers changed."""
    name = ("busy", "held", "work", "host")[int(rng.integers(4))]
    array = getattr(host if name in ("work", "host") else proof, name).copy()
    for at in np.ndindex(array.shape):
        array[at] = int(int(array[at]) * rng.uniform(0, 2)) + int(rng.uniform(0, proof.scale / 4))
    if name in ("work", "host"):
        return replace(proof, host=replace(host, **{name: array}))
    return replace(proof, **{name: array})


def test_changed_multipliers_prove_no_more_than_the_truth(make: Any) -> None:
    refused = 0
    for seed, policies in product(range(12), ("clairvoyant", "plan")):
        rng = np.random.default_rng([seed, 22])
        problem = small(rng)
        best = best_by_slots(problem, make.every_schedule(problem))
        relaxed = relax(problem, policies=policies)  # type: ignore[arg-type]
        assert relaxed is not None
        for index, proof in enumerate(relaxed.bound.proofs):
            assert proof.host is not None
            for _ in range(10):
                mutant = changed(rng, proof, proof.host)
                refused += make.refuses(problem, relaxed.bound, index, mutant, best)
    assert refused > 100


def test_what_is_malformed_is_refused(problem: Problem) -> None:
    proof = plain(1, 1, work=1, host=1)
    assert proof.host is not None
    for name in ("work", "host"):
        array = getattr(proof.host, name)
        negative, half = array.copy(), array.copy()
        negative[0, 0], half[0, 0] = -1, 0.5
        for broken in (array[..., :0], negative, half):
            bad = replace(proof, host=replace(proof.host, **{name: broken}))
            found = check_proofs(problem, Bound(0, "clairvoyant", (bad,)))
            assert [fault.reason for fault in found] == ["proof_form"], name
    lonely = problem.replace(scenarios=replace(problem.scenarios, host_work_ns=None))
    found = check_proofs(lonely, Bound(0, "clairvoyant", (proof,)))
    assert [fault.reason for fault in found] == ["proof_form"]


def test_a_proof_that_forgets_the_host_proves_less(make: Any) -> None:
    """Without the rows of the host, it might take everything in no time."""
    rng = np.random.default_rng(7)
    problem = small(rng)
    alone = problem.replace(scenarios=replace(problem.scenarios, host_work_ns=None))
    relaxed = relax(alone)
    assert relaxed is not None
    best = min(best_by_slots(problem, make.every_schedule(problem)).values())
    for proof in relaxed.bound.proofs:
        value = proven_ns(problem, proof)
        assert value is None or value <= best
