"""In which form each expert is read and computed, of a store that has several.

A quantized expert has fewer bytes and is off by what was measured while packing. The mean of these
errors over all experts, each as often as the recorded tokens chose it and once more (so that no
expert is free), may be ``allowed_ppb`` at most. Each step from one form to a cheaper one saves
time, by the price below, and adds error; taken in the order of time saved for error added they are
the optimum of the linear relaxation (the multiple-choice knapsack of Sinha and Zoltners, Operations
Research 27, 1979), up to a last step that would be taken in part. That one is left out: so a choice
is off the best one by less than one step, and one with more allowed has all steps of one with less.

The price of a form is what an expert takes in a decode pass, on average: its computation, and its
copy or, where that is cheaper, the memory in which it stays; both by the chance that one of a
group's tokens chooses it. Memory has the lowest price for a byte at which what then stays fits.
What copies hide behind computation is not in these prices; so every n and b is looked at with this
choice, with that as if nothing stayed, and with all experts as in the checkpoint.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import islice, pairwise
from typing import NamedTuple, get_args

import numpy as np

from planner.documents import OWN, ExpertError, FormName, Policy
from planner.encode import Encoding
from planner.factors import Factors
from planner.form_costs import expert_curve
from planner.host import host_stays
from planner.memory import EXPERT_TILE_ROWS, Forms
from planner.profiles import Profile
from solvers.counting import counted
from solvers.errors import OptionError

__all__ = [
    "Choice",
    "Option",
    "allowed_error",
    "allowed_ppb",
    "allowing",
    "choose",
    "expert_error",
    "forms_words",
    "knapsack",
    "quantized_counts",
    "uses",
    "with_forms",
]

PPB = 10**9

_SLOTS = 2
"""What memory is left for, beside what stays."""
_HALVINGS = 8
"""Of the price of memory."""


class Option(NamedTuple):
    """A form of one expert: its weight times its error, and its price; both integers."""

    form: FormName
    error: int
    price: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One form for each of some experts.

    Attributes
    ----------
    forms
        Of each expert, in the order in which they were given.
    error, price
        Sums over all of them.
    bound
        No choice within the same error has a lower price: the relaxation's, rounded up.
    """

    forms: tuple[FormName, ...]
    error: int
    price: int
    bound: int


def knapsack(experts: list[list[Option]], allowed: int) -> Choice:
    """Choose one option of each expert, of little price and an error of ``allowed`` at most in all.

    Parameters
    ----------
    experts
        Options of each; the first of them is without error.
    allowed
        Not negative.
    """
    chosen = [options[0] for options in experts]
    steps = []
    for index, options in enumerate(experts):
        for number, (last, option) in enumerate(_worth_taking(options)):
            added, saved = option.error - last.error, last.price - option.price
            rate = saved / added if added else math.inf
            steps.append((-rate, index, number, added, saved, option))
    error, price = 0, sum(option.price for option in chosen)
    part = Fraction(0)
    for _, index, _, added, saved, option in sorted(steps, key=lambda step: step[:3]):
        if error + added > allowed:
            part = Fraction(saved * (allowed - error), added)
            break
        chosen[index] = option
        error, price = error + added, price - saved
    forms = tuple(option.form for option in chosen)
    return Choice(forms, error, price, math.ceil(price - part))


def _worth_taking(options: list[Option]) -> list[tuple[Option, Option]]:
    """Steps from the first option along those that no mix of two others replaces, by error."""
    hull = [options[0]]
    for option in sorted(options[1:], key=lambda one: (one.error, one.price)):
        if option.price >= hull[-1].price:
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], option):
            hull.pop()
        hull.append(option)
    return list(pairwise(hull))


def _above(first: Option, middle: Option, last: Option) -> bool:
    """Whether ``middle`` lies on or above the line between its neighbours."""
    return (first.price - middle.price) * (last.error - first.error) <= (
        first.price - last.price
    ) * (middle.error - first.error)


def uses(profile: Profile) -> list[list[int]]:
    """By MoE layer and expert: how often the recorded tokens chose it, and once more."""
    model, experts = profile.model, profile.arrays.experts
    return [
        (
            np.bincount(experts[:, column].ravel(), minlength=model.layers[layer].experts) + 1
        ).tolist()
        for column, layer in enumerate(model.moe_layers)
    ]


class _Priced(NamedTuple):
    """One form of one expert: its weight times its error, its device bytes, and how long it is
    copied and computed in a decode pass, in ns, on average."""

    form: FormName
    error: int
    held_bytes: int
    copied_ns: float
    computed_ns: float

    def option(self, memory_price: float) -> Option:
        """At so many ns for a byte that stays: it stays or is copied, whichever is cheaper."""
        served = min(memory_price * self.held_bytes, self.copied_ns)
        return Option(self.form, self.error, round(self.computed_ns + served))


