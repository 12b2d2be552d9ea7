"""A plan or a trace in words, for somebody who has to trust it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from moeplan.output import human_bytes, human_number, human_time
from planner.comparable import not_comparable
from planner.documents import (
    ExpertPlacement,
    Hardware,
    ModelSpec,
    Plan,
    Policy,
    Range,
    Trace,
    TraceTotals,
    Workload,
)
from planner.documents.placement import PlacementCandidate
from planner.host import host_words
from planner.kv import below_words
from planner.objectives import objective_named
from solvers.counting import counted
from solvers.errors import OptionError

__all__ = [
    "CREDIT_WORDS",
    "PURPOSE_WORDS",
    "against_words",
    "compared",
    "decode_tokens_per_second",
    "explain_plan",
    "explain_trace",
    "gap_words",
    "note_list",
    "objective_value",
    "objective_words",
    "range_words",
    "served_words",
    "share",
    "tokens_per_second",
    "work_words",
]

CREDIT_WORDS = (
    "Values, by which plans are ranked, count what a rested link is ahead; bounds and gaps do not."
)
"""Where plans of a link with credit are shown beside each other."""

PURPOSE_WORDS: Mapping[str, str] = {
    "dense": "dense parts that stay",
    "dense_slots": "slots for dense parts",
    "experts": "experts that stay",
    "slots": "slots for experts",
    "head": "final norm, head tiles that stay",
    "kv": "KV at its longest",
    "hidden": "hidden states",
    "workspace": "workspace",
    "logits": "logits",
    "embedding": "embedding rows",
}


def tokens_per_second(trace: Trace) -> float:
    """New tokens over the whole run, prefill included ("in all")."""
    return trace.totals.new_tokens / max(trace.totals.wall_ns, 1) * 1e9


def decode_tokens_per_second(trace: Trace, sequences: int) -> float | None:
    """New tokens of decode passes over their time; None without a decode pass.

    The first token of each of the ``sequences`` comes from prefill, so it is not counted.
    """
    totals = trace.totals
    tokens = totals.new_tokens - sequences
    return tokens / totals.decode_ns * 1e9 if totals.decode_ns and tokens > 0 else None


def range_words(numbers: Range) -> str:
    """``41.2 (38.5 to 44.1)``."""
    low, high = human_number(numbers.low), human_number(numbers.high)
    return f"{human_number(numbers.value)} ({low} to {high})"


def against_words(promised: Range, measured: float) -> str:
    """Whether a measured rate is as predicted: ``within the predicted 90% interval``."""
    where = "within" if promised.holds(measured) else "outside"
    return f"{where} the predicted 90% interval"


def compared(placement: ExpertPlacement) -> list[PlacementCandidate]:
    """What a placement was chosen from: what was taken in most layers first, then the evenest."""
    return sorted(placement.candidates, key=lambda one: (-one.layers, one.average_max_load))


def share(part: float, whole: float) -> str:
    """In percent; of nothing, 0%."""
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def explain_plan(plan: Plan, model: ModelSpec | None = None) -> list[str]:
    """Sentences about a plan, one paragraph an entry; its notes come apart.

    Parameters
    ----------
    plan
        What to explain.
    model
        The plan's model, where it is at hand: with it, numbers of experts are shares.
    """
    return [_runs(plan), _keeps(plan, model), _promises(plan), _proof(plan)]


def note_list(notes: Sequence[str]) -> Table:
    """A plan's notes as a list for the terminal; lines that go on are indented."""
    table = Table.grid(padding=(0, 1))
    for note in notes:
        table.add_row("•", Text(note))
    return table


