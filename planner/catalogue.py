"""A catalogue of hardware: figures with their sources, and machines made of them.

``data/hardware.csv`` holds one figure a row, as published (``spec``), as somebody measured it, or
fitted by somebody to measurements; ``data/machines.json`` says which parts make a machine. Of a
part's figures the measured ones count, where there are any, and otherwise the data sheet's.
"""

from __future__ import annotations

import csv
import difflib
import json
import statistics
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from planner.documents import Figure, Machine, load_document
from planner.documents.machine import HostProcessor
from solvers.errors import OptionError

__all__ = ["Row", "figure", "load_machine", "machine_names", "named_machine", "parts_of", "rows"]

Part = Literal["gpu", "link", "drive", "cpu"]

_UNITS = {
    "GB/s": 1e9,
    "GiB/s": float(1 << 30),
    "MiB/s": float(1 << 20),
    "TFLOP/s": 1e12,
    "GiB": float(1 << 30),
}
_DTYPES = ("float32", "bfloat16", "float16")
_HOST_GIB = 64
_DRIVE = "samsung-990-pro"
"""What a machine is given that names neither memory nor drive; said in ``Machine.assumed``."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one part.

    Attributes
    ----------
    quantity
        ``compute_<dtype>`` (dense matrix products), ``device_bandwidth``, ``device_memory``,
        ``link`` (host to device), ``disk`` (reads), ``disk_write``.
    value
        In FLOP/s, bytes/s or bytes.
    kind
        ``spec``, ``measured``, or ``fitted``.
    source
        Where it stands: repository or page, path and commit.
    """

    part: str
    name: str
    quantity: str
    value: float
    kind: Literal["spec", "measured", "fitted"]
    conditions: str
    source: str
    trust: str


@cache
def rows() -> tuple[Row, ...]:
    """All figures, in the file's order."""
    text = (files("planner") / "data" / "hardware.csv").read_text(encoding="utf-8")
    return tuple(
        Row(
            row["part"],
            row["name"],
            row["quantity"],
            float(row["value"]) * _UNITS[row["unit"]],
            row["kind"],  # type: ignore[arg-type]
            row["conditions"],
            " ".join(row[key] for key in ("source", "path", "commit") if row[key]),
            row["trust"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def figure(part: str, name: str, quantity: str) -> Figure | None:
    """What is reached, or else the data sheet's limit; None where no row says.

    Of several measurements the median counts, with half the distance between the quartiles.
    """
    found = [row for row in rows() if (row.part, row.name, row.quantity) == (part, name, quantity)]
    reached = [row for row in found if row.kind != "spec"]
    if not reached:
        return Figure(found[0].value, "spec", None, 1) if found else None
    values = [row.value for row in reached]
    kind: Literal["measured", "fitted"] = "measured"
    if all(row.kind == "fitted" for row in reached):
        kind = "fitted"
    spread = None
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        spread = (high - low) / 2
    return Figure(statistics.median(values), kind, spread, len(values))


@cache
def _composed() -> dict[str, dict[str, Any]]:
    text = (files("planner") / "data" / "machines.json").read_text(encoding="utf-8")
    parts: dict[str, dict[str, Any]] = json.loads(text)
    return parts


def machine_names() -> tuple[str, ...]:
    """Machines that ``--hardware`` takes by name."""
    return tuple(_composed())


def parts_of(name: str) -> tuple[tuple[str, str], ...]:
    """(part, name) of everything that a machine of the catalogue is made of."""
    gpu, *cpu = name.split("+")
    parts = {"drive": _DRIVE, **_composed()[gpu]}
    for one in cpu:
        parts["cpu"] = _composed()[one]["cpu"]
    return tuple((part, parts[part]) for part in ("gpu", "cpu", "link", "drive") if part in parts)


def named_machine(name: str) -> Machine:
    """A machine of the catalogue, or ``GPU+CPU``: one with the other as the CPU beside it.

    Raises
    ------
    OptionError
        If there is none of that name, with those nearest to it and what to give instead.
    """
    if "+" in name:
        return _with_cpu(*name.split("+", 1))
    parts = _composed().get(name)
    if parts is None:
        close = difflib.get_close_matches(name.lower(), machine_names(), n=3, cutoff=0.4)
        nearest = f"; nearest are {', '.join(close)}" if close else ""
        raise OptionError(
            f"hardware {name!r} is not in the catalogue{nearest}; 'moeplan catalog' lists it, "
            "and a JSON file of your own figures works, too (docs/offline.md)"
        )
    assumed = []
    part: Part = "gpu" if "gpu" in parts else "cpu"
    own = parts[part]
    compute = {dtype: figure(part, own, f"compute_{dtype}") for dtype in _DTYPES}
    if part == "gpu" and compute["float16"] is None:
        compute["float16"] = compute["bfloat16"]
        assumed.append("its peak in float16 is taken to be that in bfloat16")
    host = int(parts.get("host_memory_gib", _HOST_GIB)) << 30
    if "host_memory_gib" not in parts:
        assumed.append(f"it is taken to have {_HOST_GIB} GiB of memory (--host-memory)")
    drive = parts.get("drive", _DRIVE)
    if "drive" not in parts:
        assumed.append(f"its drive is taken to be a {drive}")
    memory = figure(part, own, "device_memory")
    return Machine(
        name=name,
        device="cuda" if part == "gpu" else "cpu",
        processor=own,
        compute_flops_per_second={d: one for d, one in compute.items() if one is not None},  # type: ignore[misc]
        device_memory_bytes=host if memory is None else int(memory.value),
        device_bandwidth_bytes_per_second=_needed(part, own, "device_bandwidth"),
        host_memory_bytes=host,
        link_bytes_per_second=_needed("link", parts["link"], "link") if part == "gpu" else None,
        disk_bytes_per_second=_needed("drive", drive, "disk"),
        disk_write_bytes_per_second=figure("drive", drive, "disk_write"),
        assumed=tuple(assumed),
    )


def _with_cpu(gpu: str, cpu: str) -> Machine:
    """A machine whose experts may be computed on its CPU, too."""
    machine, beside = named_machine(gpu), named_machine(cpu)
    for wanted, one in (("cuda", machine), ("cpu", beside)):
        if one.device != wanted:
            raise OptionError(
                f"hardware {gpu}+{cpu}: {one.name} is a {one.device} machine; name a GPU, then "
                "the CPU beside it"
            )
    host = HostProcessor(
        beside.processor, beside.compute_flops_per_second, beside.device_bandwidth_bytes_per_second
    )
    return replace(machine, name=f"{gpu}+{cpu}", host=host)


def _needed(part: Part, name: str, quantity: str) -> Figure:
    found = figure(part, name, quantity)
    if found is None:
        raise AssertionError(f"the catalogue has no {quantity} of {part} {name}")
    return found


def load_machine(name: str) -> Machine:
    """A machine of the catalogue, or one of a file (a name that ends in ``.json``).

    Raises
    ------
    OptionError
        If the name is not in the catalogue.
    DocumentError
        If the file is not a machine document.
    """
    if name.endswith(".json"):
        return load_document(Machine, Path(name))
    if Path(name).is_file():
        raise OptionError(f"--hardware {name!r} is a file of another name than *.json: rename it")
    return named_machine(name)
