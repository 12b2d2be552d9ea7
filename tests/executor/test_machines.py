"""One placement on several machines: launchers that find each other, agree, and end together.

Machines are groups of processes of this one, which reach each other by the loopback interface.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from executor.backends import make_backend
from executor.memory import CpuBackend
from executor.parallel import Machines, ParallelEngine, group, link, meeting, worker
from executor.parallel.exchange import Exchange, now_ns
from executor.parallel.follower import Follower
from executor.parallel.group import RankProcesses
from executor.parallel.leader import _GRACE_SECONDS, Leader
from executor.parallel.link import Link, interface_of
from executor.parallel.meeting import GROUP_BACKENDS, rank_backend
from planner.documents import ExpertPlacement, write_document
from planner.documents.placement import BalanceFigures, LayerPlacement
from solvers.errors import (
    BudgetError,
    InputError,
    MoeplanError,
    OptionError,
    RunError,
    StaleError,
    UnsupportedError,
)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pycode-moe"
FIGURES = BalanceFigures(1.0, 1.0, 1.0, 1)
CAUSES = [
    UnsupportedError("no GPU here"),
    BudgetError("no GPU here has 7 bytes", 7),
    StaleError("store", "no GPU here has this store"),
]
PROMPTS = [[5, 9, 11, 200, 7], [100], [30, 31, 32]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def placement() -> ExpertPlacement:
    """The example's 8 layers of 16 experts on 3 devices by turns."""
    layer = tuple((expert % 3,) for expert in range(16))
    return ExpertPlacement(
        method="by hand",
        devices=3,
        nodes=1,
        replicas=0,
        experts=16,
        layers=tuple(LayerPlacement(index, layer) for index in range(8)),
        routing_hash="0" * 64,
        routing_source="synthetic",
        drawn="by hand",
        fitted=FIGURES,
        held_out=FIGURES,
        bound=0.0,
        gap=1.0,
        stop="rule",
    )


def machine(port: int, number: int, wait_seconds: float = 60.0, count: int = 2) -> Machines:
    return Machines(count, number, "127.0.0.1", port, wait_seconds=wait_seconds)


# --- real launchers -------------------------------------------------------------------------------


@contextmanager
def launched(folder: Path, placement: ExpertPlacement, port: int) -> Iterator[Any]:
    """The second machine as a command in a session of its own."""
    file = folder / "placement.json"
    write_document(placement, file)
    command = [sys.executable, "-m", "moeplan", "parallel", str(EXAMPLE), "--placement", str(file)]
    command += ["--nodes", "2", "--node-rank", "1", "--coordinator", f"127.0.0.1:{port}", "--json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "GOMP_SPINCOUNT": "0"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_tokens_of_two_machines_are_those_of_one_and_a_death_ends_both(
    placement: ExpertPlacement, tmp_path: Path, helpers: Any
) -> None:
    port = free_port()
    with (
        launched(tmp_path, placement, port) as other,
        ParallelEngine(EXAMPLE, placement, machines=machine(port, 0, 120.0)) as engine,
    ):
        run = engine.generate(PROMPTS, 4)
        assert list(run.token_ids) == list(map(tuple, helpers.greedy(EXAMPLE, PROMPTS, 4)))
        assert [rank.rank for rank in run.ranks] == [0, 1, 2]
        assert all(rank.rows_sent > 0 for rank in run.ranks)

        # the other machine's launcher is lost in the middle of another run
        died: list[bool] = []

        def end(*_: int) -> None:
            if not died:
                died.append(True)
                os.killpg(other.pid, signal.SIGKILL)

        with pytest.raises(RunError, match="machine 1 of 2 has gone") as caught:
            engine.generate(PROMPTS, 900, progress=end)
        assert len(str(caught.value).splitlines()) == 1


# --- launchers without ranks ----------------------------------------------------------------------


class Ranks:
    """In the place of processes: answers each order with its rank, or does ``then``."""

    then: Callable[[Ranks, Callable[[], None]], None] | None = None
    made: list[Ranks]

    def __init__(self, devices: int, ranks: range, **options: Any) -> None:
        self.ranks, self.options, self.port, self.closed = ranks, options, 1, False
        self.asked: list[list[Any]] = []
        type(self).made.append(self)

    def ask(self, orders: Any, progress: Any = None, watch: Any = None) -> list[dict[str, Any]]:
        self.asked.append(list(orders))
        if orders[0].get("order") == "work" and type(self).then is not None:
            type(self).then(self, watch)
        return [{"rank": rank} for rank in self.ranks]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> type[Ranks]:
    class Fresh(Ranks):
        made: list[Ranks] = []  # noqa: RUF012

    for module in ("leader", "follower"):
        monkeypatch.setattr(f"executor.parallel.{module}.RankProcesses", Fresh)
    return Fresh


