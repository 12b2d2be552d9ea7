"""Writing files so that a reader, or a killed process, never meets half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from planner.files import led_to
from solvers.errors import DocumentError, InputError, MoeplanError, RunError

__all__ = [
    "FULL_DISK",
    "TOO_LARGE",
    "is_full",
    "is_too_large",
    "take_over_mode",
    "write_atomic",
    "writing",
]

FULL_DISK = "the disk is full: make room there, or name another place"
TOO_LARGE = (
    "larger than a file may be here: raise the limit (ulimit -f), or name a place on a file system "
    "that has larger ones"
)


def write_atomic(path: Path, data: bytes, stale: Path | None = None) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never half.

    Where the file system can do it, the data has no name until it is complete, so that a killed
    process leaves nothing behind. A link stays, and what it leads to is written. Who might read the
    older file may read the new one, and nobody else: it takes over the mode.

    Parameters
    ----------
    path
        The file.
    data
        All that is to be in it.
    stale
        A file that belongs to the older ``path`` and not to this one: it is gone before the new one
        has its name, so that nobody takes the two for a pair.

    Raises
    ------
    DocumentError
        If the folder is missing or cannot be written to.
    RunError
        If the disk is full.
    """
    real = led_to(path)
    temporary = real.with_name(f".{real.name}.{secrets.token_hex(4)}.tmp")
    with writing(path):
        try:
            _write_whole(real, temporary, data, stale)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _write_whole(path: Path, temporary: Path, data: bytes, stale: Path | None) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        nameless = _open_nameless(path.parent)
        with open(temporary, "xb") if nameless is None else open(nameless, "wb") as file:
            take_over_mode(path, file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if nameless is not None:
                # with a folder given, Python asks the kernel to follow the link
                os.link(f"/proc/self/fd/{nameless}", temporary, src_dir_fd=folder)
        if stale is not None:
            led_to(stale).unlink(missing_ok=True)
        os.replace(temporary, path)
        os.fsync(folder)
    finally:
        os.close(folder)


def take_over_mode(old: Path, new: int | Path) -> None:
    """Give ``new``, before it takes the place of ``old``, the mode of that; nothing is done where
    nothing is there, and on file systems that have no modes."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(old).st_mode & 0o777
        with contextlib.suppress(PermissionError):
            os.chmod(new, mode)


@contextlib.contextmanager
def writing(place: Path, error: type[InputError] = DocumentError) -> Iterator[None]:
    """What goes wrong while ``place`` is written, as one line about it.

    Raises
    ------
    RunError
        If its disk is full, or what a user may have of it: no fault of what was asked.
    InputError
        Of the class ``error``, if it cannot be written to, or not so much.
    """
    try:
        yield
    except (OSError, MoeplanError) as found:
        # of a file on the way there, under a name that nobody knows
        cause = found.__cause__ if isinstance(found, MoeplanError) else found
        if isinstance(cause, OSError) and is_full(cause):
            raise RunError(f"{place}: {FULL_DISK}") from cause
        if isinstance(cause, OSError) and is_too_large(cause):
            raise error(f"{place}: {TOO_LARGE}") from cause
        if isinstance(found, MoeplanError):
            raise
        raise error(f"{place}: cannot be written: {found.strerror or found}") from found


def is_full(error: OSError) -> bool:
    """Whether there is no room on a disk, or none that a user may have."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_too_large(error: OSError) -> bool:
    """Whether a file would be larger than a shell or a file system lets one be."""
    return error.errno == errno.EFBIG


def _open_nameless(folder: Path) -> int | None:
    """A descriptor of a file without a name in ``folder``; None where that does not exist."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.open(folder, flag | os.O_WRONLY, 0o666)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise
