"""Where weights come from: a store, or the checkpoint itself, behind one interface."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from executor.closing import Closing
from executor.direct import DirectFile, Pacer, Piece, ReadBuffer, ReadInto, UnitReader, preadv
from executor.layout import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    Place,
    UnitLayout,
    dense_name,
    expert_name,
    form_name,
    raw_name,
    unit_layouts,
)
from executor.store import StoreIndex, checksum, load_index, stored_forms, stored_shares
from executor.units import Unit
from executor.verified import ensure_verified, row_checksums
from planner.checkpoint import Checkpoint, read_checkpoint
from planner.documents import OWN, FormName, ModelSpec
from solvers.errors import CheckpointError, OptionError

__all__ = ["WeightSource", "open_weights"]


class WeightSource(Closing):
    """The weights of one checkpoint, read from it or from its store.

    Attributes
    ----------
    checkpoint
        What was read of the checkpoint: configuration, model, tensors.
    model
        The checkpoint's model document, with what a compressed or quantized store has of it.
    fingerprint, store_fingerprint
        Of the checkpoint, and of the store (None without one).
    store
        The store's folder (None without one).
    both
        Whether the store has its experts compressed and as they are.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        layouts: dict[str, UnitLayout],
        store: Path | None,
        index: StoreIndex | None,
        read_into: ReadInto,
    ) -> None:
        self.checkpoint = checkpoint
        self.model = _model_of(checkpoint.model, layouts, index)
        self.store = store
        self.read_into = read_into
        self.store_fingerprint = None if index is None else index.fingerprint
        self.both = index is not None and index.compress == "both"
        self._layouts = layouts
        self._layers: Sequence[int] = range(len(checkpoint.model.layers))
        self._checksums = {} if index is None else {u.name: u.checksum for u in index.units}
        self._row_sums: dict[str, npt.NDArray[np.uint32]] = {}
        self._files: list[DirectFile] = []
        self._pieces: dict[str, tuple[Piece, ...]] = {}
        if index is not None and store is not None:
            self._files.append(DirectFile(store / index.data_file, read_into))
            for unit in index.units:
                piece = Piece(0, unit.offset_bytes, 0, unit.size_bytes, index.blocks(unit))
                self._pieces[unit.name] = (piece,)
        else:
            numbers: dict[Path, int] = {}
            for name, layout in layouts.items():
                pieces = []
                for place, entry in zip(layout.places, layout.sources, strict=True):
                    if entry.file not in numbers:
                        numbers[entry.file] = len(self._files)
                        self._files.append(DirectFile(entry.file, read_into))
                    pieces.append(
                        Piece(
                            numbers[entry.file],
                            entry.offset_bytes,
                            place.offset_bytes,
                            entry.size_bytes,
                        )
                    )
                self._pieces[name] = tuple(pieces)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the checkpoint."""
        return self.checkpoint.model.fingerprint

    def part(self, model: ModelSpec, layers: Sequence[int]) -> WeightSource:
        """The same weights for ``model``, whose layers are those of this one that ``layers`` names.

        It shares the files, which this one closes.
        """
        part = copy.copy(self)
        part.model, part._layers = model, [self._layers[layer] for layer in layers]
        return part

    @property
    def direct(self) -> bool:
        """Whether all files are read past the page cache."""
        return all(file.direct for file in self._files)

    @property
    def head_name(self) -> str:
        """Unit that the head's rows lie in: the embedding, where the head is tied to it."""
        return EMBEDDING if self.checkpoint.model.tied else HEAD

    def reader(self, buffer: ReadBuffer, pacer: Pacer) -> UnitReader:
        """A reader for one thread."""
        return UnitReader(self._files, buffer, pacer)

    def places(self, unit: Unit, form: FormName = OWN) -> tuple[Place, ...]:
        """Tensors of a dense part or an expert, and where they lie in its slot; ``form``: of an
        expert, of a store that has several."""
        return self._layouts[self._name(unit, form)].places

    def pieces(self, unit: Unit, *, raw: bool = False, form: FormName = OWN) -> tuple[Piece, ...]:
        """Where a dense part's or an expert's bytes lie in the files; ``raw``: an expert's as they
        are, of a store that has both."""
        name = self._name(unit, form)
        return self._pieces[raw_name(name) if raw else name]

    def head_rows(self, start: int, stop: int) -> tuple[Piece, ...]:
        """Where vocabulary rows [start, stop) of the head lie."""
        return self._rows(self.head_name, start, stop)

    def embedding_rows(self, start: int, stop: int) -> tuple[Piece, ...]:
        """Where vocabulary rows [start, stop) of the embedding lie."""
        return self._rows(EMBEDDING, start, stop)

    def outside(self) -> tuple[Piece, ...]:
        """Where the final norm and biases of it and of the head lie."""
        return self._pieces[FINAL_NORM]

    @property
    def outside_places(self) -> tuple[Place, ...]:
        """Those tensors, and where they lie in their unit."""
        return self._layouts[FINAL_NORM].places

    def _rows(self, name: str, start: int, stop: int) -> tuple[Piece, ...]:
        (piece,) = self._pieces[name]
        row = piece.size_bytes // self.checkpoint.model.vocab_size
        first, size = start * row, (stop - start) * row
        if piece.blocks is not None:
            return (replace(piece, size_bytes=size, skip_bytes=first),)
        return (Piece(piece.file, piece.offset_bytes + first, 0, size),)

    def size_bytes(self, unit: Unit, form: FormName = OWN) -> int:
        """Bytes of a dense part or an expert in its slot."""
        return self._layouts[self._name(unit, form)].size_bytes

    def _name(self, unit: Unit, form: FormName) -> str:
        layer = self._layers[unit.stage]
        if unit.kind == "dense":
            return dense_name(layer)
        return form_name(expert_name(layer, unit.item), form)

    # --- checksums ----------------------------------------------------------------------------

    def prepare_checks(self) -> None:
        """Read the embedding and the head once, so that ``check_rows`` can tell of single rows.

        Raises
        ------
        CheckpointError
            If one of them does not match its checksum.
        OptionError
            If there is no store: a checkpoint has no checksums.
        """
        if self.store_fingerprint is None:
            raise OptionError(
                "a checkpoint has no checksums to verify; pack it ('moeplan pack') and plan with "
                "the store"
            )
        for name in {EMBEDDING, self.head_name}:
            (piece,) = self._pieces[name]
            rows = self.checkpoint.model.vocab_size
            found, self._row_sums[name] = row_checksums(
                self._files[0], piece.offset_bytes, piece.size_bytes, rows, piece.blocks
            )
            self._compare(name, found)

    def check(self, unit: Unit, memory: memoryview, form: FormName = OWN) -> None:
        """Hold a dense part or an expert that was read against the store's checksum.

        Raises
        ------
        CheckpointError
            If it differs.
        """
        name = self._name(unit, form)
        self._compare(name, checksum(memory[: self._layouts[name].size_bytes]))

    def check_outside(self, memory: memoryview) -> None:
        """As ``check``, for the final norm and biases."""
        size = self._layouts[FINAL_NORM].size_bytes
        self._compare(FINAL_NORM, checksum(memory[:size]))

    def check_rows(self, name: str, first: int, memory: memoryview) -> None:
        """As ``check``, for whole rows of the embedding or the head, the first of them ``first``.

        Nothing is checked before ``prepare_checks``.
        """
        sums = self._row_sums.get(name)
        if sums is None:
            return
        row = self._pieces[name][0].size_bytes // len(sums)
        for number in range(len(memory) // row):
            if zlib.crc32(memory[number * row : (number + 1) * row]) != sums[first + number]:
                raise self._damaged(f"row {first + number} of {name}")

    def _compare(self, name: str, found: str) -> None:
        if found != self._checksums.get(name, found):
            raise self._damaged(name)

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._files[0].path}: {what} does not match its checksum; "
            "pack the checkpoint again into a new folder"
        )

    def close(self) -> None:
        """Close all files."""
        for file in self._files:
            file.close()


