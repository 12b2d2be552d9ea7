"""Cores that other programs have while something is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profiler.others import Moment, moment, quietly, taken, taken_words

SECOND = 10**9


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.others.usable_cores", lambda: 2)


def looks(*cores: float) -> Callable[[], Moment]:
    """Looks before and after seconds in which others had so many cores, and this process one."""

    def moments() -> Iterator[Moment]:
        at = busy = 0
        for each in cores:
            yield Moment(at * SECOND, busy, at * SECOND)
            at, busy = at + 1, busy + round((1 + each) * SECOND)
            yield Moment(at * SECOND, busy, at * SECOND)

    told = moments()
    return lambda: next(told)


def test_what_this_process_used_is_not_others() -> None:
    # in 2 s two cores were busy for 3 s, 2.5 s of them by this process: others had 0.25 of a core
    before = Moment(0, 0, 0)
    assert taken(before, Moment(2 * SECOND, 3 * SECOND, 5 * SECOND // 2)) == 0.25
    # accounts are in hundredths of a second, so that this may be more than there was
    assert taken(before, Moment(SECOND, SECOND, SECOND + 1)) == 0.0


def test_nothing_is_said_of_a_moment_or_without_an_account() -> None:
    one = Moment(0, 0, 0)
    assert taken(one, Moment(SECOND // 25, SECOND, 0)) is None
    assert taken(None, one) is None
    assert taken(one, None) is None


def test_the_systems_account_is_of_the_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """user + nice + system + steal, in hundredths of a second; no idling, waiting, interrupts."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    file = tmp_path / "stat"
    file.write_text(
        "cpu  1 1 1 1 1 1 1 1 0 0\n"
        "cpu0 100 20 3 9999 9999 77 77 5 0 0\n"
        "cpu1 5000 5000 5000 0 0 0 0 5000 0 0\n"
        "cpu2 1 0 1 9999 9999 77 77 0 0 0\n"
        "intr 1 2 3\n"
    )
    found = moment(file)
    assert found is not None
    # 128 and 2 hundredths
    assert found.busy_ns == 1_300_000_000
    file.write_text("cpu  0 0\ncpu0 100 20\n")
    assert moment(file) is None
    # cores of which nothing is told, as in some sandboxes
    file.write_text("cpu0 0 0 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0 0 0\n")
    assert moment(file) is None
    file.write_text("cpu0 1 0 0 0 0 0 0 0 0 0\n")
    assert moment(file) is None
    assert moment(tmp_path / "none") is None


def test_a_child_that_was_waited_for_is_ones_own() -> None:
    before = moment()
    if before is None:
        pytest.skip("this system keeps no account of its cores in /proc/stat")
    work = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    after = moment()
    assert after is not None
    assert after.own_ns - before.own_ns >= 0.25 * SECOND
    assert after.busy_ns - before.busy_ns >= 0.25 * SECOND


def test_a_tenth_of_the_cores_is_quiet() -> None:
    assert taken_words(None) is None
    assert taken_words(0.2) is None
    assert taken_words(0.74) == "other programs had 0.7 of 2 cores while the profile was measured"
    assert str(taken_words(0.3, "the machine")).endswith("while the machine was measured")


@pytest.mark.parametrize(
    ("cores", "counts", "runs"),
    [
        # the first is quiet
        ((0.1,), 1, 1),
        # until one is
        ((1.0, 0.9, 0.0), 3, 3),
        ((1.0, 0.15), 2, 2),
        # or those in which others had least, however long it took
        ((0.9, 0.4, 0.6), 2, 3),
    ],
)
def test_what_counts_is_decided_by_what_others_did(
    cores: tuple[float, ...], counts: int, runs: int
) -> None:
    made: list[int] = []

    def run() -> int:
        made.append(len(made) + 1)
        return made[-1]

    assert quietly(run, looks(*cores)) == counts
    assert len(made) == runs


def test_where_nothing_tells_once_is_enough() -> None:
    made: list[int] = []
    quietly(lambda: made.append(1), lambda: None)
    assert made == [1]
