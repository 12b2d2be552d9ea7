"""A profile without a machine: a configuration, a machine's figures, and statistics of routing.

The documents are those that measuring gives, so that everything that plans works on them; their
numbers say ``spec``, ``fitted`` or ``synthetic``, and ``ProfileIndex.notes`` what was assumed.
"""

from __future__ import annotations

import math
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

from planner.documents import (
    Channel,
    CostProfile,
    Curve,
    Figure,
    Hardware,
    KvWrites,
    Machine,
    ModelSpec,
    ProfileIndex,
    Tier,
    document_hash,
    write_document,
    writing,
)
from planner.drawn_routing import DrawnRouting
from planner.encode import DTYPE_BYTES
from planner.files import exists, is_dir, led_to
from planner.memory import ALIGNMENT_BYTES
from planner.profiles import Profile
from planner.roofline import OperationCosts, Roofline, efficiencies, reached
from planner.routing import write_trace
from planner.smallest import CHUNK_BYTES
from solvers.errors import DocumentError, OptionError, UnsupportedError

__all__ = [
    "NOT_WRITTEN",
    "check_budget",
    "check_dtype",
    "check_plannable",
    "choose_dtype",
    "largest_budget",
    "offline_profile",
    "write_profile",
]

NOT_WRITTEN = Path("a profile that was not written")
"""Where a plan's profile lies that exists in memory alone."""

_LINK_LATENCY_NS = Figure(10_600.0, "measured", 600.0, 15)
"""Of a pinned copy to an H200: what 1 MiB took beyond its share of 4 MiB."""
_DISK_LATENCY_NS = Figure(197_000.0, "fitted", 100_000.0, 2)
"""Of random direct reads of 1 and 8 MiB, one at a time (docs/validation-2026-09-12.md of moe-fit
0.1.0): what is left at no bytes."""

Dtype = Literal["float32", "bfloat16", "float16"]


def check_plannable(model: ModelSpec) -> None:
    """Refuse a model whose passes no roofline knows.

    Raises
    ------
    UnsupportedError
        If it has an encoder.
    """
    if model.encoder:
        raise UnsupportedError(
            f"{model.name}: an encoder-decoder cannot be planned for without a machine yet: "
            "profile its checkpoint there"
        )


def check_dtype(name: str) -> None:
    """Refuse what is no type to compute in.

    Raises
    ------
    OptionError
        Naming those that there are.
    """
    if name not in DTYPE_BYTES:
        raise OptionError(f"--dtype {name!r} is unknown; choose from {', '.join(DTYPE_BYTES)}")


def choose_dtype(model: ModelSpec, machine: Machine, asked: str | None) -> Dtype:
    """The type to compute in: the one asked for, or the one that weights are stored in.

    Raises
    ------
    OptionError
        If the machine's figures do not include it, or weights would change their width.
    """
    known = machine.compute_flops_per_second
    stored = model.dtype if model.dtype in DTYPE_BYTES else "bfloat16"
    dtype = stored if asked is None else asked
    check_dtype(dtype)
    if model.dtype in DTYPE_BYTES and DTYPE_BYTES[dtype] != model.dtype_bytes:
        raise OptionError(
            f"--dtype {dtype}: weights are used as stored, and {model.name} has {model.dtype}"
        )
    if dtype not in known:
        what = f"{model.name} is stored in {model.dtype}" if asked is None else f"--dtype {dtype}"
        raise OptionError(
            f"{what}: there is no speed of {machine.name} for {dtype}, only for "
            f"{', '.join(known)}; a machine of your own (a JSON file) can give one"
        )
    return dtype


def largest_budget(machine: Machine) -> int:
    """Bytes of the machine's device: a processor's is its memory."""
    return machine.device_memory_bytes if machine.device == "cuda" else machine.host_memory_bytes


def check_budget(machine: Machine, memory_bytes: int) -> None:
    """Refuse a budget that the machine does not have.

    Raises
    ------
    OptionError
        If it is larger than the device.
    """
    most = largest_budget(machine)
    if memory_bytes > most:
        asked, held = (f"{size / (1 << 30):.6g} GiB" for size in (memory_bytes, most))
        raise OptionError(f"--memory {asked} is more than the {held} of {machine.name}")


