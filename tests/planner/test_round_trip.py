"""Any document survives its file: strategies read off the type hints."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any, Literal, Union

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from planner.documents import (
    DOCUMENTS,
    CostProfile,
    Curve,
    DevicePolicy,
    Document,
    Event,
    ExpertPlacement,
    Figure,
    Hardware,
    KeptExperts,
    LayerPlacement,
    LayerSpec,
    Machine,
    MemoryAccount,
    ModelSpec,
    Offload,
    Plan,
    Range,
    RoutingStats,
    RoutingTrace,
    Surface,
    ThreadUse,
    Tier,
    Timeline,
    Workload,
    document_hash,
    dump_document,
    parse_document,
)
from planner.documents.costs import OperationKind
from planner.documents.machine import HostProcessor
from planner.documents.model import StoredShares
from planner.documents.plan import Asked

# Strategies ----------------------------------------------------------------------------------
# One strategy for each document, read off its type hints; the classes whose fields depend on
# each other have their own.

SMALL = st.integers(1, 10**6)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    rows = sorted(draw(st.sets(SMALL, min_size=1, max_size=4)))
    column = st.lists(st.integers(0, 10**9), min_size=len(rows), max_size=len(rows))
    samples = draw(st.lists(SMALL, min_size=len(rows), max_size=len(rows)))
    durations = sorted(draw(column))
    return Curve(
        tuple(rows), tuple(durations), tuple(draw(column)), tuple(samples), draw(sources())
    )


def sources() -> st.SearchStrategy[Any]:
    return st.sampled_from(["measured", "fitted", "spec", "synthetic", "paced"])


def speeds() -> st.SearchStrategy[Figure]:
    return st.builds(Figure, st.floats(1e6, 1e18), sources(), st.none() | st.floats(0, 9), SMALL)


@st.composite
def surfaces(draw: st.DrawFn) -> Surface:
    second = sorted(draw(st.sets(SMALL, min_size=1, max_size=3)))
    return Surface(tuple(second), tuple(draw(curves()) for _ in second))


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    kinds = st.sampled_from(["attention", "expert", "copy_demand", "wait_expert"])
    events = []
    for _ in range(draw(st.integers(0, 3))):
        start = draw(SMALL)
        channel = draw(st.sampled_from(["compute", "disk"]))
        end = start + draw(st.integers(0, 9))
        events.append(
            Event(draw(kinds), channel, 0, draw(st.integers(-1, 4)), -1, start, end, 1, 0)
        )
    return Timeline.of(events)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    window = draw(st.none() | SMALL)
    sinks = None if window is None else draw(st.integers(0, 9))
    return Workload(draw(SMALL), draw(SMALL), draw(SMALL), window, sinks)


@st.composite
def layer_tuples(draw: st.DrawFn) -> tuple[LayerSpec, ...]:
    layers = []
    for index in range(draw(st.integers(1, 3))):
        sizes = [draw(st.integers(0, 10**12)) for _ in range(5)]
        experts = draw(st.integers(0, 8))
        top_k = draw(st.integers(1, experts)) if experts else 0
        width = draw(SMALL) if experts else 0
        layers.append(LayerSpec(index, *sizes, experts, top_k, width * 3, width, draw(SMALL)))
    return tuple(layers)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """A strategy for one type hint of a document's field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in SPECIAL:
        return SPECIAL[hint]
    if dataclasses.is_dataclass(hint):
        return documents(hint)
    if origin is typing.Annotated:
        low, high = 0, 10**15
        if typing.get_origin(arguments[0]) is dict or arguments[0] is bool:
            return of_type(arguments[0])
        for constraint in (item for part in arguments[1:] for item in part.metadata):
            assert isinstance(arguments[1], FieldInfo)
            low = getattr(constraint, "ge", low)
            high = getattr(constraint, "le", high)
            high = getattr(constraint, "lt", high + 1) - 1
            if hasattr(constraint, "pattern"):
                return st.text("0123456789abcdef", min_size=64, max_size=64)
        if arguments[0] is str or typing.get_origin(arguments[0]) in (tuple, Union):
            return of_type(arguments[0])
        return st.floats(low, high) if arguments[0] is float else st.integers(low, high)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*[of_type(argument) for argument in arguments])
    if origin is tuple:
        return st.lists(of_type(arguments[0]), min_size=1, max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=3)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(10**15), 10**15),
        float: st.floats(allow_nan=False, allow_infinity=False),
        # control characters, separators and directions are refused
        str: st.text(st.characters(exclude_categories=("C", "Z")), max_size=9),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return plain[hint]


