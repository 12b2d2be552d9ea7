"""The ledger's books."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


class Books(RuleBasedStateMachine):
    """Any order of reservations, loads and releases beside books kept by hand: what fits is taken,
    what does not is refused and changes nothing."""

    PURPOSES, NAMES = ("kv", "slots", "experts"), ("0.1", "0.2", "1.7")
    BUDGET = 100

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.BUDGET)
        self.reserved: dict[str, int] = {}
        self.loaded: dict[tuple[str, str], int] = {}
        self.most = 0

    def used(self, purpose: str) -> int:
        return sum(size for (one, _), size in self.loaded.items() if one == purpose)

    @rule(purpose=st.sampled_from(PURPOSES), size=st.integers(0, 70))
    def reserve(self, purpose: str, size: int) -> None:
        total = sum(self.reserved.values()) + size
        if purpose in self.reserved:
            with pytest.raises(RuntimeError, match="reserved twice"):
                self.ledger.reserve(purpose, size)
        elif total > self.BUDGET:
            with pytest.raises(BudgetError) as caught:
                self.ledger.reserve(purpose, size)
            assert caught.value.smallest_bytes == total
        else:
            self.ledger.reserve(purpose, size)
            self.reserved[purpose] = size
            self.most = max(self.most, total)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), name=st.sampled_from(NAMES), size=st.integers(0, 40))
    def use(self, data: st.DataObject, name: str, size: int) -> None:
        purpose = data.draw(st.sampled_from(sorted(self.reserved)))
        if (purpose, name) in self.loaded:
            with pytest.raises(RuntimeError, match="loaded twice"):
                self.ledger.use(purpose, name, size)
        elif self.used(purpose) + size > self.reserved[purpose]:
            with pytest.raises(RuntimeError, match="overflows"):
                self.ledger.use(purpose, name, size)
        else:
            self.ledger.use(purpose, name, size)
            self.loaded[purpose, name] = size

    @precondition(lambda self: self.loaded)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        purpose, name = key = data.draw(st.sampled_from(sorted(self.loaded)))
        self.ledger.release(purpose, name)
        del self.loaded[key]

    @rule(purpose=st.sampled_from(PURPOSES), size=st.integers(-40, -1))
    def less_than_nothing(self, purpose: str, size: int) -> None:
        with pytest.raises(RuntimeError, match=f"{size} bytes"):
            self.ledger.reserve(purpose, size)
        if purpose in self.reserved:
            with pytest.raises(RuntimeError, match=f"{size} bytes"):
                self.ledger.use(purpose, "new", size)

    @invariant()
    def books_add_up(self) -> None:
        self.ledger.check_integrity()
        assert self.ledger.reserved_bytes == sum(self.reserved.values())
        assert self.ledger.peak_bytes == self.most


Books.TestCase.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, derandomize=True, database=None
)
TestBooks = Books.TestCase
