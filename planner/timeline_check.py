"""A predicted timeline against the plan that it belongs to."""

from __future__ import annotations

from collections import Counter

from planner.documents import Event, ModelSpec, Plan
from solvers.checker import Violation
from solvers.counting import counted

__all__ = ["check_timeline"]

_ON_DEMAND = ("expert", "host_expert", "wait_expert", "copy_prefetch", "copy_demand")
_OF_HEAD = ("head", "sample", "copy_head", "wait_head")
_OF_BATCH = ("attention", "cross_attention", "copy_kv", "wait_kv")


def check_timeline(plan: Plan, model: ModelSpec | None = None) -> list[Violation]:
    """The first row of each fault: its layer, item, pass, channel, what it moves, its order; and
    what the totals should know of.

    Parameters
    ----------
    plan
        Whose prediction is looked at.
    model
        Bounds the experts; without it any expert may stand there.
    """
    found: dict[str, Violation] = {}
    ends: dict[str, int] = {}
    spent: Counter[str] = Counter()
    for index, row in enumerate(plan.predicted.timeline.events()):
        fault = _fault(row, plan, model)
        free = ends.get(row.channel, 0)
        if fault is None and row.start_ns < free:
            fault = "timeline_order", f"begins at {row.start_ns}, while {row.channel} is taken"
        if fault is None and row.channel == "compute" and row.start_ns > free:
            # waits are rows, too
            fault = "timeline_gap", f"begins at {row.start_ns}, and nothing is told since {free}"
        if fault is not None:
            reason, message = fault
            where = f"predicted.timeline.{index}"
            found.setdefault(reason, Violation(reason, where, f"{row.kind}: {message}"))
        ends[row.channel] = max(row.end_ns, free)
        spent[row.kind] += row.end_ns - row.start_ns
    where = "predicted.timeline"
    if not ends.get("compute"):
        found["timeline_empty"] = Violation("timeline_empty", where, "nothing is computed")
    known = {kind for kind, ns in plan.predicted.totals.duration_by_kind_ns.items() if ns}
    untold = sorted((+spent).keys() - known)
    if untold:
        message = f"{untold[0]} takes {spent[untold[0]]:,} ns, and none in the totals"
        found["timeline_totals"] = Violation("timeline_totals", where, message)
    return list(found.values())


def _fault(row: Event, plan: Plan, model: ModelSpec | None) -> tuple[str, str] | None:
    policy = plan.policy
    layers = len(policy.layers)
    copies = row.kind.startswith("copy_")
    links = ("disk",) if plan.device == "cpu" else ("disk", "h2d")
    hosted = row.kind == "host_expert"
    if hosted and policy.host is None:
        return "timeline_host", "in a plan that computes none there"
    if row.channel not in (links if copies else ("cpu",) if hosted else ("compute",)):
        return "timeline_channel", f"on the channel {row.channel}"
    first, last = 0, layers - 1
    if row.kind == "embed":
        first = last = -1
    elif row.kind in _OF_HEAD:
        first = last = layers
    if not first <= row.layer <= last:
        return "timeline_layer", f"in layer {row.layer} of {layers}"
    items = 0
    if row.kind in _ON_DEMAND:
        items = 1 << 16 if model is None else model.layers[row.layer].experts
    elif row.kind in ("head", "copy_head", "wait_head"):
        items = policy.head_tiles
    elif row.kind in _OF_BATCH or (row.kind == "write_kv" and policy.kv == "batches"):
        items = policy.n_batches
    if not (0 <= row.item < items if items else row.item == -1):
        return "timeline_item", f"item {row.item} of {items}"
    # a full group and a smaller last one, each prefilled and decoded; copies run a pass ahead
    if row.pass_index >= 2 * plan.workload.new_tokens + copies:
        return (
            "timeline_pass",
            f"pass {row.pass_index} of {counted(plan.workload.new_tokens, 'new token')}",
        )
    waits = row.kind.startswith("wait_")
    moves, works = copies or row.kind == "write_kv", not copies and not waits
    if (row.size_bytes > 0) != moves or (row.rows > 0) != works:
        return "timeline_size", f"{counted(row.rows, 'row')} and {row.size_bytes} bytes"
    return None
