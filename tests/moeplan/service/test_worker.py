"""A worker, called as its process calls itself: what it makes is kept, whatever the store does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moeplan.service import work as work_module
from moeplan.service import worker as module
from moeplan.service.errors import StoreFullError
from moeplan.service.store import Job, Store
from moeplan.service.store.documents import Entry
from moeplan.service.worker import Worker, WorkerSettings
from solvers.errors import OptionError

Carry = Callable[..., tuple[list[Entry], str]]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Carry], Job]:
    """Does one job by a function, and tells what became of it."""
    url = f"sqlite:///{tmp_path}/moeplan.db"

    def done(carry_out: Carry) -> Job:
        monkeypatch.setattr("moeplan.service.work.carry_out", carry_out)
        store = Store(url)
        job, _ = store.jobs.submit("plan", {"number": 1}, most_queued=1)
        worker = Worker(WorkerSettings(url))
        claimed = worker._store.jobs.claim("me", lease_seconds=60, most_attempts=3)
        assert claimed is not None
        worker._do(claimed)
        worker._store.close()
        ended = store.jobs.get(job.id)
        store.close()
        assert ended is not None
        return ended

    return done


def made(store: Store, job: Job, tell: Any) -> tuple[list[Entry], str]:
    entry = Entry("comparison", "one", {}, {"of": job.inputs["number"]})
    return [entry], entry.hash


def test_what_was_made_waits_for_room(
    work: Callable[[Carry], Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from moeplan.service.store.jobs import Jobs

    finish, tries, calls = Jobs.finish, iter([True, True, False]), []

    def full_at_first(*arguments: Any) -> bool:
        if next(tries):
            raise StoreFullError("its disk is full")
        return finish(*arguments)

    def once(*arguments: Any) -> tuple[list[Entry], str]:
        calls.append(1)
        return made(*arguments)

    monkeypatch.setattr(Jobs, "finish", full_at_first)
    monkeypatch.setattr(module, "_DATABASE_RETRY_SECONDS", 0.01)
    job = work(once)
    # not failed, not made again
    assert (job.state, job.attempts, len(calls)) == ("done", 1, 1)
    store = Store(f"sqlite:///{tmp_path}/moeplan.db")
    kept = store.documents.kept("comparison", job.result_hash or "")
    store.close()
    assert kept is not None


@pytest.mark.parametrize(
    ("fault", "status", "detail"),
    [
        (OptionError("solver 'x' is unknown"), 422, "solver 'x' is unknown"),
        (
            MemoryError(),
            422,
            "the job needs more memory than a worker has (8192 MiB): ask for less",
        ),
        (ZeroDivisionError(), 500, "a bug in moeplan ended the job: ZeroDivisionError"),
    ],
)
def test_a_fault_fails_its_job_and_says_why(
    work: Callable[[Carry], Job], fault: Exception, status: int, detail: str
) -> None:
    def broken(*_: Any) -> tuple[list[Entry], str]:
        raise fault

    job = work(broken)
    assert job.state == "failed"
    assert job.error is not None
    assert job.error["status"] == status
    assert job.error["detail"].startswith(detail)


def test_a_job_that_was_cancelled_meanwhile_keeps_nothing(
    work: Callable[[Carry], Job], tmp_path: Path
) -> None:
    def cancelled(store: Store, job: Job, tell: Any) -> tuple[list[Entry], str]:
        store.jobs.cancel(job.id)
        return made(store, job, tell)

    assert work(cancelled).state == "cancelled"
    store = Store(f"sqlite:///{tmp_path}/moeplan.db")
    assert list(store.documents.listed("comparison", limit=9)) == []
    store.close()


@pytest.mark.parametrize("ending", ["finish", "fail"])
def test_a_job_that_has_just_ended_is_no_lost_lease(
    work: Callable[[Carry], Job], monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    from moeplan.service.store.jobs import Jobs

    ended: list[int] = []
    end = getattr(Jobs, ending)

    def slowly(*arguments: Any) -> Any:
        answer = end(*arguments)
        time.sleep(0.1)  # the store knows that it is over, and this process does not yet
        return answer

    def told(store: Store, job: Job, tell: Any) -> tuple[list[Entry], str]:
        tell({"stage": "nearly"})
        if ending == "fail":
            raise OptionError("cannot work")
        return made(store, job, tell)

    monkeypatch.setattr(Jobs, ending, slowly)
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(module, "_end", lambda: ended.append(1))
    assert work(told).state == ("done" if ending == "finish" else "failed")
    assert ended == []


def test_reading_the_profile_is_of_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, caps = iter([10.0, 10.75]), []

    def plan_of(*_: Any, cap_seconds: float, **__: Any) -> None:
        caps.append(cap_seconds)
        raise OptionError("enough")

    monkeypatch.setattr(work_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(work_module, "kept_profile", lambda *_: None)
    monkeypatch.setattr(work_module, "plan_of", plan_of)
    inputs = {"profile": "0" * 64, "time_limit_seconds": 2.0}
    with pytest.raises(OptionError, match="enough"):
        work_module.KINDS["plan"](cast(Store, None), inputs, lambda _: None)
    assert caps == [1.25]


def test_a_worker_loads_what_it_needs_before_it_gives_way() -> None:
    code = (
        "import sys\nfrom moeplan.service import worker\n"
        "needed = {'moeplan.service.work', 'planner.solve', 'ortools'}\n"
        "worker._give_way = lambda: sys.exit(sorted(needed - set(sys.modules)) or 0)\n"
        "worker.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=WorkerSettings("sqlite://").to_line(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
