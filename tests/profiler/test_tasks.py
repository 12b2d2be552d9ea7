"""Tasks against a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

from profiler.tasks import Task, run_tasks


class FakeClock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def taking(self, durations: list[int]) -> Callable[[int], None]:
        """Work whose turns take these durations, the last one from then on."""

        def run(turn: int) -> None:
            self.now += durations[min(turn, len(durations) - 1)]

        return run


def test_progress_scales_what_is_left() -> None:
    clock, told = FakeClock(), []
    work = clock.taking([9_000_000_000])
    tasks = [Task(f"step {index}", 3_000_000_000, lambda: work(0)) for index in range(3)]
    run_tasks(tasks, lambda done, total, what: told.append((done, total, what)), clock)
    # 3 x 3 s are estimated, and the estimate is trusted like 3 s of work; each takes 9 s. After
    # the first: pace (9 + 3) / (3 + 3) = 2, left 2 x 6 s. After the second: pace 21 / 9, left 7 s
    assert told == [
        (0, 9_000, "step 0"),
        (9_000, 21_000, "step 1"),
        (18_000, 25_000, "step 2"),
        (27_000, 27_000, "done"),
    ]
