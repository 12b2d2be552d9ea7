"""kill -9 of servers and workers at random moments; what a worker does when told to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moeplan.client import Client
from moeplan.service.store import Store
from planner.profiles import load_profile


def test_no_job_is_lost_or_done_twice_when_servers_and_workers_are_killed(
    benchmark: Any, profile_folder: Path, tmp_path: Path
) -> None:
    # among the first eight of this seed are kills of the server, too
    report = benchmark.survive_kills(
        load_profile(profile_folder),
        f"sqlite:///{tmp_path / 'moeplan.db'}",
        tmp_path,
        kills=8,
        seed=10,
        pause=0.4,
        memory_bytes=1_500_000,
    )
    assert report.faults == []
    assert report.servers + report.workers == 8
    assert report.servers >= 1
    assert report.jobs == report.done == report.results


def test_a_server_that_is_ended_gives_its_job_back(
    benchmark: Any,
    profile_folder: Path,
    long_comparison: Callable[[str], dict[str, Any]],
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'moeplan.db'}"
    running = benchmark.serving(url, tmp_path / "log", "--lease", 600)
    with running as server, Client(server.url) as client:
        profile = client.upload_profile(load_profile(profile_folder))
        job = client.ask("compare", **long_comparison(profile))
        while client.job(job.id).state != "running":
            time.sleep(0.05)
        workers = server.workers()
    # its lease would have kept it for ten minutes
    store = Store(url)
    given = store.jobs.get(job.id)
    store.close()
    assert given is not None
    assert (given.state, given.attempts) == ("queued", 0)
    assert workers
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
