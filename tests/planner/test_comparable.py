"""Which runs may judge a prediction."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.comparable import not_comparable
from planner.documents import Channel, Figure, Hardware, Plan, Trace, Workload

# 64 requests of 32+8 tokens: 2,048 prompt tokens and 512 new ones
PLAN = cast(Plan, SimpleNamespace(workload=Workload(64, 32, 8)))
GB = 10**9


def trace(requests: int | None, prompt: int, new: int, pace: int | None = None) -> Trace:
    totals = SimpleNamespace(requests=requests, prompt_tokens=prompt, new_tokens=new)
    return cast(Trace, SimpleNamespace(totals=totals, paced_bytes_per_second=pace))


def hardware(pace: int | None) -> Hardware:
    disk = Channel("disk", Figure(1e9, "measured"), Figure(0.0, "measured"), pace)
    return Hardware("here", "cpu", "a processor", 2, (), (disk,))


@pytest.mark.parametrize(
    ("requests", "prompt", "new"),
    [
        (64, 2048, 512),
        (64, 1536, 512),  # three quarters of the longest, on average
        (64, 2048, 487),  # 95% of 512 is 486.4
        (None, 2048, 512),
    ],
)
def test_the_planned_work(requests: int | None, prompt: int, new: int) -> None:
    assert not_comparable(PLAN, trace(requests, prompt, new)) is None


@pytest.mark.parametrize(
    ("requests", "prompt", "new", "said"),
    [
        (16, 176, 128, "ran 16 of 11+8: not comparable"),
        (63, 2016, 504, "ran 63 of 32+8"),
        (64, 1535, 512, "ran 64 of 24+8"),
        (64, 2048, 486, "ran 64 of 32+7.59"),
        (None, 500, 512, "ran 500 prompt and 512 new tokens in all"),
    ],
)
def test_other_work(requests: int | None, prompt: int, new: int, said: str) -> None:
    reason = not_comparable(PLAN, trace(requests, prompt, new))
    assert reason is not None
    assert reason.startswith("planned for 64 requests of 32+8 tokens, ran ")
    assert said in reason


@pytest.mark.parametrize(
    ("planned", "ran", "said"),
    [
        (None, None, None),
        (GB, GB, None),
        (None, GB // 10, "at its own speed, ran with one paced to 0.1 GB/s"),
        (GB, None, "paced to 1 GB/s, ran with one at its own speed"),
    ],
)
def test_a_disk_of_another_pace(planned: int | None, ran: int | None, said: str | None) -> None:
    run = trace(64, 2048, 512, ran)
    reason = not_comparable(PLAN, run, hardware(planned))
    assert (reason is None) == (said is None)
    assert said is None or said in str(reason)
    assert not_comparable(PLAN, run) is None  # without the hardware nothing is known of it


def test_a_machine_without_a_disk_channel() -> None:
    bare: Any = dataclasses.replace(hardware(None), channels=())
    assert not_comparable(PLAN, trace(64, 2048, 512), bare) is None
