"""The error tree. One place, so that every folder maps foreign errors to the same classes.

::

    MoeplanError                 anything moeplan raises on purpose
    ├── InputError               the caller can fix it: exit code 2
    │   ├── DocumentError        a document is malformed, of an unknown version, or unreadable
    │   ├── CheckpointError      a checkpoint or store is missing, truncated or not understood
    │   ├── UnsupportedError     a model, device or feature is refused by name
    │   ├── OptionError          an option is out of range or cannot take effect
    │   ├── StaleError           a plan was made from other documents than those at hand
    │   └── BudgetError          a memory budget is below the smallest that works
    └── RunError                 a run was stopped by the machine: exit code 1
        └── CancelledError       or by whoever asked for it

A bug keeps its traceback: it is no ``MoeplanError``.
"""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "CancelledError",
    "CheckpointError",
    "DocumentError",
    "InputError",
    "MoeplanError",
    "OptionError",
    "RunError",
    "StaleError",
    "UnsupportedError",
]


class MoeplanError(Exception):
    """Anything moeplan raises on purpose. Its text is one line, for a reader."""


class InputError(MoeplanError):
    """Bad input: what is wrong, where, and what to do, in one line."""


class DocumentError(InputError):
    """A document is malformed, of an unknown version, or unreadable."""


class CheckpointError(InputError):
    """A checkpoint or store is missing, truncated or not understood."""


class UnsupportedError(InputError):
    """A model, device or feature is refused by name."""


class OptionError(InputError):
    """An option is out of range or cannot take effect."""


class StaleError(InputError):
    """A plan was made from other documents than those at hand.

    Parameters
    ----------
    document
        The kind of document that differs (``"model"``, ``"costs"``, ``"store"`` ...).
    message
        The whole line for the reader.
    """

    def __init__(self, document: str, message: str) -> None:
        super().__init__(message)
        self.document = document


class BudgetError(InputError):
    """A memory budget is below the smallest that works.

    Parameters
    ----------
    message
        The whole line for the reader.
    smallest_bytes
        The smallest budget that works, in bytes.
    """

    def __init__(self, message: str, smallest_bytes: int) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes


class RunError(MoeplanError):
    """A run was stopped by the machine: a disk error, a short read, a dead reader thread."""


class CancelledError(RunError):
    """A run was cancelled by whoever asked for it."""
