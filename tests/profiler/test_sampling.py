"""Sampling against a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

from profiler.sampling import Effort, Task, run_tasks, sample


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


def test_warm_up_is_not_counted_and_steady_work_stops_early() -> None:
    clock = FakeClock()
    found = sample(clock.taking([900, 800, 100]), Effort(warm_up=2, least=7), clock)
    assert found == [100] * 7


def test_a_wide_spread_is_sampled_to_the_end() -> None:
    clock = FakeClock()
    effort = Effort(warm_up=0, least=4, most=20, budget_ns=10**9)
    assert len(sample(clock.taking([100, 300] * 50), effort, clock)) == 20


def test_the_time_ends_sampling_but_not_before_the_least() -> None:
    clock = FakeClock()
    effort = Effort(warm_up=0, least=4, most=20, precision=0.0, budget_ns=1000)
    # 300 ns each and never alike: four samples take 1,200 ns, over the budget
    assert sample(clock.taking([300, 301, 302, 303, 304]), effort, clock) == [300, 301, 302, 303]


def test_work_may_say_its_own_duration() -> None:
    assert sample(lambda turn: 5, Effort(warm_up=1, least=3)) == [5, 5, 5]


def test_progress_scales_what_is_left() -> None:
    clock, told = FakeClock(), []
    work = clock.taking([4_000_000])
    tasks = [Task(f"step {index}", 2_000_000, lambda: work(0)) for index in range(3)]
    run_tasks(tasks, lambda done, total, what: told.append((done, total, what)), clock)
    # 3 x 2 ms are estimated; each takes 4: after the first, 4 are spent and 2 x 2 x (4 / 2) left
    assert told == [(0, 6, "step 0"), (4, 12, "step 1"), (8, 12, "step 2"), (12, 12, "done")]
