"""Sentences for a plan's reader: why this n, what binds, what came close."""

from __future__ import annotations

from planner.busy import BINDS_WORDS, busy_of
from planner.candidate import Candidate
from planner.documents import MemoryAccount, Policy, Predicted
from planner.formats import format_words
from planner.forms import expert_error, forms_words
from planner.host import host_words
from planner.interval import extrapolated
from planner.kv import writes_words
from planner.sizes import typed_size
from planner.smallest import smallest_budget_bytes
from solvers.counting import counted

__all__ = ["plan_notes"]


def plan_notes(
    candidate: Candidate,
    *,
    solver: str,
    value: float,
    rivals: dict[str, float],
    predicted: Predicted,
    memory: MemoryAccount,
    policy: Policy,
    said: tuple[str, ...],
) -> tuple[str, ...]:
    """What a reader should know of a plan, in a fixed order."""
    notes = [
        _group(candidate, memory),
        _copies(candidate, predicted),
        format_words(candidate, policy),
        _forms(candidate, policy),
        _keys_values(candidate, policy, memory, predicted),
        _hosted(policy, predicted),
        _binds(predicted),
        _credit(candidate, predicted),
        *_rivals(solver, value, rivals),
    ]
    notes += [f"{solver}: {text}" for text in said]
    notes += candidate.encoding.profile.index.notes
    notes += _scenarios(candidate)
    return tuple(note for note in notes if note)


