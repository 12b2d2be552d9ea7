"""The command ``explain``: why a plan is as it is, and what more would buy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeplan.commands.common import (
    Json,
    PlanFile,
    ProfileOption,
    plain,
    reporter_of,
    say,
    search_seconds,
    searches,
)
from moeplan.commands.inputs import check_is_there, load_plan
from moeplan.output import human_bytes, human_number, human_time
from moeplan.words import PURPOSE_WORDS, objective_words
from planner.busy import BINDS_WORDS
from planner.documents import Plan
from planner.host import host_words
from planner.kv import writes_words
from planner.profiles import load_profile
from planner.threads import thread_words
from solvers.counting import counted
from solvers.errors import StaleError

if TYPE_CHECKING:
    from planner.explain import Explanation, Price, Unit
    from planner.sweep import GroupPoint

__all__ = ["explain", "sentences"]

DEFAULT_SECONDS = 5.0
_MEMORY_STEPS = ((1 << 30, "1 GiB"), (1 << 20, "1 MiB"), (1 << 10, "1 KiB"))
_BANDWIDTH_STEPS = (
    (10**9, "1 GB/s"),
    (10**8, "100 MB/s"),
    (10**7, "10 MB/s"),
    (10**6, "1 MB/s"),
)
_NOTHING = 1e-6
"""To so much of its optimum a linear program is solved."""


def explain(
    ctx: typer.Context,
    plan_file: PlanFile,
    profile: ProfileOption = None,
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", min=0.001, help="Seconds for each new plan (5)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say why this n, why these residents, what binds, and what more memory or speed would buy."""
    from planner.check import check_plan
    from planner.explain import asked_of
    from planner.explain import explain as explained

    reporter = reporter_of(ctx)
    plan = load_plan(plan_file)
    folder = profile if profile is not None else Path(plan.locations.profile)
    check_is_there(folder)
    loaded = load_profile(folder)
    for violation in check_plan(plan, loaded):
        if violation.reason.startswith("stale_"):
            raise StaleError(violation.reason.removeprefix("stale_"), violation.message)
        raise StaleError("plan", f"{plan_file}: {violation.where}: {violation.message}")
    limit = search_seconds((asked_of(plan).solver,), time_limit, DEFAULT_SECONDS)
    with reporter.steps("explain") as progress:
        found = explained(plan, loaded, time_limit_seconds=limit, progress=progress)
    said = sentences(plan, found)
    say(reporter, said)
    reporter.result({"plan": str(plan_file), "words": said, **plain(found)})


def sentences(plan: Plan, found: Explanation) -> list[str]:
    """The explanation in words, a paragraph an entry."""
    return [
        _group(plan, found),
        _residents(found),
        _binds(plan, found),
        _memory(plan, found),
        _bandwidth(plan, found),
        _prefetching(plan, found),
        *_hosting(plan, found),
        *_formats(plan, found),
        *_forms(plan),
        *_credit(plan),
        *_threads(plan),
    ]


def _credit(plan: Plan) -> list[str]:
    """Nothing where the link is never ahead of the rate that lasts."""
    if plan.predicted.credit_ns is None:
        return []
    return [
        "What counts: times here are with what the link is ahead after a rest, by which plans are "
        "compared; bounds, and prices by the relaxation, are of copies at the rate that lasts."
    ]


def _threads(plan: Plan) -> list[str]:
    """Nothing where the profile did not ask."""
    use = plan.policy.threads
    if use is None:
        return []
    return [
        f"Threads: {thread_words(use)}. The profile's times are with these, and a run has them, "
        "too."
    ]


def _forms(plan: Plan) -> list[str]:
    """Nothing where all experts are as in the checkpoint."""
    from planner.forms import quantized_counts

    error = plan.expert_error
    if error is None:
        return []
    parts = [f"{count} in {form}" for form, count in quantized_counts(plan.policy).items()]
    off, allowed = (f"{part / 1e9:.3%}" for part in (error.mean_ppb, error.allowed_ppb))
    return [
        f"Why these forms: quantized are {' and '.join(parts) or 'no experts'}, those that save "
        f"most time for the error that they add. Their weights are {off} off on average over what "
        f"recorded tokens chose, and {allowed} was allowed; all others are as in the checkpoint."
    ]


