"""The memory ledger of a device: every byte is reserved under a purpose before it is used."""

from __future__ import annotations

from solvers.errors import BudgetError

__all__ = ["Ledger"]


class Ledger:
    """Reservations under one budget.

    Parameters
    ----------
    budget_bytes
        What all reservations together may not exceed.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.peak_bytes = 0
        self._reserved: dict[str, int] = {}
        self._used: dict[str, dict[str, int]] = {}

    @property
    def reserved_bytes(self) -> int:
        """Sum of all reservations now."""
        return sum(self._reserved.values())

    def reserve(self, purpose: str, size_bytes: int) -> None:
        """Reserve ``size_bytes`` for ``purpose``.

        Raises
        ------
        BudgetError
            If the budget does not hold it.
        RuntimeError
            If the purpose is reserved already, or the size is negative: a bug, as each purpose is
            reserved once.
        """
        _check_size(purpose, size_bytes)
        if purpose in self._reserved:
            raise RuntimeError(f"{purpose} is reserved twice")
        total = self.reserved_bytes + size_bytes
        if total > self.budget_bytes:
            raise BudgetError(
                f"the memory budget of {self.budget_bytes} bytes does not hold {total} bytes "
                f"(at {purpose}); raise the budget or plan for a smaller one",
                total,
            )
        self._reserved[purpose] = size_bytes
        self._used[purpose] = {}
        self.peak_bytes = max(self.peak_bytes, total)

    def use(self, purpose: str, name: str, size_bytes: int) -> None:
        """Take a named part of a reservation: the load of one thing into it.

        Raises
        ------
        RuntimeError
            If ``name`` is loaded already, the reservation is too small or the size negative: a bug.
        """
        _check_size(f"{purpose}: {name}", size_bytes)
        used = self._used[purpose]
        if name in used:
            raise RuntimeError(f"{purpose}: {name} is loaded twice")
        if sum(used.values()) + size_bytes > self._reserved[purpose]:
            raise RuntimeError(
                f"{purpose}: {name} ({size_bytes} bytes) overflows the reservation of "
                f"{self._reserved[purpose]} bytes"
            )
        used[name] = size_bytes

    def release(self, purpose: str, name: str) -> None:
        """Give back what ``use`` took."""
        del self._used[purpose][name]

    def check_integrity(self) -> None:
        """Raise RuntimeError if the books do not add up: called when idle and after each test."""
        if not 0 <= self.reserved_bytes <= self.peak_bytes <= self.budget_bytes:
            raise RuntimeError(
                f"ledger: {self.reserved_bytes} reserved, peak {self.peak_bytes}, "
                f"budget {self.budget_bytes}"
            )
        for purpose, used in self._used.items():
            if sum(used.values()) > self._reserved[purpose]:
                raise RuntimeError(f"ledger: {purpose} is overdrawn")


def _check_size(what: str, size_bytes: int) -> None:
    """Less than nothing would make room for what the budget does not hold."""
    if size_bytes < 0:
        raise RuntimeError(f"{what} takes {size_bytes} bytes")
