"""The one sentence that a result comes to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.summary import words

__all__ = [
    "compression",
    "demo",
    "executor",
    "executor_gpu",
    "faults",
    "gating",
    "long_run",
    "parallel",
    "placement",
    "prediction",
    "published",
    "quantized",
    "ranking",
    "seeds",
    "service",
    "solvers",
    "sweep",
]

Document = Mapping[str, Any]
_OTHERS = ("accelerate", "llama.cpp")


def demo(document: Document) -> str:
    """The last run of the random checkpoint."""
    last = [one for one in document["runs"] if "bulk" in one["checkpoint"]][-1]
    return (
        f"{last['predicted']:.0f} tokens/s predicted ({last['low']:.0f} to {last['high']:.0f}), "
        f"{last['measured']:.0f} measured: {last['weights_bytes'] / 2**30:.1f} GiB within "
        f"{last['budget_bytes'] / 2**20:.0f} MiB, {last['requests']} requests."
    )


def prediction(document: Document) -> str:
    """Errors and coverage."""
    return f"{words(document)}."


def ranking(document: Document) -> str:
    """Of pairs that are told apart, and of all."""
    told = [cell for cell in document["cells"] if cell["tau_told_apart"] is not None]
    if not told:
        return "No cell has two plans whose rates can be told apart."
    cells = ", ".join(
        f"{cell['checkpoint']} {cell['tau_told_apart']:.2f} over {cell['pairs_told_apart']} of "
        f"{cell['pairs']} pairs ({_tau(cell['tau'])} over all)"
        for cell in told
    )
    return (
        "Kendall's tau between the predicted and the measured order of strategies, over pairs "
        f"whose runs do not overlap: {cells}."
    )


def _tau(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def executor(document: Document) -> str:
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
            middle, spread = statistics.median(ratios), f"{min(ratios):.2f}x to {max(ratios):.2f}x"
            cells = f"median of {len(ratios)} cells, {spread}"
            said.append(f"{middle:.2f}x as fast as {other} ({cells})")
    return f"moeplan is {'; '.join(said)}." if said else "No cell has a peer yet."


def seeds(document: Document) -> str:
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


def gating(document: Document) -> str:
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


def quantized(document: Document) -> str:
    """Nats lost, and speed won."""
    base, *others = document["accuracy"]
    said = [
        f"{one['experts']} costs {one['nats_per_token'] - base['nats_per_token']:+.4f} nats a token"
        for one in others
    ]
    rates = {
        one["requests"]: one["tokens_per_second"]
        for one in document["cells"]
        if one["experts"] == "bfloat16"
    }
    said += [
        f"{one['experts']} is {one['tokens_per_second'] / rates[one['requests']]:.2f}x as fast at "
        f"{one['requests']} requests"
        for one in document["cells"]
        if one["experts"] != "bfloat16" and one["tokens_per_second"] and rates[one["requests"]]
    ]
    return f"{'; '.join(said)}."


def compression(document: Document) -> str:
    """Gains."""
    said = ", ".join(
        f"{gain['measured']:.2f}x at {gain['requests']} requests" for gain in document["gains"]
    )
    return f"A compressed store is {said} as fast as a plain one."


def solvers(document: Document) -> str:
    """Gaps over all cells."""
    gaps = [row["gap"] for row in document["rows"]]
    return (
        f"Gap over {len(gaps)} cells: median {statistics.median(gaps):.2%}, worst {max(gaps):.2%}."
    )


def placement(document: Document) -> str:
    """Wins and losses."""
    return (
        f"cpsat against the best other method on held-out batches: better in {document['better']}, "
        f"worse in {document['worse']} of {len(document['cells'])} cells."
    )


def parallel(document: Document) -> str:
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


def service(document: Document) -> str:
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


def sweep(document: Document) -> str:
    """Whether both ways agree."""
    same = "the same documents" if document["same_documents"] else "other documents"
    return (
        f"{document['pairs']} pairs: {document['local_seconds']:g} s here; on Ray, killed "
        f"{len(document['ray_plans_kept_at_kills'])} times, {sum(document['ray_seconds']):g} s; "
        f"{same}, {document['processes_left_by_kills']} processes left."
    )


def long_run(document: Document) -> str:
    """Drift of memory and speed."""
    found = document["judged"]
    memory, speed = found["own_mib"], found["tokens_per_second"]
    return (
        f"{document['minutes']:g} minutes, {found['cycles']} cycles: memory "
        f"{memory['least']:.0f} to {memory['most']:.0f} MiB, speed {speed['first_quarter']:.1f} "
        f"tokens/s in the first quarter and {speed['last_quarter']:.1f} in the last, "
        f"{found['wrong_rounds']} wrong rounds."
    )


def faults(document: Document) -> str:
    """Counts."""
    clear = document["runs"] - sum(document[key] for key in ("right", "wrong", "hangs", "unclear"))
    return (
        f"{document['runs']} runs: {document['right']} right tokens, {clear} clear errors, "
        f"{document['wrong']} wrong, {document['hangs']} hangs, {document['unclear']} unclear."
    )


def executor_gpu(document: Document) -> str:
    """Errors of predictions there."""
    off = [abs(one["tokens_per_second"] / one["predicted"] - 1) for one in document["cells"]]
    return (
        f"{document['gpu']}: predictions off by {statistics.median(off):.0%} in the median, "
        f"{max(off):.0%} at most, over {len(off)} cells."
    )


def published(document: Document) -> str:
    """Factors."""
    return (
        f"Predicted from data sheets: median factor {document['median_factor']:.2f} over "
        f"{document['row_count']} rows, {document['rows_within_1.3']} of them within 1.3."
    )
