"""Requests of unequal length for runs whose keys and values lie below the device."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from planner.documents import Workload

NEW_TOKENS = 6
WORK = Workload(7, 12, NEW_TOKENS)


def prompts_of(vocabulary: int) -> list[list[int]]:
    draw = random.Random(11)
    return [
        [draw.randrange(3, vocabulary) for _ in range(length)] for length in (12, 1, 5, 12, 3, 9, 2)
    ]


def greedy_of(checkpoint_of: Callable[..., Path], helpers: Any) -> Callable[[str], list[list[int]]]:
    """What transformers makes of the requests, by family; each family is asked once."""
    return cache(lambda family: helpers.greedy(checkpoint_of(family), prompts_of(211), NEW_TOKENS))
