"""The command ``parallel``: a placement carried out by as many processes as it has devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import (
    Json,
    OutputsFile,
    PromptsFile,
    give_outputs,
    plain,
    reporter_of,
)
from moeplan.options import check_outputs, parse_size, read_prompts
from moeplan.output import human_bytes, human_number, human_time
from planner.documents import ExpertPlacement, load_document
from solvers.errors import OptionError

if TYPE_CHECKING:
    from executor.parallel import RankReport

__all__ = ["parallel"]


def parallel(
    ctx: typer.Context,
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's folder.")
    ],
    placement: Annotated[
        Path, typer.Option("--placement", help="A file of 'moeplan place'; a process a device.")
    ],
    prompts: PromptsFile,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="New tokens for each.")
    ],
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="Memory for experts on each device (all of its own)."),
    ] = None,
    eviction: Annotated[
        Literal["lifo", "lru"] | None,
        typer.Option("--eviction", help="What leaves a device's memory first (lifo)."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", min=1, help="Sequences that a device runs at a time (all its own)."
        ),
    ] = None,
    rebalance: Annotated[
        int | None,
        typer.Option(
            "--rebalance",
            min=1,
            help="Every so many passes, swap experts between devices where that pays (never).",
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="A packed store to read weights from.")
    ] = None,
    out: OutputsFile = None,
    as_json: Json = False,
) -> None:
    """Run prompts on several devices (processes of this machine), experts as placed."""
    from executor.parallel import ParallelEngine, Rebalance
    from executor.prompts import decode, encode_text
    from executor.tokenizer import load_tokenizer

    reporter = reporter_of(ctx)
    if eviction is not None and memory is None:
        raise OptionError("--eviction has no effect without --memory: every expert stays")
    check_outputs({"--out": out}, [checkpoint, store, placement, prompts])
    document = load_document(ExpertPlacement, placement)
    asked: Sequence[str | list[int]] = read_prompts(prompts)
    engine = ParallelEngine(
        checkpoint,
        document,
        store=store,
        memory_bytes=None if memory is None else parse_size(memory, "--memory"),
        eviction=eviction or "lifo",
    )
    tokenizer = cache(partial(load_tokenizer, checkpoint))
    most = engine.model.max_context
    tokens = [
        encode_text(number, one, most, tokenizer(), "shorten it") if isinstance(one, str) else one
        for number, one in enumerate(asked, 1)
    ]
    with engine, reporter.steps("run") as progress:
        run = engine.generate(
            tokens,
            max_new_tokens,
            batch_size=batch_size,
            rebalance=None if rebalance is None else Rebalance(rebalance),
            progress=progress,
        )
    lines: list[dict[str, Any]] = [
        {
            "prompt": prompt if isinstance(prompt, str) else decode(prompt, tokenizer),
            "text": decode(ids, tokenizer),
            "token_ids": list(ids),
        }
        for prompt, ids in zip(asked, run.token_ids, strict=True)
    ]
    give_outputs(reporter, lines, out)
    new = sum(map(len, run.token_ids))
    speed = new / run.wall_ns * 1e9
    reporter.show(_table(run.ranks))
    reporter.show(
        Text(
            f"{new} tokens on {document.devices} devices in {human_time(run.wall_ns)}: "
            f"{human_number(speed)} tokens/s. They are processes of one machine and share its "
            "cores: nothing is gained by it here."
        )
    )
    if rebalance is not None:
        reporter.show(Text(f"{run.ranks[0].swaps} swaps of experts between devices paid."))
    reporter.result(
        {
            "devices": document.devices,
            "requests": len(lines),
            "new_tokens": new,
            "wall_ns": run.wall_ns,
            "swaps": run.ranks[0].swaps,
            "tokens_per_second": speed,
            "ranks": [{**plain(rank), "hit_rate": rank.hit_rate} for rank in run.ranks],
            "outputs": lines if out is None else str(out),
        }
    )


def _table(ranks: tuple[RankReport, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("device", "rows", "share", "sent away", "hit rate", "read", "memory"):
        table.add_column(heading, justify="right")
    table.add_column("in exchanges", justify="right")
    rows = sum(rank.rows_computed for rank in ranks)
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            f"{rank.rows_computed:,}",
            f"{rank.rows_computed / max(rows, 1):.3f}",
            f"{rank.rows_sent:,}",
            "–" if rank.hit_rate is None else f"{rank.hit_rate:.3f}",
            human_bytes(rank.bytes_read),
            human_bytes(rank.memory_bytes),
            f"{100 * rank.exchange_ns / max(rank.wall_ns, 1):.0f}%",
        )
    return table
