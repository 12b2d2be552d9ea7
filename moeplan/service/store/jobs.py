"""Jobs: a queue in the database, with leases.

A worker holds a job by a lease that it renews; one that does not come back loses it, and another
worker takes the job up. Every change of a running job is a compare-and-set on owner and attempt,
so that a worker that was thought dead changes nothing and a job ends once.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, cast

import sqlalchemy as sa

from moeplan.service.errors import QueueFullError, StoreError
from moeplan.service.store.database import Database, page
from moeplan.service.store.documents import Documents, Entry
from moeplan.service.store.tables import STATES, jobs
from planner.documents import canonical_json
from solvers.counting import counted

__all__ = ["Beat", "Job", "Jobs", "State", "job_id"]

State = Literal["queued", "running", "done", "failed", "cancelled"]


class Beat(Enum):
    """What a worker learns when it renews its lease."""

    GO_ON = "go on"
    CANCEL = "cancel"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes
    ----------
    id
        Hash of kind and inputs: the same inputs are the same job.
    inputs, progress, error
        Plain JSON values; ``error`` is a problem document.
    changes
        Rises with every change that a watcher would want to see.
    attempts
        How many workers have taken it up.
    """

    id: str
    kind: str
    inputs: dict[str, Any]
    state: State
    created_at: float
    started_at: float | None
    finished_at: float | None
    changes: int
    attempts: int
    owner: str | None
    lease_until: float | None
    cancel: bool
    progress: dict[str, Any] | None
    result_hash: str | None
    error: dict[str, Any] | None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state not in ("queued", "running")


def job_id(kind: str, inputs: dict[str, Any]) -> str:
    """SHA-256 (64 hex digits) of what is to be done."""
    return hashlib.sha256(canonical_json({"kind": kind, "inputs": inputs}).encode()).hexdigest()