def offline_profile(
    config: Path,
    model: ModelSpec,
    machine: Machine,
    routing: DrawnRouting,
    *,
    dtype: Dtype,
    memory_bytes: int,
) -> Profile:
    """The documents that a profile would hold, in memory.

    Parameters
    ----------
    config
        Where the model's configuration lies.
    model, machine, routing
        What is planned for.
    dtype
        Type computed in, see ``choose_dtype``.
    memory_bytes
        Device budget.

    Raises
    ------
    OptionError
        If the budget is larger than the device.
    UnsupportedError
        If the planner has no account of such a model's memory, or nothing holds its weights.
    """
    check_plannable(model)
    if any(layer.state_bytes for layer in model.layers):
        raise UnsupportedError(
            f"{model.name}: the state that its linear attention keeps is in no account of memory "
            "yet, so that it cannot be planned for"
        )
    check_budget(machine, memory_bytes)
    channel, tier = _channel(model, machine)
    hardware = Hardware(
        name=machine.name,
        device=machine.device,
        processor=machine.processor,
        threads=1,
        tiers=_tiers(machine, model),
        channels=(channel,),
    )
    roofline = Roofline.of(machine, dtype)
    costs = OperationCosts(
        roofline, model, DTYPE_BYTES[dtype], channel.bandwidth_bytes_per_second.value
    )
    profile = CostProfile(
        model_hash=document_hash(model),
        hardware_hash=document_hash(hardware),
        dtype=dtype,
        curves=costs.curves(),
        attention_decode=costs.surface("decode"),
        attention_prefill=costs.surface("prefill"),
        copy_slowdown=Figure(1.0, "spec"),
        compute_slowdown=Figure(1.0, "spec"),
        # what is common to all operations
        reference_ns=Figure(1.0, "fitted", efficiencies()["system"].held_out_error),
        host_expert=_host_expert(model, machine, dtype, channel),
        kv_writes=_kv_writes(machine),
    )
    index = ProfileIndex(
        # a file, which no run takes for a checkpoint
        checkpoint=str((config / "config.json" if is_dir(config) else config).absolute()),
        store=None,
        checkpoint_fingerprint=model.fingerprint,
        store_fingerprint=None,
        memory_bytes=memory_bytes,
        hardware_hash=document_hash(hardware),
        model_hash=document_hash(model),
        costs_hash=document_hash(profile),
        routing_hash=document_hash(routing.document),
        notes=_notes(machine, model, channel, tier, roofline, routing, dtype),
    )
    return Profile(NOT_WRITTEN, index, hardware, model, profile, routing.document, routing.arrays)


def _host_expert(
    model: ModelSpec, machine: Machine, dtype: Dtype, channel: Channel
) -> Curve | None:
    """Of the machine's CPU, where it has one and weights lie in host memory."""
    roofline = Roofline.of_host(machine, dtype)
    if roofline is None:
        return None
    if channel.name != "h2d":
        raise UnsupportedError(
            f"{machine.name}: its CPU can compute no expert: the weights do not fit into host "
            "memory and lie on the drive; name the GPU alone, or give more --host-memory"
        )
    bandwidth = channel.bandwidth_bytes_per_second.value
    return OperationCosts(roofline, model, DTYPE_BYTES[dtype], bandwidth).host_curve(channel)


def _kv_writes(machine: Machine) -> KvWrites | None:
    """Of a drive whose speed of writing is known, beside reads as alone; None: priced as reads."""
    speed = machine.disk_write_bytes_per_second
    if speed is None or machine.device != "cpu":
        return None
    speed = _unsure(reached(speed, "disk"))
    rows = (ALIGNMENT_BYTES, CHUNK_BYTES[0])
    whole = [_DISK_LATENCY_NS.value + size * 1e9 / speed.value for size in rows]
    error = (speed.spread or 0.0) / speed.value
    counts = (max(speed.samples, 1),) * len(rows)
    spread = tuple(round(error * one) for one in whole)
    curve = Curve(rows, tuple(map(round, whole)), spread, counts, speed.source, error)
    return KvWrites(curve, curve)


def _tiers(machine: Machine, model: ModelSpec) -> tuple[Tier, ...]:
    tiers = [
        Tier("device", machine.device_memory_bytes, "spec"),
        Tier("host", machine.host_memory_bytes, "spec"),
    ]
    if machine.disk_bytes_per_second is not None:
        tiers.append(Tier("disk", model.total_bytes, "spec"))
    return tuple(tiers)


