"""Control-C while native libraries load.

The start code of a C extension that runs Python turns an interrupt into an ``ImportError``
("initialization failed"). So a signal that comes in such a start waits for its end.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

__all__ = ["held", "hold_in_extensions"]


@contextmanager
def held() -> Iterator[None]:
    """Hold SIGINT back; what came is delivered at the end, to whoever handled it before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = signal.getsignal(signal.SIGINT)
    if before is None:  # handled by something that is not Python
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


class _Extensions(MetaPathFinder):
    """Finds C extensions as usual; their start is ``held``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
            return None
        for name in ("create_module", "exec_module"):  # where it starts depends on the extension
            setattr(spec.loader, name, _held_call(getattr(spec.loader, name)))
        return spec


def _held_call(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        with held():
            return call(*arguments)

    return called


def hold_in_extensions() -> None:
    """From now on no C extension is interrupted while it starts."""
    if not any(isinstance(finder, _Extensions) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Extensions())
