"""Whether a store still holds what its checkpoint does, byte by byte.

A checkpoint's fingerprint samples its files, so a change between the samples leaves it as it was.
Here every unit is made of the checkpoint once more and held against the store's checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from executor.compressing import contents
from executor.layout import UnitLayout, is_raw
from executor.store import StoreIndex
from planner.checkpoint import Checkpoint
from planner.documents.base import STRICT, Bytes, Nanoseconds
from solvers.errors import CheckpointError, StaleError

__all__ = ["SourceFile", "check_source", "made_checksum", "source_files"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of weights, in the state in which it was read."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    size_bytes: Bytes
    modified_ns: Nanoseconds
    changed_ns: Nanoseconds


def source_files(layouts: Iterable[UnitLayout]) -> tuple[SourceFile, ...]:
    """State of each file that units come from, in the order of their names.

    Raises
    ------
    CheckpointError
        If one is gone.
    """
    found = []
    for path in sorted({entry.file for unit in layouts for entry in unit.sources}):
        try:
            state = path.stat()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
        found.append(SourceFile(path.name, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    return tuple(found)


def made_checksum(parts: Iterable[bytes | memoryview]) -> str:
    """Checksum that a unit made of these bytes has in a store."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def check_source(
    source: Checkpoint,
    plain: dict[str, UnitLayout],
    store: Path,
    index: StoreIndex,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Make every unit of the checkpoint once more and compare.

    Parameters
    ----------
    source, plain
        The checkpoint, and its units as ``unit_layouts`` has them.
    store, index
        The store.
    progress
        Called with bytes of the store's units compared, and bytes in all.

    Raises
    ------
    StaleError
        If a unit is another: naming the first.
    CheckpointError
        If the checkpoint cannot be read.
    """
    layouts, read = plain, contents
    if index.quantized is not None:
        # it loads torch, which nothing else here needs
        from executor.quantizing import Quantizer

        quantizer = Quantizer(source, plain, index.quantized)
        layouts, read = quantizer.layouts, quantizer.contents
    if index.forms is not None:
        from executor.quantizing import FormMaker

        maker = FormMaker(source, plain, index.forms)
        layouts, read = maker.layouts, maker.contents
    whole = sum(unit.size_bytes for unit in index.units)
    done = 0
    for unit in index.units:
        # a second unit of an expert has its checksum
        if not is_raw(unit.name) and made_checksum(read(layouts[unit.name])) != unit.checksum:
            raise StaleError(
                "store",
                f"{store}: {unit.name} is another in {source.folder}: one of them was changed "
                "after packing; pack the checkpoint into a new folder",
            )
        done += unit.size_bytes
        if progress is not None:
            progress(done, whole)
