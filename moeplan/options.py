"""Reading what the user typed: sizes, bandwidths, paths, prompts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from planner.documents import printable
from solvers.errors import InputError, OptionError

__all__ = [
    "check_new_folder",
    "check_not_read",
    "check_output",
    "check_outputs",
    "optional_bandwidth",
    "parse_bandwidth",
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
            f"{option} {text!r} has an unknown unit {unit!r}; use B, kB, MB, GB, KiB, MiB or GiB"
        )
    size_bytes = int(Decimal(number) * _UNITS[unit.lower()])
    if size_bytes < 1:
        raise OptionError(f"{option} {text!r} is no room at all; give at least one byte")
    if size_bytes >= 2**63:
        raise OptionError(f"{option} {text!r} is larger than any memory")
    return size_bytes


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
    """The one rule for all outputs: none is an input, or lies in a folder that is read.

    Raises
    ------
    OptionError
        If it does, or a name holds what no document can.
    """
    for place in (path, *inputs):
        if place is not None and not printable(str(place.absolute())):
            raise OptionError(f"{str(place)!r}: the name holds control characters; rename it")
    for other in inputs:
        if other is None or not other.exists():
            continue
        if path.exists() and path.samefile(other):
            raise OptionError(f"{option} {path} is one of the inputs; name another place")
        if other.is_dir() and path.resolve().is_relative_to(other.resolve()):
            raise OptionError(f"{option} {path} lies in {other}, which is read; name another place")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Make sure, before any long work, that files can be written to all of ``outputs``, which are
    named by their options.

    Raises
    ------
    OptionError
        If one is an input or lies in an input's folder, is a folder or a device, its folder is
        missing or not writable, or two are one file.
    """
    taken: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        check_output(path, option, inputs)
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise OptionError(f"{other} and {option} both name {path}")


def check_output(path: Path, option: str, inputs: Sequence[Path | None] = ()) -> None:
    """As ``check_outputs``, for one file."""
    if path.is_dir():
        raise OptionError(f"{option} {path} is a folder; name a file")
    if path.exists() and not path.is_file():
        # a rename would put a file in its place
        raise OptionError(f"{option} {path} is a device or a pipe; name a file")
    check_not_read(path, option, inputs)
    parent = path.parent
    if not parent.is_dir():
        raise OptionError(f"{option} {path}: the folder {parent} does not exist")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OptionError(f"{option} {path}: the folder {parent} cannot be written to")


def check_new_folder(path: Path, option: str, inputs: Sequence[Path | None] = ()) -> None:
    """Make sure, before any long work, that a folder can be made or written to at ``path``.

    Raises
    ------
    OptionError
        If ``path`` is a file, is read, or cannot be written to.
    """
    if path.exists() and not path.is_dir():
        raise OptionError(f"{option} {path} is a file; name a folder")
    check_not_read(path, option, inputs)
    check_output(path / "file" if path.is_dir() else path, option)


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
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise OptionError(f"--prompts {path}: no such file") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"--prompts {path}: not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise OptionError(f"--prompts {path}: cannot be read: {error.strerror}") from error
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
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
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
