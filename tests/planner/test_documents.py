"""Documents: round trips, hashes, refusals, atomic writing."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.documents import (
    DOCUMENTS,
    Curve,
    Document,
    Event,
    Figure,
    LayerSpec,
    ModelSpec,
    Plan,
    Surface,
    Timeline,
    Workload,
    canonical_json,
    document_hash,
    load_document,
    parse_document,
    to_json,
    write_document,
)
from planner.documents.costs import OperationKind
from solvers.errors import DocumentError

ALL_KINDS = typing.get_args(OperationKind)


def example(kind: str) -> Document:
    """One fixed document of each kind: the fields' smallest interesting values."""
    return _EXAMPLES[kind]


def _examples() -> dict[str, Document]:
    zero = "0" * 64
    curve = Curve((1, 4), (10, 40), (1, 2), (5, 5), "measured")
    surface = Surface((1, 8), (curve, curve))
    figure = Figure(1.5, "measured", 0.1, 7)
    layers = (
        LayerSpec(0, 10, 2, 1, 0, 0, 4, 2, 30, 8, 16),
        LayerSpec(1, 10, 0, 1, 0, 5, 0, 0, 0, 0, 16),
    )
    timeline = Timeline.of([Event("expert", "compute", 0, 1, 3, 5, 9, 2, 0)])
    account = {"capacity_bytes": 9, "by_purpose": {"kv": 4}}
    figures = {"value": 1.0, "source": "measured", "spread": 0.0, "samples": 3}
    values: dict[str, dict[str, Any]] = {
        "hardware": {
            "name": "here", "device": "cpu", "processor": "x", "threads": 2,
            "tiers": [{"name": "device", "capacity_bytes": 5, "source": "spec"}],
            "channels": [{"name": "disk", "bandwidth_bytes_per_second": figures,
                          "latency_ns": figures, "paced_bytes_per_second": None}],
        },
        "workload": {"requests": 4, "prompt_tokens": 3, "new_tokens": 2},
        "profile": {
            "checkpoint": "c", "store": None, "checkpoint_fingerprint": zero,
            "store_fingerprint": None, "memory_bytes": 4, "hardware_hash": zero,
            "model_hash": zero, "costs_hash": zero, "routing_hash": zero,
        },
        "routing": {
            "model_hash": zero, "source": "measured", "tokens": 4, "sequences": 2,
            "moe_layers": [0, 1], "experts": 4, "top_k": 2, "arrays_file": "routing.npz",
            "arrays_hash": zero,
        },
        "routing-stats": {
            "trace_hash": zero, "source": "fitted", "tokens": 4, "moe_layers": [0, 1],
            "experts": 4, "top_k": 2, "arrays_file": "stats.npz", "arrays_hash": zero,
        },
    }  # fmt: skip
    body: dict[str, Document] = {
        kind: parse_document(DOCUMENTS[kind], {"kind": kind, "version": 1, **value}, kind)
        for kind, value in values.items()
    }
    body["model"] = ModelSpec(
        "m", "mixtral", "float32", 4, 8, 16, 2, 1, 4, 64, layers, 512, 512, 32, 0, False,
        900, 500, "headers", zero,
    )  # fmt: skip
    costs_of = dict.fromkeys(ALL_KINDS, curve)
    body["costs"] = DOCUMENTS["costs"](
        zero, zero, "float32", costs_of, surface, surface, figure, figure, figure,
        {"embed": figure},
    )  # type: ignore[call-arg]  # fmt: skip
    totals = {
        "wall_ns": 9, "prefill_ns": 4, "decode_ns": 5, "bytes_read": 7,
        "bubble_inter_layer_ns": 1, "bubble_intra_layer_ns": 2,
        "duration_by_kind_ns": {"expert": 4},
    }  # fmt: skip
    ranges = {"value": 2.0, "low": 1.0, "high": 3.0}
    plan = {
        "kind": "plan", "version": 1, "solver": "cpsat", "stop": "optimal",
        "objective_name": "throughput", "objective": 10.0, "bound": 9.0, "bound_class": "plan",
        "gap": 0.1,
        "inputs": {"model": zero, "hardware": zero, "costs": zero, "routing": zero,
                   "checkpoint_fingerprint": zero, "store_fingerprint": None},
        "locations": {"profile": "p", "checkpoint": "c", "store": None},
        "workload": values["workload"], "device": "cpu", "dtype": "float32",
        "policy": {
            "n_batches": 1, "batch_size": 4, "head_tile_rows": 16, "head_tiles": 1,
            "resident_head_tiles": 1, "slots": 1, "dense_slots": 0, "reserve": 0,
            "eviction": "none", "chunk_bytes": 4096,
            "layers": [{"dense_resident": True, "resident": [0], "prefetch": [1]}],
        },
        "memory": {"device": account},
        "predicted": {
            "tokens_per_second": ranges, "decode_tokens_per_second": ranges,
            "time_to_first_token_ns": 4, "totals": totals,
            "timeline": json.loads(json.dumps(dataclasses.asdict(timeline))),
        },
        "chosen_over": {"klotski": 12.0}, "notes": ["why"], "seed": 0,
    }  # fmt: skip
    plan["workload"] = dict(values["workload"])
    body["plan"] = parse_document(Plan, plan, "plan")
    measured = {
        **totals, "prompt_tokens": 3, "new_tokens": 2, "passes": 2, "wasted_prefetch_bytes": 0,
        "count_by_kind": {"expert": 2}, "pass_ns": [4, 5], "device_peak_bytes": 8,
        "device_budget_bytes": 9, "process_peak_bytes": 20,
    }  # fmt: skip
    trace = {
        "kind": "trace", "version": 1, "plan_hash": zero, "device": "cpu",
        "paced_bytes_per_second": None, "kept_passes": 1, "totals": measured,
        "timeline": plan["predicted"]["timeline"],  # type: ignore[index]
    }  # fmt: skip
    body["trace"] = parse_document(DOCUMENTS["trace"], trace, "trace")
    balance = {
        "average_max_load": 0.6, "max_load": 0.7, "worst_deviation": 0.2, "scenarios": 3,
        "traffic": 0.5, "node_traffic": None,
    }  # fmt: skip
    placement = {
        "kind": "placement", "version": 1, "method": "cpsat", "devices": 2, "nodes": 1,
        "replicas": 1, "experts": 2, "layers": [{"layer": 0, "devices": [[0], [0, 1]]}],
        "routing_hash": zero, "routing_source": "measured", "drawn": "whole sequences",
        "fitted": balance, "held_out": balance, "bound": 0.5, "gap": 1 / 6, "stop": "optimal",
        "seed": 0,
    }  # fmt: skip
    body["placement"] = parse_document(DOCUMENTS["placement"], placement, "placement")
    speed = {**figures, "value": 1e9}
    machine = {
        "kind": "machine", "version": 1, "name": "m", "device": "cuda", "processor": "p",
        "compute_flops_per_second": {"float16": speed}, "device_memory_bytes": 9,
        "device_bandwidth_bytes_per_second": speed, "host_memory_bytes": 8,
        "link_bytes_per_second": speed, "disk_bytes_per_second": None, "assumed": ["a"],
    }  # fmt: skip
    body["machine"] = parse_document(DOCUMENTS["machine"], machine, "machine")
    return body


