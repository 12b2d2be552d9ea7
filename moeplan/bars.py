"""What memory is for, and where experts lie, as pictures for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from moeplan.output import human_bytes
from moeplan.words import PURPOSE_WORDS, share
from planner.documents import ModelSpec, Plan

__all__ = ["expert_map", "memory_bars"]


def memory_bars(by_purpose: Mapping[str, int], capacity_bytes: int, width: int = 40) -> Table:
    """Bars of the memory that each purpose takes, largest first, against the budget."""
    table = Table.grid(padding=(0, 2))
    peak = sum(by_purpose.values())
    largest = max([*by_purpose.values(), 1])
    rows = sorted(by_purpose.items(), key=lambda item: -item[1])
    for purpose, size in rows:
        if size:
            bar = "█" * max(round(width * size / largest), 0) or "▏"
            table.add_row(PURPOSE_WORDS.get(purpose, purpose), human_bytes(size), Text(bar, "cyan"))
    table.add_row(
        Text("together", "bold"),
        Text(human_bytes(peak), "bold"),
        f"of {human_bytes(capacity_bytes)} ({share(peak, capacity_bytes)})",
    )
    return table


def expert_map(plan: Plan, model: ModelSpec) -> Text:
    """One row a layer, one sign an expert: █ stays, ▒ candidate to be copied ahead, · on demand."""
    text = Text()
    for index, line in enumerate(_map_lines(plan, model)):
        text.append(f"{index:>4}  ", "dim")
        for sign in line:
            text.append(sign, {"█": "cyan", "▒": "yellow"}.get(sign, "dim"))
        text.append("\n")
    text.append("      █ stays  ▒ candidate to be copied ahead  · on demand", "dim")
    return text


def _map_lines(plan: Plan, model: ModelSpec) -> Iterator[str]:
    for layer, spec in zip(plan.policy.layers, model.layers, strict=True):
        resident, ahead = set(layer.resident), set(layer.prefetch)
        yield "".join(
            "█" if expert in resident else "▒" if expert in ahead else "·"
            for expert in range(spec.experts)
        )
