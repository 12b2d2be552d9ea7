"""Cells of the solvers' benchmark: problems of sizes that occur, from recorded or made-up routing.

``mixtral`` draws whole prompts (Mixtral-8x7B's shares of each MMLU prompt's choices: 32 layers, 8
experts, top 2), so that a sequence keeps its taste from pass to pass; its tokens are drawn from the
prompt's shares. ``qwen3`` draws independent tokens from Qwen3-30B-A3B's decode heat (48 x 128, top
8). ``zipf`` is synthetic: independent tokens from a Zipf popularity. An expert has 4 MiB and takes
4 ms to copy, a dense part 2 MiB and 1 ms.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from solvers.problem import Problem, Scenarios, Stage, Unit

__all__ = ["Cell", "build", "grid", "several", "small"]

MIB = 1 << 20
_MEAN_TOKENS = 16_384
"""Tokens, of sequences of the fitted share, from which the probability of a choice is estimated."""
_DEMANDED = 60_000
"""Demanded items of all fitted passes of larger groups, at most, where that leaves ``_FEWEST``."""
_FEWEST = 8


@dataclass(frozen=True)
class Cell:
    """One problem, by its data source, shape, group and budget (share of the experts' bytes)."""

    source: str
    layers: int
    experts: int
    top_k: int
    group: int
    budget: float
    skew: float = 0.0

    @property
    def name(self) -> str:
        """For tables."""
        kind = f"{self.source}{self.skew:g}" if self.source == "zipf" else self.source
        return f"{kind} {self.layers}x{self.experts} g={self.group} {self.budget:.0%}"

    @property
    def label(self) -> str:
        """What its routing is."""
        return {
            "mixtral": "recorded shares of whole prompts, tokens drawn from them",
            "qwen3": "recorded heat, independent tokens",
            "zipf": "synthetic, independent tokens",
        }[self.source]


def grid(which: str, routing: Path | None) -> Iterator[Cell]:
    """Cells of ``none``, ``shapes``, ``few``, ``default`` or ``all``; recorded routing only where
    given. ``shapes``: one source for each shape, with each group and budget."""
    if which == "none":
        return
    if which == "shapes":
        order = (0.9, 0.3, 0.6, 0.05)
        for shift in range(len(order)):  # what is done first tells most
            for at, group in enumerate((1, 8, 64, 256)):
                budget = order[(at + shift) % len(order)]
                if routing is not None:
                    yield Cell("mixtral", 32, 8, 2, group, budget)
                    yield Cell("qwen3", 48, 128, 8, group, budget)
                yield Cell("zipf", 58, 256, 8, group, budget, 1.2)
        return
    groups = {"few": (1, 64), "default": (1, 8, 64, 256), "all": (1, 2, 8, 16, 64, 256)}[which]
    budgets = {
        "few": (0.1, 0.9),
        "default": (0.05, 0.3, 0.6, 0.9),
        "all": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    }[which]
    for group in groups:
        for budget in budgets:
            if routing is not None:
                yield Cell("mixtral", 32, 8, 2, group, budget)
            yield Cell("zipf", 32, 8, 2, group, budget, 1.2 if budget > 0.5 else 0.0)
    if which == "few":
        return
    for group in groups[:: 1 if which == "all" else 3]:
        for budget in budgets[:: 1 if which == "all" else 2]:
            if routing is not None:
                yield Cell("qwen3", 48, 128, 8, group, budget)
            yield Cell("zipf", 58, 256, 8, group, budget, 1.2)


def build(cell: Cell, routing: Path | None) -> tuple[Problem, Problem, Problem]:
    """The fitted, the judging and the choosing problem of a cell, of disjoint sets of sequences."""
    seed = [cell.layers, cell.experts, cell.group, int(100 * cell.budget), int(10 * cell.skew)]
    rng = np.random.default_rng(seed)
    shares = _shares(cell, routing, rng)
    # a single row stands for tokens that are all alike
    half = max(len(shares) // 2, 1)
    quarter = half + half // 2
    fit_shares, other, choosing = shares[:half], shares[half:quarter], shares[quarter:]
    few = cell.group <= 8
    # the more items, the more of them look better than they are in so many passes
    most = 48 if few and cell.layers <= 32 else 16
    if cell.group <= 2 and cell.layers > 32:
        # half of the experts are demanded in none of 64 passes: leaving just these out of memory
        # looked 8% faster there than it was, and like a gap half as large
        most = 64 if cell.experts <= 128 else 256
    each = cell.layers * min(cell.experts, cell.group * cell.top_k)
    fitted = most if cell.group <= 2 else max(min(most, _DEMANDED // each), _FEWEST)
    held_out = max(min(128 if few else 32, 4 * _DEMANDED // each), _FEWEST)
    runs = 8  # passes of one group, before new sequences come
    demand = _draw(cell, fit_shares, fitted, runs, rng)
    mean = np.broadcast_to(_demanded_by_one(cell, fit_shares, seed), demand.shape)
    return (
        _problem(cell, demand, np.ascontiguousarray(mean)),
        _problem(cell, _draw(cell, other if len(other) else shares, held_out, runs, rng), None),
        _problem(cell, _draw(cell, choosing if len(other) else shares, held_out, runs, rng), None),
    )


def _shares(cell: Cell, routing: Path | None, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """[sequences, layers, experts]: how likely each choice is; one row where tokens are alike."""
    if cell.source == "zipf":
        weights = np.arange(1, cell.experts + 1, dtype=np.float64) ** -cell.skew
        return np.stack([rng.permutation(weights) for _ in range(cell.layers)])[None]
    if routing is None:
        raise SystemExit("recorded routing needs --routing FOLDER or MOEPLAN_ROUTING")
    if cell.source == "qwen3":
        text = (routing / "mbolt_coactivation_qwen3-30b-a3b.json").read_text()
        heat = np.array([layer["heat"] for layer in json.loads(text)["layers"]], dtype=np.float64)
        return np.maximum(heat, 0.1)[None]
    with np.load(routing / "mixtral_mmlu_fractions.npz") as data:
        prompts = np.concatenate([data[name] for name in sorted(data.files)]).astype(np.float64)
    return np.maximum(prompts[rng.permutation(len(prompts))[:4096]], 1e-4)


def _demanded_by_one(
    cell: Cell, shares: npt.NDArray[np.float64], seed: list[int]
) -> npt.NDArray[np.float64]:
    """[layers, experts]: probability that a pass demands an expert. Sequences are independent: the
    chance that none of g chooses it is a power of the chance that one does not."""
    rng = np.random.default_rng([*seed, 1])
    chosen = _draw(dataclasses.replace(cell, group=_MEAN_TOKENS), shares, 1, 1, rng)[0]
    return 1.0 - (1.0 - chosen / _MEAN_TOKENS) ** cell.group


def _draw(
    cell: Cell,
    shares: npt.NDArray[np.float64],
    passes: int,
    each: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.int32]:
    """Demand [passes, layers, experts]; a group's sequences stay for ``each`` passes."""
    demand = np.zeros((passes, cell.layers, cell.experts), dtype=np.int32)
    members = np.zeros(cell.group, dtype=np.int64)
    for index in range(passes):
        if index % each == 0:
            members = rng.integers(0, len(shares), cell.group)
        for layer in range(cell.layers):
            noise = rng.gumbel(size=(cell.group, cell.experts))
            keys = np.log(shares[members, layer]) + noise
            chosen = np.argpartition(-keys, cell.top_k - 1, axis=1)[:, : cell.top_k]
            demand[index, layer] = np.bincount(chosen.ravel(), minlength=cell.experts)
    return demand


def _problem(
    cell: Cell, demand: npt.NDArray[np.int32], mean: npt.NDArray[np.float64] | None
) -> Problem:
    work = np.where(demand > 0, 200_000 + 20_000 * demand.astype(np.int64), 0)
    zero = np.zeros(demand.shape[:2], dtype=np.int64)
    lead = zero + 300_000 + 30_000 * cell.group
    expert = Unit(4 * MIB, 4 * MIB, 4, 1_000_000, 1_000_000, MIB)
    dense = Unit(2 * MIB, 2 * MIB, 2, 500_000, 500_000, MIB)
    weight = np.ones(len(demand), dtype=np.int64)
    scenarios = Scenarios(zero, lead, demand, work, zero + 50_000, weight, mean)
    capacity = cell.layers * 2 * MIB + int(cell.budget * cell.layers * cell.experts * 4 * MIB)
    return Problem(
        (Stage(dense, (expert,) * cell.experts),) * cell.layers,
        scenarios,
        capacity + 4 * MIB,
        4 * MIB,
        cell.top_k,
    )


def small(seed: int) -> Problem:
    """One pass of three stages with three items each, for the joint model. Copies are in one piece
    and everything is known, so that nothing but the decomposition can lose."""
    rng = np.random.default_rng(seed)

    def unit(held: int) -> Unit:
        return Unit(held, held, 1, 0, int(rng.integers(3_000, 40_000)), held)

    stages = tuple(Stage(unit(3), tuple(unit(4) for _ in range(3))) for _ in range(3))
    demand = ((rng.random((1, 3, 3)) < 0.7) * rng.integers(1, 4, (1, 3, 3))).astype(np.int32)
    lead, work = int(rng.integers(0, 40_000)), int(rng.integers(1_000, 10_000))
    scenarios = _alike(demand, lead, work)
    return Problem(stages, scenarios, int(rng.integers(12, 40)), 4)


def several(seed: int) -> Problem:
    """Six passes of two stages with two items each, or of three with four in all, copied in two
    pieces, for the best of all policies. Each pass demands one of two items; all units are alike
    in size, so that a slot costs a resident."""
    rng = np.random.default_rng([seed, 99])
    width = (2, 2) if seed % 2 else (1, 2, 1)

    def unit() -> Unit:
        piece = int(rng.integers(4_000, 9_000))
        return Unit(4, 4, 2, piece, piece, 2)

    stages = tuple(Stage(unit(), tuple(unit() for _ in range(many))) for many in width)
    demand = np.zeros((6, len(width), 2), dtype=np.int32)
    for at, many in enumerate(width):
        chosen = rng.random(6) < 0.3
        demand[:, at, 0] = ~chosen
        demand[:, at, 1] = chosen if many > 1 else 0
    lead, work = int(rng.integers(2_000, 8_000)), int(rng.integers(8_000, 20_000))
    scenarios = _alike(demand, lead, work)
    return Problem(stages, scenarios, 12, 4)


def _alike(demand: npt.NDArray[np.int32], lead: int, work: int) -> Scenarios:
    """Passes in which all leads take as long, and all rows."""
    zero = np.zeros(demand.shape[:2], dtype=np.int64)
    each = demand.astype(np.int64) * work
    return Scenarios(zero, zero + lead, demand, each, zero, np.ones(len(demand), dtype=np.int64))
