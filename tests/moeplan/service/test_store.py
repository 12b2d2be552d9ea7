"""The store's promises, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from moeplan.service.store import Beat, Job, QueueFullError, Store, StoreError, migrate
from moeplan.service.store.documents import Entry
from moeplan.service.store.tables import METADATA, documents, jobs
from planner.documents import Workload, document_hash, to_json
from solvers.errors import OptionError

WORKLOAD = Workload(requests=4, prompt_tokens=8, new_tokens=2)


def entry(name: str = "one", kind: str = "workload", **body: Any) -> Entry:
    return Entry(kind, name, {"about": name}, body or {"name": name})


def submit(store: Store, number: int = 0, most_queued: int = 100) -> Job:
    return store.jobs.submit("plan", {"number": number}, most_queued=most_queued)[0]


def claim(store: Store, owner: str = "w", seconds: float = 60, most: int = 3) -> Job | None:
    return store.jobs.claim(owner, lease_seconds=seconds, most_attempts=most)


def claimed(store: Store, owner: str = "w", seconds: float = 60) -> Job:
    job = claim(store, owner, seconds)
    assert job is not None
    return job


def test_the_migrations_make_the_tables_that_the_code_uses(store: Store) -> None:
    with store.database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    migrate(store.database)  # a second time: nothing to do


def test_a_store_of_a_newer_version_is_refused(store: Store) -> None:
    with store.database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer moeplan"):
        migrate(store.database)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("nonsense", "cannot be read"),
        ("mysql://u:secret@h/d", r"mysql://u:\*\*\*@h/d is neither"),
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
    ],
)
def test_other_urls_are_refused_without_their_password(url: str, part: str) -> None:
    with pytest.raises(OptionError, match=part):
        Store(url)


def test_a_store_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be used: unable to open database file$"):
        Store(f"sqlite:///{tmp_path}/missing/moeplan.db")


def test_a_document_is_kept_under_its_hash(store: Store) -> None:
    body = to_json(WORKLOAD)
    kept = store.documents.put([Entry("workload", "w", {"requests": 4}, body)])
    assert kept == [(document_hash(WORKLOAD), True)]
    digest = kept[0][0]
    assert hashlib.sha256(store.documents.get("workload", digest) or b"").hexdigest() == digest
    assert store.documents.get("plan", digest) is None
    assert store.documents.get("workload", "0" * 64) is None
    about = store.documents.kept("workload", digest)
    assert about is not None
    assert (about.name, about.summary) == ("w", {"requests": 4})


def test_the_same_document_twice_is_one(store: Store) -> None:
    first, second = (store.documents.put([entry()], [b"blob"]) for _ in range(2))
    assert (first[0][1], second[0][1]) == (True, False)
    assert first[0][0] == second[0][0]
    assert store.documents.counts() == {"workload": 1}
    assert store.documents.blob(hashlib.sha256(b"blob").hexdigest()) == b"blob"


def test_a_damaged_document_is_not_given_out(store: Store) -> None:
    ((digest, _),) = store.documents.put([entry()])
    with store.database.write() as connection:
        connection.execute(sa.update(documents).values(body=b'{"name":"two"}'))
    with pytest.raises(StoreError, match="is damaged"):
        store.documents.get("workload", digest)


def test_documents_are_put_all_or_none(store: Store) -> None:
    # the second has no name, which the table refuses
    bad = Entry("workload", None, {}, {"name": "bad"})  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        store.documents.put([entry(), bad])
    assert store.documents.counts() == {}


def test_lists_go_on_where_they_ended_and_can_be_searched(store: Store) -> None:
    hashes = [store.documents.put([entry(f"Model {i}_%", i=i)])[0][0] for i in range(5)]
    first = store.documents.listed("workload", limit=2)
    rest = store.documents.listed("workload", limit=9, after=first[-1].hash)
    assert [one.hash for one in first + rest] == hashes[::-1]
    assert [one.name for one in store.documents.listed("workload", search="model 3")] == [
        "Model 3_%"
    ]
    assert len(store.documents.listed("workload", search="_%")) == 5
    assert store.documents.listed("workload", search="3%") == []
    assert store.documents.listed("workload", after="0" * 64) == []


def test_the_same_inputs_are_the_same_job(store: Store) -> None:
    job, new = store.jobs.submit("plan", {"a": 1, "b": 2}, most_queued=9)
    again, again_new = store.jobs.submit("plan", {"b": 2, "a": 1}, most_queued=9)
    assert (job.id, new, again_new) == (again.id, True, False)
    assert submit(store, 7).id != job.id
    assert store.jobs.counts()["queued"] == 2


def test_a_full_queue_is_refused_but_not_what_is_in_it(store: Store) -> None:
    first = submit(store, 0, most_queued=1)
    with pytest.raises(QueueFullError, match="1 job in the queue"):
        submit(store, 1, most_queued=1)
    assert submit(store, 0, most_queued=1) == first


def test_a_job_from_queue_to_result(store: Store) -> None:
    submit(store, 0)
    submit(store, 1)
    job = claimed(store)
    assert (job.inputs, job.state, job.attempts) == ({"number": 0}, "running", 1)
    assert store.jobs.beat(job, lease_seconds=60, progress={"bound": 3}) is Beat.GO_ON
    seen = store.jobs.get(job.id)
    assert seen is not None
    assert (seen.progress, seen.changes) == ({"bound": 3}, job.changes + 1)
    made = entry("made")
    assert store.jobs.finish(job, [made], made.hash)
    done = store.jobs.get(job.id)
    assert done is not None
    assert (done.state, done.result_hash, done.owner) == ("done", made.hash, None)
    assert store.documents.get("workload", made.hash) == made.data
    assert [one.inputs["number"] for one in store.jobs.listed()] == [1, 0]
    assert [one.id for one in store.jobs.listed(state="done")] == [job.id]
    assert [one.id for one in store.jobs.listed(after=store.jobs.listed()[0].id)] == [job.id]


def test_a_job_ends_once(store: Store) -> None:
    submit(store)
    slow = claimed(store, "slow", seconds=-1)  # its lease is over as it begins
    quick = claimed(store, "quick")
    assert (quick.id, quick.attempts) == (slow.id, 2)
    late, right = entry("late"), entry("right")
    assert not store.jobs.finish(slow, [late], late.hash)
    assert store.jobs.beat(slow, lease_seconds=60) is Beat.LOST
    assert not store.jobs.fail(slow, {"status": 500})
    assert not store.jobs.release(slow)
    assert store.jobs.finish(quick, [right], right.hash)
    assert not store.jobs.finish(quick, [late], late.hash)
    assert store.documents.get("workload", late.hash) is None


def test_a_lease_that_is_renewed_is_not_taken(store: Store) -> None:
    submit(store)
    job = claimed(store, seconds=-1)
    assert store.jobs.beat(job, lease_seconds=60) is Beat.GO_ON
    assert claim(store, "other") is None


def test_a_job_that_kills_its_workers_is_failed_in_the_end(store: Store) -> None:
    submit(store)
    for _ in range(3):
        claimed(store, seconds=-1)
    assert claim(store) is None
    (job,) = store.jobs.listed()
    assert job.state == "failed"
    assert job.error is not None
    assert "died 3 times" in job.error["detail"]
    assert submit(store).state == "queued"  # it was no fault of its inputs


def test_a_job_that_was_given_back_counts_no_attempt(store: Store) -> None:
    submit(store)
    job = claimed(store)
    assert store.jobs.release(job)
    again = claimed(store)
    assert again.attempts == 1
    assert store.jobs.beat(job, lease_seconds=60) is Beat.LOST


@pytest.mark.parametrize(("status", "state"), [(422, "failed"), (503, "queued")])
def test_a_failed_job_is_tried_again_only_where_its_inputs_are_not_to_blame(
    store: Store, status: int, state: str
) -> None:
    submit(store)
    assert store.jobs.fail(claimed(store), {"status": status})
    assert submit(store).state == state


def test_cancelling(store: Store) -> None:
    waiting = submit(store, 0)
    cancelled = store.jobs.cancel(waiting.id)
    assert cancelled is not None
    assert cancelled.state == "cancelled"
    submit(store, 1)
    job = claimed(store)
    told = store.jobs.cancel(job.id)
    assert told is not None
    assert (told.state, told.cancel) == ("running", True)
    assert store.jobs.beat(job, lease_seconds=60) is Beat.CANCEL
    made = entry("too late")
    assert not store.jobs.finish(job, [made], made.hash)
    assert store.jobs.confirm_cancel(job)
    assert store.jobs.cancel("0" * 64) is None
    assert submit(store, 1).state == "queued"


def test_a_cancelled_job_whose_worker_died_is_not_taken_up(store: Store) -> None:
    job = submit(store)
    claimed(store, seconds=-1)
    store.jobs.cancel(job.id)
    assert claim(store) is None
    assert store.jobs.counts()["cancelled"] == 1


def at_once(work: Callable[[int], None], threads: int) -> None:
    pool = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()


def test_many_workers_take_each_job_once(store_url: str) -> None:
    # each thread has a store of its own, as another process would
    stores = [Store(store_url) for _ in range(4)]
    taken: list[str] = []

    def work(index: int) -> None:
        own = stores[index]
        for number in range(12):
            submit(own, number)
        while (job := claim(own, f"w{index}")) is not None:
            taken.append(job.id)
            time.sleep(0.001)
            made = entry(job.id)
            assert own.jobs.finish(job, [made], made.hash)

    at_once(work, len(stores))
    assert sorted(taken) == sorted(set(taken))
    assert stores[0].jobs.counts()["done"] == len(taken) == 12
    for one in stores:
        one.close()


def test_several_can_open_a_new_store_at_once(store_url: str) -> None:
    opened: list[Store] = []
    at_once(lambda _: opened.append(Store(store_url)), 4)
    assert len(opened) == 4
    for one in opened:
        one.close()


def test_the_database_itself_refuses_an_impossible_job(store: Store) -> None:
    submit(store)
    for values in ({"state": "done"}, {"state": "running"}, {"state": "odd"}):
        with pytest.raises(StoreError), store.database.write() as connection:
            connection.execute(sa.update(jobs).values(**values))


def test_tokens(store: Store) -> None:
    assert not store.tokens.any_valid()
    token, text = store.tokens.create("laptop")
    assert store.tokens.valid(text)
    other = text[:-1] + ("0" if text[-1] != "0" else "1")
    for wrong in (other, "", "moeplan", f"moeplan_{token.id}", "moeplan__", text + "é", text[8:]):
        assert not store.tokens.valid(wrong)
    with store.database.read() as connection:
        rows = connection.execute(sa.text("SELECT * FROM tokens")).all()
    assert text.rpartition("_")[2] not in str(rows)
    assert store.tokens.any_valid()
    assert store.tokens.revoke(token.id)
    assert not store.tokens.revoke(token.id)
    assert not store.tokens.valid(text)
    assert not store.tokens.any_valid()
    assert [one.name for one in store.tokens.listed()] == ["laptop"]


@pytest.mark.parametrize("before", ["none", "queued", "running", "failed by the machine"])
def test_what_was_made_outside_the_queue_is_the_end_of_its_job(store: Store, before: str) -> None:
    running = None
    if before != "none":
        submit(store)
    if before in ("running", "failed by the machine"):
        running = claimed(store)
    if before == "failed by the machine":
        assert store.jobs.fail(running, {"status": 500})  # type: ignore[arg-type]
    made = entry("made")
    inputs = {"number": 0}
    assert store.jobs.settle("plan", inputs, [made], result_hash=made.hash)
    job, new = store.jobs.submit("plan", inputs, most_queued=100)
    assert (job.state, job.result_hash, job.owner, new) == ("done", made.hash, None, False)
    assert store.documents.get("workload", made.hash) == made.data
    if running is not None:
        # its worker has lost it
        assert store.jobs.beat(running, lease_seconds=60) is Beat.LOST
        assert not store.jobs.finish(running, [entry("late")], entry("late").hash)
    # what has ended stays as it is
    other = entry("other")
    assert not store.jobs.settle("plan", inputs, [other], result_hash=other.hash)
    assert store.documents.get("workload", other.hash) is None


def test_a_refusal_is_kept_and_a_fault_of_the_machine_is_tried_again(store: Store) -> None:
    assert store.jobs.settle("plan", {"number": 1}, error={"status": 422})
    assert not store.jobs.settle("plan", {"number": 1}, error={"status": 422})
    assert store.jobs.settle("plan", {"number": 2}, error={"status": 500})
    assert submit(store, 1).state == "failed"
    assert submit(store, 2).state == "queued"