def _model_of(
    model: ModelSpec, layouts: dict[str, UnitLayout], index: StoreIndex | None
) -> ModelSpec:
    if index is None:
        return model
    if index.quantized is not None:
        layers = tuple(
            replace(layer, expert_bytes=layouts[expert_name(layer.index, 0)].size_bytes)
            if layer.experts
            else layer
            for layer in model.layers
        )
        model = replace(model, layers=layers, quantized=index.quantized)
    return replace(model, stored=stored_shares(index), forms=stored_forms(index, model))


def open_weights(
    checkpoint: Path | str, store: Path | str | None = None, *, read_into: ReadInto = preadv
) -> WeightSource:
    """Open the weights of ``checkpoint``, from ``store`` where one is given.

    Parameters
    ----------
    checkpoint
        Folder of the checkpoint; its configuration and tokenizer are needed in either case.
    store
        A store that was packed from it.
    read_into
        ``(descriptor, memory, offset) -> bytes read``: for tests that inject faults.

    Raises
    ------
    CheckpointError
        If either is missing or damaged.
    StaleError
        If the store was packed from another checkpoint, or from this one before it was changed.
    """
    checkpoint, store = Path(checkpoint), None if store is None else Path(store)
    source = read_checkpoint(checkpoint)
    layouts = plain = unit_layouts(source)
    index = None
    if store is not None:
        index, layouts = load_index(store, plain, source.model)
        ensure_verified(store, index, source, plain)
    return WeightSource(source, layouts, store, index, read_into)
