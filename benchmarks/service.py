"""The service under load and under kill -9.

    python benchmarks/service.py [--clients 50] [--seconds 20] [--pause 0.25] [--kills 100]
        [--seed 0] [--store URL]

``load``: so many clients read plans, explanations, lists and jobs at once, each after a pause of
that many seconds on average (0: as fast as it can), while two searches run; all on this machine,
the clients too. Printed are the quantiles of the time to answer.

``kills``: a server with two workers is given comparisons to make, and the server or a worker is
killed at random moments; a killed server is started again on the same store. Then every job must be
done, once: a comparison holds how long it took, so that one that was made twice would be kept
twice. Every document must be what its hash says, and every plan be readable.

Writes benchmarks/results/service.json; what is not measured this time keeps its older figures.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.record import Record
from benchmarks.servers import Server, profile, serving
from benchmarks.writing import write_result
from moeplan.client import Client
from moeplan.service.store import Store
from planner.documents import Plan, parse_document
from planner.objectives import OBJECTIVES
from planner.profiles import Profile
from solvers.errors import RunError

RESULTS = Path(__file__).parent / "results"
WORKLOAD = {"requests": 8, "prompt_tokens": 32, "new_tokens": 8}
MEMORY_BYTES = 200 << 20
_JOBS_EACH = 1
"""Asked for before each kill."""
_START_SECONDS = 60.0
_STILL_SECONDS = 120.0
"""Without any job's end for so long, jobs are lost."""


@dataclass(frozen=True)
class KillReport:
    """What was survived.

    Attributes
    ----------
    servers, workers
        How many of each were killed.
    jobs, done
        Jobs that were accepted, and that are done.
    results
        Comparisons in the store; one more than jobs would be a job done twice.
    documents
        Documents that are what their hashes say.
    faults
        What is wrong; empty where nothing is.
    seconds
        Of everything.
    """

    servers: int
    workers: int
    jobs: int
    done: int
    results: int
    documents: int
    faults: list[str]
    seconds: float


def survive_kills(
    made: Profile,
    store_url: str,
    folder: Path,
    *,
    kills: int,
    seed: int,
    pause: float = 1.0,
    memory_bytes: int = MEMORY_BYTES,
) -> KillReport:
    """Kill servers and workers; see the module.

    Parameters
    ----------
    made
        What is planned for.
    store_url, folder
        An empty store, and a folder for the log.
    kills, seed
        How many, and of the choice of victims and moments.
    pause
        The longest time between two kills, in seconds.
    memory_bytes
        Budget of the plans.
    """
    rng = random.Random(seed)
    options = ("--workers", 2, "--lease", 1.5, "--attempts", 1000, "--queue", 10_000)
    started = time.monotonic()
    killed = {"server": 0, "worker": 0}
    accepted: list[str] = []
    log = folder / "log"
    while sum(killed.values()) < kills:
        with serving(store_url, log, *options) as server:
            while sum(killed.values()) < kills:
                _submit(server, made, accepted, memory_bytes)
                time.sleep(rng.uniform(0.05, pause))
                if rng.random() < 0.25:
                    server.kill()
                    killed["server"] += 1
                    break
                killed["worker"] += _kill(_worker(server, rng))
    with serving(store_url, log, *options) as server:
        _wait(server)
    store = Store(store_url)
    try:
        return _judge(store, accepted, killed, time.monotonic() - started)
    finally:
        store.close()


def _submit(server: Server, made: Profile, accepted: list[str], memory_bytes: int) -> None:
    with Client(server.url) as client:
        digest = client.upload_profile(made)
        for _ in range(_JOBS_EACH):
            job = client.ask(
                "compare",
                profile=digest,
                memory_bytes=memory_bytes,
                workload=WORKLOAD,
                solvers=["lru"],
                seed=len(accepted),
            )
            accepted.append(job.id)


def _worker(server: Server, rng: random.Random) -> int:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        found = server.workers()
        if found:
            return rng.choice(found)
        time.sleep(0.05)
    raise RuntimeError("the server started no worker")


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _wait(server: Server) -> None:
    """Until no job waits or runs, or nothing has ended for long."""
    with Client(server.url) as client:
        changed, before = time.monotonic(), -1
        while time.monotonic() - changed < _STILL_SECONDS:
            left = sum(
                len(client.get("jobs", state=state, limit=200)["items"])
                for state in ("queued", "running")
            )
            if not left:
                return
            if left != before:
                changed, before = time.monotonic(), left
            time.sleep(0.3)


def _judge(store: Store, accepted: list[str], killed: dict[str, int], seconds: float) -> KillReport:
    faults: list[str] = []
    done, results = 0, set()
    for identity in accepted:
        job = store.jobs.get(identity)
        if job is None:
            faults.append(f"job {identity} is lost")
        elif job.state != "done" or job.result_hash is None:
            faults.append(f"job {identity} is {job.state}: {job.error}")
        else:
            done += 1
            results.add(job.result_hash)
    sound = 0
    for kind in store.documents.counts():
        after = None
        while page := store.documents.listed(kind, limit=200, after=after):
            for kept in page:
                body = store.documents.get(kind, kept.hash)  # raises where it is damaged
                if kind == "plan":
                    parse_document(Plan, json.loads(body or b""), kept.hash)
                sound += 1
            after = page[-1].hash
    kept_results = store.documents.counts().get("comparison", 0)
    if kept_results != len(results):
        faults.append(f"{kept_results} comparisons of {len(results)} jobs")
    return KillReport(
        killed["server"],
        killed["worker"],
        len(set(accepted)),
        done,
        kept_results,
        sound,
        faults,
        seconds,
    )


