"""A quantized store is profiled as it is read and computed, and planned for by its own bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor import Engine, open_weights, pack
from executor.quantized import QuantizedMatrix
from planner.check import check_plan
from planner.documents import (
    ExpertError,
    FormName,
    QuantizedExperts,
    Trace,
    Workload,
    parse_document,
    to_json,
)
from planner.encode import Encoding
from planner.factors import Factors
from planner.memory import account_device, smallest_budget
from planner.profiles import load_profile
from planner.solve import make_plan
from profiler import profile_checkpoint
from profiler.bench import Tokens
from profiler.contention import Turn
from profiler.effort import Effort
from profiler.forms import FormSamples, form_curves, form_slowdowns
from profiler.link import CopySample, LinkFit, fit_link
from profiler.measure import Measurement
from profiler.refine import refine

QUICK = Effort(cell_ns=1, rounds=1, fills=1, turns=1, passes=1, stream_ns=0)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each product with a quantized matrix, as they are made."""
    found: list[int] = []
    product = QuantizedMatrix.product

    def counted(self: QuantizedMatrix, inputs: Any) -> Any:
        found.append(len(inputs))
        return product(self, inputs)

    monkeypatch.setattr(QuantizedMatrix, "product", counted)
    return found


def short(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkpoint of so short a context that few lengths are measured."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint("mixtral"), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["max_position_embeddings"] = 40
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def test_profile_plan_and_run(
    checkpoint: Callable[[str], Path],
    prompts: list[list[int]],
    tmp_path: Path,
    products: list[int],
) -> None:
    folder, store = short(checkpoint, tmp_path), tmp_path / "store"
    pack(folder, store, quantize=QuantizedExperts("int4-1", 16))
    profile_checkpoint(
        folder,
        tmp_path / "p",
        memory_bytes=24 << 20,
        prompts=prompts,
        effort=QUICK,
        store=store,
    )
    # the expert's curve is of the executor's own products of what the store has
    assert products
    profile = load_profile(tmp_path / "p")
    with open_weights(folder, store) as source:
        assert profile.model == source.model
        assert source.checkpoint.model.layers[0].expert_bytes == 36_864
    # 3 x 64 x 48 weights of half a byte, and two float32 numbers for each 16 of them
    workload = Workload(4, 8, 4)
    encoding = Encoding(profile, workload, 1, 4, 24 << 20, 1 << 20)
    assert encoding.stages(Factors())[0].items[0].size_bytes == 4_608 + 4_608

    memory_bytes = smallest_budget(profile.model, workload, 4) + 100_000
    plan = make_plan(profile, workload, memory_bytes=memory_bytes, time_limit_seconds=1)
    assert check_plan(plan, profile) == []
    with Engine.from_plan(plan, verify=True) as engine:
        engine.generate([[5, 6, 7, 8, 9, 10, 11, 12]] * 4)
        totals = engine.trace().totals
    assert totals.device_peak_bytes <= memory_bytes


def test_a_run_corrects_the_forms_that_it_had(
    checkpoint: Callable[[str], Path],
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All experts in int4, as the trace says: their curve moves, and the checkpoint's own stays."""
    folder, store = short(checkpoint, tmp_path), tmp_path / "store"
    pack(folder, store, forms=(QuantizedExperts("int4-1", 16),))
    made = tmp_path / "p"
    fitted: list[int] = []

    def counted(copies: Sequence[CopySample], *more: Any) -> LinkFit:
        fitted.append(len(copies))
        return fit_link(copies, *more)

    monkeypatch.setattr("profiler.measure.fit_link", counted)
    profile_checkpoint(
        folder, made, memory_bytes=24 << 20, prompts=prompts, effort=QUICK, store=store
    )
    # once, for the document and for all that is held against the link
    assert len(fitted) == 1
    profile, workload = load_profile(made), Workload(4, 8, 4)
    int4: FormName = "int4-1"
    forms = tuple((int4,) * layer.experts for layer in profile.model.layers)
    memory_bytes = smallest_budget(profile.model, workload, 4) + 100_000
    plan = make_plan(profile, workload, memory_bytes=memory_bytes, solver="on-demand")
    layers = zip(plan.policy.layers, forms, strict=True)
    policy = replace(plan.policy, layers=tuple(replace(layer, forms=own) for layer, own in layers))
    changed = replace(
        plan,
        policy=policy,
        memory={"device": account_device(profile.model, policy, workload, 4, memory_bytes)},
        expert_error=ExpertError("weights", 10**9, 10**9),
    )
    with Engine.from_plan(changed, verify=True) as engine:
        engine.generate([[5, 6, 7, 8, 9, 10, 11, 12]] * 4)
        trace = engine.trace()
    assert trace.forms == forms
    assert parse_document(Trace, to_json(trace), "here") == trace
    refined = refine(profile, trace)
    assert refined.costs.curves["expert"] == profile.costs.curves["expert"]
    before, after = (costs.forms for costs in (profile.costs, refined.costs))
    assert before is not None
    assert after is not None
    assert after["int4-1"] != before["int4-1"]
    (step,) = [one for one in refined.steps if one.kind.startswith("expert")]
    assert step.kind == "expert in int4-1"
    # an expert of each layer at least, in each pass
    assert step.events >= len(profile.model.layers) * trace.kept_passes


def test_each_form_is_measured_as_it_is_computed(
    checkpoint: Callable[[str], Path], tmp_path: Path, products: list[int]
) -> None:
    folder, store = checkpoint("mixtral"), tmp_path / "store"
    pack(folder, store, forms=(QuantizedExperts("int4-1", 16),))
    with open_weights(folder, store) as source:
        measurement = Measurement(source, 24 << 20, Tokens(range(3, 40), 211), effort=QUICK)
        tasks = [task for task in measurement.tasks() if task.what == "experts in int4-1"]
        # decode and prefill, each once
        assert len(tasks) == 2
        tasks[0].run()
    found = measurement.form_samples["int4-1"].alone.rows("expert")
    assert {1, 2, 4} <= set(found)
    assert measurement.samples.by_rows == {}
    # each expert that was measured is two products, and the warm-up's are not counted
    assert len(products) > 2 * sum(map(len, found.values()))
    costs = form_curves(measurement.form_samples)
    assert costs is not None
    assert set(costs) == {"int4-1"}


def test_each_form_is_measured_beside_copies_of_itself(
    checkpoint: Callable[[str], Path], tmp_path: Path, products: list[int]
) -> None:
    folder, store = checkpoint("mixtral"), tmp_path / "store"
    pack(folder, store, forms=(QuantizedExperts("int4-1", 16),))
    with open_weights(folder, store) as source:
        # enough passes for the reader to get a turn on a busy machine
        effort = replace(QUICK, passes=40)
        measurement = Measurement(source, 24 << 20, Tokens(range(3, 40), 211), effort=effort)
        tasks = [one for one in measurement.tasks() if one.what.startswith("copying beside")]
        forms = [one for one in tasks if one.what == "copying beside computing experts in int4-1"]
        # in decode and in prefill
        assert (len(tasks), len(forms)) == (5, 2)
        for task in forms:
            task.run()
        size = source.model.form_bytes(0, "int4-1")
    found = measurement.form_samples["int4-1"]
    assert products
    for pairs in (found.decode, found.prefill):
        assert pairs
        for rest, busy in pairs:
            assert rest.rate is None
            assert busy.rate is not None
            assert rest.compute_ns["expert"] > 0
            assert busy.compute_ns["expert"] > 0
    assert measurement.pairs == measurement.prefill_pairs == []
    # as fast as pieces of 1 MiB and a byte more cost: 1 ns a byte, 1,000 ns a piece
    measurement.copies = [CopySample(1, one, 1000 + one) for one in (1000, 2000, 100_000, 200_000)]
    rate = measurement._alone_rate(measurement._channel(measurement.copies), 1.0, "int4-1")
    assert rate == pytest.approx(size * 1e9 / (1000 + size), rel=1e-6)


def test_slowdowns_of_a_form_by_hand() -> None:
    """Experts take 1.5 times as long beside copies, all computation 1.3 times, of which one pair is
    believed a quarter; copies come at half the rate."""
    rest = Turn({"expert": 100.0, "router": 100.0}, {"expert": 0.0, "router": 0.0}, None)
    busy = Turn({"expert": 150.0, "router": 110.0}, {"expert": 1.0, "router": 1.0}, 5e8)
    samples = FormSamples(decode=[(rest, busy)], prefill=[(rest, busy)])
    found = form_slowdowns({"int8-1": samples}, lambda form: 1e9, "paced")
    assert found is not None
    (one,) = found.values()
    assert one.decode.value == one.prefill.value == pytest.approx(1.3 * (1.5 / 1.3) ** 0.25)
    assert one.copy.value == 2.0
    assert {one.copy.source, one.decode.source, one.prefill.source} == {"paced"}
    # a phase without any: as the checkpoint's own
    assert (
        form_slowdowns({"int8-1": FormSamples(decode=[(rest, busy)])}, lambda form: 1e9, "paced")
        is None
    )