def _group(candidate: Candidate, memory: MemoryAccount) -> str:
    encoding = candidate.encoding
    workload = encoding.workload
    group = encoding.group
    if group == workload.requests:
        return ""
    groups = -(-workload.requests // group)
    kv = memory.by_purpose.get("kv", 0) + memory.by_purpose.get("hidden", 0)
    share = kv / max(memory.capacity_bytes, 1)
    return (
        f"{counted(workload.requests, 'request')} in {counted(groups, 'group')} of {group}: KV and "
        f"hidden states of a group take {share:.0%} of the budget, and a larger group would leave "
        "less for experts"
    )


def _copies(candidate: Candidate, predicted: Predicted) -> str:
    """Copies of experts in a pass, as the judging scenarios' replay made them."""
    stages = candidate.problem("judge", plain=True).stages[:-1]
    each = [item.copy_ns for stage in stages for item in stage.items]
    passes = sum(shape.weight for shape in candidate.shapes("judge"))
    if not sum(each):
        return ""
    whole = sum(each) / len(each) * passes
    spent = predicted.totals.duration_by_kind_ns
    ahead, demanded = (float(spent.get(kind, 0)) for kind in ("copy_prefetch", "copy_demand"))
    if not ahead + demanded:
        return "no expert is copied in a pass"
    if predicted.credit_ns is not None:
        # what they would take without the link's credit: their bytes, at the rate that lasts
        busy = sum(time for kind, time in spent.items() if kind.startswith("copy_"))
        lasts = candidate.encoding.link.alone_ns(predicted.totals.bytes_read)
        whole *= busy / max(lasts * candidate.factors.copy, 1.0)
    ahead, demanded = ahead / whole, demanded / whole
    return (
        f"a pass copies about {_about(ahead + demanded)} of {counted(len(each), 'expert')}, "
        f"predicted on average: {_about(ahead)} ahead of the router and {_about(demanded)} on "
        "demand (what is left of a copy when the router speaks counts as on demand)"
    )


def _forms(candidate: Candidate, policy: Policy) -> str:
    profile = candidate.encoding.profile
    experts = sum(layer.experts for layer in profile.model.layers)
    return forms_words(policy, expert_error(profile, policy), experts)


def _keys_values(
    candidate: Candidate, policy: Policy, memory: MemoryAccount, predicted: Predicted
) -> str:
    """Where they lie, if not all on the device, and why."""
    encoding = candidate.encoding
    if encoding.kv is None:
        return ""
    if not policy.starts_stream:
        return "keys and values all stay on the device, and so does every dense part"
    by_batch, layers = encoding.kv == "batches", list(enumerate(policy.layers))
    copied = {
        index: policy.n_batches - len(layer.kv_resident) if by_batch else 1
        for index, layer in layers
        if by_batch or not layer.dense_resident
    }
    streams = [index for index, count in copied.items() if count]
    size = sum(count * encoding.kept.room_bytes(index) for index, count in copied.items())
    least = smallest_budget_bytes(encoding.profile, encoding.workload, "device")
    why = "with all of them on the device "
    if least > memory.capacity_bytes:
        why += f"nothing works below {typed_size(least)}"
    else:
        why += (
            f"{encoding.kept.all_bytes / memory.capacity_bytes:.0%} of the budget would go to them"
        )
    where = f"{len(streams)} of {counted(len(policy.layers), 'layer')}"
    how = "with the dense parts"
    if by_batch:
        where = (
            f"{sum(copied.values())} of {counted(policy.n_batches, 'batch')} x "
            f"{counted(len(policy.layers), 'layer')}"
        )
        how = f"each batch's by themselves ({counted(policy.start_slots, 'slot')})"
    return (
        f"keys and values of {where} lie below the device, "
        f"and each pass copies those that exist by then {how}, at the longest "
        f"{typed_size(size)}: {why}; "
        f"{writes_words(encoding.profile.costs, predicted.totals)}"
        f"{_unequal(candidate, streams, _shares(policy), predicted)}"
    )


def _shares(policy: Policy) -> dict[int, float]:
    """By layer: how many of its batches' keys and values lie below, where only some do."""
    if policy.kv != "batches":
        return {}
    count = policy.n_batches
    return {at: 1 - len(one.kv_resident) / count for at, one in enumerate(policy.layers)}


def _unequal(
    candidate: Candidate, streams: list[int], below: dict[int, float], predicted: Predicted
) -> str:
    """What prompts as long as those recorded would make of writing back: new tokens of sequences of
    different lengths lie in different columns."""
    encoding, sequences = candidate.encoding, candidate.sequences
    workload, kept = encoding.workload, encoding.kept
    decode = [one for one in candidate.shapes("judge") if one.phase == "decode"]
    if workload.attention_window is not None or not decode:
        return ""
    recorded = [sequences.prefill[member][1] for member in candidate.split.judge.tolist()]
    prompts = [
        min(recorded[at % len(recorded)], workload.prompt_tokens) for at in range(encoding.group)
    ]
    if len(set(prompts)) == 1:
        return ""
    longer = 0
    for shape in decode:
        made = shape.context - 1 - workload.prompt_tokens
        lengths = [length + made for length in prompts[: shape.sequences]]
        for layer in streams:
            unequal = kept.written_unequal(layer, lengths)
            took = encoding.writing_ns(unequal, shape.phase, candidate.factors)
            planned = encoding.write_kv_ns(shape, layer, candidate.factors)
            longer += round(shape.weight * (took - planned) * below.get(layer, 1.0))
    lengths = [length + decode[0].context - 1 - workload.prompt_tokens for length in prompts]
    first, even = kept.written_unequal(streams[0], lengths), kept.written(decode[0], streams[0])
    writes = sum(count for _, count in first.sizes)
    return (
        f". That is for prompts of one length: with those recorded, of {min(prompts)} to "
        f"{counted(max(prompts), 'token')} (longer ones count as {workload.prompt_tokens}), a "
        f"decode pass writes back {typed_size(first.size_bytes)} a layer, in "
        f"{counted(writes, 'write')}, instead of {typed_size(even.size_bytes)}, which makes "
        f"the run {longer / max(predicted.totals.wall_ns, 1):.1%} longer"
    )


def _hosted(policy: Policy, predicted: Predicted) -> str:
    """What the host computes, and how much of the time."""
    if policy.host is None:
        return ""
    spent = predicted.totals.duration_by_kind_ns.get("host_expert", 0)
    return (
        f"{host_words(policy.host)}; that takes {spent / max(predicted.totals.wall_ns, 1):.0%} of "
        "the time on the CPU, beside the device; that copies and the CPU share host memory's "
        "bandwidth is not priced"
    )


def _credit(candidate: Candidate, predicted: Predicted) -> str:
    link = candidate.encoding.link
    if predicted.credit_ns is None or link.burst is None:
        return ""
    return (
        f"the {link.name} does {link.burst.peak_bytes_per_second.value / 1e9:.2g} GB/s when it has "
        f"rested, and {link.bandwidth_bytes_per_second.value / 1e9:.2g} GB/s once it is "
        f"{typed_size(int(link.burst.depth_bytes.value))} ahead: the prediction and the "
        "choice of this plan count that; objective, bound, gap and what solvers minimise do not"
    )


def _about(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or number == 0 else f"{number:.1f}"


def _binds(predicted: Predicted) -> str:
    busy = busy_of(predicted.totals)
    return (
        f"{BINDS_WORDS[busy.binds]}; the channel is busy {busy.channel:.0%} of the time, compute "
        f"{busy.compute:.0%}"
    )


def _rivals(solver: str, value: float, rivals: dict[str, float]) -> list[str]:
    if not rivals:
        return []
    name = min(rivals, key=lambda rival: (rivals[rival], rival))
    other = rivals[name]
    if value <= 0:
        return []
    if other >= value:
        return []
    return [
        f"{name} is better by {1 - other / value:.1%} on the sequences that judge, which were not "
        f"used to choose; {solver} was better or asked for by name"
    ]


def _scenarios(candidate: Candidate) -> list[str]:
    notes = []
    split, sequences = candidate.split, candidate.sequences
    group = candidate.encoding.group
    if split.shared:
        notes.append(
            f"the routing trace has only {counted(sequences.count, 'sequence')}: the same ones "
            "fit, choose and judge, so the prediction is optimistic"
        )
    fewest = min(len(split.fit), len(split.choose), len(split.judge))
    if fewest < min(group, candidate.encoding.workload.requests):
        notes.append(
            f"groups of {group} are drawn from as few as {counted(fewest, 'recorded sequence')}, "
            "so some stand for several requests, at other positions"
        )
    prompt = candidate.encoding.workload.prompt_tokens
    if all(length < prompt for _, length in sequences.prefill):
        notes.append(
            f"no recorded prompt has {counted(prompt, 'token')}: shorter ones are repeated"
        )
    copying, prefill, decode, _ = candidate.factors
    if max(candidate.factors) > 1.0:
        notes.append(
            f"copies are priced {copying:.2f} times as long as alone, computation {prefill:.2f} "
            f"times in prefill and {decode:.2f} times in decode, since they overlap"
        )
    demand = candidate.scenarios("judge").demand[:, :-1]
    beyond = extrapolated(candidate.encoding, candidate.shapes("judge"), demand)
    if beyond:
        notes.append(f"extrapolated, as not measured at this size: {', '.join(beyond)}")
    return notes
