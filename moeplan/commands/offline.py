"""Planning without the machine: the options of ``plan`` that stand for a profile folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from moeplan.options import check_new_folder, parse_size
from planner.documents import Machine, Workload
from planner.files import exists
from planner.profiles import Profile, load_profile
from solvers.errors import OptionError
from solvers.told import Told

__all__ = [
    "DtypeName",
    "HardwareName",
    "HostMemory",
    "ModelConfig",
    "OptionalProfile",
    "ProfileOut",
    "Routing",
    "Series",
    "profile_of",
    "with_host",
]

OptionalProfile = Annotated[
    Path | None,
    typer.Argument(metavar="PROFILE_DIR", help="A folder that 'moeplan profile' made."),
]
ModelConfig = Annotated[
    Path | None,
    typer.Option("--model", help="Instead of a profile: a config.json, with --hardware."),
]
HardwareName = Annotated[
    str | None,
    typer.Option("--hardware", help="A machine of 'moeplan catalog', GPU+CPU, or FILE.json."),
]
Routing = Annotated[
    str | None,
    typer.Option("--routing", help="Statistics of routing: a file, uniform, or zipf:1.0."),
]
Series = Annotated[
    str | None, typer.Option("--series", help="Which series of --routing, where it has several.")
]
DtypeName = Annotated[
    str | None, typer.Option("--dtype", help="Type to compute in (as weights are stored).")
]
HostMemory = Annotated[
    str | None, typer.Option("--host-memory", help="Memory of the machine beside the device.")
]
ProfileOut = Annotated[
    Path | None, typer.Option("--profile-out", help="New folder for the profile made of these.")
]


def profile_of(
    folder: Path | None,
    workload: Workload,
    memory_bytes: int,
    seed: int,
    *,
    model: Path | None,
    hardware: str | None,
    routing: str | None,
    series: str | None,
    dtype: str | None,
    host_memory: str | None,
    profile_out: Path | None,
    progress: Told,
) -> Profile:
    """The profile of a folder, or one made of a model, a machine and statistics of routing, which
    is to be written to ``profile_out``.

    ``progress`` is told how much of the routing is drawn: with a large model that takes seconds.

    Raises
    ------
    OptionError
        If both are asked for, or neither is, or something is missing.
    """
    given = {
        "--model": model,
        "--hardware": hardware,
        "--routing": routing,
        "--series": series,
        "--dtype": dtype,
        "--host-memory": host_memory,
        "--profile-out": profile_out,
    }
    if folder is not None:
        for option, value in given.items():
            if value is not None:
                raise OptionError(f"{option} has no effect on {folder}, which says it; leave one")
        return load_profile(folder)
    if model is None and hardware is None:
        raise OptionError(
            "give a PROFILE_DIR that 'moeplan profile' made, or --model, --hardware and --routing"
        )
    if model is None or hardware is None or routing is None:
        missing = [name for name in ("--model", "--hardware", "--routing") if given[name] is None]
        more = " (uniform says that nothing is known)" if missing == ["--routing"] else ""
        raise OptionError(f"without a profile, {' and '.join(missing)} must be given, too{more}")
    return _made(
        workload, memory_bytes, seed, model, hardware, routing, series, dtype, host_memory,
        profile_out, progress,
    )  # fmt: skip


def _made(
    workload: Workload,
    memory_bytes: int,
    seed: int,
    model: Path,
    hardware: str,
    routing: str,
    series: str | None,
    dtype: str | None,
    host_memory: str | None,
    profile_out: Path | None,
    progress: Told,
) -> Profile:
    from planner.catalogue import load_machine
    from planner.drawn_routing import draw_routing
    from planner.model_spec import read_model
    from planner.offline import choose_dtype, offline_profile

    if profile_out is not None:
        check_new_folder(profile_out, "--profile-out", [model, Path(routing), Path(hardware)])
        if exists(profile_out) and any(profile_out.iterdir()):
            raise OptionError(f"--profile-out {profile_out} is not empty; name a new folder")
    machine = with_host(load_machine(hardware), host_memory)
    spec = read_model(model)
    chosen = choose_dtype(spec, machine, dtype)
    drawn = draw_routing(
        routing,
        spec,
        prompt_tokens=workload.prompt_tokens,
        seed=seed,
        series=series,
        progress=progress,
    )
    made = offline_profile(model, spec, machine, drawn, dtype=chosen, memory_bytes=memory_bytes)
    # it is written once there is a plan: a budget that is too small leaves nothing behind
    return made if profile_out is None else dataclasses.replace(made, folder=profile_out)


def with_host(machine: Machine, host_memory: str | None) -> Machine:
    """The machine with the memory that ``--host-memory`` says.

    Raises
    ------
    OptionError
        If that is no size.
    """
    if host_memory is None:
        return machine
    assumed = tuple(one for one in machine.assumed if "--host-memory" not in one)
    size = parse_size(host_memory, "--host-memory")
    if size < 1:
        raise OptionError("--host-memory 0 holds nothing; give more")
    return dataclasses.replace(machine, host_memory_bytes=size, assumed=assumed)
