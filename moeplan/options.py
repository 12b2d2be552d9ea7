"""Reading what the user typed: sizes, bandwidths, paths, prompts."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from planner.documents import printable
from planner.files import exists, is_dir, is_file, led_to, loads_once, read_regular
from solvers.errors import DocumentError, InputError, OptionError

__all__ = [
    "check_new_folder",
    "check_not_read",
    "check_output",
    "check_outputs",
    "optional_bandwidth",
    "optional_pace",
    "parse_bandwidth",
    "parse_range",
    "parse_size",
    "read_prompts",
    "split_names",
]

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SLOWEST = 10**6
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def parse_size(text: str, option: str) -> int:
    """Bytes from ``600MiB``, ``1.5GB`` or ``400000000``; fractions of a byte are cut off.

    Parameters
    ----------
    text
        What the user typed.
    option
        Name of the option, for the message.

    Raises
    ------
    OptionError
        If it is no size, or zero.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{option} {text!r} is not a size; write it like 600MiB, 1.5GB or bytes")
    number, unit = match.groups()
    if unit.lower() in ("k", "m", "g", "t"):
        letter = unit.upper()
        raise OptionError(
            f"{option} {text!r} is ambiguous; write {number}{letter}iB (powers of 1024) or "
            f"{number}{letter}B (powers of 1000)"
        )
    if unit.lower() not in _UNITS:
        raise OptionError(
            f"{option} {text!r} has an unknown unit {unit!r}; use B, kB, MB, GB, TB, KiB, MiB, GiB "
            "or TiB"
        )
    size_bytes = int(Decimal(number) * _UNITS[unit.lower()])
    if size_bytes < 1:
        raise OptionError(f"{option} {text!r} is no room at all; give at least one byte")
    if size_bytes >= 2**63:
        raise OptionError(f"{option} {text!r} is larger than any memory")
    return size_bytes


def parse_range(text: str, option: str) -> tuple[int, int]:
    """Two sizes from ``1GiB..8GiB``.

    Raises
    ------
    OptionError
        If it is no range, or not an ascending one.
    """
    first, dots, second = text.partition("..")
    if not dots or not first.strip() or not second.strip():
        raise OptionError(f"{option} {text!r} is not a range; write it like 1GiB..8GiB")
    low, high = parse_size(first, option), parse_size(second, option)
    if low >= high:
        raise OptionError(f"{option} {text!r} does not ascend; write the smaller budget first")
    return low, high


def parse_bandwidth(text: str, option: str) -> int:
    """Bytes per second from ``1GB/s`` or ``800MB/s``.

    Raises
    ------
    OptionError
        If it is no bandwidth, or zero.
    """
    stripped = text.strip()
    if not stripped.lower().endswith("/s"):
        raise OptionError(f"{option} {text!r} is not a bandwidth; write it like 1GB/s or 800MB/s")
    return parse_size(stripped[:-2], option)


def optional_bandwidth(text: str | None, option: str) -> int | None:
    """As ``parse_bandwidth``; None where the option was not given."""
    return None if text is None else parse_bandwidth(text, option)


def optional_pace(text: str | None, option: str) -> int | None:
    """As ``optional_bandwidth``, of a link that is slowed down: too slow a one never ends.

    Raises
    ------
    OptionError
        If it is no bandwidth, or below 1 MB/s.
    """
    pace = optional_bandwidth(text, option)
    if pace is not None and pace < _SLOWEST:
        raise OptionError(f"{option} {text!r} is too slow to end; give 1MB/s or more")
    return pace


