"""What memory is for, and where experts lie, as pictures for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from moeplan.output import human_bytes
from moeplan.words import PURPOSE_WORDS, share
from planner.documents import ModelSpec, Plan

__all__ = ["expert_map", "memory_bars"]


def memory_bars(by_purpose: Mapping[str, int], capacity_bytes: int, width: int = 40) -> Table:
    """Bars of the memory that each purpose takes, largest first, against the budget; of ``width``
    columns at most, of fewer where a line has no more."""
    table = Table.grid(padding=(0, 2))
    for most in (None, None, width):
        table.add_column(max_width=most)
    peak = sum(by_purpose.values())
    largest = max([*by_purpose.values(), 1])
    rows = sorted(by_purpose.items(), key=lambda item: -item[1])
    for purpose, size in rows:
        if size:
            # what is next to nothing has the thinnest line, an eighth of a sign
            bar = Bar(largest, 0, max(size, largest / (4 * width)), color="cyan")
            table.add_row(PURPOSE_WORDS.get(purpose, purpose), human_bytes(size), bar)
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
