"""Charts of results: what they show stands in the tables, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from benchmarks.report_parts.blocks import Bars, Chart, Series

__all__ = [
    "compression",
    "demo",
    "executor",
    "executor_gpu",
    "gating",
    "imports",
    "long_run",
    "parallel",
    "placement",
    "prediction",
    "published",
    "quantized",
    "ranking",
    "roofline",
    "roofline_h200",
    "seeds",
    "solvers",
]

Document = Mapping[str, Any]
Drawn = list[Chart | Bars]
_PEERS = ("moeplan", "moeplan compressed", "accelerate", "llama.cpp", "transformers")


def _bars(
    title: str, unit: str, rows: Iterable[tuple[str, tuple[float | None, ...]]], series: str
) -> Bars:
    """Rows of a name and a value for each of the series, which are named in one text."""
    found = list(rows)
    names = tuple(name for name, _ in found)
    return Bars(
        title,
        unit,
        names,
        tuple(series.split(", ")),
        tuple(zip(*(values for _, values in found), strict=True)),
    )


def _series(
    rows: Iterable[Document], by: str, x: str, y: str, low: str = "", high: str = ""
) -> tuple[Series, ...]:
    """A line for each value of ``by``, in its order, through rows that have x and y."""
    groups: dict[str, list[Document]] = {}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            groups.setdefault(str(row[by]), []).append(row)
    found = []
    for name, own in groups.items():
        own.sort(key=lambda one: one[x])
        values = (tuple(one[key] for one in own) for key in (x, y, low, high) if key)
        found.append(Series(name, *values))
    return tuple(found)


def demo(document: Document) -> Drawn:
    """Predicted beside measured, run by run."""
    rows = [
        (f"{one['measured_at'][:10]} {one['checkpoint']}", (one["predicted"], one["measured"]))
        for one in document["runs"]
    ]
    bulk = [row for row in rows if "bulk" in row[0]]
    return [_bars("Random weights", "tokens/s", bulk, "predicted, measured")] if bulk else []


def prediction(document: Document) -> Drawn:
    """A point for each run."""
    rows = [
        {"name": cell["checkpoint"], "x": cell["predicted"], "y": rate}
        for cell in document["cells"]
        for rate in cell["measured"]
    ]
    return [
        Chart(
            "Tokens/s, run by run",
            "predicted",
            "measured",
            _series(rows, "name", "x", "y"),
            log_x=True,
            log_y=True,
            diagonal=True,
        )
    ]


def ranking(document: Document) -> Drawn:
    """Strategies of each cell."""
    return [
        _bars(
            f"{cell['checkpoint']}, {cell['requests']} requests",
            "tokens/s",
            (
                (row["solver"], (row["predicted"], row["median"]))
                for row in cell["rows"]
                if "predicted" in row
            ),
            "predicted, measured",
        )
        for cell in document["cells"]
    ]


def executor(document: Document) -> Drawn:
    """Rates against requests, a line for each engine."""
    keys = ("checkpoint", "cap_fraction", "throttle_bytes_per_second", "new_tokens")

    def group(cell: Document) -> tuple[Any, ...]:
        return tuple(cell[key] if cell[key] is not None else 0 for key in keys)

    found: Drawn = []
    for (name, cap, disk, new), cells in groupby(sorted(document["cells"], key=group), group):
        own = [cell for cell in cells if cell["engine"] in _PEERS]
        speed = f"{disk / 1e6:.0f} MB/s" if disk else "disk not held"
        lines = _series(own, "engine", "requests", "tokens_per_second")
        if lines:
            title = f"{name}, cap {cap:.0%}, {speed}, {new} new tokens"
            found.append(Chart(title, "requests", "tokens/s", lines, log_x=True, log_y=True))
    return found


def executor_gpu(document: Document) -> Drawn:
    """Cells by what they stream."""
    rows = (
        (
            f"{cell['link']} {cell['share']:.0%} x{cell['requests']}",
            (cell["predicted"], cell["tokens_per_second"]),
        )
        for cell in document["cells"]
    )
    title = "Link, budget as a share of the weights, requests"
    return [_bars(title, "tokens/s", rows, "predicted, measured")]


def compression(document: Document) -> Drawn:
    """How much faster, as planned and as run."""
    rows = (
        (f"{gain['requests']} requests", (gain["predicted"], gain["measured"]))
        for gain in document["gains"]
    )
    return [_bars("Compressed over plain", "times as fast", rows, "planned, measured")]


def solvers(document: Document) -> Drawn:
    """Gaps of cells."""
    rows = (
        (row["name"], (100 * row["gap"], 100 * row["price_of_information"]))
        for row in document["rows"]
    )
    title = "Distance from the bound"
    return [_bars(title, "% of the schedule's time", rows, "gap, price of information")]


def placement(document: Document) -> Drawn:
    """cpsat against the best other method, cell by cell."""
    rows = [
        {
            "name": cell["cell"].partition(" ")[0],
            "x": cell[cell["best_other"]]["held_out"] / cell["even"],
            "y": cell["cpsat"]["held_out"] / cell["even"],
        }
        for cell in document["cells"]
    ]
    return [
        Chart(
            "The fullest device's load over an even share, held out",
            "best other method",
            "cpsat",
            _series(rows, "name", "x", "y"),
            diagonal=True,
        )
    ]


def parallel(document: Document) -> Drawn:
    """Layers of both phases, and the simulator on more devices."""
    rows = (
        (
            f"{cell['devices']} devices +{cell['replicas']} {phase}",
            (cell[phase]["measured_us"], cell[phase]["predicted_us"]),
        )
        for cell in document["measured"]
        for phase in ("prefill", "decode")
    )
    found: Drawn = [_bars("A layer, first deciles", "us", rows, "measured, predicted")]
    parts = [
        {"name": name, "x": row["devices"], "y": row[f"{name}_us"]}
        for name in ("layer", "compute", "idle", "exchange")
        for row in document["simulated"]
    ]
    if parts:
        lines = _series(parts, "name", "x", "y")
        found.append(Chart("A simulated layer", "devices", "us", lines, log_x=True))
    return found


def roofline(document: Document) -> Drawn:
    """What is reached of a data sheet's figures."""
    rows = (
        (name, (100 * one["value"],))
        for name, one in document["efficiencies"].items()
        if name not in ("launch", "system")
    )
    return [_bars("Reached of the data sheet", "%", rows, "reached")]


def roofline_h200(document: Document) -> Drawn:
    """An expert against its tokens."""
    rows = [
        {"name": row["operation"], "x": row["rows"], "y": row["median_ns"] / 1e3}
        for row in document["rows"]
        if row["operation"] in ("expert", "router", "head")
    ]
    lines = _series(rows, "name", "x", "y")
    return [Chart("One operation", "tokens", "us", lines, log_x=True, log_y=True)]


def published(document: Document) -> Drawn:
    """A point for each row."""
    rows = [
        {"name": f"{row['system']}, {row['gpu']}", "x": row["published"], "y": row["predicted"]}
        for row in document["rows"]
    ]
    lines = _series(rows, "name", "x", "y")
    title = "Tokens/s, nothing fitted to these rows"
    return [Chart(title, "published", "predicted", lines, log_x=True, log_y=True, diagonal=True)]


def imports(document: Document) -> Drawn:
    """Least and median."""
    rows = ((name, (row["least_ms"], row["median_ms"])) for name, row in document["rows"].items())
    return [_bars("From start to end of the process", "ms", rows, "least, median")]


def quantized(document: Document) -> Drawn:
    """Rates of each format."""
    rows = [
        (f"{one['requests']} requests, {one['experts']}", (one["tokens_per_second"],))
        for one in document["cells"]
    ]
    return [_bars("Speed within the same memory", "tokens/s", rows, "tokens/s")] if rows else []


def gating(document: Document) -> Drawn:
    """Rates against tokens, a line for each gating, a chart for each number of experts."""
    cells = document["cells"]
    return [
        Chart(
            f"{experts} experts",
            "tokens at once",
            "tokens/s",
            _series(
                (one for one in cells if one["experts"] == experts),
                "gating",
                "tokens",
                "tokens_per_second",
            ),
            log_x=True,
            log_y=True,
        )
        for experts in dict.fromkeys(one["experts"] for one in cells)
    ]


def long_run(document: Document) -> Drawn:
    """Memory and speed, cycle by cycle."""
    rows = [
        {
            "speed": "tokens/s",
            "memory": "its own",
            "x": one["at_seconds"] / 60,
            "rate": one["tokens_per_second"],
            "mib": one["own_bytes"] / 2**20,
        }
        for one in document["cycles"]
    ]
    return [
        Chart("Speed", "minutes", "tokens/s", _series(rows, "speed", "x", "rate")),
        Chart("Memory of the process", "minutes", "MiB", _series(rows, "memory", "x", "mib")),
    ]


def seeds(document: Document) -> Drawn:
    """Throughput against n, what the parts bring, and misses of buffers."""
    found: Drawn = []
    experiments = document["experiments"]
    rows = experiments.get("throughput", {}).get("rows", [])
    for name in dict.fromkeys(row["checkpoint"] for row in rows):
        own = [{**row, "name": f"b = {row['b']}"} for row in rows if row["checkpoint"] == name]
        lines = _series(own, "name", "n", "tokens_per_second", "lowest", "highest")
        found.append(Chart(f"{name}: throughput", "batches n", "tokens/s", lines, log_x=True))
    rows = experiments.get("ablation", {}).get("rows", [])
    for name in dict.fromkeys(row["checkpoint"] for row in rows):
        own = [row for row in rows if row["checkpoint"] == name]
        steps = [(str(row["step"]), (row["tokens_per_second"],)) for row in own]
        found.append(_bars(f"{name}: part by part", "tokens/s", steps, "tokens/s"))
        waits = [
            (str(row["step"]), (100 * row["bubble_dense"], 100 * row["bubble_experts"]))
            for row in own
        ]
        title = f"{name}: compute waits"
        found.append(_bars(title, "% of the time", waits, "for dense parts, for experts"))
    for cell in experiments.get("choice", {}).get("rows", []):
        own = [{**row, "name": f"b = {row['b']}"} for row in cell["measured"]]
        title = f"{cell['checkpoint']}, memory {cell['memory']:.0%}, {cell['requests']} requests: "
        title += f"{cell['chosen']} was planned"
        lines = _series(own, "name", "n", "tokens_per_second")
        found.append(Chart(title, "batches n", "tokens/s", lines, log_x=True))
    rows = experiments.get("buffers", {}).get("rows", [])
    methods = [key for key in ("lru", "lifo", "fifo", "frequency", "belady") if rows]
    groups = dict.fromkeys((row["from"], row["sequences"]) for row in rows)
    for source, sequences in groups:
        own = [
            {"name": method, "x": row["buffer"], "y": 100 * row[method]}
            for row in rows
            for method in methods
            if (row["from"], row["sequences"]) == (source, sequences)
            and row.get(method) is not None
        ]
        lines = _series(own, "name", "x", "y")
        title = f"Misses, {source}, {sequences} sequences"
        if any(len(line.x) > 1 for line in lines):
            found.append(Chart(title, "experts held in a layer", "% missed", lines))
    return found
