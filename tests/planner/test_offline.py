"""Profiles without a machine: the documents agree, plans say what they rest on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from planner.catalogue import named_machine
from planner.check import check_plan
from planner.documents import Figure, Workload
from planner.drawn_routing import draw_routing
from planner.offline import choose_dtype, offline_profile, write_profile
from planner.profiles import Profile, load_profile
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from solvers.errors import DocumentError, OptionError, UnsupportedError

MEMORY = 64 << 20


def made(model: Any, machine: Any, memory_bytes: int = MEMORY, dtype: Any = "float32") -> Profile:
    routing = draw_routing("zipf:1", model, prompt_tokens=8, seed=0)
    config = Path("some") / "config.json"
    return offline_profile(config, model, machine, routing, dtype=dtype, memory_bytes=memory_bytes)


def machine(**change: Any) -> Any:
    return dataclasses.replace(named_machine("a100-80gb"), **change)


def test_weights_that_fit_lie_in_host_memory(small_profile: Any) -> None:
    profile = made(small_profile.model, machine())
    (channel,) = profile.hardware.channels
    assert channel.name == "h2d"
    assert channel.bandwidth_bytes_per_second.value == 25e9
    (said,) = [note for note in profile.index.notes if "lie in host memory" in note]
    # a model of less than a GiB has more than 0.0 GiB of weights
    assert f"weights ({small_profile.model.total_bytes / (1 << 20):.1f} MiB)" in said


@pytest.mark.parametrize(("link", "expected"), [(1e9, 1e9), (9e9, 4e9)])
def test_weights_that_do_not_fit_take_the_slower_of_drive_and_link(
    link: float, expected: float, small_profile: Any
) -> None:
    slow = machine(
        host_memory_bytes=small_profile.model.total_bytes - 1,
        link_bytes_per_second=Figure(link, "measured"),
        disk_bytes_per_second=Figure(4e9, "measured"),
    )
    profile = made(small_profile.model, slow)
    (channel,) = profile.hardware.channels
    assert channel.name == "disk"
    assert channel.bandwidth_bytes_per_second.value == expected
    assert "lie on the drive" in " ".join(profile.index.notes)
    with pytest.raises(UnsupportedError, match="has no drive"):
        made(small_profile.model, dataclasses.replace(slow, disk_bytes_per_second=None))


def test_a_plan_of_it_passes_the_checker_and_says_what_it_is(
    small_profile: Any, tmp_path: Path
) -> None:
    least = made(small_profile.model, machine())
    profile = write_profile(least, tmp_path / "profile")
    assert load_profile(tmp_path / "profile").index == profile.index
    plan = make_plan(
        profile, Workload(8, 8, 4), memory_bytes=MEMORY, solver="frequency", time_limit_seconds=1
    )
    assert check_plan(plan, profile) == []
    assert plan.device == "cuda"
    assert set(plan.predicted.timeline.channel) <= {"compute", "h2d"}
    said = " ".join(plan.notes)
    for words in ("nothing was measured", "synthetic", "assumed", "not to run"):
        assert words in said
    rate = plan.predicted.tokens_per_second
    # nine of ten published runs lie within a factor of about two
    assert rate.high / rate.value > 1.5


def test_where_keys_and_values_lie_is_said_once(small_profile: Any) -> None:
    box = named_machine("a100-80gb")
    box = dataclasses.replace(box, device="cpu", link_bytes_per_second=None)
    profile = made(small_profile.model, box)
    work = Workload(2, 8, 4)
    least = smallest_budget_bytes(profile, work, "below")
    plan = make_plan(profile, work, memory_bytes=least, solver="on-demand", kv="below")
    said = " ".join(plan.notes)
    assert "lie below the device" in said
    assert "values on the device" not in said


def test_writes_of_keys_and_values_take_what_the_drive_says(small_profile: Any) -> None:
    there = dataclasses.replace(
        named_machine("xeon-8358"), disk_write_bytes_per_second=Figure(2e9, "measured", 0.0, 3)
    )
    found = made(small_profile.model, there, dtype="float32").costs.kv_writes
    assert found is not None
    # 4 MiB at 2 GB/s, and the latency of a read; alone as beside copies
    assert found.alone(4 << 20) == round(197_000 + (4 << 20) / 2)
    assert found.alone == found.beside
    assert found.alone.source == "measured"
    for machine in (
        dataclasses.replace(there, disk_write_bytes_per_second=None),
        named_machine("rtx-3090"),  # none lie below a GPU
    ):
        assert made(small_profile.model, machine).costs.kv_writes is None
    listed = named_machine("xeon-8358").disk_write_bytes_per_second
    assert listed is not None
    assert (listed.value, listed.source) == (6.9e9, "spec")


def test_a_profile_is_written_once(small_profile: Any, tmp_path: Path) -> None:
    profile = made(small_profile.model, machine())
    write_profile(profile, tmp_path / "a")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DocumentError, match="is not empty"):
        write_profile(profile, tmp_path / "a")
    with pytest.raises(DocumentError, match="cannot be written"):
        write_profile(profile, tmp_path / "no" / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_what_cannot_be_planned_is_refused(small_profile: Any) -> None:
    model = small_profile.model
    with pytest.raises(OptionError, match=r"more than the 80 GiB of a100-80gb"):
        made(model, machine(), memory_bytes=81 << 30)
    state = tuple(dataclasses.replace(layer, state_bytes=9) for layer in model.layers)
    with pytest.raises(UnsupportedError, match="linear attention"):
        made(dataclasses.replace(model, layers=state), machine())
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        made(dataclasses.replace(model, encoder=1), machine())


def test_types_are_those_of_weights_and_machine(small_profile: Any) -> None:
    model = small_profile.model
    assert choose_dtype(model, machine(), None) == "float32"
    half = dataclasses.replace(model, dtype="bfloat16", dtype_bytes=2)
    assert choose_dtype(half, machine(), "float16") == "float16"
    eight = dataclasses.replace(model, dtype="float8", dtype_bytes=1)
    assert choose_dtype(eight, machine(), None) == "bfloat16"
    with pytest.raises(OptionError, match="used as stored"):
        choose_dtype(half, machine(), "float32")
    with pytest.raises(OptionError, match="is unknown; choose from"):
        choose_dtype(half, machine(), "int4")
    words = "there is no speed of epyc-7763 for {}, only for float32; a machine of your own"
    with pytest.raises(OptionError) as stored:
        choose_dtype(half, named_machine("epyc-7763"), None)
    # no option is named that nobody gave
    assert str(stored.value).startswith(f"{half.name} is stored in bfloat16: ")
    assert words.format("bfloat16") in str(stored.value)
    with pytest.raises(OptionError, match=f"--dtype float16: {words.format('float16')}"):
        choose_dtype(half, named_machine("epyc-7763"), "float16")
