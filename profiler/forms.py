"""Experts in the quantized forms that a store has beside the checkpoint's own, as measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.documents import Curve, FormName, FormSlowdown
from planner.documents.base import Source
from profiler.contention import Turn, kind_slowdowns, slowdowns
from profiler.curves import fit_curve
from profiler.samples import PassSamples

__all__ = ["FormSamples", "Pairs", "form_curves", "form_slowdowns"]

Pairs = list[tuple[Turn, Turn]]
"""Turns of one cell: at rest, and busy."""


@dataclass(slots=True)
class FormSamples:
    """What was measured of one form: alone, and beside copies in decode and in prefill."""

    alone: PassSamples = field(default_factory=PassSamples)
    decode: Pairs = field(default_factory=list)
    prefill: Pairs = field(default_factory=list)


def form_curves(samples: Mapping[FormName, FormSamples]) -> dict[FormName, Curve] | None:
    """The curve ``expert`` of each form; None where there is none."""
    found = {form: fit_curve(own.alone.rows("expert")) for form, own in samples.items()}
    return found or None


def form_slowdowns(
    samples: Mapping[FormName, FormSamples], alone_rate: Callable[[FormName], float], source: Source
) -> dict[FormName, FormSlowdown] | None:
    """Those of each form that was measured beside copies in both phases; None where there is none.

    Parameters
    ----------
    samples
        By form.
    alone_rate
        Bytes/s of copies of such experts with nothing beside them.
    source
        What figures are tagged with.
    """
    found = {}
    for form, own in samples.items():
        decode, prefill = (
            kind_slowdowns(pairs, source).get("expert") for pairs in (own.decode, own.prefill)
        )
        if decode is not None and prefill is not None:
            both = slowdowns((*own.decode, *own.prefill), alone_rate(form), source)
            found[form] = FormSlowdown(both.copy_slowdown, decode, prefill)
    return found or None
