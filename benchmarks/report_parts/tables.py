"""Tables of results that have no page of their own, and the sentence that each comes to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.report_parts.blocks import Block, Heading, Table, Words, number, table_of

__all__ = [
    "compression",
    "compression_headline",
    "demo",
    "demo_headline",
    "executor_gpu",
    "executor_gpu_headline",
    "executor_headline",
    "faults",
    "faults_headline",
    "gating_headline",
    "imports",
    "long_run_headline",
    "parallel",
    "parallel_headline",
    "placement_headline",
    "prediction_headline",
    "published_headline",
    "ranking",
    "ranking_headline",
    "seeds_headline",
    "service",
    "service_headline",
    "solvers_headline",
    "sweep_headline",
]

Document = Mapping[str, Any]
_OTHERS = ("accelerate", "llama.cpp")


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


def demo_headline(document: Document) -> str:
    """The last run of the random checkpoint."""
    last = [one for one in document["runs"] if "bulk" in one["checkpoint"]][-1]
    return (
        f"{last['predicted']:.0f} tokens/s predicted ({last['low']:.0f} to {last['high']:.0f}), "
        f"{last['measured']:.0f} measured: {last['weights_bytes'] / 2**30:.1f} GiB within "
        f"{last['budget_bytes'] / 2**20:.0f} MiB, {last['requests']} requests."
    )


def prediction_headline(document: Document) -> str:
    """Errors and coverage."""
    return (
        f"{len(document['cells'])} cells: median error {document['median_abs_error']:.1%}, worst "
        f"{document['worst_abs_error']:.1%}; {document['coverage']:.0%} of runs inside their 90% "
        "interval."
    )


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
        found.append(Heading(f"{cell['checkpoint']}, {cell['requests']} requests, {held}"))
        apart = cell["tau_told_apart"]
        found.append(
            Words(
                f"Kendall's tau {cell['tau']:.2f} over {cell['pairs']} pairs of different plans; "
                + (
                    "no pair's runs lie apart."
                    if apart is None
                    else f"{apart:.2f} over the {cell['pairs_told_apart']} whose runs do not "
                    "overlap."
                )
            )
        )
        found.append(table_of(cell["rows"], columns))
    return found


def ranking_headline(document: Document) -> str:
    """Least and median."""
    taus = [cell["tau"] for cell in document["cells"]]
    cells = ", ".join(f"{cell['checkpoint']} {cell['tau']:.2f}" for cell in document["cells"])
    return (
        f"Kendall's tau between the predicted and the measured order of strategies: {cells} "
        f"(median {statistics.median(taus):.2f})."
    )


def executor_headline(document: Document) -> str:
    """Ratios to the peers."""
    rates = {
        (one["name"].rpartition("/")[0], one["new_tokens"], one["engine"]): one["tokens_per_second"]
        for one in document["cells"]
        if one["tokens_per_second"]
    }
    said = []
    for other in _OTHERS:
        ratios = [
            rate / rates[cell, new, other]
            for (cell, new, engine), rate in rates.items()
            if engine == "moeplan" and (cell, new, other) in rates
        ]
        if ratios:
            said.append(
                f"{statistics.median(ratios):.2f}x {other} (median of {len(ratios)} cells, "
                f"{min(ratios):.2f}x to {max(ratios):.2f}x)"
            )
    return f"moeplan is {'; '.join(said)}." if said else "No cell has a peer yet."


def seeds_headline(document: Document) -> str:
    """The planned n against the best."""
    rows = document["experiments"].get("choice", {}).get("rows", [])
    if not rows:
        return f"Experiments: {', '.join(document['experiments'])}."
    within = sum(bool(row["within"]) for row in rows)
    worst = max(row["short"] for row in rows)
    return (
        f"The planned n and b are within 3% of the best measured in {within} of {len(rows)} cells "
        f"(most lacking: {worst:.1%})."
    )


def gating_headline(document: Document) -> str:
    """Dynamic over static."""
    ratios = [
        1 / one["over_dynamic"]
        for one in document["cells"]
        if one.get("over_dynamic") and one["gating"] != "dynamic"
    ]
    if not ratios:
        return ""
    return (
        f"Dynamic gating is {statistics.median(ratios):.2f}x as fast as static (median of "
        f"{len(ratios)} cells, {min(ratios):.2f}x to {max(ratios):.2f}x)."
    )


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


def compression_headline(document: Document) -> str:
    """Gains."""
    said = ", ".join(
        f"{gain['measured']:.2f}x at {gain['requests']} requests" for gain in document["gains"]
    )
    return f"A compressed store is {said} as fast as a plain one."


def solvers_headline(document: Document) -> str:
    """Gaps over all cells."""
    gaps = [row["gap"] for row in document["rows"]]
    return (
        f"Gap over {len(gaps)} cells: median {statistics.median(gaps):.2%}, worst {max(gaps):.2%}."
    )


def placement_headline(document: Document) -> str:
    """Wins and losses."""
    return (
        f"cpsat against the best other method on held-out batches: better in {document['better']}, "
        f"worse in {document['worse']} of {len(document['cells'])} cells."
    )


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


def parallel_headline(document: Document) -> str:
    """How far off the simulator is."""
    off = [
        abs(cell[phase]["predicted_over_measured"] - 1)
        for cell in document["measured"]
        for phase in ("prefill", "decode")
    ]
    return (
        f"The simulator is off by {statistics.median(off):.0%} in the median and {max(off):.0%} at "
        f"most over {len(off)} layers of real processes."
    )


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


def service_headline(document: Document) -> str:
    """Quantiles, and what was lost."""
    said = []
    if load := document.get("load"):
        said.append(
            f"{load['clients']} readers beside two searches: median {load['median_ms']:.1f} ms, "
            f"p95 {load['p95_ms']:.1f} ms, p99 {load['p99_ms']:.1f} ms."
        )
    if kills := document.get("kills"):
        said.append(
            f"{kills['servers']} servers and {kills['workers']} workers killed: {kills['done']} of "
            f"{kills['jobs']} jobs done, {len(kills['faults'])} faults."
        )
    return " ".join(said)


def sweep_headline(document: Document) -> str:
    """Whether both ways agree."""
    same = "the same documents" if document["same_documents"] else "other documents"
    return (
        f"{document['pairs']} pairs: {document['local_seconds']:g} s here; on Ray, killed "
        f"{len(document['ray_plans_kept_at_kills'])} times, {sum(document['ray_seconds']):g} s; "
        f"{same}, {document['processes_left_by_kills']} processes left."
    )


def long_run_headline(document: Document) -> str:
    """Drift of memory and speed."""
    found = document["judged"]
    memory, speed = found["resident_mib"], found["tokens_per_second"]
    return (
        f"{document['minutes']:g} minutes, {found['cycles']} cycles: resident memory "
        f"{memory['least']:.0f} to {memory['most']:.0f} MiB, speed {speed['first_quarter']:.1f} "
        f"tokens/s in the first quarter and {speed['last_quarter']:.1f} in the last, "
        f"{found['wrong_rounds']} wrong rounds."
    )


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


def faults_headline(document: Document) -> str:
    """Counts."""
    clear = document["runs"] - sum(document[key] for key in ("right", "wrong", "hangs", "unclear"))
    return (
        f"{document['runs']} runs: {document['right']} right tokens, {clear} clear errors, "
        f"{document['wrong']} wrong, {document['hangs']} hangs, {document['unclear']} unclear."
    )


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


def executor_gpu_headline(document: Document) -> str:
    """Errors of predictions there."""
    off = [abs(one["tokens_per_second"] / one["predicted"] - 1) for one in document["cells"]]
    return (
        f"{document['gpu']}: predictions off by {statistics.median(off):.0%} in the median, "
        f"{max(off):.0%} at most, over {len(off)} cells."
    )


def published_headline(document: Document) -> str:
    """Factors."""
    return (
        f"Predicted from data sheets: median factor {document['median_factor']:.2f} over "
        f"{document['row_count']} rows; with one number calibrated a machine "
        f"{document['median_factor_calibrated']:.2f} over {document['calibrated_row_count']}."
    )


def imports(document: Document) -> list[Block]:
    """Times of each."""
    rows = [{"name": name, **row} for name, row in document["rows"].items()]
    columns = (
        ("started", "name", ""),
        ("least, ms", "least_ms", ".0f"),
        ("median, ms", "median_ms", ".0f"),
    )
    return [table_of(rows, columns)]
