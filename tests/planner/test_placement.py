"""Routing statistics from elsewhere, scenarios from them, and placements judged on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.documents import ExpertPlacement, document_hash, load_document, write_document
from planner.placement import Cluster, expert_room, place, scenes_of
from planner.routing import TraceArrays, write_trace
from planner.routing_draws import draw_scenarios
from planner.routing_sources import load_source
from solvers.errors import BudgetError, DocumentError, OptionError


def shares_file(folder: Path) -> Path:
    """Two domains, 8 prompts each, 2 layers, 4 experts: experts take turns by domain."""
    random = np.random.default_rng(1)
    code = random.dirichlet([8, 1, 8, 1], size=(8, 2)).astype(np.float32)
    prose = random.dirichlet([1, 8, 1, 8], size=(8, 2)).astype(np.float32)
    path = folder / "shares.npz"
    np.savez(path, code=code, prose=prose)
    return path


def trace_file(folder: Path) -> Path:
    """Sequence 0: tokens choose (0 then 1), (0 then 2); sequence 1: (3 then 1)."""
    arrays = TraceArrays(
        np.array([[[0], [1]], [[0], [2]], [[3], [1]]], dtype=np.uint16),
        np.array([0, 0, 1], dtype=np.int32),
        np.array([0, 1, 0], dtype=np.int32),
        np.array([0, 1, 0], dtype=np.uint8),
    )
    write_trace(folder, arrays, model_hash="0" * 64, moe_layers=(1, 3), expert_count=4)
    return folder / "routing.json"


def heat_file(folder: Path, **changes: Any) -> Path:
    value = {"k": 2, "layers": [{"layer": 4, "heat": [6, 2, 0, 0]}, {"layer": 7, "heat": [1] * 4}]}
    path = folder / "heat.json"
    path.write_text(json.dumps({**value, **changes}))
    return path


def counts_file(folder: Path) -> Path:
    data = {"a": {"x": [[1, 3]], "y": [[3, 1]]}, "b": {"x": [[1, 1]]}}
    path = folder / "counts.json"
    path.write_text(json.dumps({"layers": [5], "data": data}))
    return path


def test_a_trace_counts_rows_of_each_sequence_and_pairs(tmp_path: Path) -> None:
    source = load_source(trace_file(tmp_path))
    assert source.kind == "trace"
    assert source.layers == (1, 3)
    assert source.top_k == 1
    assert source.sequences["all"].tolist() == [
        [[2, 0, 0, 0], [0, 1, 1, 0]],
        [[0, 0, 0, 1], [0, 1, 0, 0]],
    ]
    assert source.joint is not None
    assert np.argwhere(source.joint[0]).tolist() == [[0, 1], [0, 2], [3, 1]]


def test_shares_halves_are_disjoint_and_whole_prompts(tmp_path: Path) -> None:
    source = load_source(shares_file(tmp_path))
    assert source.domains == ("code", "prose")
    assert source.experts == 4
    first = draw_scenarios(source, 8, batch=1, seed=0, half="first")
    second = draw_scenarios(source, 8, batch=1, seed=0, half="second")
    rows = {one.tobytes() for one in first} | {one.tobytes() for one in second}
    # 4 prompts of each domain in each half: 8 without repetition, none of them in both
    assert len(rows) == 16
    assert abs(first.sum(axis=2) - 1_000_000).max() <= 2
    code = draw_scenarios(source, 4, batch=2, seed=0, half="all", domains=("code",))
    assert (code[:, :, [0, 2]].sum(axis=2) > code[:, :, [1, 3]].sum(axis=2)).all()
    turns = draw_scenarios(source, 4, batch=2, seed=0, half="all", by_domain=True)
    even = turns[:, :, [0, 2]].sum(axis=2) > turns[:, :, [1, 3]].sum(axis=2)
    assert even.all(axis=1).tolist() == [True, False, True, False]


def test_what_is_chosen_by_shares_no_sequence_with_what_is_learnt_from(tmp_path: Path) -> None:
    source = load_source(shares_file(tmp_path))
    scenes = scenes_of(source, scenarios=64, judged=8)
    assert scenes.origins.kinds is not None
    parts = [{one.tobytes() for one in scenes.fit[scenes.origins.kinds == part]} for part in (0, 1)]
    # 4 prompts of each of 2 domains are fitted: each part is 2 of each, drawn again and again
    assert [len(part) for part in parts] == [4, 4]
    assert not parts[0] & parts[1]
    assert scenes.origins.batches == 8
    assert scenes_of(source, scenarios=64, judged=8, batch=3).origins.batches == 2
    by_domain = scenes_of(source, scenarios=6, judged=8, by_domain=True).origins
    assert by_domain.kinds is not None
    assert by_domain.kinds.tolist() == [0, 1, 0, 1, 0, 1]
    assert not {one.tobytes() for one in scenes.fit} & {one.tobytes() for one in scenes.judge}


def test_one_fitted_sequence_teaches_no_search(tmp_path: Path) -> None:
    source = load_source(trace_file(tmp_path))
    scenes = scenes_of(source, scenarios=32, judged=8)
    assert scenes.origins.kinds is None
    assert scenes.origins.batches == 1
    room = expert_room(Cluster(2), layers=2, experts=4, replicas=0)
    common = {"source_hash": "0" * 64, "time_limit_seconds": 1.0}
    plain = place(source, scenes, Cluster(2), room, method="greedy", **common)
    searched = place(source, scenes, Cluster(2), room, method="cpsat", **common)
    assert searched.layers == plain.layers
    taken = {one.name: one.layers for one in searched.candidates}
    assert taken == {
        "contiguous": 0,
        "greedy": 0,
        "anti-correlation": 0,
        "replicate": 2,
        "search": 0,
    }


def test_heat_and_counts_draw_tokens(tmp_path: Path) -> None:
    source = load_source(heat_file(tmp_path))
    drawn = draw_scenarios(source, 200, batch=64, seed=0, half="first")
    assert source.layers == (4, 7)
    assert (drawn.sum(axis=2) == 128).all()
    # expert 0 has 6 of 8 choices: 96 of 128, standard error below 0.4
    assert drawn[:, 0].mean(axis=0) == pytest.approx([96, 32, 0, 0], abs=2)
    assert "independently" in source.statement
    with pytest.raises(OptionError, match="--series, one of a, b"):
        load_source(counts_file(tmp_path))
    counts = load_source(counts_file(tmp_path), "a")
    assert counts.domains == ("x", "y")
    assert counts.layers == (5,)
    only = draw_scenarios(counts, 100, batch=40, seed=0, half="all", domains=("y",))
    assert only.mean(axis=0)[0] == pytest.approx([30, 10], abs=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "neither JSON"),
        ("[]", "known kind"),
        ('{"layers": [{"heat": [1, "x"]}]}', "counts"),
        ('{"layers": [{"heat": [1, -1]}]}', "negative"),
        ('{"layers": [{"heat": [0, 0]}]}', "has none"),
        ('{"layers": [{"heat": [1, 2]}, {"heat": [1]}]}', "one list of counts"),
        ('{"layers": [{"heat": [1], "layer": 3}, {"heat": [1], "layer": 3}]}', "ascending"),
        ('{"layers": [7]}', "no 'heat'"),
        ('{"layers": [{"heat": [1]}], "k": 0}', "k is not"),
        ('{"data": {"a": {}}}', "no domain"),
        ('{"kind": "plan"}', "routing"),
    ],
)
def test_bad_statistics_are_one_clear_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=words):
        load_source(path)


def test_bad_arrays_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    for arrays in (
        {"a": np.ones((2, 2))},
        {"a": np.full((2, 2, 2), 0.7)},
        {"a": np.full((1, 1, 2), 0.5), "b": np.full((1, 1, 4), 0.25)},
        {"a": np.array([[["x"]]])},
    ):
        np.savez(path, **arrays)
        with pytest.raises(DocumentError, match=r"bad\.npz"):
            load_source(path)
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DocumentError, match="not an archive"):
        load_source(path)


def test_room_from_memory_names_the_smallest_that_works() -> None:
    cluster = Cluster(3)
    arguments = {"layers": 2, "experts": 8, "replicas": 1, "expert_bytes": 100}
    # 9 copies on 3 devices: 3 in each of 2 layers
    with pytest.raises(BudgetError, match="600 bytes"):
        expert_room(cluster, memory_bytes=599, **arguments)
    assert (expert_room(cluster, memory_bytes=600, **arguments) == 3).all()


@pytest.mark.parametrize("method", ["contiguous", "greedy", "anti-correlation", "cpsat", "milp"])
def test_a_placement_is_judged_on_other_sequences(tmp_path: Path, method: str) -> None:
    source = load_source(shares_file(tmp_path))
    scenes = scenes_of(source, scenarios=8, judged=8)
    cluster = Cluster(2)
    room = expert_room(cluster, layers=2, experts=4, replicas=0)
    placed = place(
        source, scenes, cluster, room, method=method, source_hash="0" * 64, time_limit_seconds=5
    )
    assert placed.bound <= placed.fitted.average_max_load
    # by hand from the document: the fullest device's share of each held-out batch
    means = []
    for batch in scenes.judge:
        for row, layer in zip(batch, placed.layers, strict=True):
            loads = [0.0, 0.0]
            for rows, devices in zip(row.tolist(), layer.devices, strict=True):
                for device in devices:
                    loads[device] += rows / len(devices)
            means.append(max(loads) / row.sum())
    assert placed.held_out.average_max_load == pytest.approx(np.mean(means))
    assert placed.held_out.max_load == pytest.approx(max(means))
    write_document(placed, tmp_path / "placement.json")
    again = load_document(ExpertPlacement, tmp_path / "placement.json")
    assert document_hash(again) == document_hash(placed)


def test_what_cannot_take_effect_is_refused(tmp_path: Path) -> None:
    source = load_source(shares_file(tmp_path))
    scenes = scenes_of(source, scenarios=4, judged=4)
    room = expert_room(Cluster(2), layers=2, experts=4, replicas=1)
    with pytest.raises(OptionError, match="no effect on greedy"):
        place(source, scenes, Cluster(2), room, method="greedy", replicas=1, source_hash="0" * 64)
    wide = expert_room(Cluster(8), layers=2, experts=4, replicas=0)
    with pytest.raises(OptionError, match="some would hold nothing"):
        place(source, scenes, Cluster(8), wide, method="greedy", source_hash="0" * 64)
    with pytest.raises(OptionError, match="cannot be divided"):
        Cluster(3, 2)


def test_devices_are_numbered_so_that_little_moves(tmp_path: Path) -> None:
    # experts e of layer 1 are followed by e + 2 (of 4) in layer 2: groups {0, 1}, {2, 3} in each
    tokens = 64
    chosen = np.arange(tokens) % 4
    arrays = TraceArrays(
        np.stack([chosen, (chosen + 2) % 4], axis=1)[:, :, None].astype(np.uint16),
        np.repeat(np.arange(8), 8).astype(np.int32),
        np.tile(np.arange(8), 8).astype(np.int32),
        np.zeros(tokens, dtype=np.uint8),
    )
    write_trace(tmp_path, arrays, model_hash="0" * 64, moe_layers=(1, 2), expert_count=4)
    source = load_source(tmp_path / "routing.json")
    scenes = scenes_of(source, scenarios=4, judged=4)
    room = expert_room(Cluster(4), layers=2, experts=4, replicas=0)
    common = {"source_hash": "0" * 64, "time_limit_seconds": 5.0}
    plain = place(source, scenes, Cluster(4), room, method="contiguous", **common)
    assert plain.held_out.traffic == 1.0
    tuned = place(source, scenes, Cluster(4), room, method="greedy", **common)
    assert tuned.held_out.traffic == 0.0
