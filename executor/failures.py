"""Running out of memory, as one clear error: torch and Python say it in four ways."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from solvers.errors import RunError

__all__ = ["out_of_memory"]

_WORDS = ("out of memory", "DefaultCPUAllocator", "not enough memory")


@contextmanager
def out_of_memory(where: str) -> Iterator[None]:
    """Raise what says that memory is out as one ``RunError``; anything else as it is.

    Raises
    ------
    RunError
        ``where`` begins its message.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not _is_it(error):
            raise
        said = str(error).strip().partition("\n")[0]
        more = f" ({said})" if said else ""
        raise RunError(
            f"{where}: out of memory{more}: end what else uses it, or plan with a smaller budget"
        ) from error


def _is_it(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(word in str(error) for word in _WORDS)
