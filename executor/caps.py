"""The hard cap on this process's memory: the machine's own, or a control group's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from solvers.errors import BudgetError

__all__ = ["PROCESS_BYTES", "Cap", "check_cap", "lowest_cap"]

PROCESS_BYTES = 384 << 20
"""What a process takes beside its budget: the interpreter, torch, a tokenizer (346 to 377 MiB were
measured)."""

_SELF = Path("/proc/self")
_MEMORY = "meminfo"
_UNLIMITED_BYTES = 1 << 62
"""Version 1 says by a number near 2^63 that there is no limit."""


class Cap(NamedTuple):
    """A limit in bytes, and the file that sets it or tells it."""

    limit_bytes: int
    file: Path


def lowest_cap(process: Path = _SELF) -> Cap | None:
    """The lowest of the machine's memory and the limits of this process's control groups and those
    above them.

    Parameters
    ----------
    process
        The process's folder below ``/proc``.

    Returns
    -------
    Cap or None
        None where nothing of the kind is known.
    """
    groups = _groups(process)
    found = [*_machine(process.parent / _MEMORY)]
    for controller, root, mount in _mounts(process):
        path = groups.get(controller)
        if path is None:
            continue
        name = "memory.max" if controller == "" else "memory.limit_in_bytes"
        # a container may see its own group as the root, or a path that is not below its mount
        inside = path.is_relative_to(root) and ".." not in path.parts
        inner = path.relative_to(root) if inside else Path()
        group = mount / inner
        while group != mount.parent:
            limit = _limit(group / name)
            if limit is not None:
                found.append(Cap(limit, group / name))
            group = group.parent
    return min(found, default=None)


def _machine(file: Path) -> Iterator[Cap]:
    """The memory that the machine has, without swap: weights in that are on a disk again."""
    for line in _lines(file):
        name, _, size = line.partition(":")
        number, _, unit = size.strip().partition(" ")
        if name == "MemTotal" and number.isdecimal() and unit == "kB":
            yield Cap(int(number) * 1024, file)


def _groups(process: Path) -> dict[str, Path]:
    """The group of each hierarchy: ``memory`` of version 1, and version 2's, which has no name."""
    groups: dict[str, Path] = {}
    for line in _lines(process / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            groups["memory" if controllers else ""] = Path(path)
    return groups


def _mounts(process: Path) -> list[tuple[str, Path, Path]]:
    """For each hierarchy its name, which group is mounted, and where."""
    mounts = []
    for line in _lines(process / "mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        first = kind[0] == "cgroup" and "memory" in kind[2].split(",")
        if first or kind[0] == "cgroup2":
            mounts.append(("memory" if first else "", Path(fields[3]), Path(fields[4])))
    return mounts


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    if not text.isdecimal() or int(text) >= _UNLIMITED_BYTES:
        return None
    return int(text)


def check_cap(needed_bytes: int, process: Path = _SELF) -> None:
    """Refuse what the kernel would end in its middle.

    Parameters
    ----------
    needed_bytes
        What a budget of this process's memory is used for.

    Raises
    ------
    BudgetError
        If the machine has, or a control group allows, less than that and what the process takes
        beside it.
    """
    cap = lowest_cap(process)
    if cap is not None and cap.limit_bytes < needed_bytes + PROCESS_BYTES:
        room = max(cap.limit_bytes - PROCESS_BYTES, 0)
        machine = cap.file.name == _MEMORY
        what = "this machine has" if machine else "the control group allows"
        cure = "" if machine else "raise its limit, or "
        raise BudgetError(
            f"{needed_bytes} bytes of the memory budget are needed and {PROCESS_BYTES} by the "
            f"process beside it, but {what} {cap.limit_bytes} ({cap.file}): "
            f"{cure}give a budget of at most {room} bytes",
            needed_bytes,
        )