def split_names(
    text: str, known: Sequence[str], option: str, most: int | None = None
) -> tuple[str, ...]:
    """Names from ``a,b,c``, each once, each one of ``known``, and at most ``most`` of them.

    Raises
    ------
    OptionError
        Naming the unknown name and what there is.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise OptionError(f"{option} names nothing; choose from {', '.join(known)}")
    for name in names:
        if name not in known:
            raise OptionError(f"{option} {name!r} is unknown; choose from {', '.join(known)}")
    if most is not None and len(names) > most:
        raise OptionError(f"{option} {text!r} names {len(names)}; give one")
    return names


def check_not_read(path: Path, option: str, inputs: Sequence[Path | None]) -> None:
    """The one rule for all outputs, files or folders: none is an input, or lies in a folder that is
    read, be it as a command's input or by others (a profile, a store, a checkpoint).

    Raises
    ------
    OptionError
        If it does, or a name holds what no document can.
    """
    for place in (path, *inputs):
        if place is not None and not printable(str(place.absolute())):
            raise OptionError(f"{str(place)!r}: the name holds control characters; rename it")
    there = exists(path)
    for other in inputs:
        if other is None or not _reachable(other):
            continue
        if there and path.samefile(other):
            raise OptionError(f"{option} {path} is one of the inputs; name another place")
        if is_dir(other) and path.resolve().is_relative_to(other.resolve()):
            raise OptionError(f"{option} {path} lies in {other}, which is read; name another place")
    folder = next(above for above in path.resolve().parents if is_dir(above))
    for name, what in _READ_FOLDERS.items():
        if any(folder.glob(name)):
            raise OptionError(
                f"{option} {path} lies in a {what}, which is read; name another place"
            )


def _reachable(path: Path) -> bool:
    try:
        return exists(path)
    except InputError:  # whoever reads it says so, if it is read at all
        return False


def check_outputs(
    outputs: Mapping[str, Path | None],
    inputs: Sequence[Path | None] = (),
    made: str = "outputs",
) -> None:
    """Make sure, before any long work, that files can be written to all of ``outputs``, which are
    named by their options.

    Parameters
    ----------
    outputs
        Option -> place. ``--html`` makes a page and ``--trace`` a trace.
    inputs
        What the command reads.
    made
        What the others make: a kind of document, or ``outputs`` (of a model, a JSON object a line).

    Raises
    ------
    OptionError
        If one is an input or lies in a folder that is read, would take the place of something else
        than an older file of its kind that may be written to, is a folder or a device, its folder
        is missing or not writable, or two are one file.
    """
    taken: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        check_output(path, option, inputs, {"--html": "page", "--trace": "trace"}.get(option, made))
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise OptionError(f"{other} and {option} both name {path}")


def check_output(
    path: Path, option: str, inputs: Sequence[Path | None] = (), made: str = "outputs"
) -> None:
    """As ``check_outputs``, for one file."""
    if is_dir(path):
        raise OptionError(f"{option} {path} is a folder; name a file")
    if (exists(path) and not is_file(path)) or _of_a_process(path):
        # a rename would put a file in its place
        raise OptionError(f"{option} {path} is a device or a pipe; name a file")
    check_not_read(path, option, inputs)
    _check_writable(path, option, led_to(path).parent)
    if exists(path) and not _is_a(path, made):
        raise OptionError(
            f"{option} {path} is there and holds no older {_MADE_WORDS.get(made, made)}; "
            "name another place, or remove it"
        )
    if exists(path):
        _check_replaceable(path, option)


def _of_a_process(path: Path) -> bool:
    """Whether ``path`` leads to what a process has open, as /dev/stdout and /dev/fd/1 do."""
    for _ in range(_MOST_LINKS):
        path = led_to(path.parent) / path.name
        if not path.is_symlink():
            return False
        if path.is_relative_to("/proc"):
            return True
        path = path.parent / path.readlink()
    return False


_MOST_LINKS = 40
"""The kernel follows no more."""
_READ_FOLDERS = {
    "profile.json": "profile",
    "store.json": "store",
    "pack.journal": "store",
    "*.safetensors": "checkpoint",
}
"""What tells a folder whose files belong together."""
_MADE_WORDS = {"page": "page of moeplan", "outputs": "outputs of a model"}
_SNIFFED_BYTES = 1 << 16


def _is_a(path: Path, made: str) -> bool:
    """Whether a file is empty, or begins as one that moeplan ``made``."""
    try:
        with path.open("rb") as file:
            start = file.read(_SNIFFED_BYTES).decode("utf-8", "ignore")
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror}") from error
    if not start.strip():
        return True
    if made == "page":
        return start.lstrip().lower().startswith("<!doctype html") and "moeplan" in start
    if made == "outputs":
        return re.match(r'\{"prompt": "(?:[^"\\]|\\.)*", "text": "', start) is not None
    if start.startswith("#"):  # exports in formats that have comments
        return re.match(rf"(?:#!/bin/sh\n)?# moeplan {re.escape(made)} to ", start) is not None
    return re.match(rf'\s*\{{\s*"kind"\s*:\s*"{re.escape(made)}"', start) is not None


def _check_writable(path: Path, option: str, folder: Path) -> None:
    """Make a file without a name in ``folder``: its mode alone does not tell (as of /proc)."""
    if not is_dir(folder):
        raise OptionError(f"{option} {path}: the folder {folder} does not exist; make it first")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(
            f"{option} {path}: the folder {folder} cannot be written to: {error.strerror or error}"
        ) from error


def _check_replaceable(path: Path, option: str) -> None:
    """A rename takes no notice of a file's own mode, and is refused, at the end of all the work,
    where a folder lets only owners rename (as of /tmp)."""
    real = led_to(path)
    if not os.access(real, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise OptionError(
            f"{option} {path} may not be written to: name another place, or change its mode"
        )
    folder = real.parent.stat()
    owners = (0, folder.st_uid, real.stat().st_uid)
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in owners:
        raise OptionError(
            f"{option} {path} is another user's, in a folder where only owners replace files; "
            "name another place"
        )


def check_new_folder(path: Path, option: str, inputs: Sequence[Path | None] = ()) -> None:
    """Make sure, before any long work, that a folder can be made or written to at ``path``.

    Raises
    ------
    OptionError
        If ``path`` is a file, is read, or cannot be written to.
    """
    if exists(path) and not is_dir(path):
        raise OptionError(f"{option} {path} is a file; name a folder")
    check_not_read(path, option, inputs)
    _check_writable(path, option, path if is_dir(path) else led_to(path).parent)


def read_prompts(path: Path) -> list[str] | list[list[int]]:
    """Prompts from a ``.txt`` file (one a line) or ``.jsonl`` (``prompt`` or ``token_ids``).

    Empty lines are skipped.

    Raises
    ------
    InputError
        Naming the line that is not a prompt.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise OptionError(f"--prompts {path}: name a .txt (a prompt a line) or a .jsonl file")
    try:
        # not splitlines(): a prompt may hold other separators than the newline
        lines = read_regular(path, "file of prompts").decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise OptionError(f"--prompts {path}: not UTF-8 text: {error.reason}") from error
    except DocumentError as error:
        raise OptionError(f"--prompts {error}") from error
    numbered = [(i, line.rstrip("\r")) for i, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise OptionError(f"--prompts {path}: holds no prompt")
    if path.suffix == ".txt":
        return [line for _, line in numbered]
    texts: list[str] = []
    tokens: list[list[int]] = []
    for number, line in numbered:
        prompt = _json_prompt(line, f"--prompts {path}, line {number}")
        if isinstance(prompt, str):
            texts.append(prompt)
        else:
            tokens.append(prompt)
    if texts and tokens:
        raise OptionError(f"--prompts {path}: mixes prompt and token_ids; use one of them")
    return texts or tokens


def _json_prompt(line: str, where: str) -> str | list[int]:
    try:
        value = loads_once(line)
    except ValueError as error:  # also integers of over 4,300 digits
        raise InputError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(value, dict) or set(value) not in ({"prompt"}, {"token_ids"}):
        raise InputError(f"{where}: give either prompt (text) or token_ids (integers), alone")
    if "prompt" in value:
        text = value["prompt"]
        if not isinstance(text, str) or not text:
            raise InputError(f"{where}: prompt must be a text that is not empty")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"{where}: prompt holds half a surrogate pair, which is no character")
        return text
    ids = value["token_ids"]
    whole = isinstance(ids, list) and all(type(item) is int and 0 <= item < 2**31 for item in ids)
    if not whole or not ids:
        raise InputError(f"{where}: token_ids must be a list of integers from 0 to 2^31, not empty")
    return list(ids)
