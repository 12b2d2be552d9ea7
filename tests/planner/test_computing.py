"""What of a run's time goes with computation, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.computing import computing_share
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage, Unit


def problem(*, lead_ns: int, work_ns: int, copy_ns: int) -> Problem:
    """One pass of one stage with one expert."""
    one = np.array([[lead_ns]]), np.array([[[1]]], dtype=np.int32), np.array([[[work_ns]]])
    nothing = np.zeros((1, 1), dtype=np.int64)
    scenarios = Scenarios(nothing, *one, nothing, np.ones(1, dtype=np.int64))
    return Problem((Stage(None, (Unit(1, 1, 1, copy_ns, copy_ns, 1),)),), scenarios, 100, 1)


def schedule(*, resident: tuple[int, ...] = (), prefetch: tuple[int, ...] = ()) -> Schedule:
    return Schedule((StageChoice(False, resident, prefetch),), 2, 0, 1)


def test_what_copies_hide_makes_no_pass_longer() -> None:
    one = problem(lead_ns=1_100_000, work_ns=1_100_000, copy_ns=3_000_000)
    # nothing is copied: all of the time is computation
    assert computing_share(one, schedule(resident=(0,))) == pytest.approx(1.0)
    # copied after the router has spoken: 1.1 + 3 + 1.1 ms. A tenth more and a tenth less of 2.2 is
    # 5.42 against 5 ms, from where all of it would be a ratio of 1.1 x 1.1
    found = computing_share(one, schedule())
    assert found == pytest.approx(math.log(5.42 / 5) / math.log(1.21))
    assert found == pytest.approx(2.2 / 5.2, rel=0.01)
    # copied before: 3 + 1.1 ms. What comes before the router is hidden: 4.21 against 4 ms
    found = computing_share(one, schedule(prefetch=(0,)))
    assert found == pytest.approx(math.log(4.21 / 4) / math.log(1.21))
    # a copy that ends before the router has spoken decides about nothing
    quick = problem(lead_ns=1_100_000, work_ns=1_100_000, copy_ns=900_000)
    assert computing_share(quick, schedule(prefetch=(0,))) == pytest.approx(1.0)
