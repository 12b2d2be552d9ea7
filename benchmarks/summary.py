"""What a grid of predictions comes to: cells, sums over them, and a page."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from benchmarks.record import machine_facts, machine_words
from planner.documents.timeline import on_compute

__all__ = ["Cell", "markdown", "summary", "words"]

_LEAST_SHARE = 0.02
"""A kind that takes less of a run than this says nothing about a cell."""


@dataclass(frozen=True)
class Cell:
    """One plan and its runs; rates in new tokens/s over the whole run, prefill included.

    ``error`` is that of the run whose error is the median; ``inside`` counts runs within their
    interval. ``kinds`` holds predicted and measured ns of that run; ``load`` is the machine's, a
    minute's mean. ``drift`` is that of a fixed product, ``copy_drift`` of copies, both medians.
    Where ``planned`` (the plan's own prediction) is, ``predicted``, the interval and the error are
    corrected by the drift: each run by its own, those of the median run are shown. ``times``: how
    often a run has the workload, one after the other; ``kinds`` are of one.
    """

    checkpoint: str
    profile_hash: str
    throttle_bytes_per_second: int | None
    memory_bytes: int
    requests: int
    prompt_tokens: int
    new_tokens: int
    solver: str
    n_batches: int
    batch_size: int
    predicted: float
    low: float
    high: float
    measured: tuple[float, ...]
    error: float
    inside: int
    drift: float
    load: float
    kinds: dict[str, tuple[int, int]]
    copy_drift: float | None = None
    planned: float | None = None
    times: int = 1

    @classmethod
    def of(cls, value: dict[str, Any]) -> Cell:
        """From JSON."""
        return cls(**{**value, "measured": tuple(value["measured"])})

    @property
    def plain_error(self) -> float:
        """Without a correction by the drift."""
        if self.planned is None:
            return self.error
        return (1 + self.error) * self.predicted / self.planned - 1

    @property
    def key(self) -> tuple[object, ...]:
        """What tells one cell from another: the profile, what was asked of it, and whether runs are
        held against the prediction for the machine's drift."""
        asked = (self.memory_bytes, self.requests, self.prompt_tokens, self.new_tokens)
        corrected = self.planned is not None
        return (self.profile_hash, self.throttle_bytes_per_second, *asked, corrected)

    @staticmethod
    def heading() -> str:
        """Of ``row``."""
        return (
            "checkpoint | disk MB/s | memory MiB | requests | n x b | predicted [low, high] | "
            "measured | error | drift | drift of copies | uncorrected | load"
        )

    def row(self) -> str:
        """One line of a table."""
        speed = self.throttle_bytes_per_second
        return " | ".join(
            (
                self.checkpoint,
                "free" if speed is None else f"{speed / 1e6:.0f}",
                f"{self.memory_bytes / 2**20:.0f}",
                str(self.requests),
                f"{self.n_batches} x {self.batch_size}",
                f"{self.predicted:.1f} [{self.low:.1f}, {self.high:.1f}]",
                ", ".join(f"{rate:.1f}" for rate in self.measured),
                f"{self.error:+.1%}",
                f"{self.drift:.2f}",
                "" if self.copy_drift is None else f"{self.copy_drift:.2f}",
                "" if self.planned is None else f"{self.plain_error:+.1%}",
                f"{self.load:.1f}",
            )
        )


def summary(cells: list[Cell]) -> dict[str, Any]:
    """All cells and what they come to; errors as fractions.

    ``coverage`` is the share of single runs within their interval. ``kinds`` says of each kind of
    operation the median error, with and without its sign, the worst, and in how many cells it took
    2% of the compute time or more; ``groups`` the same of all copies together (a throttled disk
    serves in lumps, which one copy or the next pays), of all computation and of all waiting.
    """
    errors = [abs(cell.error) for cell in cells]
    runs = sum(len(cell.measured) for cell in cells)
    return {
        "cells": [dataclasses.asdict(cell) for cell in cells],
        "median_abs_error": statistics.median(errors),
        "worst_abs_error": max(errors),
        "coverage": sum(cell.inside for cell in cells) / runs,
        **_uncorrected(cells),
        "kinds": _errors([(cell, cell.kinds) for cell in cells]),
        "groups": _errors([(cell, _grouped(cell)) for cell in cells]),
    }


_Times = dict[str, tuple[int, int]]
"""Predicted and measured ns by kind."""


def _grouped(cell: Cell) -> _Times:
    found: _Times = {}
    for name, (predicted, measured) in cell.kinds.items():
        group = {"copy": "all copies", "wait": "all waiting"}.get(name.partition("_")[0])
        group = group or "all computation"
        before = found.get(group, (0, 0))
        found[group] = before[0] + predicted, before[1] + measured
    return found


def _errors(times: list[tuple[Cell, _Times]]) -> dict[str, dict[str, float]]:
    """Errors of each kind's time over the cells in which it matters."""
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for cell, of in times:
        wall = sum(ns for name, (_, ns) in cell.kinds.items() if on_compute(name))
        for name, (predicted, measured) in of.items():
            if predicted and max(predicted, measured) > _LEAST_SHARE * wall:
                kinds[name].append(measured / predicted - 1)
    return {
        name: {
            "cells": len(found),
            "median_error": statistics.median(found),
            "median_abs_error": statistics.median(map(abs, found)),
            "worst_abs_error": max(map(abs, found)),
        }
        for name, found in sorted(kinds.items())
    }


def _uncorrected(cells: list[Cell]) -> dict[str, float]:
    """What a correction by the drift was worth, where there was one."""
    if all(cell.planned is None for cell in cells):
        return {}
    errors = [abs(cell.plain_error) for cell in cells]
    return {
        "uncorrected_median_abs_error": statistics.median(errors),
        "uncorrected_worst_abs_error": max(errors),
    }


def words(found: dict[str, Any]) -> str:
    """A summary in a sentence."""
    said = (
        f"{len(found['cells'])} cells: median error {found['median_abs_error']:.1%}, worst "
        f"{found['worst_abs_error']:.1%}; {found['coverage']:.0%} of runs inside their 90% interval"
    )
    if "uncorrected_median_abs_error" not in found:
        return said
    return (
        f"{said}; without the correction by the drift "
        f"{found['uncorrected_median_abs_error']:.1%} and "
        f"{found['uncorrected_worst_abs_error']:.1%}"
    )


def markdown(cells: list[Cell]) -> str:
    """A page of the same."""
    found = summary(cells)
    columns = Cell.heading().count("|") + 1
    kinds = "\n".join(
        f"| {name} | {one['cells']} | {one['median_error']:+.1%} | "
        f"{one['median_abs_error']:.1%} | {one['worst_abs_error']:.1%} |"
        for name, one in (found["groups"] | found["kinds"]).items()
    )
    rows = "\n".join(f"| {cell.row()} |" for cell in cells)
    return (
        "# Predicted against measured tokens/s\n\n"
        f"{machine_words(machine_facts())}. "
        f"{words(found)}. Errors are (measured - predicted) / predicted, of the median run; drift "
        "is a fixed operation's time beside the runs over its time while profiling.\n\n"
        f"| {Cell.heading()} |\n|{' --- |' * columns}\n{rows}\n\n"
        "By kind of operation, where it took 2% of the time or more (errors of its time):\n\n"
        "| kind | cells | median error | median absolute error | worst |\n"
        f"| --- | --- | --- | --- | --- |\n{kinds}\n"
    )
