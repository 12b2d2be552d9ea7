"""A slower disk, by the kernel: this process's reads are held to a bandwidth by a control group.

Unlike a paced reader, the kernel holds back every read alike and knows nothing of plans. Needs
root, and the ``blkio`` controller (version 1) or ``io`` (version 2).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from solvers.errors import OptionError

__all__ = ["disk_of", "throttled"]

_ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def throttled(bytes_per_second: int | None, folder: Path) -> Iterator[None]:
    """Hold reads of the disk that ``folder`` lies on to a bandwidth; None lets them run free.

    Raises
    ------
    OptionError
        Where this process may not, or the kernel cannot.
    """
    if bytes_per_second is None:
        yield
        return
    first = (_ROOT / "blkio").is_dir()
    root = _ROOT / "blkio" if first else _ROOT
    _sweep(root)
    group = root / f"prediction-{os.getpid()}"
    home = root / _own_group("blkio" if first else "")
    device = disk_of(folder)
    try:
        group.mkdir()
        if first:
            limit = group / "blkio.throttle.read_bps_device"
            limit.write_text(f"{device} {bytes_per_second}")
        else:
            (group / "io.max").write_text(f"{device} rbps={bytes_per_second}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise OptionError(
            f"the disk cannot be throttled: {error.strerror} ({error.filename}); run as root, or "
            "give --disk-bandwidth, which paces reads instead"
        ) from error
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _sweep(root: Path) -> None:
    """Remove the groups of processes that were killed, and could not."""
    for group in root.glob("prediction-*"):
        if not Path("/proc", group.name.rpartition("-")[2]).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def _own_group(controller: str) -> str:
    """Where this process is in the hierarchy of one controller."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    return ""


def disk_of(folder: Path) -> str:
    """Numbers of the whole disk, as throttling wants them."""
    number = folder.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    place = Path("/sys/dev/block") / name
    if (place / "partition").exists():
        return (place.resolve().parent / "dev").read_text(encoding="utf-8").strip()
    return name