def _formats(plan: Plan, found: Explanation) -> list[str]:
    """Nothing where the store has experts in one format."""
    if found.formats is None:
        return []
    raw = [f"{len(one.raw)} of layer {at}" for at, one in enumerate(plan.policy.layers) if one.raw]
    takes = {name: objective_words(plan, value) for name, value in found.formats.items()}
    return [
        f"Why these formats: read as they are come experts {', '.join(raw) or 'of no layer'}, for "
        "whose copies computation waits least; all others are compressed. The same policy would "
        f"take {takes['compressed']} with all of them compressed and {takes['raw']} with none; "
        f"as planned it takes {objective_words(plan, plan.promised)}."
    ]


def _group(plan: Plan, found: Explanation) -> str:
    policy, work = plan.policy, plan.workload
    own = min(policy.n_batches * policy.batch_size, work.requests)
    text = (
        f"Why n = {counted(policy.n_batches, 'batch')} of {policy.batch_size}: one copy serves "
        f"{own} of {counted(work.requests, 'request')}."
    )
    for point in found.groups:
        if point.sequences != own:
            text += " " + _neighbour(plan, point)
    if own == work.requests:
        text += " There are no more requests to share it."
    return text


def _neighbour(plan: Plan, point: GroupPoint) -> str:
    from planner.explain import asked_of

    size = f"Groups of {point.sequences} ({point.n_batches} x {point.batch_size})"
    if not point.fits:
        budget = plan.memory["device"].capacity_bytes
        needed, given = human_bytes(point.needed_bytes), human_bytes(budget)
        if needed == given:  # a few bytes are missing
            needed, given = f"{point.needed_bytes:,} bytes", f"{budget:,}"
        return f"{size} do not fit: they need {needed} at least, of {given}."
    if point.objective is None or plan.promised <= 0:
        return f"{size} would fit."
    change = point.objective / plan.promised - 1
    way = "more" if change >= 0 else "less"
    solver = asked_of(plan).solver
    found = "the best that a short search finds" if searches(solver) else f"there {solver}"
    return (
        f"{size}: {found} takes "
        f"{objective_words(plan, point.objective)}, {abs(change):.1%} {way} than this plan."
    )


def _unit(unit: Unit) -> str:
    name = {
        "dense": f"the dense part of layer {unit.layer}",
        "kv": f"keys and values of batch {unit.item} in layer {unit.layer}",
        "expert": f"expert {unit.item} of layer {unit.layer}",
        "head": f"head tile {unit.item}",
    }[unit.kind]
    return (
        f"{name}, which {unit.share:.0%} of passes need "
        f"({human_time(unit.saved_ns_per_byte * (1 << 20))} of copying a pass saved by each MiB)"
    )


def _residents(found: Explanation) -> str:
    if found.first_left_out is None:
        return (
            f"Why these residents: all {counted(found.units, 'unit')} stay, so there is nothing to "
            "choose."
        )
    text = (
        f"Why these residents: {found.residents} of {counted(found.units, 'unit')} stay, by the "
        "copying that a byte of them saves."
    )
    if found.last_kept is None:
        return f"{text} None does; the first would be {_unit(found.first_left_out)}."
    text += (
        f" The marginal one that stays is {_unit(found.last_kept)}; the best one that does not is "
        f"{_unit(found.first_left_out)}."
    )
    if found.last_kept.saved_ns_per_byte < found.first_left_out.saved_ns_per_byte:
        text += (
            " The order is not strict: copies that hide behind computation cost nothing, and a "
            "unit must fit whole."
        )
    return text


def _binds(plan: Plan, found: Explanation) -> str:
    beside = f", the CPU {found.host_busy:.0%}" if found.hosting is not None else ""
    largest = [name for name, size in found.memory.items() if size][:3]
    parts = ", ".join(
        f"{human_bytes(found.memory[name])} for {PURPOSE_WORDS.get(name, name)}" for name in largest
    )
    account = plan.memory["device"]
    return (
        f"What binds: {BINDS_WORDS[found.binds]}. Compute is busy {found.compute_busy:.0%} of the "
        f"time, the channel {found.channel_busy:.0%}{beside}. Device memory: "
        f"{human_bytes(account.peak_bytes)} of {human_bytes(account.capacity_bytes)} are used, "
        f"most of it {parts}.{_written(plan)}"
    )


def _written(plan: Plan) -> str:
    if plan.policy.kv is None:
        return ""
    return f" Keys and values below it: {writes_words(None, plan.predicted.totals)}."


