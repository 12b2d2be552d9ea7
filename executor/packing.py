"""``pack``: rewrite a checkpoint into a store. Crash-safe, resumable, verified by checksum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from executor.blocks import FORMAT
from executor.compressing import Compress, contents, worth_compressing
from executor.layout import unit_layouts, with_raw
from executor.same_source import check_source, source_files
from executor.store import DATA_FILE, INDEX_FILE, JOURNAL_FILE, Compression, StoreIndex, load_index
from executor.verified import Verified, ensure_verified, remember, verify_units
from executor.writing import Contents, StoreSummary, Writing, summary_of
from planner.checkpoint import Checkpoint, read_checkpoint
from planner.documents import QuantizedExperts
from planner.documents.writing import FULL_DISK, TOO_LARGE, is_full, is_too_large
from planner.files import exists, led_to
from planner.memory import BLOCK_BYTES, default_head_tiling
from solvers.errors import CheckpointError, OptionError, RunError, UnsupportedError

__all__ = ["StoreSummary", "pack", "verify_store"]


def pack(
    checkpoint: Path,
    store: Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    compress: Compress = "none",
    quantize: QuantizedExperts | None = None,
    forms: tuple[QuantizedExperts, ...] = (),
) -> StoreSummary:
    """Rewrite ``checkpoint`` into ``store``.

    Units are written in batches; each batch is synced to the disk, read back past the page cache
    and held against its checksums before the journal names it. After a crash the same call goes on
    behind the last unit that the journal names and that the checkpoint still has. ``store.json``
    appears at the end, in one step. A finished store is held against the checkpoint, byte by byte,
    unless neither's files have changed since that was done.

    Parameters
    ----------
    checkpoint
        Folder of a checkpoint.
    store
        Folder to make; it may not exist, be empty, or hold a store of the same checkpoint.
    progress
        Called with bytes of weights done and bytes in all.
    compress
        ``exact``: dense parts, experts and the head become blocks that decode to the same bits;
        ``both``: so they do, and each expert is there as it is, too, so that a plan may choose;
        ``auto``: so they do where that makes copies faster on this machine, by measured times of
        reading and decoding some experts.
    quantize
        Format and group in which experts are quantized; not with ``compress``. Dense parts and the
        head stay as they are.
    forms
        Formats in which each expert is there beside as it is, so that a plan may choose, each once;
        not with ``quantize`` or ``compress``.

    Raises
    ------
    CheckpointError
        If the checkpoint or a store that is there is damaged, or the folder holds something else.
    StaleError
        If the folder holds a store of another checkpoint, or of this one before it was changed.
    RunError
        If the disk fails or is full, another ``pack`` is at work on the folder, or the checkpoint
        changes meanwhile.
    OptionError
        If a store would be both quantized and compressed, or a format is there twice; if its file
        would be larger than one may be.
    UnsupportedError
        If groups do not fit the experts, or the model cannot be run.
    """
    if quantize is not None and compress != "none":
        raise OptionError("a store is either quantized or exactly compressed, not both")
    if forms and (quantize is not None or compress != "none"):
        raise OptionError("a store of several forms is neither quantized as a whole nor compressed")
    if len({how.format for how in forms}) != len(forms):
        raise OptionError("a store has each format once")
    source = read_checkpoint(checkpoint)
    layouts = plain = unit_layouts(source)
    if exists(store / INDEX_FILE):
        index, layouts = load_index(store, plain, source.model)
        if index.quantized != quantize or (index.forms or ()) != forms:
            have, want = (
                _experts(*how) for how in ((index.quantized, index.forms or ()), (quantize, forms))
            )
            raise CheckpointError(
                f"{store}: holds a finished store with experts {have}, not {want}; name a new "
                "folder"
            )
        if compress not in ("auto", index.compress):
            have = "without" if index.compression is None else "with"
            more = " and experts as they are" if index.compress == "both" else ""
            raise CheckpointError(
                f"{store}: holds a finished store {have} compression{more}; name a new folder"
            )
        ensure_verified(store, index, source, plain, progress)
        return summary_of(store, index, len(layouts))
    quantizer = None
    if quantize is not None:
        # it loads torch, which nothing else here needs
        from executor.quantizing import Quantizer

        quantizer = Quantizer(source, layouts, quantize)
    maker = None
    if forms:
        from executor.quantizing import FormMaker

        maker = FormMaker(source, layouts, forms)
    try:
        led_to(store).mkdir(parents=True, exist_ok=True)
        foreign = {path.name for path in store.iterdir()} - {DATA_FILE, JOURNAL_FILE}
    except OSError as error:
        raise CheckpointError(f"{store}: cannot be used as a store: {error.strerror}") from error
    foreign = {name for name in foreign if not name.startswith(f".{INDEX_FILE}.")}
    if foreign or (exists(store / DATA_FILE) and not exists(store / JOURNAL_FILE)):
        raise CheckpointError(f"{store}: holds other files; name a new folder for the store")
    try:
        notes: tuple[str, ...] = ()
        begun = _begun(store)
        if compress == "auto" and begun is not None:
            compress = begun
            how = "not compressed" if begun == "none" else "compressed"
            notes = (f"goes on as it was begun: {how}",)
        elif compress == "auto":
            pays, why = worth_compressing(source, layouts)
            notes, compress = (why,), "exact" if pays else "none"
        compression = None if compress == "none" else _compression(source, compress == "both")
        if compress == "both":
            layouts = with_raw(layouts)
        read: Contents = contents
        if (made := quantizer or maker) is not None:
            layouts, read = made.layouts, made.contents
        errors = () if maker is None else (forms, maker.error_ppb)
        fingerprint = source.model.fingerprint
        given = fingerprint, layouts, read, store, compression, quantize, progress
        summary = Writing(*given, *errors).run()
        if quantizer is not None and not summary.reused_units:
            summary = replace(summary, relative_error=quantizer.relative_error)
        return replace(summary, notes=notes)
    except OSError as error:
        if is_full(error):
            raise RunError(f"{store}: {FULL_DISK}") from error
        if is_too_large(error):
            raise OptionError(f"{store}: {TOO_LARGE}") from error
        raise RunError(f"{store}: packing failed: {error.strerror or error}") from error


def _experts(how: QuantizedExperts | None, forms: tuple[QuantizedExperts, ...]) -> str:
    """In which formats a store has its experts."""
    if how is not None:
        return f"in {how.format}, {_groups(how)}"
    return " and ".join(["as they are", *(f"in {one.format}, {_groups(one)}" for one in forms)])


def _groups(how: QuantizedExperts) -> str:
    return "groups by its rule" if how.group is None else f"groups of {how.group}"


def _begun(store: Path) -> Compress | None:
    """How a half-packed store is compressed; None where nothing was begun."""
    if not exists(store / JOURNAL_FILE):
        return None
    with open(store / JOURNAL_FILE, "rb") as journal:
        line = journal.readline()
    if not line.endswith(b"\n"):
        return None
    if b'"compression"' not in line:
        return "none"
    return "both" if b'"both"' in line else "exact"


def _compression(source: Checkpoint, both: bool) -> Compression:
    model = source.model
    if model.dtype == "float8":
        raise UnsupportedError(f"{model.name}: float8 weights cannot be compressed")
    rows, _ = default_head_tiling(model, model.dtype_bytes)
    tile_bytes = rows * model.hidden_size * model.dtype_bytes
    return Compression(FORMAT, model.dtype, BLOCK_BYTES, tile_bytes, both or None)


def verify_store(
    checkpoint: Path, store: Path, progress: Callable[[int, int], None] | None = None
) -> StoreIndex:
    """Read a whole store and its checkpoint, and hold every unit of both against its checksum.

    Raises
    ------
    CheckpointError
        Naming the first unit that differs in the store.
    StaleError
        Naming the first unit that differs in the checkpoint.
    """
    source = read_checkpoint(checkpoint)
    plain = unit_layouts(source)
    index, _ = load_index(store, plain, source.model)
    state = Verified.of(store, index, source_files(plain.values()))
    verify_units(store, index, progress)
    check_source(source, plain, store, index, progress)
    remember(store, state)
    return index
