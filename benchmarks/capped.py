"""A command under a hard cap of memory and a disk held to a bandwidth, both by the kernel.

Each command gets a control group of its own, whose memory includes the page cache that it fills,
and writes one JSON document to a file. Whatever ends it, its end is a reason, not an exception.
Needs root for any limit; version 1 and version 2 of control groups both do.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import busy_seconds, children_seconds
from benchmarks.throttle import disk_of
from solvers.errors import OptionError

__all__ = ["EXIT_CODE", "Ended", "Limits", "evict", "run_capped"]

_ROOT = Path("/sys/fs/cgroup")
_NUMBERS = itertools.count()
_PR_SET_PDEATHSIG = 1
EXIT_CODE = "exit code"
"""What a reason says of a command that failed by itself."""
_JOIN = 'for file in $JOIN; do echo $$ > "$file" || exit 97; done; exec "$@"'


@dataclass(frozen=True)
class Limits:
    """What a command may use; None: all there is."""

    memory_bytes: int | None
    read_bytes_per_second: int | None
    seconds: float


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes
    ----------
    document
        What it wrote; None where it failed.
    reason
        Why it failed, in words; None where it did not.
    peak_bytes
        Most memory of its group, page cache included; None without a cap or where it is not told.
    others_cores
        Processor time of everything else on the machine meanwhile, in cores.
    """

    document: dict[str, Any] | None
    reason: str | None
    peak_bytes: int | None
    others_cores: float = 0.0


class _Groups:
    """The control groups of one command."""

    def __init__(self, limits: Limits, folder: Path) -> None:
        name = f"moeplan-{os.getpid()}-{next(_NUMBERS)}"
        first = (_ROOT / "memory").is_dir()
        speed, memory = limits.read_bytes_per_second, limits.memory_bytes
        files: list[tuple[Path, str]] = []
        self.memory: Path | None = None
        if memory is not None:
            self.memory = (_ROOT / "memory" if first else _ROOT) / name
            file = "memory.limit_in_bytes" if first else "memory.max"
            files.append((self.memory / file, str(memory)))
            if not first:
                files.append((self.memory / "memory.swap.max", "0"))
        if speed is not None:
            group = (_ROOT / "blkio" if first else _ROOT) / name
            disk = disk_of(folder)
            file, words = (
                ("blkio.throttle.read_bps_device", f"{disk} {speed}")
                if first
                else ("io.max", f"{disk} rbps={speed}")
            )
            files.append((group / file, words))
        self.folders = list(dict.fromkeys(file.parent for file, _ in files))
        try:
            for folder in self.folders:
                folder.mkdir()
            for limit, words in files:
                limit.write_text(words)
        except OSError as error:
            self.close()
            raise OptionError(
                f"memory and disk cannot be limited: {error.strerror} ({error.filename}); run as "
                "root, where control groups can be made"
            ) from error

    def peak_bytes(self) -> int | None:
        """Most memory that there was."""
        return next(
            (int(one) for one in self._of("memory.max_usage_in_bytes", "memory.peak")), None
        )

    def killed(self) -> bool:
        """Whether the kernel has ended something here for want of memory."""
        for text in self._of("memory.oom_control", "memory.events"):
            for line in text.splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1]) > 0
        return False

    def _of(self, *names: str) -> Iterator[str]:
        """Those of the memory group's files that there are."""
        if self.memory is None:
            return
        for name in names:
            if (self.memory / name).exists():
                yield (self.memory / name).read_text()

    def close(self) -> None:
        """End what is left in the groups, and remove them."""
        for folder in self.folders:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    for line in (folder / "cgroup.procs").read_text().split():
                        os.kill(int(line), signal.SIGKILL)
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)
                else:
                    break


@contextlib.contextmanager
def _groups(limits: Limits, folder: Path) -> Iterator[_Groups]:
    groups = _Groups(limits, folder)
    try:
        yield groups
    finally:
        groups.close()


def run_capped(command: Sequence[str], out: Path, limits: Limits, folder: Path) -> Ended:
    """Run a command that writes a JSON document.

    Parameters
    ----------
    command, out
        What to run, and the file that it writes.
    limits
        See there; the bandwidth is that of the disk of ``folder``.
    folder
        For what the command says.

    Raises
    ------
    OptionError
        If limits are asked for that this process may not set.
    """
    said = folder / "said.log"
    out.unlink(missing_ok=True)
    begun, busy = time.monotonic(), busy_seconds() - children_seconds()
    with _groups(limits, folder) as groups, said.open("wb") as log:
        join = " ".join(str(one / "cgroup.procs") for one in groups.folders)
        process = subprocess.Popen(
            ["/bin/sh", "-c", _JOIN, "sh", *command],
            env={**os.environ, "GOMP_SPINCOUNT": "0", "HF_HUB_OFFLINE": "1", "JOIN": join},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        )
        try:
            code = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, f"not done after {limits.seconds:.0f} s", groups.peak_bytes())
        finally:
            process.kill()
            process.wait()
        peak, killed = groups.peak_bytes(), groups.killed()
    others = busy_seconds() - children_seconds() - busy
    if code == 0 and out.exists():
        document = json.loads(out.read_text(encoding="utf-8"))
        return Ended(document, None, peak, max(others / (time.monotonic() - begun), 0.0))
    if killed:
        return Ended(None, "killed: out of memory under the cap", peak)
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Ended(None, f"{EXIT_CODE} {code}: {lines[-1] if lines else 'no word'}"[:300], peak)


def _end_with_parent() -> None:
    """Even where the parent is killed, nothing goes on under its cap."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def evict(paths: Iterable[Path]) -> None:
    """Write files back and drop them from the page cache, so that the next reads are the disk's.

    Parameters
    ----------
    paths
        Files, or folders of files.
    """
    for path in paths:
        # what is not there is in no cache
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not file.is_file():
                continue
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
