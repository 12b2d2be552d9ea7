"""The command ``parallel``: a placement carried out by as many processes as it has devices, on one
machine or several."""

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
    plain,
    reporter_of,
)
from moeplan.commands.outputs import give_outputs
from moeplan.options import check_outputs, parse_size, read_prompts
from moeplan.output import human_bytes, human_number, human_time
from planner.documents import ExpertPlacement, load_document
from solvers.counting import counted
from solvers.errors import OptionError

if TYPE_CHECKING:
    from executor.parallel import Machines, RankReport

__all__ = ["parallel"]

_WAIT_SECONDS = 120.0


def parallel(
    ctx: typer.Context,
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's folder.")
    ],
    placement: Annotated[
        Path,
        typer.Option("--placement", help="A file of 'moeplan place', or of 'moeplan offload'."),
    ],
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="A .txt (a prompt a line) or a .jsonl (see the docs)."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="New tokens for each.")
    ] = None,
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
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option("--device", help="cpu, or cuda: a GPU for each device of the placement."),
    ] = "cpu",
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=2, help="How many machines run this command, each with its devices (1)."
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            "--node-rank", min=0, help="Which of them this is; 0 has prompts and outputs."
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option("--coordinator", help="HOST:PORT of machine 0, where the others come."),
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            "--interface", help="Network interface to the others (that of the coordinator)."
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option("--wait", min=0.1, help="Seconds until all machines have come (120)."),
    ] = None,
    out: OutputsFile = None,
    as_json: Json = False,
) -> None:
    """Run prompts on several devices (processes of one machine or more), experts as placed."""
    from executor.parallel import ParallelEngine, Rebalance

    reporter = reporter_of(ctx)
    machines = _machines(nodes, node_rank, coordinator, interface, wait)
    if machines is not None and machines.number:
        said = {
            "--prompts": prompts,
            "--max-new-tokens": max_new_tokens,
            "--memory": memory,
            "--eviction": eviction,
            "--batch-size": batch_size,
            "--rebalance": rebalance,
            "--out": out,
        }
        for name, value in said.items():
            if value is not None:
                raise OptionError(
                    f"{name} has no effect on machine {machines.number}: give it on machine 0, "
                    "for all"
                )
        document = load_document(ExpertPlacement, placement)
        ParallelEngine(checkpoint, document, store=store, device=device, machines=machines).follow()
        line = f"Machine {machines.number} of {machines.count} has done its part."
        reporter.show(Text(line))
        reporter.result({"node_rank": machines.number, "nodes": machines.count})
        return
    if prompts is None or max_new_tokens is None:
        missing = (
            "--prompts is needed: a file with a prompt a line"
            if prompts is None
            else "--max-new-tokens is needed: how many tokens follow each prompt"
        )
        raise OptionError(missing)
    from executor.prompts import decode, encode_text
    from executor.tokenizer import load_tokenizer

    check_outputs({"--out": out}, [checkpoint, store, placement, prompts])
    document = load_document(ExpertPlacement, placement)
    if eviction is not None and memory is None and document.offload is None:
        raise OptionError("--eviction has no effect without --memory: every expert stays")
    asked: Sequence[str | list[int]] = read_prompts(prompts)
    engine = ParallelEngine(
        checkpoint,
        document,
        store=store,
        memory_bytes=None if memory is None else parse_size(memory, "--memory"),
        eviction=eviction,
        device=device,
        machines=machines,
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
    reporter.show(_table(run.ranks, document.offload is not None))
    reporter.show(
        Text(
            f"{counted(new, 'token')} on {counted(document.devices, 'device')} in "
            f"{human_time(run.wall_ns)}: {human_number(speed)} tokens/s. "
            f"{_where(machines, device)}"
        )
    )
    if rebalance is not None:
        reporter.show(
            Text(f"{counted(run.ranks[0].swaps, 'swap')} of experts between devices paid.")
        )
    reporter.result(
        {
            "devices": document.devices,
            "device": device,
            "nodes": 1 if machines is None else machines.count,
            "requests": len(lines),
            "new_tokens": new,
            "wall_ns": run.wall_ns,
            "swaps": run.ranks[0].swaps,
            "tokens_per_second": speed,
            "ranks": [{**plain(rank), "hit_rate": rank.hit_rate} for rank in run.ranks],
            "outputs": lines if out is None else str(out),
        }
    )


def _machines(
    nodes: int | None,
    node_rank: int | None,
    coordinator: str | None,
    interface: str | None,
    wait: float | None,
) -> Machines | None:
    """This machine among several; None where there is no other."""
    from executor.parallel import Machines

    given = {"--nodes": nodes, "--node-rank": node_rank, "--coordinator": coordinator}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        for name, value in (("--interface", interface), ("--wait", wait)):
            if value is not None:
                raise OptionError(f"{name} has no effect on one machine: give --nodes")
        return None
    if nodes is None or node_rank is None or coordinator is None:
        raise OptionError(f"{', '.join(missing)} missing: several machines need {', '.join(given)}")
    if node_rank >= nodes:
        raise OptionError(
            f"--node-rank {node_rank}: {counted(nodes, 'machine')} are 0 to {nodes - 1}"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise OptionError(f"--coordinator {coordinator!r} is not HOST:PORT, as in 10.0.0.1:29500")
    host = host.removeprefix("[").removesuffix("]")
    return Machines(nodes, node_rank, host, int(port), interface, wait or _WAIT_SECONDS)


def _where(machines: Machines | None, device: str) -> str:
    """What a speed is of."""
    if device == "cuda":
        return "Each device is a GPU."
    if machines is not None:
        return (
            f"They are processes of {counted(machines.count, 'machine')}, each sharing its "
            "machine's cores."
        )
    return "They are processes of one machine and share its cores: nothing is gained by it here."


def _table(ranks: tuple[RankReport, ...], planned: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    headings = ["device", "rows", "share", "sent away", "hit rate", "read", "memory"]
    headings += ["in exchanges", *(("ahead", "of it wasted") if planned else ())]
    for heading in headings:
        table.add_column(heading, justify="right")
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
            *map(human_bytes, (rank.prefetched_bytes, rank.wasted_bytes) if planned else ()),
        )
    return table