_EXAMPLES = _examples()
FREE_KEYS = {"by_purpose", "duration_by_kind_ns", "chosen_over"}
"""Objects whose keys are data in some document; a new key there is a value, not a fault."""


def nodes(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value inside a JSON value, with the way to it."""
    yield place, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from nodes(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from nodes(inner, (*place, index))


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    at = changed
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = new
    return changed


def refused(kind: str, value: Any) -> str:
    with pytest.raises(DocumentError) as caught:
        parse_document(DOCUMENTS[kind], value, "here")
    message = str(caught.value)
    assert message.startswith("here: ")
    assert "\n" not in message
    return message


# Tests ---------------------------------------------------------------------------------------


def test_there_is_an_example_of_each_kind() -> None:
    assert set(_EXAMPLES) == set(DOCUMENTS)
    assert all(cls.kind == kind for kind, cls in DOCUMENTS.items())


@pytest.mark.parametrize("kind", sorted(DOCUMENTS))
def test_a_written_document_is_read_back(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    write_document(example(kind), path)
    assert load_document(DOCUMENTS[kind], path) == example(kind)
    assert os.listdir(tmp_path) == ["document.json"]


@pytest.mark.parametrize("kind", sorted(DOCUMENTS))
def test_unknown_keys_are_refused_at_every_depth(kind: str) -> None:
    value = to_json(example(kind))
    for place, node in list(nodes(value)):
        if isinstance(node, dict) and not (place and place[-1] in FREE_KEYS):
            message = refused(kind, replaced(value, (*place, "surprise"), 1))
            assert "surprise" in message


@pytest.mark.parametrize("kind", sorted(DOCUMENTS))
def test_a_missing_key_is_named(kind: str) -> None:
    cls = DOCUMENTS[kind]
    value = to_json(example(kind))
    optional = {
        field.name
        for field in dataclasses.fields(cls)
        if (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
    }
    for field in dataclasses.fields(cls):
        if field.name not in optional:
            body = {key: inner for key, inner in value.items() if key != field.name}
            assert f"here: {field.name}: " in refused(kind, body)


@pytest.mark.parametrize("kind", sorted(DOCUMENTS))
def test_wrong_types_and_negative_numbers_are_refused(kind: str) -> None:
    value = to_json(example(kind))
    integers = [(place, node) for place, node in nodes(value) if type(node) is int]
    assert integers
    for place, _ in integers:
        if place == ("version",):
            continue
        for wrong in ("1", True, 1.5, [1]):
            refused(kind, replaced(value, place, wrong))
        if "layer" not in place and "item" not in place:  # -1 says "none" there
            refused(kind, replaced(value, place, -1))
    for place, node in nodes(value):
        if type(node) is float:
            for wrong in ("1", True, None) if place[-1] != "spread" else ("1", True):
                if not (wrong is None and place[-1] in ("bound", "gap", "traffic")):
                    refused(kind, replaced(value, place, wrong))
        if isinstance(node, str) and place != ("kind",):
            refused(kind, replaced(value, place, 1))


@pytest.mark.parametrize("version", [0, 2, "1", True, 1.5, None])
def test_an_unknown_version_is_named(version: object) -> None:
    value = {**to_json(example("workload")), "version": version}
    message = refused("workload", value)
    assert repr(version) in message
    assert "version 1" in message


def test_another_kind_and_no_object_are_refused() -> None:
    assert "'trace'" in refused("plan", to_json(example("trace")))
    assert "not a JSON object" in refused("plan", [1])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"kind": "workload", "requests": 1, "requests": 2}', "'requests' stands twice"),
        ('{"kind": "workload", "version": 1, "requests": NaN}', "requests"),
        ("[" * 100_000, "not valid JSON"),
        ('{"kind": "workload", "version": 1, "requests": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"kind": "workload", "version": 1, "a\\nb": 1}', "control characters"),
    ],
)  # fmt: skip
def test_a_broken_file_gives_one_line(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        load_document(Workload, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert part in str(caught.value) or "is missing" in str(caught.value)


def test_a_missing_or_unreadable_file_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no such file"):
        load_document(Workload, tmp_path / "none.json")
    with pytest.raises(DocumentError, match="cannot be read"):
        load_document(Workload, tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DocumentError, match="cannot be read"):
        load_document(Workload, tmp_path / "binary")


def test_the_hash_is_the_sha256_of_canonical_json() -> None:
    # sha256sum of the text below, computed with coreutils
    text = '{"kind":"workload","new_tokens":2,"prompt_tokens":3,"requests":4,"version":1}'
    assert canonical_json(to_json(Workload(4, 3, 2))) == text
    assert document_hash(Workload(4, 3, 2)) == (
        "eef4ea6e91f611458e76b86f76d14584db87a5bfebe2ba0f112842026603a615"
    )


def test_a_sealed_file_from_before_a_key_was_added_is_not_called_edited(tmp_path: Path) -> None:
    value = to_json(example("plan"))
    assert value.pop("seed") == 0  # the default
    seal = hashlib.sha256(canonical_json(value).encode()).hexdigest()
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**value, "content_hash": seal}))
    assert load_document(Plan, path) == example("plan")
    path.write_text(json.dumps({**value, "solver": "lru", "content_hash": seal}))
    with pytest.raises(DocumentError, match="edited by hand after it was made: plan again"):
        load_document(Plan, path)


def test_the_hash_does_not_depend_on_layout_or_on_the_spelling_of_a_number() -> None:
    plan = example("plan")
    value = to_json(plan)
    assert value["objective"] == 10.0
    respelled = json.loads(json.dumps(dict(reversed(value.items()))).replace("10.0", "10"))
    assert document_hash(parse_document(Plan, respelled, "here")) == document_hash(plan)


@pytest.mark.parametrize(
    ("kind", "place", "new", "part"),
    [
        ("costs", ("curves", "expert", "rows"), [1], "differ in length"),
        ("costs", ("curves", "expert", "rows"), [4, 1], "rows do not increase"),
        ("costs", ("curves", "expert", "rows"), [0, 1], "must be at least 1, not 0"),
        ("costs", ("curves", "expert", "duration_ns"), [2, 1], "duration_ns decreases"),
        ("costs", ("attention_decode", "second"), [1], "differ in length"),
        ("costs", ("attention_decode", "second"), [8, 8], "second does not increase"),
        ("costs", ("curves",), {}, "no curve for combine, embed, expert, head, router, sample"),
        ("costs", ("copy_slowdown", "value"), 0.5, "copy_slowdown is below 1"),
        ("costs", ("reference_ns", "spread"), -1.0, "spread is negative"),
        ("costs", ("slowdown_by_kind", "embed", "value"), 0.4, "embed is below 0.5"),
        ("trace", ("timeline", "rows"), [], "columns differ in length"),
        ("trace", ("timeline", "end_ns"), [4], "ends before it starts"),
        ("plan", ("predicted", "tokens_per_second", "low"), 2.5, "between low and high"),
        ("plan", ("gap",), 1.5, "must be at most 1, not 1.5"),
        ("plan", ("policy", "chunk_bytes"), 100, "4096"),
        ("model", ("layers",), [], "there is none"),
        ("model", ("layers", 0, "index"), 1, "indices"),
        ("model", ("layers", 0, "top_k"), 5, "top_k is 5 of only 4"),
        ("model", ("layers", 0, "experts"), 0, "top_k is 2 of only 0"),
        ("model", ("layers", 1, "expert_bytes"), 1, "do not agree"),
        ("model", ("tied",), True, "tied head"),
        ("model", ("fingerprint",), "0" * 63, "must be 64 hexadecimal digits"),
        ("routing", ("moe_layers",), [1, 1], "does not ascend"),
        ("routing", ("top_k",), 5, "top_k is 5 of only 4"),
        ("routing", ("sequences",), 5, "5 sequences of only 4 tokens"),
        ("routing-stats", ("top_k",), 5, "top_k is 5 of only 4"),
    ],
)
def test_inconsistent_documents_are_refused(
    kind: str, place: tuple[Any, ...], new: Any, part: str
) -> None:
    assert part in refused(kind, replaced(to_json(example(kind)), place, new))


def test_a_machine_has_each_tier_and_channel_once() -> None:
    value = to_json(example("hardware"))
    for what in ("tiers", "channels"):
        twice = replaced(value, (what,), value[what] * 2)
        assert f"{what}: a name stands twice" in refused("hardware", twice)
