"""Tables of results that have no page of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.report_parts.blocks import Block, Heading, Table, Words, number, table_of

__all__ = [
    "compression",
    "demo",
    "executor_gpu",
    "faults",
    "imports",
    "parallel",
    "ranking",
    "service",
]

Document = Mapping[str, Any]


def demo(document: Document) -> list[Block]:
    """Every run that was kept."""
    columns = (
        ("when", "measured_at", ""),
        ("checkpoint", "checkpoint", ""),
        ("weights GiB", "weights_bytes", ".1f/1073741824"),
        ("budget MiB", "budget_bytes", ".0f/1048576"),
        ("requests", "requests", ""),
        ("predicted", "predicted", ".0f"),
        ("low", "low", ".0f"),
        ("high", "high", ".0f"),
        ("measured, tokens/s", "measured", ".0f"),
        ("process beside the budget, MiB", "beside_budget_bytes", ".0f/1048576"),
        ("others, cores", "others_cores", ""),
        ("remark", "remark", ""),
    )
    return [table_of(document["runs"], columns)]


def ranking(document: Document) -> list[Block]:
    """A table for each cell."""
    found: list[Block] = []
    columns = (
        ("strategy", "solver", ""),
        ("n", "n_batches", ""),
        ("b", "batch_size", ""),
        ("predicted, tokens/s", "predicted", ".2f"),
        ("low", "low", ".2f"),
        ("high", "high", ".2f"),
        ("measured, median", "median", ".2f"),
        ("least", "least", ".2f"),
        ("most", "most", ".2f"),
        ("same plan as", "same_plan_as", ""),
    )
    for cell in document["cells"]:
        disk = cell["throttle_bytes_per_second"]
        held = "disk not held" if disk is None else f"disk held to {disk / 1e6:.0f} MB/s"
        held += " by waiting (paced)" if cell.get("paced") else ""
        found.append(Heading(f"{cell['checkpoint']}, {cell['requests']} requests, {held}"))
        said = f"{cell['pairs']} pairs of different plans: Kendall's tau {_tau(cell['tau'])}; "
        said += f"{cell['pairs_told_apart']} of them with runs that do not overlap: "
        found.append(Words(f"{said}{_tau(cell['tau_told_apart'])}."))
        found.append(table_of(cell["rows"], columns))
    return found


def compression(document: Document) -> list[Block]:
    """Gains and cells."""
    cells = (
        ("requests", "requests", ""),
        ("store", "store", ""),
        ("n", "n_batches", ""),
        ("b", "batch_size", ""),
        ("predicted, tokens/s", "predicted_tokens_per_second", ".1f"),
        ("low", "predicted_low", ".1f"),
        ("high", "predicted_high", ".1f"),
        ("measured", "tokens_per_second", ".1f"),
        ("decode", "decode_tokens_per_second", ".1f"),
        ("GB read", "bytes_read", ".2f/1e9"),
        ("load", "load", ".1f"),
    )
    gains = (
        ("requests", "requests", ""),
        ("planned, times", "predicted", ".2f"),
        ("measured, times", "measured", ".2f"),
        ("decode, times", "decode", ".2f"),
        ("bytes", "bytes", ".0%"),
    )
    disk = document["throttle_bytes_per_second"]
    held = "not held" if disk is None else f"held to {disk / 1e6:.0f} MB/s"
    return [
        Words(
            f"{document['checkpoint']}; disk {held}; prompts of {document['prompt_tokens']}, "
            f"{document['new_tokens']} new tokens. What `pack --compress auto` would do: "
            f"{document['auto']}."
        ),
        Heading("How much faster the compressed store is"),
        table_of(document["gains"], gains),
        Heading("Cells"),
        table_of(document["cells"], cells),
    ]


def parallel(document: Document) -> list[Block]:
    """Measured against simulated, and the simulator alone."""
    rows = [
        {**cell, **cell[phase], "phase": phase}
        for cell in document["measured"]
        for phase in ("prefill", "decode")
    ]
    measured = (
        ("devices", "devices", ""),
        ("replicas", "replicas", ""),
        ("phase", "phase", ""),
        ("measured, us a layer", "measured_us", ".0f"),
        ("its median", "measured_median_us", ".0f"),
        ("predicted", "predicted_us", ".0f"),
        ("ratio", "predicted_over_measured", ".2f"),
        ("exchange", "exchange_share", ".0%"),
    )
    simulated = (
        ("devices", "devices", ""),
        ("replicas", "replicas", ""),
        ("layer, us", "layer_us", ".0f"),
        ("compute", "compute_us", ".0f"),
        ("idle", "idle_us", ".0f"),
        ("exchange", "exchange_us", ".0f"),
    )
    return [
        Words(
            f"{document['model']}, {document['prompts']} prompts of {document['prompt_tokens']} "
            f"tokens, {document['new_tokens']} new ones; load average of the machine at the end "
            f"{document['load_average']:.1f}. Devices are processes that share its cores; times "
            "are first deciles."
        ),
        table_of(rows, measured),
        Heading("Simulated: links of 25 GB/s and 20 us, an expert as fast as here"),
        table_of(document["simulated"], simulated),
    ]


def service(document: Document) -> list[Block]:
    """Both parts, those that were measured."""
    found: list[Block] = []
    for name, title in (("load", "Readers beside two searches"), ("kills", "kill -9")):
        part = document.get(name)
        found.append(Heading(title))
        if part is None:
            found.append(Words("Not run."))
            continue
        about = part["about"]
        found.append(Words(f"`{about['command']}`, {about['measured']}."))
        rows = [(key, value) for key, value in part.items() if key != "about"]
        cells = tuple(
            (key.replace("_", " "), "; ".join(value) or "none")
            if isinstance(value, list)
            else (key.replace("_", " "), number(value))
            for key, value in rows
        )
        found.append(Table(("figure", "value"), cells))
    return found


def faults(document: Document) -> list[Block]:
    """Outcomes of each kind of fault."""
    rows = tuple(
        (kind, told, str(count))
        for kind, outcomes in document["outcomes"].items()
        for told, count in outcomes.items()
    )
    return [
        Words(
            f"{document['checkpoint']}; {document['reads_of_a_clean_run']} reads in a clean run; "
            f"{document['delays']} delays of {document['delay_seconds']:g} s in all."
        ),
        Table(("fault", "outcome", "runs"), rows),
    ]


def _tau(value: float | None) -> str:
    return "none, as no rates differ" if value is None else f"{value:.2f}"


def executor_gpu(document: Document) -> list[Block]:
    """Cells, and the links as profiled."""
    links = (
        ("link", "link", ""),
        ("GB/s", "bandwidth_bytes_per_second", ".2f/1e9"),
        ("latency, us", "latency_ns", ".0f/1e3"),
        ("profiled in, s", "seconds", ".0f"),
    )
    cells = (
        ("link", "link", ""),
        ("budget", "share", ".0%"),
        ("requests", "requests", ""),
        ("predicted, tokens/s", "predicted", ".1f"),
        ("measured", "tokens_per_second", ".1f"),
        ("decode", "decode_tokens_per_second", ".1f"),
        ("GB read", "bytes_read", ".2f/1e9"),
        ("copies, GB/s", "copy_bytes_per_second", ".2f/1e9"),
        ("bubble", "bubble_share", ".0%"),
        ("peak, MiB", "gpu_peak_bytes", ".0f/1048576"),
        ("over budget, MiB", "over_budget_bytes", ".0f/1048576"),
    )
    profiles = [{"link": name, **one} for name, one in document["profiles"].items()]
    return [
        Words(
            f"{document['gpu']}, torch {document['torch']}; weights of "
            f"{document['weights_bytes'] / 2**20:.0f} MiB; `{document['solver']}`. Budgets are "
            "shares of the weights."
        ),
        table_of(profiles, links),
        table_of(document["cells"], cells),
    ]


def imports(document: Document) -> list[Block]:
    """Times of each."""
    rows = [{"name": name, **row} for name, row in document["rows"].items()]
    columns = (
        ("started", "name", ""),
        ("least, ms", "least_ms", ".0f"),
        ("median, ms", "median_ms", ".0f"),
    )
    return [table_of(rows, columns)]
