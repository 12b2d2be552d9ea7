"""Embedding rows: the right ones, whatever is kept; together where they lie together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from executor import embedding, open_weights
from executor.arena import Arena
from executor.direct import Pacer, preadv
from executor.embedding import Embedding
from executor.ledger import Ledger
from solvers.errors import RunError

HIDDEN, KEPT = 64, 20


class Disk:
    """Counts reads, and fails when it is told to."""

    def __init__(self) -> None:
        self.reads, self.broken = 0, False

    def read_into(self, descriptor: int, target: memoryview, offset: int) -> int:
        self.reads += 1
        if self.broken:
            raise OSError(5, "Input/output error")
        return preadv(descriptor, target, offset)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def rows(
    checkpoint_of: Callable[..., Path], disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> tuple[Embedding, torch.Tensor]:
    """An embedding that keeps 20 rows of 211, and the whole matrix."""
    monkeypatch.setattr(embedding, "EMBEDDING_CACHE_BYTES", KEPT * HIDDEN * 4)
    folder = checkpoint_of("olmoe")
    source = open_weights(folder, read_into=disk.read_into)
    ledger = Ledger(1 << 20)
    ledger.reserve("embedding", 1 << 20)
    made = Embedding(Arena(1 << 20, ledger), source, Pacer(None), torch.float32)
    made.load_all()
    return made, load_file(folder / "model.safetensors")["model.embed_tokens.weight"]


def gathered(made: Embedding, tokens: list[int]) -> torch.Tensor:
    out = torch.zeros(len(tokens), HIDDEN)
    made.gather(np.array(tokens), out)
    return out


def test_rows_are_right_whatever_came_before(rows: tuple[Embedding, torch.Tensor]) -> None:
    """Few and many tokens, more than are kept, with repetitions, in any order."""
    made, matrix = rows
    draw = np.random.default_rng(1)
    for count in (1, 3, 19, 20, 21, 60, 300, 2, 20, 5) * 3:
        tokens = draw.integers(0, 211, count).tolist()
        assert torch.equal(gathered(made, tokens), matrix[tokens])


def test_kept_rows_are_not_read_again(rows: tuple[Embedding, torch.Tensor], disk: Disk) -> None:
    made, _ = rows
    assert made.missing([3, 9])
    gathered(made, [3, 9])
    before = disk.reads
    assert not made.missing([9, 3])
    gathered(made, [9, 3, 3])
    assert disk.reads == before
    made.forget()
    assert made.missing([9])


def test_neighbours_are_one_read(rows: tuple[Embedding, torch.Tensor], disk: Disk) -> None:
    """Twenty rows of 256 bytes lie within 8 KiB."""
    made, _ = rows
    gathered(made, list(range(20)))
    assert disk.reads == 1


def test_a_failed_read_leaves_no_row_behind(
    rows: tuple[Embedding, torch.Tensor], disk: Disk
) -> None:
    made, matrix = rows
    gathered(made, [1, 2, 3])
    disk.broken = True
    with pytest.raises(RunError, match="Input/output error"):
        gathered(made, [*range(4, 22), 200])
    disk.broken = False
    tokens = [*range(1, 22), 200]
    assert torch.equal(gathered(made, tokens), matrix[tokens])


def test_an_error_of_a_read_holds_nothing(
    rows: tuple[Embedding, torch.Tensor], disk: Disk, helpers: Any
) -> None:
    made, _ = rows
    disk.broken = True
    assert helpers.freed(RunError, lambda: gathered(made, [*range(4, 22), 200]))