class Other:
    """A follower in a thread, and how it ended."""

    def __init__(self, place: Machines, facts: dict[str, Any], devices: int = 3) -> None:
        self.place, self.facts, self.devices = place, facts, devices
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        mine = self.place.ranks(self.devices, 1)[self.place.number]
        try:
            with Follower(self.place, self.devices, mine, self.facts, "cpu") as follower:
                follower.serve(lambda orders: orders[0].update(here=True))
        except MoeplanError as error:
            self.error = error

    def end(self) -> BaseException | None:
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.error


def leader(port: int, facts: dict[str, Any], count: int = 2, wait: float = 30.0) -> Leader:
    place = machine(port, 0, wait, count)
    return Leader(place, place.ranks(3, 1), facts, "cpu")


def test_orders_and_answers_go_to_whose_they_are(ranks: type[Ranks]) -> None:
    port, facts = free_port(), {"placement": "a"}
    others = [Other(machine(port, number, count=3), facts) for number in (2, 1)]
    # whoever else comes is sent away
    stranger = threading.Thread(target=_strange, args=(port,), daemon=True)
    stranger.start()
    with leader(port, facts, count=3) as leads:
        found = leads.ask([{"order": "work", "for": rank} for rank in range(3)])
    assert found == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert [one.end() for one in others] == [None, None]
    for made in ranks.made:
        meet, work = made.asked
        first = made.ranks.start
        own = {"order": "work", "for": first}
        assert work == [own if first == 0 else {**own, "here": True}]
        assert meet[0]["order"] == "meet"
        assert made.options["interface"] == "lo"
        assert made.closed


def _strange(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(b"GET / HTTP/1.1\r\n\r\n")
                one.recv(100)
            return
        except OSError:
            time.sleep(0.02)


def test_who_does_not_come_ends_those_who_have(ranks: type[Ranks]) -> None:
    port = free_port()
    other = Other(machine(port, 2, count=3), {})
    with pytest.raises(RunError, match=r"machine 1 of 3 did not come to .* within 1.5 s") as caught:
        leader(port, {}, count=3, wait=1.5)
    assert str(other.end()) == str(caught.value)
    assert ranks.made == []
    alone = Other(machine(free_port(), 1, wait_seconds=0.1), {})
    assert "machine 0 did not answer" in str(alone.end())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 1}, "another placement"),
        ({"device": "cuda"}, r"another kind of device \(cuda\) than machine 0 \(cpu\)"),
        ({}, r"another checkpoint"),
    ],
)
def test_who_would_run_something_else_ends_all_before_anything_is_loaded(
    changed: dict[str, Any], words: str, placement: ExpertPlacement, ranks: type[Ranks]
) -> None:
    port = free_port()
    device = changed.get("device", "cpu")
    theirs = replace(placement, seed=changed.get("seed", 0))
    place = machine(port, 1)
    follower = ParallelEngine(EXAMPLE, theirs, machines=place, device=device)
    if not changed:
        follower.model = replace(follower.model, fingerprint="f" * 64)
    told: list[BaseException] = []

    def follow() -> None:
        try:
            follower.follow()
        except InputError as error:
            told.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    with (
        ParallelEngine(EXAMPLE, placement, machines=machine(port, 0)) as engine,
        pytest.raises(InputError, match=words) as caught,
    ):
        engine.generate(PROMPTS, 4)
    thread.join(60)
    assert list(map(str, told)) == [str(caught.value)]
    assert len(str(caught.value).splitlines()) == 1
    assert ranks.made == []


@pytest.mark.parametrize("cause", CAUSES, ids=lambda one: type(one).__name__)
def test_an_error_of_one_machine_is_told_on_all(cause: MoeplanError, ranks: type[Ranks]) -> None:
    def refuse(mine: Ranks, watch: Callable[[], None]) -> None:
        if mine.ranks.start == 1:
            raise cause
        while True:
            watch()
            time.sleep(0.01)

    ranks.then = staticmethod(refuse)  # type: ignore[assignment]
    port = free_port()
    other = Other(machine(port, 1), {})
    with leader(port, {}) as leads, pytest.raises(type(cause), match="no GPU here") as caught:
        leads.ask([{"order": "work"}] * 3)
    error = other.end()
    assert isinstance(error, type(cause))
    assert vars(caught.value) == vars(error) == vars(cause)
    assert all(made.closed for made in ranks.made)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda one: type(one).__name__)
