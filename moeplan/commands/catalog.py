"""``catalog``: hardware and models that can be planned for without having them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import Json, plain, reporter_of
from planner.documents import Figure, Machine

__all__ = ["catalog"]


def catalog(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One machine, with its figures' sources.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List hardware and model families that 'plan --model --hardware' knows."""
    from planner.architectures import FAMILIES
    from planner.catalogue import machine_names, named_machine

    reporter = reporter_of(ctx)
    if name is not None:
        machine = named_machine(name)
        found = _figures(machine)
        table = Table(box=None, pad_edge=False)
        for heading in ("figure", "value", "kind"):
            table.add_column(heading, no_wrap=True)
        # an address that was cut could not be looked up
        table.add_column("conditions, source", overflow="fold")
        for row in found:
            table.add_row(
                f"{row['name']} {row['quantity']}",
                _with_unit(row["quantity"], row["value"]),
                row["kind"],
                "\n".join(filter(None, (row["conditions"], row["source"]))),
            )
        reporter.show(table)
        for text in machine.assumed:
            reporter.show(Text(f"assumed: {text}"))
        reporter.result({"machine": plain(machine), "figures": found})
        return
    machines = [named_machine(one) for one in machine_names()]
    table = Table(box=None, pad_edge=False)
    for heading in ("hardware", "device", "TFLOP/s", "memory", "GB/s", "copies GB/s"):
        table.add_column(heading, no_wrap=True, justify="left" if heading < "i" else "right")
    for machine in machines:
        compute = machine.compute_flops_per_second
        best = max(compute, key=lambda dtype: compute[dtype].value)
        copies = machine.link_bytes_per_second or machine.disk_bytes_per_second
        table.add_row(
            machine.name,
            machine.device,
            f"{_scaled(compute[best], 1e12)} {best}",
            f"{machine.device_memory_bytes / (1 << 30):.0f} GiB",
            _scaled(machine.device_bandwidth_bytes_per_second, 1e9),
            _scaled(copies, 1e9),
        )
    reporter.show(table)
    reporter.show(
        Text(
            "\n* a data sheet's limit; the others were measured. 'moeplan catalog NAME' says where."
        )
    )
    reporter.show(Text(f"\nModel families (model_type of a config.json): {', '.join(FAMILIES)}"))
    reporter.result({"hardware": plain(machines), "families": list(FAMILIES)})


def _with_unit(quantity: str, value: float) -> str:
    """``76.3 TFLOP/s``: a figure in the unit of its kind."""
    if quantity.startswith("compute_"):
        return f"{value / 1e12:,.4g} TFLOP/s"
    if quantity == "device_memory":
        return f"{value / (1 << 30):,.4g} GiB"
    return f"{value / 1e9:,.4g} GB/s"


def _scaled(figure: Figure | None, unit: float) -> str:
    if figure is None:
        return ""
    return f"{figure.value / unit:,.4g}{'*' if figure.source == 'spec' else ''}"


def _figures(machine: Machine) -> list[dict[str, Any]]:
    """The catalogue's rows that a machine is made of."""
    from planner.catalogue import parts_of, rows

    parts = parts_of(machine.name)
    return [plain(row) for row in rows() if (row.part, row.name) in parts]
