"""The catalogue of hardware: rows, machines of them, files of one's own."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from planner.catalogue import figure, load_machine, machine_names, named_machine, parts_of, rows
from planner.documents import Figure, Machine, write_document
from solvers.errors import DocumentError, OptionError

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("MOEPLAN_SHARED_DATA", ROOT.parent / "shared" / "data"))


def test_several_measurements_give_their_median_and_spread() -> None:
    # matmul_fp16 of a T4: 25.0, 41.91, 41.93, 42.71; quartiles 37.6825 and 42.125
    found = figure("gpu", "t4", "compute_float16")
    assert found is not None
    assert found.value == pytest.approx(41.92e12)
    assert found.spread == pytest.approx((42.125e12 - 37.6825e12) / 2)
    assert (found.source, found.samples) == ("measured", 4)


def test_a_limit_counts_where_nothing_was_measured() -> None:
    found = figure("gpu", "b200", "device_bandwidth")
    assert found is not None
    assert (found.value, found.source) == (7.7e12, "spec")
    assert figure("gpu", "b200", "no such quantity") is None


def test_a_cpu_has_the_types_that_were_measured_on_it() -> None:
    """One measured 0.75 TFLOP/s in bfloat16. Of the 8358 two say 0.96 and 14, fifteen times as much
    and more than the chip can, so neither counts."""
    known = named_machine("xeon-6330").compute_flops_per_second
    assert known["bfloat16"] == Figure(0.75e12, "measured", None, 1)
    assert known["float32"].value == 5.7e12
    assert set(named_machine("xeon-8358").compute_flops_per_second) == {"float32"}


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_is_whole_and_every_part_has_rows(name: str) -> None:
    machine = named_machine(name)
    assert machine.name == name
    there = {(row.part, row.name) for row in rows()}
    assert set(parts_of(name)) <= there
    assert machine.device_memory_bytes >= 16 << 30


def test_every_row_says_where_it_is_from() -> None:
    for row in rows():
        assert row.source
        assert row.kind in ("spec", "measured", "fitted")
        assert row.trust in ("high", "medium", "low")


def test_an_unknown_machine_is_told_its_neighbours() -> None:
    with pytest.raises(OptionError, match=r"nearest are rtx-3090.*catalog.*JSON"):
        load_machine("RTX3090")


def test_a_machine_of_ones_own(tmp_path: Path) -> None:
    machine = named_machine("l4")
    path = tmp_path / "mine.json"
    write_document(machine, path)
    assert load_machine(str(path)) == machine
    # a file, and not a name that the catalogue lacks
    with pytest.raises(OptionError, match=r"is a file of another name than \*\.json: rename it"):
        load_machine(str(path.rename(tmp_path / "mine")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "cpu"}, "link_bytes_per_second: a cuda machine has one, a cpu machine none"),
        ({"link_bytes_per_second": None}, "a cuda machine has one"),
        ({"device": "cpu", "link_bytes_per_second": None, "disk_bytes_per_second": None}, "drive"),
        ({"compute_flops_per_second": {}}, "there is none"),
        (
            {"device_bandwidth_bytes_per_second": {"value": 300.0, "source": "spec"}},
            "300 a second is no speed",
        ),
        ({"memory": 3}, "memory"),
        ({"host_memory_bytes": 0}, "host_memory_bytes"),
    ],
)
def test_a_file_that_is_no_machine_is_refused(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    write_document(named_machine("l4"), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DocumentError, match=words):
        load_machine(str(path))


def test_rows_are_those_of_the_data_folder() -> None:
    source = DATA / "hardware.csv"
    if not source.is_file():
        pytest.skip(f"the data folder is not there: {source} (MOEPLAN_SHARED_DATA)")
    with source.open(newline="", encoding="utf-8") as file:
        there = {
            (float(row["value"]), row["unit"], row["source"].replace("github:", "github.com/"))
            for row in csv.DictReader(file)
            if row["value"]
        }
    own = (ROOT / "planner" / "data" / "hardware.csv").read_text(encoding="utf-8")
    missing = [
        row
        for row in csv.DictReader(own.splitlines())
        if (float(row["value"]), row["unit"], row["source"]) not in there
        and not row["source"].startswith(("benchmarks/", "vendor"))
        and row["quantity"] != "device_memory"
    ]
    assert missing == []


def test_a_machine_document_reads_its_own_kind(tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    path.write_text('{"kind": "hardware", "version": 1}')
    with pytest.raises(DocumentError, match="'machine' document was expected"):
        load_machine(str(path))
    assert Machine.kind == "machine"