def test_an_error_of_a_rank_is_what_is_raised(
    cause: MoeplanError, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [os.pipe() for _ in range(3)]

    def start(processes: RankProcesses, _: str) -> SimpleNamespace:
        (_, orders), (answers, rank), (told, _) = ends
        processes._orders, processes._answers = [orders], [answers]
        os.write(rank, json.dumps({"error": worker._told(cause)}).encode() + b"\n")
        return SimpleNamespace(
            returncode=0, poll=lambda: None, wait=lambda _: 0, stdin=None, stdout=os.fdopen(told)
        )

    monkeypatch.setattr(RankProcesses, "_start", start)
    with pytest.raises(type(cause), match="no GPU here") as caught:
        RankProcesses(1, range(1), interface="lo")
    assert vars(caught.value) == vars(cause)
    for end in (ends[0][0], ends[1][1], ends[2][1]):
        os.close(end)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_who_falls_silent_is_given_up(
    who: str, ranks: type[Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    # what a launcher waits for at most, until all is ended
    assert link.SILENT_SECONDS + group._END_SECONDS + link._LIFE_SECONDS < 10
    assert _GRACE_SECONDS + group._GRACE_SECONDS < link.SILENT_SECONDS
    monkeypatch.setattr("executor.parallel.link.SILENT_SECONDS", 2.0)
    monkeypatch.setattr("executor.parallel.link._LIFE_SECONDS", 0.1)
    silent: list[bool] = []
    send = Link.send

    def fall_silent(one: Link, message: dict[str, Any]) -> None:
        # the leader's side is the one that was connected to
        serves = one._socket.getsockname()[1] == port
        if not silent or serves != (who == "leader"):
            send(one, message)

    def wait(mine: Ranks, watch: Callable[[], None]) -> None:
        silent.append(True)
        while True:
            watch()
            time.sleep(0.01)

    ranks.then = staticmethod(wait)  # type: ignore[assignment]
    monkeypatch.setattr(Link, "send", fall_silent)
    port = free_port()
    other = Other(machine(port, 1), {})
    with leader(port, {}) as leads, pytest.raises(RunError) as caught:
        leads.ask([{"order": "work"}] * 3)
    told = str(caught.value), str(other.end())
    if who == "leader":
        assert "machine 0 at" in told[1]
        assert "does not answer" in told[1]
    else:
        assert "machine 1 of 2 does not answer" in told[0]
        assert told[0] == told[1]


def test_devices_are_split_by_whole_nodes() -> None:
    place = machine(1, 0, count=3)
    assert place.ranks(8, 1) == [range(2), range(2, 5), range(5, 8)]
    assert place.ranks(6, 6) == [range(2), range(2, 4), range(4, 6)]
    with pytest.raises(OptionError, match="2 nodes cannot be divided over 3 machines"):
        place.ranks(4, 2)
    with pytest.raises(OptionError, match="2 devices, fewer than 3 machines"):
        place.ranks(2, 1)
    with pytest.raises(OptionError, match=r"no network interface 'nope0'; it has .*lo"):
        replace(place, interface="nope0")
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(OptionError, match="give --interface"):
        interface_of("192.0.2.1")


# --- GPUs -----------------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """As if torch found so many; returns which became current."""

    def found(count: int, nccl: bool = True) -> list[int]:
        current: list[int] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", current.append)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
        return current

    return found


def test_each_rank_of_a_machine_has_its_gpu(gpus: Callable[..., list[int]]) -> None:
    current = gpus(2)
    backends = [rank_backend("cuda", place, 2) for place in range(2)]
    assert [one.processor for one in backends] == ["GPU 0", "GPU 1"]
    assert current == [0, 1]
    assert isinstance(rank_backend("cpu", 5, 9), CpuBackend)
    assert make_backend("cuda").processor == "GPU 0"


@pytest.mark.parametrize(
    ("count", "nccl", "words"),
    [
        (0, True, "3 devices of the placement on this machine.* finds none"),
        (2, True, "3 devices .* finds only 2; place for fewer"),
        (3, False, "built without nccl"),
    ],
)
def test_too_few_gpus_are_refused(
    count: int, nccl: bool, words: str, gpus: Callable[..., list[int]]
) -> None:
    gpus(count, nccl)
    with pytest.raises(UnsupportedError, match=words) as caught:
        rank_backend("cuda", 0, 3)
    assert len(str(caught.value).splitlines()) == 1


def test_what_a_rank_is_told_of_its_device_and_does_first(
    gpus: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, Any]]] = []

    def ask(_: RankProcesses, orders: Any, **__: Any) -> list[dict[str, Any]]:
        asked.append(list(orders))
        return [{"port": None}] * len(orders)

    first = SimpleNamespace(returncode=0, wait=lambda _: 0, stdin=None, stdout=None)
    monkeypatch.setattr(RankProcesses, "_start", lambda *_: first)
    monkeypatch.setattr(RankProcesses, "ask", ask)
    with RankProcesses(5, range(3, 5), device="cuda", interface="lo"):
        pass
    told = [(one["rank"], one["device"], one["place"], one["places"]) for one in asked[0]]
    assert told == [(3, "cuda", 0, 2), (4, "cuda", 1, 2)]
    # and the process that is told so has no GPU
    gpus(0)
    monkeypatch.setattr("executor.allocator.tune_process", lambda: None)
    orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
    orders.put({**asked[0][0], "threads": torch.get_num_threads()})
    with pytest.raises(UnsupportedError, match=r"2 devices .* finds none; place for"):
        worker._serve(orders, lambda _: None)


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_what_a_group_exchanges_by(
    device: Any, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[Any, ...]] = []

    def init(name: str, **options: Any) -> None:
        begun.append((name, options["rank"], options["world_size"]))

    monkeypatch.setattr(torch.distributed, "init_process_group", init)
    order = {"file": str(tmp_path / "meeting"), "timeout_seconds": 1.0}
    meeting.Meeting(1, 2, device).join(order)
    assert begun == [(GROUP_BACKENDS[device], 1, 2)] == [(backend, 1, 2)]


def test_rows_stay_on_their_device_and_sizes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """``meta`` stands for a GPU: whatever mixes it with the CPU's tensors raises."""
    moved: list[tuple[str, str]] = []

    def gather(parts: list[torch.Tensor], mine: torch.Tensor) -> None:
        assert mine.device.type == "cpu"
        parts[0].copy_(mine)

    def move(out: torch.Tensor, rows: torch.Tensor, *_: Any) -> None:
        moved.append((out.device.type, rows.device.type))

    for name, fake in (
        ("get_world_size", lambda: 1),
        ("all_gather", gather),
        ("all_to_all_single", move),
    ):
        monkeypatch.setattr(torch.distributed, name, fake)
    rows = torch.empty(2, 4, device="meta")

    def compute(segments: Any, rows: torch.Tensor, results: torch.Tensor) -> None:
        assert (rows.device.type, results.device.type) == ("meta", "meta")
        assert [(one.expert, one.stop - one.first) for one in segments] == [(0, 1), (1, 2), (2, 1)]

    one = Exchange(0, {0: [(0,), (0,), (0,)]})
    known: list[list[int]] = []

    def told(rows: np.ndarray) -> None:
        assert not moved
        known.append(rows.tolist())

    found = one.run(0, rows, np.array([[0, 1], [1, 2]]), compute, 3, told)
    assert known == [[1, 2, 1]]
    assert found.shape == (2, 2, 4)
    assert found.device.type == "meta"
    assert moved == [("meta", "meta")] * 2


def test_a_gpus_clock_waits_for_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    before = time.perf_counter_ns()
    assert now_ns(torch.device("cpu")) >= before
    assert waited == []
    now_ns(torch.device("cuda", 1))
    assert waited == [torch.device("cuda", 1)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here")
def test_tokens_of_gpus_are_those_of_the_cpu(placement: ExpertPlacement, helpers: Any) -> None:
    devices = min(torch.cuda.device_count(), 3)
    layer = tuple((expert % devices,) for expert in range(16))
    layers = tuple(replace(one, devices=layer) for one in placement.layers)
    placement = replace(placement, devices=devices, layers=layers)
    for memory in (None, 2 << 20):
        with ParallelEngine(EXAMPLE, placement, device="cuda", memory_bytes=memory) as engine:
            run = engine.generate(PROMPTS, 4)
        assert list(run.token_ids) == list(map(tuple, helpers.greedy(EXAMPLE, PROMPTS, 4)))