def _runs(plan: Plan) -> str:
    work, policy = plan.workload, plan.policy
    group = policy.n_batches * policy.batch_size
    groups = -(-work.requests // group)
    name = plan.locations.checkpoint.rstrip("/").removesuffix("/config.json").rsplit("/", 1)[-1]
    return (
        f"{name} in {plan.dtype} on {plan.device}: {counted(work.requests, 'request')}, prompts of "
        f"up to {counted(work.prompt_tokens, 'token')}, {counted(work.new_tokens, 'new token')} "
        f"each. They run in {counted(groups, 'group')} of n = {counted(policy.n_batches, 'batch')} "
        f"of b = {policy.batch_size}: weights that are copied for one layer serve "
        f"{counted(min(group, work.requests), 'sequence')} at once.{_sees(work)}"
    )


def work_words(work: Workload) -> str:
    """How many requests, how long."""
    return (
        f"{counted(work.requests, 'request')} of {work.prompt_tokens} prompt and "
        f"{counted(work.new_tokens, 'new token')}"
    )


def _sees(work: Workload) -> str:
    if work.attention_window is None:
        return ""
    first = f"the first {counted(work.attention_sinks or 0, 'token')} of its sequence and "
    return (
        f" A token attends to {first if work.attention_sinks else ''}the last "
        f"{counted(work.attention_window, 'token')}, not to all: outputs are not the model's own."
    )


def _keeps(plan: Plan, model: ModelSpec | None) -> str:
    policy = plan.policy
    layers = len(policy.layers)
    dense = sum(layer.dense_resident for layer in policy.layers)
    resident = sum(len(layer.resident) for layer in policy.layers)
    ahead = sum(len(layer.prefetch) for layer in policy.layers)
    experts = sum(layer.experts for layer in model.layers) if model is not None else None
    stay = counted(resident, "expert")
    if experts is not None:
        stay = f"{resident:,} of {counted(experts, 'expert')}"
    text = (
        f"Always in memory: {stay}, the dense parts of {dense} of {counted(layers, 'layer')}, "
        f"{policy.resident_head_tiles} of "
        f"{counted(policy.head_tiles, 'head tile')}. "
    )
    if policy.kv is not None and policy.starts_stream:
        text += f"{below_words(policy, plan.predicted.totals)}. "
    if experts is not None and resident == experts:
        return text + "No expert is ever copied again."
    text += (
        f"Candidates for copying before the router has spoken: {counted(ahead, 'expert')}"
        f" ({ahead / layers:.1f} a layer), in a fixed order, as far as time and slots allow; what "
        "the router chooses beyond"
        if ahead
        else "No expert is copied before the router has spoken: what it chooses"
    )
    text += (
        f" is copied on demand. {_hosted_words(policy)}{_named_words(policy)}"
        f"{counted(policy.slots, 'slot')} for experts in flight"
    )
    if policy.reserve:
        text += f", of which {policy.reserve} only for copies on demand"
    kept = {
        "none": "given back after use",
        "lru": "kept until the room is needed (least recently used first)",
        "lifo": "kept until the layer's share of them is needed (last in, first out)",
        "fifo": "kept until the room is needed (first in, first out)",
        "frequency": "kept until the room is needed (least frequently used first)",
        "stale": "kept until the room is needed (what its layer did without for longest first)",
        "plan": "kept until the room is needed (what the plan copies farthest ahead first)",
        "belady": "kept until the room is needed (what a recorded run needs farthest ahead first)",
    }[policy.eviction]
    starts = "keys and values" if policy.kv == "batches" else "dense parts"
    return f"{text}; {kept}. {counted(policy.start_slots, 'slot')} for {starts}{_held(policy)}."


def _held(policy: Policy) -> str:
    """Which copies ahead wait for a router."""
    if policy.hold is None:
        return ""
    beyond = {0: "any later layer", 1: "a layer beyond the next"}
    what = beyond.get(policy.hold, f"a layer more than {policy.hold} on")
    return (
        "; while a layer that may demand copies computes up to its router, no copy begins that "
        f"{what} needs"
    )


def _hosted_words(policy: Policy) -> str:
    """Which experts the CPU computes instead."""
    if policy.host is None:
        return ""
    words = host_words(policy.host)
    return f"{words[0].upper()}{words[1:]}. "


def _named_words(policy: Policy) -> str:
    """Which predictors replace prefetches that have not begun."""
    names = Counter(layer.predictor for layer in policy.layers if layer.predictor != "plan")
    if not names:
        return ""
    by = ", ".join(f"{name} in {counted(count, 'layer')}" for name, count in sorted(names.items()))
    waits = sum(layer.waits for layer in policy.layers)
    first = f" (in {counted(waits, 'layer')} nothing before that)" if waits else ""
    return f"Once the layer before is routed, a predictor names what is copied ahead{first}: {by}. "


def _promises(plan: Plan) -> str:
    predicted = plan.predicted
    totals, speed, decode = (
        predicted.totals,
        predicted.tokens_per_second,
        predicted.decode_tokens_per_second,
    )
    inter, intra = totals.bubble_inter_layer_ns, totals.bubble_intra_layer_ns
    return (
        f"Predicted: tokens/s {range_words(speed)} in all, "
        f"{human_number(decode.value)} in decode alone; first token after "
        f"{human_time(predicted.time_to_first_token_ns)}; {human_time(totals.wall_ns)} for "
        f"everything, {share(totals.prefill_ns, totals.wall_ns)} of it prefill. It reads "
        f"{human_bytes(totals.bytes_read)}. Compute waits {share(inter + intra, totals.wall_ns)} "
        f"of the time: {share(inter, totals.wall_ns)} for dense parts, "
        f"{share(intra, totals.wall_ns)} for experts and the head."
    )


_STOP_WORDS = {
    "optimal": "finished: its model of the problem holds nothing better",
    "time_limit": "stopped at its limit of time or work",
    "rule": "follows a rule and does not search",
    "interrupted": "was interrupted",
}
_BOUND_WORDS = {
    "plan": "no plan whose copies ahead and their order are fixed before routing is known, without "
    "caching, takes less than",
    "clairvoyant": "not even one that knows the routing beforehand, without caching, takes less "
    "than",
    "cache": "not even one with a cache that knows the routing beforehand takes less than",
    "physical": "the computation alone takes",
}


def objective_words(plan: Plan, value: float) -> str:
    """A value of the plan's objective with its unit, as in ``4.1 ms a token``."""
    return objective_value(plan.objective_name, plan.workload, value)


def objective_value(name: str, workload: Workload, value: float) -> str:
    """A value of the objective of this name with its unit."""
    try:
        unit = objective_named(name, workload).unit
    except OptionError:
        # an objective of another moeplan
        return f"{human_number(value)}"
    first, _, rest = unit.partition(" ")
    amount = human_bytes(value) if first == "bytes" else human_time(value)
    return f"{amount} {rest}".rstrip()


def _proof(plan: Plan) -> str:
    text = (
        f"Objective {plan.objective_name}: {objective_words(plan, plan.objective)} on sequences "
        f"kept apart for judging{_constant(plan)}. Solver {plan.solver} {_STOP_WORDS[plan.stop]}"
    )
    if plan.bound is not None and plan.bound_class is not None:
        text += (
            f". Bound, for plans with {_group_words(plan)} only{_prices(plan)}: "
            f"{_BOUND_WORDS[plan.bound_class]} {objective_words(plan, plan.bound)}"
        )
        if plan.gap is not None:
            text += f"; {gap_words(plan)}"
    if plan.predicted.objective is not None:
        promised = objective_words(plan, plan.predicted.objective)
        text += f". With that credit, by which plans are compared, it takes {promised}"
    others = [(value, name) for name, value in plan.chosen_over.items() if value > 0]
    if others and plan.promised > 0:
        compared = ", ".join(
            f"{name} {value / plan.promised:.2f} times that" for value, name in sorted(others)
        )
        text += f". By the same yardstick: {compared}"
    return text + "."


def _constant(plan: Plan) -> str:
    """Why it is not what the prediction says, where that counts a link's credit."""
    if plan.predicted.credit_ns is None:
        return ""
    return ", with copies at the rate that lasts (the prediction counts a rested link's credit)"


def _prices(plan: Plan) -> str:
    """What else is held as it is in the plan, where that matters."""
    slowed = plan.predicted.slowdown
    if max(slowed.copy, slowed.prefill, slowed.decode) == 1.0:
        return ""
    return " (with copies and computation as slow beside each other as in this one)"


def _group_words(plan: Plan) -> str:
    return f"n x b = {plan.policy.n_batches} x {plan.policy.batch_size}"


def gap_words(plan: Plan) -> str:
    """What the gap says, and of which plans."""
    text = f"gap {100 * (plan.gap or 0.0):.2f}%: no more than this can be saved with these n and b"
    if plan.stop == "optimal" and plan.gap:
        return f"{text}, and less where the bound is loose"
    return text


def explain_trace(
    trace: Trace, plan: Plan | None = None, hardware: Hardware | None = None
) -> list[str]:
    """Sentences about a run, beside what its plan promised where that is at hand.

    It is judged only where ``not_comparable`` (with ``hardware``) finds the work as planned.
    """
    totals = trace.totals
    inter, intra = totals.bubble_inter_layer_ns, totals.bubble_intra_layer_ns
    pace = trace.paced_bytes_per_second
    paced = f" (disk paced to {human_bytes(pace)}/s)" if pace is not None else ""
    measured = tokens_per_second(trace)
    text = (
        f"Measured on {trace.device}{paced}: tokens/s {human_number(measured)} in all: "
        f"{counted(totals.new_tokens, 'new token')} in {human_time(totals.wall_ns)}, "
        f"{share(totals.prefill_ns, totals.wall_ns)} of it prefill, in "
        f"{counted(totals.passes, 'pass')}. Read {human_bytes(totals.bytes_read)}, of "
        "which "
        f"{human_bytes(totals.wasted_prefetch_bytes)} were prefetched in vain. Compute waited "
        f"{share(inter + intra, totals.wall_ns)} of the time: {share(inter, totals.wall_ns)} for "
        f"dense parts, {share(intra, totals.wall_ns)} for experts and the head. Device peak "
        f"{human_bytes(totals.device_peak_bytes)} of {human_bytes(totals.device_budget_bytes)}; "
        f"process peak {human_bytes(totals.process_peak_bytes)}."
    )
    if totals.served:
        text += f" {served_words(totals)}"
    paragraphs = [text]
    if plan is not None:
        promised = plan.predicted.tokens_per_second
        apart = not_comparable(plan, trace, hardware)
        if apart is not None:
            return [*paragraphs, f"Promised were tokens/s {range_words(promised)}; {apart}."]
        off = 100 * (measured / promised.value - 1) if promised.value else 0.0
        far = f"{abs(off):.0f}% {'faster' if off >= 0 else 'slower'}"
        said = f"the run was {far}, {against_words(promised, measured)}"
        if promised.holds(measured):
            said = f"the run was {against_words(promised, measured)} ({far})"
        paragraphs.append(f"Promised were tokens/s {range_words(promised)}; {said}.")
    return paragraphs


_SERVED_WORDS = {
    "resident": "always in memory",
    "cached": "kept from before",
    "prefetched": "copied ahead",
    "on_demand": "copied on demand",
    "on_host": "computed on the CPU",
}


def served_words(totals: TraceTotals) -> str:
    """How the experts that routers chose were met."""
    count = sum(totals.served.values())
    shares = [
        f"{share(totals.served[how], count)} {words}"
        for how, words in _SERVED_WORDS.items()
        if how in totals.served
    ]
    return f"Of {counted(count, 'expert')} that layers needed: {', '.join(shares)}."