async def _client(
    host: str, port: int, paths: list[str], pause: float, until: float, seed: int, out: list[float]
) -> None:
    """One reader with one connection; little more than the sockets, since it shares the cores."""
    rng = random.Random(seed)
    reader, writer = await asyncio.open_connection(host, port)
    await asyncio.sleep(rng.uniform(0, pause))
    while time.monotonic() < until:
        path = rng.choice(paths)
        started = time.perf_counter()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(one.split(":")[1]) for one in lines if one.startswith("content-length:"))
        await reader.readexactly(length)
        out.append(time.perf_counter() - started)
        if " 200 " not in lines[0]:
            raise RuntimeError(f"{path}: {lines[0]}")
        await asyncio.sleep(rng.uniform(0, 2 * pause))
    writer.close()


def measure_load(
    made: Profile, store_url: str, folder: Path, *, clients: int, seconds: float, pause: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Times to answer, in seconds, while two searches run."""
    with serving(store_url, folder / "log", "--workers", 2) as server, Client(server.url) as client:
        digest = client.upload_profile(made)
        plans = []
        for seed in range(4):
            job = client.ask(
                "compare",
                profile=digest,
                memory_bytes=MEMORY_BYTES,
                workload=WORKLOAD,
                solvers=["lru", "lifo"],
                seed=seed,
            )
            compared = client.get(f"compare/{client.wait(job.id).result}")
            plans += [row["plan"] for row in compared["rows"]]
        searches = [
            client.ask(
                "compare",
                profile=digest,
                memory_bytes=MEMORY_BYTES,
                workload={**WORKLOAD, "requests": 1024},
                solvers=["cpsat", "milp"],
                objectives=list(OBJECTIVES),
                time_limit_seconds=600.0,
                seed=seed,
            ).id
            for seed in range(2)
        ]
        while any(client.job(one).state == "queued" for one in searches):
            time.sleep(0.2)
        paths = ["/v1/plans?limit=20", "/v1/jobs?limit=20", f"/v1/jobs/{searches[0]}"]
        paths += [f"/v1/profiles/{digest}", "/v1/plans?search=lru"]
        paths += [f"/v1/plans/{one}{part}" for one in plans for part in ("", "/explanation")]
        host, _, port = server.url.removeprefix("http://").partition(":")
        times: list[float] = []

        async def all_clients() -> None:
            until = time.monotonic() + seconds
            readers = (
                _client(host, int(port), paths, pause, until, seed, times)
                for seed in range(clients)
            )
            await asyncio.gather(*readers)

        thread = threading.Thread(target=lambda: asyncio.run(all_clients()))
        thread.start()
        thread.join()
        running = [client.job(one).state for one in searches]
        if running != ["running"] * 2:
            raise RunError(f"the searches ended before the clients: {running}")
        for one in searches:
            client.cancel(one)
    return np.array(times)


def _keep(out: Path, part: str, record: Record, figures: dict[str, Any]) -> None:
    """One part's figures beside the other's."""
    body = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    about = record.about()
    body["about"] = about
    body[part] = {"about": about, **figures}
    write_result(out, body)


def main() -> int:
    """The program."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--clients", type=int, default=50, help="readers at once; 0: no load")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they read")
    parser.add_argument("--pause", type=float, default=0.25, help="mean seconds between reads")
    parser.add_argument("--kills", type=int, default=0, help="how often to kill; 0: not")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", help="URL of an empty store (a SQLite file)")
    parser.add_argument("--out", type=Path, default=RESULTS / "service.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.clients:
            record = Record.begin(seeds=range(asked.clients), budget=f"{asked.seconds:g} s")
            url = f"sqlite:///{folder / 'load.db'}"
            times = 1e3 * measure_load(
                profile(folder, 12, 512, MEMORY_BYTES),
                url,
                folder,
                clients=asked.clients,
                seconds=asked.seconds,
                pause=asked.pause,
            )
            p50, p95, p99 = np.quantile(times, (0.5, 0.95, 0.99))
            print(
                f"{asked.clients} clients, {asked.seconds:g} s, pause {asked.pause:g} s, 2 "
                "searches: "
                f"{len(times)} reads, {len(times) / asked.seconds:.0f}/s; median {p50:.1f} ms, "
                f"p95 {p95:.1f} ms, p99 {p99:.1f} ms, most {times.max():.1f} ms"
            )
            load = {
                "clients": asked.clients,
                "pause_seconds": asked.pause,
                "searches": 2,
                "reads": len(times),
                "reads_per_second": len(times) / asked.seconds,
                "median_ms": p50,
                "p95_ms": p95,
                "p99_ms": p99,
                "most_ms": times.max(),
            }
            _keep(asked.out, "load", record, load)
        if not asked.kills:
            return 0
        record = Record.begin(seeds=(asked.seed,), budget=f"{asked.kills} kills")
        url = asked.store or f"sqlite:///{folder / 'kills.db'}"
        report = survive_kills(
            profile(folder, 2, 128, MEMORY_BYTES), url, folder, kills=asked.kills, seed=asked.seed
        )
    print(
        f"killed {report.servers} servers and {report.workers} workers in {report.seconds:.0f} s: "
        f"{report.done} of {report.jobs} jobs done, {report.results} results, {report.documents} "
        "documents are what their hashes say"
    )
    _keep(asked.out, "kills", record, asdict(report))
    for fault in report.faults:
        print(f"FAULT: {fault}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