def _step(tenth: float, steps: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """The largest step (of descending ones) that a price may be quoted for: there is at least two
    and a half times as much, of which a tenth is given."""
    return next((step for step in steps if step[0] <= 4 * tenth), steps[-1])


def _memory(plan: Plan, found: Explanation) -> str:
    price = found.memory_price
    if price is None:
        return "What more memory would buy: no prices are known for this objective."
    step, name = _step(price.added, _MEMORY_STEPS)
    rate, slope = price.slope or 0.0, "nothing"
    if _counts(price, rate * price.added):
        slope = f"{objective_words(plan, rate * step)} at the present rate"
    return (
        f"What more memory would buy: by the relaxation's shadow price {name} more saves "
        f"{slope}. "
        f"A tenth more ({human_bytes(price.added)}): {_checked(plan, price)}"
    )


def _bandwidth(plan: Plan, found: Explanation) -> str:
    price = found.bandwidth_price
    if price is None:
        return "What faster copies would buy: no prices are known for this objective."
    step, name = _step(price.added, _BANDWIDTH_STEPS)
    saved = price.bound_before - price.bound_after
    slope = "nothing"
    if _counts(price, saved):
        slope = objective_words(plan, saved / price.added * step)
    added = price.added / 1e6
    more = f"{added / 1e3:.2f} GB/s" if added >= 1000 else f"{human_number(added)} MB/s"
    return (
        f"What faster copies would buy: by the relaxation {name} more saves "
        f"{slope} with this n and b at the present rate. A tenth more "
        f"({more}): {_checked(plan, price)}"
    )


def _counts(price: Price, saved: float) -> bool:
    """Whether what a tenth more saves is more than what floating point makes of nothing."""
    return saved > _NOTHING * price.bound_before


def _checked(plan: Plan, price: Price) -> str:
    """The relaxation's answer, and a new plan's, beside what as long a search finds without it."""
    promised = 1 - price.bound_after / price.bound_before if price.bound_before > 0 else 0.0
    real = 1 - price.replanned / price.base if price.base > 0 else 0.0
    text = f"the bound for this n and b falls by {promised:.1%}, and a new search finds "
    if real <= 0:
        return f"{text}nothing better than without it."
    text += (
        f"{objective_words(plan, price.replanned)} (n x b = {price.n_batches} x "
        f"{price.batch_size}), {real:.1%} less than "
    )
    found = f"the {objective_words(plan, price.base)} that it finds without"
    text += found if price.base < plan.promised else "this plan's"
    if plan.bound is None or price.replanned >= plan.bound:
        return f"{text}."
    if plan.predicted.credit_ns is not None:
        text += " (and less than this plan's bound, which does not count what a link is ahead)"
    else:
        text += (
            " (and less than this plan's bound, which is for its n and b, and for copies and "
            "computation as slow beside each other as in it)"
        )
    return f"{text}."


def _hosting(plan: Plan, found: Explanation) -> list[str]:
    """What computing on the CPU earns, where the plan does so."""
    earned = found.hosting
    if earned is None:
        return []
    change = earned.without / earned.objective - 1 if earned.objective > 0 else 0.0
    way = "more" if change >= 0 else "less"
    return [
        f"What the CPU earns: {host_words(earned.host)}. In a mean pass it computes "
        f"{earned.experts:.1f} of the {earned.demanded:.1f} demanded experts that are not on the "
        f"device: {human_time(earned.host_ns)} each, where a copy takes "
        f"{human_time(earned.copy_ns)}. With all of them copied the same plan "
        f"takes {objective_words(plan, earned.without)}, {abs(change):.1%} {way}."
    ]


def _prefetching(plan: Plan, found: Explanation) -> str:
    earned = found.prefetching
    if earned is None:
        return "What prefetching earns: no expert is copied before its router has spoken."
    change = earned.without / earned.objective - 1 if earned.objective > 0 else 0.0
    way = "more" if change >= 0 else "less"
    return (
        f"What prefetching earns: the plan has {counted(earned.experts, 'candidate')} for copying "
        "before their router has spoken; without that the same plan takes "
        f"{objective_words(plan, earned.without)}, {abs(change):.1%} {way}. Of all bytes copied "
        f"{earned.wasted_share:.1%} are prefetched in vain."
    )