ALL_KINDS = typing.get_args(OperationKind)
SPECIAL: dict[Any, st.SearchStrategy[Any]] = {
    Curve: curves(),
    Surface: surfaces(),
    Timeline: timelines(),
    Workload: workloads(),
    Figure: st.builds(Figure, st.floats(1, 1e12), sources(), st.none() | st.floats(0, 9), SMALL),
    Range: st.lists(st.floats(0, 1e9), min_size=3, max_size=3).map(
        lambda three: Range(sorted(three)[1], sorted(three)[0], sorted(three)[2])
    ),
    tuple[LayerSpec, ...]: layer_tuples(),
    StoredShares: st.builds(StoredShares, *[st.floats(1e-6, 1)] * 3),
    ThreadUse: st.just(ThreadUse(1))
    | st.builds(ThreadUse, st.integers(2, 99), st.just({"expert": 4})),
    tuple[Tier, ...]: st.just((Tier("disk", 5, "measured"),)),
    dict[OperationKind, Curve]: st.fixed_dictionaries({kind: curves() for kind in ALL_KINDS}),
}
FITTING: dict[type, dict[str, st.SearchStrategy[Any]]] = {
    ModelSpec: {
        "tied": st.just(False),
        "encoder_layers": st.just(()),
        # there is one layer at least
        "encoder": st.none(),
        # by layer and expert: see test_forms.py
        "forms": st.none(),
    },
    RoutingTrace: {
        "tokens": SMALL,
        "sequences": st.just(1),
        "top_k": st.just(1),
        # of three MoE layers, see below
        "encoder": st.none() | st.integers(1, 2),
    },
    HostProcessor: {
        "compute_flops_per_second": st.fixed_dictionaries(
            {"float32": speeds()}, optional={"bfloat16": speeds()}
        ),
        "bandwidth_bytes_per_second": speeds(),
    },
    RoutingStats: {"top_k": st.just(1)},
    Machine: {
        "device": st.just("cuda"),
        "compute_flops_per_second": st.dictionaries(
            st.sampled_from(["float32", "float16"]), speeds(), min_size=1
        ),
        "device_bandwidth_bytes_per_second": speeds(),
        "link_bytes_per_second": speeds(),
        "disk_bytes_per_second": st.none() | speeds(),
        "disk_write_bytes_per_second": st.none() | speeds(),
    },
    # as many devices and layers as the placement below has
    DevicePolicy: {"layers": st.tuples(st.deferred(lambda: documents(KeptExperts)))},
    Offload: {
        "devices": st.deferred(lambda: st.tuples(*[documents(DevicePolicy)] * 4)),
    },
    ExpertPlacement: {
        "devices": st.just(4),
        "nodes": st.sampled_from([1, 2, 4]),
        "replicas": st.integers(6, 9),
        "experts": st.just(2),
        "layers": st.lists(
            st.sets(st.integers(0, 3), min_size=1).map(sorted).map(tuple), min_size=2, max_size=2
        ).map(lambda homes: (LayerPlacement(3, tuple(homes)),)),
    },
}


PAIRS: dict[type, dict[str, st.SearchStrategy[Any]]] = {
    CostProfile: {"cross_decode": surfaces(), "cross_prefill": surfaces()},
    Asked: {"then": st.sampled_from(["tpot", "peak"]), "tolerance": st.floats(0, 0.5)},
}
"""Fields that are there together or not at all."""

NEEDS: dict[type, dict[str, str]] = {CostProfile: {"hosting": "host_expert"}}
"""Fields that are only there with another."""


def documents(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    wanted = FITTING.get(cls, {})
    fields = {
        field.name: wanted[field.name] if field.name in wanted else of_type(hints[field.name])
        for field in dataclasses.fields(cls)
    }
    if cls in (RoutingTrace, RoutingStats):
        fields["moe_layers"] = st.just((0, 2, 3))
    if cls is Plan:
        account = of_type(MemoryAccount)
        fields["memory"] = st.fixed_dictionaries({"device": account}, optional={"host": account})
    if cls is Hardware:
        fields["channels"] = of_type(hints["channels"]).map(lambda channels: channels[:1])
    either = PAIRS.get(cls, {})
    together = st.booleans().flatmap(
        lambda there: st.fixed_dictionaries(
            fields | (either if there else dict.fromkeys(either, st.none()))
        )
    )

    def whole(drawn: dict[str, Any]) -> Any:
        lacking = [name for name, other in NEEDS.get(cls, {}).items() if drawn[other] is None]
        return cls(**drawn | dict.fromkeys(lacking))

    return together.map(whole)


EVERY = st.one_of([of_type(cls) for cls in DOCUMENTS.values()])


@settings(max_examples=150)
@given(document=EVERY)
def test_a_document_survives_its_file(document: Document) -> None:
    value = json.loads(dump_document(document))
    assert value.pop("content_hash", document_hash(document)) == document_hash(document)
    again = parse_document(type(document), value, "here")
    assert again == document
    assert document_hash(again) == document_hash(document)
    assert list(value)[:2] == ["kind", "version"]
