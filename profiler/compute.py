"""Measuring computation: decode and prefill passes over a grid of sizes, nothing copied beside.

Each pass through a bench gives samples of every operation at once: attention at its batch size and
context, router, combine and the rest at the group's tokens, experts at rows that rotate through
the whole curve.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from executor.device import DTYPES
from planner.documents import ModelSpec, Workload
from planner.memory import EXPERT_TILE_ROWS, smallest_budget
from profiler.bench import Bench
from profiler.layout import HEAD_TILES, BenchPlan, Layout
from profiler.samples import PassSamples, add_pass
from solvers.errors import BudgetError

__all__ = [
    "EXPERT_ROWS",
    "Cell",
    "decode_cells",
    "fitting",
    "measure_cell",
    "prefill_cells",
    "too_little",
]

EXPERT_ROWS = tuple(
    rows
    for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    if rows <= EXPERT_TILE_ROWS
)
"""The expert curve: dense where kernels change their shape."""

_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (32, 128, 512)
_PROMPTS = (8, 32, 128, 512)
_PREFILL_SEQUENCES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of pass.

    ``prompt_tokens`` is None for decode, where each sequence has one new token and ``context``
    positions in sight; in prefill ``context`` is the prompt. With an ``encoder``, ``context`` in
    decode is the length of the prompt, and of what lies in the decoder's sight, too.
    """

    sequences: int
    prompt_tokens: int | None
    context: int
    encoder: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the pass (with an encoder, of its prompts)."""
        return self.sequences * (self.prompt_tokens or 1)

    @property
    def workload(self) -> Workload:
        """What a device must have room for."""
        if self.prompt_tokens is None:
            return Workload(self.sequences, self.behind or 1, self.context)
        return Workload(self.sequences, self.prompt_tokens, 1)

    @property
    def behind(self) -> int:
        """Prompt tokens of each sequence that an encoder has computed in an earlier pass."""
        return self.context if self.encoder and self.prompt_tokens is None else 0

    def counts(self) -> tuple[list[int], list[int]]:
        """Tokens of each sequence in the pass, and before it.

        In decode sequences are of unequal length, as real prompts are.
        """
        if self.prompt_tokens is not None:
            # with an encoder the last token is the one that the decoder begins with
            return [self.prompt_tokens + self.encoder] * self.sequences, [0] * self.sequences
        ragged = [self.context - 1 - index % 4 for index in range(self.sequences)]
        return [1] * self.sequences, [self.behind + max(past, 1) for past in ragged]


def decode_cells(model: ModelSpec) -> Iterator[list[Cell]]:
    """Decode passes: for each context the sequences, smallest first."""
    # behind an encoder, of prompts too
    wanted = (_PROMPTS[0], *_CONTEXTS) if model.encoder else _CONTEXTS
    contexts = [length for length in wanted if length < model.max_context]
    for context in contexts or [model.max_context]:
        yield [Cell(sequences, None, context, bool(model.encoder)) for sequences in _SEQUENCES]


def prefill_cells(model: ModelSpec, most_tokens: int) -> Iterator[list[Cell]]:
    """Prefill passes: for each prompt length the sequences, smallest first."""
    prompts = [length for length in _PROMPTS if length <= model.max_context]
    for prompt in prompts or [model.max_context]:
        yield [
            Cell(sequences, prompt, prompt, bool(model.encoder))
            for sequences in _PREFILL_SEQUENCES
            if sequences * prompt <= most_tokens or sequences == 1
        ]


def measure_cell(
    bench: Bench,
    cell: Cell,
    samples: PassSamples,
    budget_ns: int,
    least: int = 3,
    most: int = 24,
    kind: str = "expert",
) -> None:
    """Passes of one kind until the time is up (and ``least`` were made, if they are not too long).

    The first pass warms up libraries, caches and pages, and is not counted. ``kind`` is what its
    experts are recorded as.
    """
    counts, past = cell.counts()
    tiles = bench.plan.policy.head_tiles
    sizes = _expert_rows(bench, cell.tokens)
    begun = time.perf_counter_ns()
    for turn in range(most + 1):
        # the size with the fewest samples; in turns, so that none is measured at one time only
        shift = turn % len(sizes)
        rows = min(
            (*sizes[shift:], *sizes[:shift]),
            key=lambda rows: len(samples.by_rows.get((kind, rows), ())),
        )
        events = bench.run(
            counts, past, rows, head_tiles=min(tiles, HEAD_TILES), prompt=cell.behind
        )
        if turn == 0:
            continue
        add_pass(
            samples,
            events,
            batch_size=cell.sequences,
            prompt_tokens=cell.prompt_tokens,
            context=cell.context,
            head_tiles=tiles,
            expert_rows=frozenset((rows,)),
            encoder=bench.model.encoder_depth,
        )
        spent = time.perf_counter_ns() - begun
        # a pass that alone takes longer than its time is made twice, in the next round again
        if spent > budget_ns and (turn >= least or spent > 4 * budget_ns):
            break


def _expert_rows(bench: Bench, tokens: int) -> list[int]:
    """Sizes of the expert curve that a pass of ``tokens`` is likely to meet.

    An expert's rows are gathered from all the pass's tokens, so a size is measured in passes in
    which it occurs: from a quarter of an even share to eight times of it.
    """
    spec = bench.model.layers[bench.plan.moe_layer]
    share = tokens * spec.top_k / spec.experts
    most = min(max(8 * share, 2.0), tokens)
    likely = [rows for rows in EXPERT_ROWS if share / 4 <= rows <= most]
    return likely or [max(rows for rows in EXPERT_ROWS if rows <= tokens)]


def fitting(layout: Layout, cells: Sequence[Cell]) -> tuple[Sequence[Cell], BenchPlan | None]:
    """The cells that fit, the largest of which sets the bench; roomy benches come first."""
    for wanted in (True, False):
        for end in range(len(cells), 0, -1):
            plan = layout.plan(cells[end - 1].workload)
            if plan is not None and (not wanted or layout.roomy(plan)):
                return cells[:end], plan
    return (), None


def too_little(model: ModelSpec, memory_bytes: int) -> BudgetError:
    """What to raise where not even the smallest cells fit: it names the smallest budget."""
    low, high = smallest_budget(model, Workload(1, 1, 1), DTYPES[model.dtype].itemsize), 1 << 62
    while low < high:
        middle = (low + high) // 2
        layout = Layout(model, middle)
        both = bool(model.encoder)
        smallest = [Cell(1, None, 32, both), Cell(1, 8, 8, both)]
        if all(layout.plan(cell.workload) is not None for cell in smallest):
            high = middle
        else:
            low = middle + 1
    return BudgetError(
        f"{model.name} cannot be profiled in {memory_bytes:,} bytes of memory; "
        f"the smallest budget that works is {low:,} bytes",
        low,
    )
