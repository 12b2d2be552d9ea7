"""Why a plan is as it is, in numbers: its n, its residents, what binds, and what more would buy.

Everything is computed from the plan and its profile: group sizes beside its own are solved by
themselves, prices come from the relaxation, and each is held against a new plan with a tenth more.
Objectives here are those that are promised, with the credit of a link that has one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.busy import Binds, busy_of
from planner.candidate import Candidate
from planner.credit import credit_of
from planner.documents import Asked, Hardware, HostCompute, Plan
from planner.encode import schedule_of
from planner.formats import in_one_format, variants
from planner.groups import group_sizes
from planner.profiles import Profile
from planner.recompute import candidate_of
from planner.solve import make_plan
from planner.sweep import GroupPoint, by_group
from solvers.layout import START
from solvers.outcome import Schedule
from solvers.problem import Problem
from solvers.relaxation import Relaxed, relax
from solvers.replay import replay
from solvers.sets import demand_share
from solvers.told import Told, untold

__all__ = ["Explanation", "Hosting", "Prefetching", "Price", "Unit", "asked_of", "explain"]

MORE = 0.1
"""The share by which memory and bandwidth are raised for a second plan."""


class Unit(NamedTuple):
    """A unit and what it is worth as a resident.

    ``kind`` is ``dense``, ``kv`` (``item``: a batch), ``expert`` or ``head``; ``share`` how many
    passes need it; ``saved_ns_per_byte`` the copy time that one byte saves in a mean pass.
    """

    kind: Literal["dense", "kv", "expert", "head"]
    layer: int
    item: int
    share: float
    size_bytes: int
    saved_ns_per_byte: float


@dataclass(frozen=True, slots=True)
class Price:
    """What more of something buys, in the objective's unit (on held-out sequences): with a link's
    credit in objectives, which bounds and slope do not know.

    Attributes
    ----------
    added
        How much more: bytes, or bytes a second.
    bound_before, bound_after
        The relaxation's optimum without and with it, for the plan's n and b.
    base
        The best objective without it: the plan's, or that of as long a new search.
    replanned, n_batches, batch_size
        The objective of a new plan with it, and its n and b; with faster copies this plan's as
        it is, where a search in the same time finds nothing better.
    slope
        The relaxation's shadow price: objective saved for each byte; None for bandwidth, which is
        no row of the program.
    """

    added: float
    bound_before: float
    bound_after: float
    base: float
    replanned: float
    n_batches: int
    batch_size: int
    slope: float | None


@dataclass(frozen=True, slots=True)
class Hosting:
    """What computing experts on the host earns: the objective with it, and with all of them copied
    instead; ``host`` is which ones it computes.

    ``experts`` are how many it computes in a mean pass, ``demanded`` how many are demanded then
    that are not resident; ``host_ns`` and ``copy_ns`` are what one that it computes takes there,
    and what its copy would take, on average.
    """

    host: HostCompute
    objective: float
    without: float
    experts: float
    demanded: float
    host_ns: float
    copy_ns: float


@dataclass(frozen=True, slots=True)
class Prefetching:
    """What copying before the router has spoken earns: the objective with it and without."""

    experts: int
    objective: float
    without: float
    wasted_share: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """See the module.

    Attributes
    ----------
    groups
        The plan's group size and those beside it, ascending.
    last_kept, first_left_out
        The resident that is worth least, and the unit that is worth most of those that are copied,
        by expected copy time saved for each byte; None where there is none.
    residents, units
        How many stay, of how many.
    compute_busy, channel_busy, host_busy
        Shares of the time.
    binds
        Which of the two does; see ``planner.busy``.
    memory
        Purpose -> bytes, the largest first.
    spare_bytes
        Of the budget, what is not used.
    memory_price, bandwidth_price
        None where the objective is no time.
    prefetching
        None where nothing is copied ahead, or the objective is no time.
    hosting
        None where the host computes nothing, or the objective is no time.
    formats
        What the policy would take with all experts ``compressed``, and all as they are (``raw``);
        None where the store does not have both.
    """

    groups: tuple[GroupPoint, ...]
    last_kept: Unit | None
    first_left_out: Unit | None
    residents: int
    units: int
    compute_busy: float
    channel_busy: float
    binds: Binds
    memory: dict[str, int]
    spare_bytes: int
    memory_price: Price | None
    bandwidth_price: Price | None
    prefetching: Prefetching | None
    hosting: Hosting | None = None
    host_busy: float = 0.0
    formats: dict[str, float] | None = None


def explain(
    plan: Plan,
    profile: Profile,
    *,
    time_limit_seconds: float = 10.0,
    progress: Told = untold,
) -> Explanation:
    """Explain a plan that passes the checker.

    Parameters
    ----------
    plan, profile
        The plan, and what it was made from.
    time_limit_seconds
        For each new plan; groups get a tenth of it each.
    progress
        Called with what is done, of how much, and what it is.
    """
    asked = asked_of(plan)
    if plan.expert_error is not None:
        profile = dataclasses.replace(profile, allowed_ppb=plan.expert_error.allowed_ppb)
    candidate, schedule = candidate_of(plan, profile), schedule_of(plan.policy)
    problem = candidate.problem("judge")
    group = candidate.encoding.group
    sizes = sorted({*group_sizes(plan.workload.requests), group})
    at = sizes.index(group)
    progress(0, 5, "group sizes")
    groups = by_group(
        profile,
        plan.workload,
        memory_bytes=plan.memory["device"].capacity_bytes,
        objective=plan.objective_name,
        seconds_each=time_limit_seconds / 10,
        seed=plan.seed,
        solver=asked.solver,
        kv=asked.kv,
        predictors=asked.predictors,
        only=sizes[max(at - 1, 0) : at + 2],
    )
    kept, left = _by_worth(candidate, schedule)
    timed = candidate.objective.measure == "time"
    progress(1, 5, "what binds")
    busy = busy_of(plan.predicted.totals)
    account = plan.memory["device"]
    memory = dict(sorted(account.by_purpose.items(), key=lambda item: (-item[1], item[0])))
    memory_price = bandwidth_price = prefetching = hosting = None
    if timed:
        progress(2, 5, "more memory")
        again = _replan(plan, profile, account.capacity_bytes, time_limit_seconds)
        base = min(plan.promised, again.promised)
        given = plan, profile, candidate, relax(problem), base, time_limit_seconds
        memory_price = _memory_price(*given)
        progress(3, 5, "more bandwidth")
        bandwidth_price = _bandwidth_price(*given)
    if timed:
        progress(4, 5, "prefetching")
        prefetching = _prefetching(plan, candidate, problem, schedule)
        if plan.policy.host is not None:
            hosting = _hosting(plan, plan.policy.host, candidate, schedule)
    return Explanation(
        tuple(groups),
        min(kept, key=lambda unit: unit.saved_ns_per_byte, default=None),
        max(left, key=lambda unit: unit.saved_ns_per_byte, default=None),
        len(kept),
        len(kept) + len(left),
        busy.compute,
        busy.channel,
        busy.binds,
        memory,
        account.capacity_bytes - account.peak_bytes,
        memory_price,
        bandwidth_price,
        prefetching,
        hosting,
        busy.host,
        in_one_format(candidate, schedule) if len(variants(candidate)) > 1 else None,
    )


def _by_worth(candidate: Candidate, schedule: Schedule) -> tuple[list[Unit], list[Unit]]:
    """Residents, and all other units, each with what it is worth."""
    problem = candidate.problem("fit")
    share = demand_share(problem)
    grid, head = candidate.encoding.grid, len(problem.stages) - 1
    kept, left = list[Unit](), list[Unit]()
    for index, (stage, choice) in enumerate(zip(problem.stages, schedule.stages, strict=True)):
        named = [] if stage.start is None else [(START, stage.start, choice.start_resident, 1.0)]
        named += [
            (item, unit, item in choice.resident, float(share[index, item]))
            for item, unit in enumerate(stage.items)
        ]
        for item, unit, stays, often in named:
            kind: Literal["dense", "kv", "expert", "head"]
            kind = "head" if index == head else "expert"
            if item == START:
                kind, item = "dense" if grid.each == 1 else "kv", grid.batch(index)
            worth = often * unit.copy_ns / max(unit.held_bytes, 1)
            one = Unit(kind, grid.layer(index), item, often, unit.held_bytes, worth)
            (kept if stays else left).append(one)
    return kept, left


def _memory_price(
    plan: Plan,
    profile: Profile,
    candidate: Candidate,
    relaxed: Relaxed | None,
    base: float,
    seconds: float,
) -> Price | None:
    problem = candidate.problem("judge")
    added = int(plan.memory["device"].capacity_bytes * MORE)
    more = relax(problem.replace(capacity_bytes=problem.capacity_bytes + added))
    if relaxed is None or more is None:
        return None
    again = _replan(plan, profile, plan.memory["device"].capacity_bytes + added, seconds)
    per = candidate.value("judge", 1 << 40) / (1 << 40)
    slope = relaxed.saved_ns_per_byte * per
    return _price(added, *_bounds(candidate, relaxed, more), base, again, slope)


def _bandwidth_price(
    plan: Plan,
    profile: Profile,
    candidate: Candidate,
    relaxed: Relaxed | None,
    base: float,
    seconds: float,
) -> Price | None:
    hardware = _faster(profile.hardware)
    faster = dataclasses.replace(profile, hardware=hardware)
    own = dataclasses.replace(candidate.encoding.profile, hardware=hardware)
    encoding = dataclasses.replace(candidate.encoding, profile=own)
    # with the same scenarios, which know nothing of copies
    quicker = dataclasses.replace(candidate, encoding=encoding)
    more = relax(quicker.problem("judge"))
    if relaxed is None or more is None:
        return None
    again = _replan(plan, faster, plan.memory["device"].capacity_bytes, seconds)
    link = candidate.encoding.link
    rate = link.paced_bytes_per_second or link.bandwidth_bytes_per_second.value
    price = _price(rate * MORE, *_bounds(candidate, relaxed, more), base, again, None)
    as_it_is = quicker.promised("judge", schedule_of(plan.policy))
    if price.replanned <= as_it_is:
        return price
    n, b = plan.policy.n_batches, plan.policy.batch_size
    return dataclasses.replace(price, replanned=as_it_is, n_batches=n, batch_size=b)


def _bounds(candidate: Candidate, relaxed: Relaxed, more: Relaxed) -> tuple[float, float]:
    """The bound without and with more."""
    before, after = (candidate.value("judge", one.bound.value_ns) for one in (relaxed, more))
    return before, after


def _price(
    added: float, before: float, after: float, base: float, again: Plan, slope: float | None
) -> Price:
    policy = again.policy
    n, b = policy.n_batches, policy.batch_size
    return Price(added, before, after, base, again.promised, n, b, slope)


def _faster(hardware: Hardware) -> Hardware:
    """The same machine, with copies by a share faster."""
    channels = tuple(channel.faster(1 + MORE) for channel in hardware.channels)
    return dataclasses.replace(hardware, channels=channels)


def asked_of(plan: Plan) -> Asked:
    """How a plan was asked for; of one that does not say it, as where nothing else is asked."""
    if plan.asked is not None:
        return plan.asked
    return Asked("cpsat", predictors=any(one.predictor != "plan" for one in plan.policy.layers))


def _replan(plan: Plan, profile: Profile, memory_bytes: int, seconds: float) -> Plan:
    """A plan that is asked for as this one was."""
    asked = asked_of(plan)
    return make_plan(
        profile,
        plan.workload,
        memory_bytes=memory_bytes,
        solver=asked.solver,
        objective=plan.objective_name,
        time_limit_seconds=seconds,
        seed=plan.seed,
        then=asked.then,
        tolerance=asked.tolerance or 0.0,
        kv=asked.kv,
        predictors=asked.predictors,
    )


def _hosting(plan: Plan, host: HostCompute, candidate: Candidate, schedule: Schedule) -> Hosting:
    """The plan against itself with a host that computes nothing, and what it computes."""
    without = candidate.promised("judge", schedule.replace(host=None))
    problem = candidate.problem("judge", plain=True)
    scenarios, weight = problem.scenarios, problem.scenarios.weight.tolist()
    count = spent = copies = 0
    credit = credit_of(candidate.encoding)
    for times in replay(problem, schedule, record=True, credit=credit).stages:
        for item, start, end in times.hosted:
            count += weight[times.pass_index]
            spent += weight[times.pass_index] * (end - start)
            copies += weight[times.pass_index] * int(problem.copy_ns[times.stage, item])
    asked = ((scenarios.demand > 0) * scenarios.weight[:, None, None]).sum(axis=0)
    demanded = sum(
        int(asked[index].sum()) - int(asked[index, list(choice.resident)].sum())
        for index, choice in enumerate(schedule.stages)
        if not problem.stages[index].sequential
    )
    each = max(count, 1)
    means = count / sum(weight), demanded / sum(weight), spent / each, copies / each
    return Hosting(host, plan.promised, without, *means)


def _prefetching(
    plan: Plan, candidate: Candidate, problem: Problem, schedule: Schedule
) -> Prefetching | None:
    """The plan against itself without prefetches of experts."""
    experts = sum(len(choice.prefetch) for choice in schedule.stages[:-1])
    if not experts:
        return None
    stages = tuple(
        choice if stage.sequential else choice.bare()
        for stage, choice in zip(problem.stages, schedule.stages, strict=True)
    )
    bare = schedule.replace(stages=stages, reserve=max(schedule.reserve, 1))
    credit = credit_of(candidate.encoding)
    result = replay(candidate.problem("judge", plain=True), schedule, credit=credit)
    copied = max(int(result.copied_bytes.sum()), 1)
    return Prefetching(
        experts,
        plan.promised,
        candidate.promised("judge", bare),
        min(result.wasted_bytes / copied, 1.0),
    )
