"""Two plans beside each other, figure by figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moeplan.output import human_bytes, human_number, human_time
from moeplan.words import objective_words, range_words
from planner.documents import Plan
from solvers.counting import counted

__all__ = ["Figure", "expert_words", "figures"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: what it is, both plans' words, and the second over the first if that is said."""

    name: str
    first: str
    second: str
    ratio: str

    @property
    def same(self) -> bool:
        """Whether nothing that is shown differs."""
        return self.first == self.second and self.ratio in ("–", "1.00")


def figures(first: Plan, second: Plan) -> list[Figure]:
    """All rows."""
    rows = []
    for name, number, words in _ROWS:
        values = number(first), number(second)
        ratio = "–"
        if all(isinstance(value, int | float) for value in values) and values[0]:
            ratio = f"{values[1] / values[0]:.2f}"
        rows.append(Figure(name, words(first, values[0]), words(second, values[1]), ratio))
    if first.objective_name != second.objective_name:
        # values of different objectives say nothing about each other
        return [_apart(row) if row.name == "objective" else row for row in rows]
    return rows


def _apart(row: Figure) -> Figure:
    return Figure(row.name, row.first, row.second, "–")


def _plain(_: Plan, value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(_: Plan, value: float) -> str:
    return human_bytes(value)


def _time(_: Plan, value: float) -> str:
    return human_time(value)


def _gap(plan: Plan, value: float | None) -> str:
    return "none proven" if value is None else f"{100 * value:.2f}%"


_ROWS: tuple[tuple[str, Callable[[Plan], Any], Callable[[Plan, Any], str]], ...] = (
    (
        "tokens/s predicted",
        lambda plan: plan.predicted.tokens_per_second.value,
        lambda plan, _: range_words(plan.predicted.tokens_per_second),
    ),
    (
        "tokens/s in decode",
        lambda plan: plan.predicted.decode_tokens_per_second.value,
        lambda _, value: human_number(value),
    ),
    ("first token after", lambda plan: plan.predicted.time_to_first_token_ns, _time),
    ("everything takes", lambda plan: plan.predicted.totals.wall_ns, _time),
    (
        "objective",
        lambda plan: plan.objective,
        lambda plan, value: f"{plan.objective_name}: {objective_words(plan, value)}",
    ),
    ("gap", lambda plan: plan.gap, _gap),
    ("device peak", lambda plan: plan.memory["device"].peak_bytes, _bytes),
    ("device budget", lambda plan: plan.memory["device"].capacity_bytes, _bytes),
    ("read", lambda plan: plan.predicted.totals.bytes_read, _bytes),
    ("waits for dense parts", lambda plan: plan.predicted.totals.bubble_inter_layer_ns, _time),
    ("waits for experts", lambda plan: plan.predicted.totals.bubble_intra_layer_ns, _time),
    ("sequences in a group", lambda plan: plan.policy.n_batches * plan.policy.batch_size, _plain),
    ("n × b", lambda plan: f"{plan.policy.n_batches} × {plan.policy.batch_size}", _plain),
    (
        "experts that stay",
        lambda plan: sum(len(one.resident) for one in plan.policy.layers),
        _plain,
    ),
    (
        "candidates to be copied ahead",
        lambda plan: sum(len(one.prefetch) for one in plan.policy.layers),
        _plain,
    ),
    ("slots for experts", lambda plan: plan.policy.slots, _plain),
    ("experts after use", lambda plan: plan.policy.eviction, _plain),
    ("solver", lambda plan: plan.solver, _plain),
    (
        "work",
        lambda plan: (
            f"{plan.workload.requests:,} of {plan.workload.prompt_tokens:,}"
            f"+{plan.workload.new_tokens:,} tokens"
        ),
        _plain,
    ),
    ("computed in", lambda plan: f"{plan.dtype} on {plan.device}", _plain),
)


def expert_words(first: Plan, second: Plan) -> str:
    """How far the two keep the same experts."""
    if first.inputs.model != second.inputs.model:
        return "They are for different models, so their experts say nothing about each other."
    kept = [
        {(at, expert) for at, one in enumerate(plan.policy.layers) for expert in one.resident}
        for plan in (first, second)
    ]
    both = len(kept[0] & kept[1])
    return (
        f"Both keep {counted(both, 'expert')} in memory; {len(kept[0]) - both:,} more stay under "
        f"plan A alone, {len(kept[1]) - both:,} under plan B alone."
    )
