"""The ledger's books."""

from __future__ import annotations

import pytest

from executor.ledger import Ledger
from solvers.errors import BudgetError


def test_peak_and_overflow() -> None:
    ledger = Ledger(100)
    ledger.reserve("slots", 60)
    ledger.reserve("kv", 40)
    assert ledger.peak_bytes == ledger.reserved_bytes == 100
    with pytest.raises(BudgetError, match="100 bytes does not hold 101") as caught:
        ledger.reserve("logits", 1)
    assert caught.value.smallest_bytes == 101
    ledger.check_integrity()
    assert ledger.peak_bytes == 100


def test_double_reservation_and_double_load() -> None:
    ledger = Ledger(100)
    ledger.reserve("experts", 50)
    with pytest.raises(RuntimeError, match="reserved twice"):
        ledger.reserve("experts", 10)
    ledger.use("experts", "0.1", 30)
    with pytest.raises(RuntimeError, match="loaded twice"):
        ledger.use("experts", "0.1", 10)
    with pytest.raises(RuntimeError, match="overflows"):
        ledger.use("experts", "0.2", 21)
    ledger.use("experts", "0.2", 20)
    ledger.release("experts", "0.1")
    ledger.use("experts", "0.1", 30)
    ledger.check_integrity()
