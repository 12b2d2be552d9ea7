"""The simulator of many devices, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.balance_simulator import Links, dealt, links_of, simulate
from planner.documents import Curve, ExpertPlacement
from planner.documents.placement import BalanceFigures, LayerPlacement
from solvers.errors import OptionError

# an expert takes 100 ns and 10 ns a row
CURVE = Curve((1, 101), (110, 1110), (0, 0), (1, 1), "spec")


def placed(devices: int, nodes: int, *experts: tuple[int, ...]) -> ExpertPlacement:
    figures = BalanceFigures(1.0, 1.0, 1.0, 1)
    return ExpertPlacement(
        method="by hand",
        devices=devices,
        nodes=nodes,
        replicas=sum(map(len, experts)) - len(experts),
        experts=len(experts),
        layers=(LayerPlacement(3, experts),),
        routing_hash="0" * 64,
        routing_source="synthetic",
        drawn="by hand",
        fitted=figures,
        held_out=figures,
        bound=0.0,
        gap=1.0,
        stop="rule",
    )


def test_two_devices() -> None:
    # expert 0 on device 0, 1 on both, 2 on device 1; all rows of device 0 but 4 of expert 0
    load = np.array([[[[6, 3, 10], [4, 0, 0]]]])
    links = Links(50, 1e9, 1e9)
    times = simulate(load, placed(2, 1, (0,), (0, 1), (1,)), expert=CURVE, links=links, row_bytes=8)
    # device 0: 10 rows of expert 0; expert 1's rows 0, 1, 2 go to copies 1, 0, 1: one row
    #   200 + 110 = 310; device 1: 2 rows of expert 1, 10 of expert 2: 120 + 200 = 320
    assert times.compute_ns.tolist() == [[320]]
    assert times.idle_ns.tolist() == [[5]]
    # device 0 sends 10 rows of expert 2 and on average half of 3: 92 bytes; device 1 sends 32.
    #   92 ns there and as long back, and three latencies
    assert times.exchange_ns[0, 0] == pytest.approx(2 * 92 + 150)
    assert times.total_ns[0, 0] == pytest.approx(320 + 334)


def test_nodes_and_shared_cores() -> None:
    # four devices on two nodes; one expert each; device 0 has all rows: 1, 2, 3 and 4
    load = np.zeros((1, 1, 4, 4), dtype=np.int64)
    load[0, 0, 0] = [1, 2, 3, 4]
    links = Links(0, 1e9, 1e8)
    placement = placed(4, 2, (0,), (1,), (2,), (3,))
    times = simulate(load, placement, expert=CURVE, links=links, row_bytes=10)
    assert times.compute_ns.tolist() == [[140]]
    # to the own node 2 rows = 20 bytes: 20 ns; to the other 7 rows = 70 bytes at a tenth: 700 ns
    assert times.exchange_ns[0, 0] == pytest.approx(1400)
    # two cores for 110 + 120 + 130 + 140
    shared = simulate(load, placement, expert=CURVE, links=links, row_bytes=10, at_once=2)
    assert shared.compute_ns.tolist() == [[250]]
    alone = simulate(load, placement, expert=CURVE, links=links, row_bytes=10, at_once=1)
    assert alone.compute_ns.tolist() == [[500]]


def test_rows_are_dealt_evenly() -> None:
    load = np.array([[5, 0, 7]])
    rows = dealt(load, 3)
    assert (rows.sum(axis=1) == load).all()
    # 5 = 2 + 2 + 1 from device 0 on; 7 = 3 + 2 + 2 from device 2 on
    assert rows.tolist() == [[[2, 0, 2], [2, 0, 2], [1, 0, 3]]]


def test_64_devices() -> None:
    # every device alike: what one of them does is what all do
    placement = placed(64, 8, *((device,) for device in range(64)))
    load = np.full((2, 1, 64, 64), 2)
    times = simulate(load, placement, expert=CURVE, links=Links(0, 1e9, 1e9), row_bytes=1)
    assert (times.compute_ns == 100 + 10 * 128).all()
    assert (times.idle_ns == 0).all()
    # 112 rows to 56 devices of other nodes, beside 14 to the own: 112 ns there and back
    assert times.exchange_ns == pytest.approx(224)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OptionError, match="the placement asks for"):
        simulate(
            np.zeros((1, 1, 3, 3), dtype=np.int64),
            placed(2, 1, (0,), (0,), (1,)),
            expert=CURVE,
            links=Links(0, 1, 1),
            row_bytes=1,
        )
    with pytest.raises(OptionError, match="not positive"):
        Links(0, 0.0, 1.0)


def test_links_from_layers() -> None:
    # expert 0 on device 0, expert 1 on device 1; each device's rows choose the other's expert:
    # 1 row of 100 bytes in short layers, 11 in long ones. An exchange of 300 ns (3 x 100) and
    # 1 byte per ns takes 300 + 2 x 100 and 300 + 2 x 1100, the first decile of what was seen
    placement = placed(2, 1, (0,), (1,))
    short = np.broadcast_to([[0, 1], [1, 0]], (11, 1, 2, 2))
    rest = np.array([[500.0]] * 9 + [[900.0]] * 2)
    links = links_of((short, rest), (11 * short, rest + 2000), placement, 100)
    assert links.latency_ns == 100
    assert links.intra_bytes_per_second == pytest.approx(1e9)
    # what it tells is what the layers took
    assert simulate(
        short[:1], placement, expert=CURVE, links=links, row_bytes=100
    ).exchange_ns == pytest.approx(500)
    # all rows stay where they are: an exchange is latency alone
    home = np.broadcast_to(np.eye(2, dtype=np.int64), (11, 1, 2, 2))
    assert links_of((home, rest), (home, rest), placement, 100) == Links(166, math.inf, math.inf)
