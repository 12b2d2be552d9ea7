"""A profile's folder, written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.documents import (
    CostProfile,
    Hardware,
    ModelSpec,
    ProfileIndex,
    RoutingTrace,
    document_hash,
    write_document,
    writing,
)
from planner.documents.writing import take_over_mode
from planner.files import exists, is_dir, led_to
from planner.profiles import UNFINISHED, Profile
from planner.routing import TraceArrays, write_trace
from profiler.refine import Refined
from solvers.counting import counted
from solvers.errors import OptionError

__all__ = ["check_out", "write_folder", "write_refined", "write_routing"]

_INDEX = "profile.json"
_DECIDING = (_INDEX, "routing.json")
"""Documents that hold hashes of other files."""
_FILES = frozenset(
    (_INDEX, "hardware.json", "model.json", "costs.json", "routing.json", "routing.npz", UNFINISHED)
)


def check_out(out: Path, *, routing_only: bool = False) -> None:
    """Make sure that a profile, or routing alone, can be written to the folder ``out``.

    Raises
    ------
    OptionError
        If it is a file, or holds something else.
    """
    if not exists(out):
        return
    what = "routing" if routing_only else "profile"
    if not is_dir(out):
        raise OptionError(f"{out}: is a file; name a new folder for the {what}")
    own = {"routing.json", "routing.npz", UNFINISHED} if routing_only else _FILES
    foreign = sorted(path.name for path in out.iterdir() if path.name not in own)
    if foreign:
        raise OptionError(
            f"{out}: holds {foreign[0]}, which is no part of a {what}; name a new folder"
        )


def write_folder(
    out: Path,
    hardware: Hardware,
    model: ModelSpec,
    costs: CostProfile,
    arrays: TraceArrays,
    *,
    checkpoint: Path,
    store: Path | None,
    store_fingerprint: str | None,
    memory_bytes: int,
    notes: tuple[str, ...] = (),
) -> ProfileIndex:
    """All documents of a profile, the index last: a folder without it is no profile.

    Raises
    ------
    OptionError
        If the folder cannot be written.
    """
    with _staged(out) as staged:
        write_document(hardware, staged / "hardware.json")
        write_document(model, staged / "model.json")
        write_document(costs, staged / "costs.json")
        routing = _write_trace(staged, model, arrays)
        index = ProfileIndex(
            checkpoint=str(checkpoint.absolute()),
            store=None if store is None else str(store.absolute()),
            checkpoint_fingerprint=model.fingerprint,
            store_fingerprint=store_fingerprint,
            memory_bytes=memory_bytes,
            hardware_hash=document_hash(hardware),
            model_hash=document_hash(model),
            costs_hash=document_hash(costs),
            routing_hash=document_hash(routing),
            notes=notes,
        )
        write_document(index, staged / _INDEX)
    return index


def write_refined(profile: Profile, refined: Refined, out: Path) -> ProfileIndex:
    """A profile with the corrected costs and link, and a note that they are.

    Raises
    ------
    OptionError
        As ``check_out`` and ``write_folder``.
    """
    check_out(out)
    index = profile.index
    events = sum(step.events for step in refined.steps)
    note = f"its costs were corrected by {counted(events, 'operation')} and copies of a run"
    return write_folder(
        out,
        refined.hardware,
        profile.model,
        refined.costs,
        profile.arrays,
        checkpoint=Path(index.checkpoint),
        store=None if index.store is None else Path(index.store),
        store_fingerprint=index.store_fingerprint,
        memory_bytes=index.memory_bytes,
        notes=(*index.notes, note),
    )


def write_routing(out: Path, model: ModelSpec, arrays: TraceArrays) -> RoutingTrace:
    """``routing.json`` and its arrays alone.

    Raises
    ------
    OptionError
        If the folder cannot be written.
    """
    with _staged(out) as staged:
        return _write_trace(staged, model, arrays)


def _write_trace(folder: Path, model: ModelSpec, arrays: TraceArrays) -> RoutingTrace:
    return write_trace(
        folder,
        arrays,
        model_hash=document_hash(model),
        moe_layers=model.moe_layers,
        expert_count=max(layer.experts for layer in model.layers),
        source="synthetic" if model.synthetic else "measured",
    )


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder inside ``out`` whose files move to ``out`` at the end.

    What fails before leaves an older profile as it was. While files move, the documents that decide
    what belongs together (the index, the trace of the arrays) are not there: they go first and come
    last, so that a command killed in between leaves a folder that is refused, never old files among
    new ones. Two commands take turns, and what a killed one left is cleared by the next.
    """
    place, out = out, led_to(out)
    with writing(place, OptionError):
        fresh = not exists(out)
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
        staged = out / UNFINISHED
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(0o700)  # an older profile may be its owner's alone
            try:
                yield staged
                for path in staged.iterdir():
                    take_over_mode(out / path.name, path)
                deciding = [name for name in _DECIDING if (staged / name).exists()]
                for name in deciding:
                    (out / name).unlink(missing_ok=True)
                os.fsync(lock)
                names = sorted(path.name for path in staged.iterdir() if path.name not in deciding)
                for name in (*names, *reversed(deciding)):
                    (staged / name).replace(out / name)
                os.fsync(lock)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
                if fresh and not any(out.iterdir()):
                    out.rmdir()
        finally:
            os.close(lock)