def choose(encoding: Encoding) -> list[Forms]:
    """Forms for the groups of an encoding whose experts are all as in the checkpoint.

    Returns
    -------
    list
        One choice by the price of memory at which what stays fits, and one as if nothing stayed;
        what needs none is left out.
    """
    profile = encoding.profile
    experts = _priced(encoding)
    allowed = profile.allowed_ppb * sum(map(sum, uses(profile)))
    others = [
        unit
        for stage in encoding.stages(Factors())
        for unit in ((stage.start,) if stage.start else stage.items)
    ]
    capacity = encoding.capacity_bytes - _SLOTS * encoding.slot_bytes

    def at(price: float) -> tuple[tuple[FormName, ...], bool]:
        """Forms at a price of memory, and whether what stays then fits."""
        chosen = knapsack([[one.option(price) for one in own] for own in experts], allowed).forms
        kept = sum(unit.held_bytes for unit in others if price * unit.held_bytes < unit.copy_ns)
        for own, form in zip(experts, chosen, strict=True):
            one = own[place[form]]
            kept += one.held_bytes if price * one.held_bytes < one.copied_ns else 0
        return chosen, kept <= capacity

    place = {one.form: index for index, one in enumerate(experts[0])}
    most = max(one.copied_ns / one.held_bytes for own in experts for one in own)
    found, fits = at(0.0)
    streaming, _ = at(most)
    if not fits:
        found, low, high = streaming, 0.0, most
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            chosen, fits = at(middle)
            if fits:
                found, high = chosen, middle
            else:
                low = middle
    every = dict.fromkeys((found, streaming))
    return [_by_layer(profile, forms) for forms in every if {*forms} - {OWN}]


def _by_layer(profile: Profile, forms: Iterable[FormName]) -> Forms:
    rest, found = iter(forms), []
    for layer in profile.model.layers:
        own = tuple(islice(rest, layer.experts))
        found.append(own if {*own} - {OWN} else ())
    return tuple(found)


def _priced(encoding: Encoding) -> list[list[_Priced]]:
    """All forms of each expert, layer by layer."""
    profile = encoding.profile
    model, tokens = profile.model, len(profile.arrays.experts)
    errors = {form.name: form.errors_ppb for form in model.forms or ()}
    curves = {form: expert_curve(profile.costs, form) for form in (OWN, *errors)}
    computed = cache(lambda form, rows: curves[form].tiled(rows, EXPERT_TILE_ROWS))
    found = []
    for layer, own in zip(model.moe_layers, uses(profile), strict=True):
        units = {form: encoding.expert_unit(layer, form) for form in curves}
        for expert, count in enumerate(own):
            share = min(count / (tokens + len(own)), 1.0)
            active = 1.0 - (1.0 - share) ** encoding.group
            rows = max(round(encoding.group * share / active), 1)
            found.append(
                [
                    _Priced(
                        form,
                        0 if form == OWN else count * errors[form][layer][expert],
                        unit.held_bytes,
                        active * unit.copy_ns,
                        active * computed(form, rows),
                    )
                    for form, unit in units.items()
                ]
            )
    return found


def with_forms(encoding: Encoding) -> list[Profile]:
    """The profile with all experts as in the checkpoint, and where an error is allowed that makes
    others better, with the forms chosen for the groups of ``encoding``."""
    profile = encoding.profile
    if not profile.allowed_ppb:
        return [profile]
    return [profile, *(replace(profile, forms=forms) for forms in choose(encoding))]


def allowing(profile: Profile, error: float) -> Profile:
    """The profile with so much mean error of experts allowed: 0.01 lets their weights be 1% off, by
    root mean square and on average over what recorded tokens chose; 0: all as in the checkpoint.

    Raises
    ------
    OptionError
        If the store has its experts in one form, a host computes some, or the error is no number.
    """
    if profile.model.forms is None:
        raise OptionError(
            "an allowed error has no effect: the profile's store has its experts in one form; pack "
            "the checkpoint with --quantize own,int8,int4 and profile it"
        )
    if host_stays(profile.hardware, profile.costs) is None:
        raise OptionError("an allowed error cannot be planned yet where a host computes experts")
    return replace(profile, allowed_ppb=allowed_ppb(error))


def allowed_ppb(error: float) -> int:
    """An allowed error in thousand-millionths.

    Raises
    ------
    OptionError
        If it is none.
    """
    if not 0 <= error <= 1 or 0 < error * PPB < 1:
        raise OptionError(f"an allowed error of {error} is none: give 0, or 1e-9 to 1 (0.01: 1%)")
    return int(Fraction(repr(error)) * PPB)


def allowed_error(profile: Profile) -> float | None:
    """What ``allowing`` was told to make this profile; None where no error is allowed."""
    return profile.allowed_ppb / PPB or None


def expert_error(profile: Profile, policy: Policy) -> ExpertError | None:
    """What a policy's forms are off by; None where no error was allowed."""
    if not profile.allowed_ppb:
        return None
    counts, total = uses(profile), 0
    errors = {form.name: form.errors_ppb for form in profile.model.forms or ()}
    for layer, own in zip(profile.model.moe_layers, counts, strict=True):
        for expert, form in enumerate(policy.layers[layer].forms):
            if form != OWN:
                total += own[expert] * errors[form][layer][expert]
    mean = -(-total // sum(map(sum, counts)))
    return ExpertError("weights", profile.allowed_ppb, mean)


def quantized_counts(policy: Policy) -> dict[FormName, int]:
    """How many experts a policy reads in each quantized form, those of more bits first."""
    used = Counter(form for own in policy.expert_forms for form in own if form != OWN)
    return {form: used[form] for form in get_args(FormName) if used[form]}


def forms_words(policy: Policy, error: ExpertError | None, experts: int) -> str:
    """How many experts have which form, and how far off they are; nothing where none may be."""
    if error is None:
        return ""
    used = quantized_counts(policy)
    rest = experts - sum(used.values())
    parts = [f"{rest} as in the checkpoint"] if rest else []
    parts += [f"{count} in {form}" for form, count in used.items()]
    return (
        f"of {counted(experts, 'expert')} {', '.join(parts)}: their weights are "
        f"{error.mean_ppb / PPB:.3%} off, by root mean square of each and on average over what "
        f"recorded tokens chose; {error.allowed_ppb / PPB:.3%} was allowed"
    )