def _channel(model: ModelSpec, machine: Machine) -> tuple[Channel, str]:
    """The one copy channel, and the words for where weights lie."""
    disk, link = machine.disk_bytes_per_second, machine.link_bytes_per_second
    weights, host = _gib(model.total_bytes), _gib(machine.host_memory_bytes)
    if link is not None and model.total_bytes <= machine.host_memory_bytes:
        said = f"weights ({weights}) lie in host memory ({host}), all of it pinned"
        return Channel("h2d", _unsure(reached(link, "link")), _LINK_LATENCY_NS), said
    if disk is None:
        raise UnsupportedError(
            f"{model.name}: {weights} of weights do not fit into the {host} of {machine.name}, "
            "and it has no drive: give --host-memory or disk_bytes_per_second"
        )
    drive = _unsure(reached(disk, "disk"))
    if link is None:
        return Channel("disk", drive, _DISK_LATENCY_NS), f"weights ({weights}) lie on the drive"
    up = _unsure(reached(link, "link"))
    slower = min(drive, up, key=lambda figure: figure.value)
    said = (
        f"weights ({weights}) do not fit into host memory ({host}) and lie on the drive; a copy "
        "takes as long as on the slower of drive and link, and no weight is kept in between"
    )
    return Channel("disk", slower, _DISK_LATENCY_NS), said


def _unsure(figure: Figure) -> Figure:
    """A bandwidth with the error of whole runs in its spread."""
    system = efficiencies()["system"].held_out_error or 0.0
    return replace(figure, spread=math.hypot(figure.spread or 0.0, system * figure.value))


def _gib(size_bytes: int) -> str:
    if size_bytes < 1 << 30:
        return f"{size_bytes / (1 << 20):.1f} MiB"
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _notes(
    machine: Machine,
    model: ModelSpec,
    channel: Channel,
    tier: str,
    roofline: Roofline,
    routing: DrawnRouting,
    dtype: Dtype,
) -> tuple[str, ...]:
    """What a reader must know, the most important first."""
    fit = efficiencies()
    peak = machine.compute_flops_per_second[dtype]
    memory, copies = machine.device_bandwidth_bytes_per_second, channel.bandwidth_bytes_per_second
    limits = " (a data sheet's limit x {:.2f})"
    notes = [
        f"nothing was measured here: this is for {machine.name} by its figures and a roofline, to "
        "compare by and not to run; nine of ten published runs of other systems lie within a "
        f"factor {1 + fit['system'].spread:.1f} of what such a roofline says of them",
        f"{dtype}: {roofline.flops_per_second / 1e12:.3g} TFLOP/s of whole runs are reckoned "
        f"with, of {peak.value / 1e12:.3g} ({peak.source}); memory "
        f"{roofline.bytes_per_second / 1e9:.3g} GB/s ({memory.source})"
        + (limits.format(fit["memory"].value) if memory.source == "spec" else ""),
        f"{tier}; copies at {copies.value / 1e9:.3g} GB/s ({copies.source})",
        f"routing: {routing.statement} ({routing.document.source})",
        *_host_notes(machine, dtype),
        "memory is what moeplan's own runtime would need",
    ]
    if model.dtype not in DTYPE_BYTES or any(
        layer.experts and 2 * layer.expert_bytes < 3 * model.hidden_size * layer.expert_intermediate
        for layer in model.layers
    ):
        notes.append("weights are packed; unpacking them is not priced")
    if machine.assumed:
        notes.append("assumed: " + "; ".join(machine.assumed))
    return tuple(notes)


def _host_notes(machine: Machine, dtype: Dtype) -> list[str]:
    host, roofline = machine.host, Roofline.of_host(machine, dtype)
    if host is None or roofline is None:
        return []
    said = "" if dtype in host.compute_flops_per_second else f", {dtype} as fast as float32"
    return [
        f"experts may be computed on the CPU, {host.processor}: "
        f"{roofline.flops_per_second / 1e12:.3g} TFLOP/s{said}, "
        f"{roofline.bytes_per_second / 1e9:.3g} GB/s ({roofline.source}); that copies read the "
        "same memory is not priced"
    ]


def write_profile(profile: Profile, folder: Path) -> Profile:
    """Write a profile's documents into a new folder, all or none.

    Raises
    ------
    DocumentError
        If the folder is there already and not empty, or cannot be written.
    """
    place = led_to(folder)
    with writing(folder):
        if exists(folder) and any(folder.iterdir()):
            raise DocumentError(f"{folder}: is not empty; name a new folder for the profile")
        staged = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
        staged.mkdir()
        try:
            write_document(profile.hardware, staged / "hardware.json")
            write_document(profile.model, staged / "model.json")
            write_document(profile.costs, staged / "costs.json")
            trace = profile.routing
            write_trace(
                staged,
                profile.arrays,
                model_hash=trace.model_hash,
                moe_layers=trace.moe_layers,
                expert_count=trace.experts,
                source=trace.source,
            )
            write_document(profile.index, staged / "profile.json")
            staged.replace(place)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return replace(profile, folder=folder)