class Jobs:
    """Jobs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._documents = Documents(database)

    def submit(self, kind: str, inputs: dict[str, Any], *, most_queued: int) -> tuple[Job, bool]:
        """The job of these inputs, and whether it was put into the queue just now.

        One that was cancelled, or failed for a reason that lies not in its inputs, is put there
        again.

        Raises
        ------
        QueueFullError
            If ``most_queued`` jobs wait already.
        """
        identity = job_id(kind, inputs)
        with self._database.write() as connection:
            now = self._database.now(connection)
            found = self._row(connection, identity, lock=True)
            if found is not None and not _again(found):
                return found, False
            waiting = connection.execute(
                sa.select(sa.func.count()).where(jobs.c.state == "queued")
            ).scalar_one()
            if waiting >= most_queued:
                raise QueueFullError(
                    f"{counted(waiting, 'job')} in the queue already; come again when some are done"
                )
            if found is None:
                row = {**_FRESH, "kind": kind, "inputs": canonical_json(inputs), "changes": 1}
                new = self._database.insert_new(
                    connection, jobs, {**row, "id": identity, "created_at": now}
                )
            else:
                new = True
                connection.execute(
                    _at(identity).values(**_FRESH, created_at=now, changes=jobs.c.changes + 1)
                )
            made = self._row(connection, identity)
        if made is None:
            raise StoreError(f"job {identity} was deleted by another program")
        return made, new

    def settle(
        self,
        kind: str,
        inputs: dict[str, Any],
        entries: Sequence[Entry] = (),
        *,
        result_hash: str | None = None,
        error: dict[str, Any] | None = None,
    ) -> bool:
        """Keep what somebody made outside of the queue, as the end of the job of these inputs.

        Parameters
        ----------
        entries, result_hash
            As of ``finish``; without a result, ``error`` says why there is none.

        Returns
        -------
        bool
            False, and nothing is kept, where the job has ended already and is not worth a new try.
            One that waits or runs ends by this; its worker has lost it.
        """
        identity = job_id(kind, inputs)
        state = "failed" if result_hash is None else "done"
        told = None if error is None else canonical_json(error)
        with self._database.write() as connection:
            now = self._database.now(connection)
            ended = {**_FRESH, "state": state, "result_hash": result_hash, "error": told}
            ended |= {"started_at": now, "finished_at": now}
            row = {**ended, "id": identity, "kind": kind, "inputs": canonical_json(inputs)}
            row |= {"changes": 1, "created_at": now}
            if not self._database.insert_new(connection, jobs, row):
                found = self._row(connection, identity, lock=True)
                if found is None or (found.ended and not _again(found)):
                    return False
                changed = _at(identity).values(**ended, changes=jobs.c.changes + 1)
                connection.execute(changed)
            self._documents.put_within(connection, entries, now)
        return True

    def get(self, identity: str) -> Job | None:
        """One job; None where there is none."""
        with self._database.read() as connection:
            return self._row(connection, identity)

    def listed(
        self, *, limit: int = 50, after: str | None = None, state: State | None = None
    ) -> list[Job]:
        """Jobs, the newest first; ``after`` as for documents."""
        statement = sa.select(jobs)
        if state is not None:
            statement = statement.where(jobs.c.state == state)
        statement = page(statement, jobs.c.created_at, jobs.c.id, limit=limit, after=after)
        with self._database.read() as connection:
            return [_job(row) for row in connection.execute(statement)]

    def counts(self) -> dict[str, int]:
        """State -> number of jobs, all states included."""
        statement = sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state)
        with self._database.read() as connection:
            found = {row[0]: row[1] for row in connection.execute(statement)}
        return {state: found.get(state, 0) for state in STATES}

    def claim(self, owner: str, *, lease_seconds: float, most_attempts: int) -> Job | None:
        """Take the oldest job that waits, or whose worker is gone; None where there is none.

        A job whose workers died ``most_attempts`` times is failed instead: it may be what kills
        them.
        """
        while True:
            with self._database.write() as connection:
                now = self._database.now(connection)
                free = sa.or_(
                    jobs.c.state == "queued",
                    sa.and_(jobs.c.state == "running", jobs.c.lease_until < now),
                )
                statement = (
                    sa.select(jobs).where(free).order_by(jobs.c.created_at, jobs.c.id).limit(1)
                )
                row = connection.execute(statement.with_for_update(skip_locked=True)).one_or_none()
                if row is None:
                    return None
                job = _job(row)
                changed = jobs.c.changes + 1
                if job.cancel:
                    values: dict[str, Any] = {**_OVER, "state": "cancelled", "finished_at": now}
                elif job.attempts >= most_attempts:
                    error = _died(job.attempts)
                    values = {**_OVER, "state": "failed", "finished_at": now, "error": error}
                else:
                    values = {
                        "state": "running",
                        # no two claims are alike, not even of one worker
                        "owner": f"{owner[:50]}/{secrets.token_hex(6)}",
                        "lease_until": now + lease_seconds,
                        "attempts": jobs.c.attempts + 1,
                        "started_at": now,
                        "progress": None,
                    }
                connection.execute(_at(job.id).values(**values, changes=changed))
                if values["state"] == "running":
                    return self._row(connection, job.id)

    def beat(
        self, job: Job, *, lease_seconds: float, progress: dict[str, Any] | None = None
    ) -> Beat:
        """Renew the lease of a job that was claimed, and tell of its progress."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            values: dict[str, Any] = {"lease_until": now + lease_seconds}
            if progress is not None:
                values |= {"progress": canonical_json(progress), "changes": jobs.c.changes + 1}
            if not self._database.changed(connection, _held(job).values(**values)):
                return Beat.LOST
            found = self._row(connection, job.id)
        return Beat.CANCEL if found is not None and found.cancel else Beat.GO_ON

    def finish(self, job: Job, entries: Sequence[Entry], result_hash: str) -> bool:
        """Keep a job's documents and mark it done, all or nothing.

        Returns
        -------
        bool
            False, and nothing is kept, where the lease was lost or the job is to be cancelled.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            values = {**_OVER, "state": "done", "finished_at": now, "result_hash": result_hash}
            done = _held(job).where(sa.not_(jobs.c.cancel))
            done = done.values(**values, changes=jobs.c.changes + 1)
            if not self._database.changed(connection, done):
                return False
            self._documents.put_within(connection, entries, now)
        return True

    def fail(self, job: Job, error: dict[str, Any]) -> bool:
        """Mark a job failed with a problem document; False where the lease was lost."""
        return self._end(job, {"state": "failed", "error": canonical_json(error)})

    def confirm_cancel(self, job: Job) -> bool:
        """Mark a job cancelled that its worker has given up; False where the lease was lost."""
        return self._end(job, {"state": "cancelled"})

    def _end(self, job: Job, values: dict[str, Any]) -> bool:
        with self._database.write() as connection:
            now = self._database.now(connection)
            ended = _held(job).values(
                **_OVER, **values, finished_at=now, changes=jobs.c.changes + 1
            )
            return self._database.changed(connection, ended)

    def release(self, job: Job) -> bool:
        """Give a job back that was claimed, as if it had never been; False where it was lost."""
        with self._database.write() as connection:
            values = {**_OVER, "state": "queued", "attempts": jobs.c.attempts - 1}
            given = _held(job).values(
                **values, progress=None, started_at=None, changes=jobs.c.changes + 1
            )
            return self._database.changed(connection, given)

    def cancel(self, identity: str) -> Job | None:
        """Cancel a job: at once while it waits, else by its worker. None where there is none; one
        that has ended stays as it is."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            found = self._row(connection, identity, lock=True)
            if found is None or found.ended:
                return found
            values: dict[str, Any] = {"cancel": True, "changes": jobs.c.changes + 1}
            if found.state == "queued":
                values |= {"state": "cancelled", "finished_at": now}
            connection.execute(_at(identity).values(**values))
            return self._row(connection, identity)

    def _row(self, connection: sa.Connection, identity: str, *, lock: bool = False) -> Job | None:
        statement = sa.select(jobs).where(jobs.c.id == identity)
        if lock:
            statement = statement.with_for_update()
        row = connection.execute(statement).one_or_none()
        return None if row is None else _job(row)


_OVER: dict[str, Any] = {"owner": None, "lease_until": None}
_FRESH: dict[str, Any] = {
    **_OVER,
    "state": "queued",
    "started_at": None,
    "finished_at": None,
    "attempts": 0,
    "cancel": False,
    "progress": None,
    "result_hash": None,
    "error": None,
}


def _again(job: Job) -> bool:
    """Whether a job is worth another try."""
    if job.state == "failed":
        return bool((job.error or {}).get("status", 500) >= 500)
    return job.state == "cancelled"


def _died(attempts: int) -> str:
    return canonical_json(
        {
            "type": "about:blank",
            "title": "Worker died",
            "status": 500,
            "detail": f"its worker died {attempts} times; the job may need more memory than a "
            "worker has: try a smaller one",
        }
    )


def _at(identity: str) -> sa.Update:
    return sa.update(jobs).where(jobs.c.id == identity)


def _held(job: Job) -> sa.Update:
    """An update that takes place only while the claim that made ``job`` holds."""
    return _at(job.id).where(
        jobs.c.state == "running", jobs.c.owner == job.owner, jobs.c.attempts == job.attempts
    )


def _job(row: Any) -> Job:
    values = dict(row._mapping)
    for name in ("inputs", "progress", "error"):
        values[name] = None if values[name] is None else json.loads(values[name])
    values["cancel"] = bool(values["cancel"])
    values["state"] = cast(State, values["state"])
    return Job(**values)
