"""The copy channel on a schedule whose every answer is written down here."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import cast

from executor.recorder import Recorder
from executor.schedule import Chunk, Schedule
from executor.transfers import Following, Transfers
from executor.units import Unit
from tests.waiting import until

UNIT = Unit(0, "expert", 0)
CHUNK = Chunk(UNIT, 0, 0, 4096, "copy_prefetch", 0, True)


class Script:
    """A schedule that has a chunk for each time that ``more`` was counted up."""

    def __init__(self) -> None:
        self.more = 0
        self.asked: list[str] = []

    def next_chunk(self) -> Chunk | None:
        self.asked.append(threading.current_thread().name)
        if not self.more:
            return None
        self.more -= 1
        return CHUNK

    def chunk_copied(self) -> bool:
        return True

    def computed(self, unit: Unit) -> None: ...


def channel() -> tuple[Transfers, Script, deque[Chunk]]:
    script, copied = Script(), deque[Chunk]()

    def copy(chunk: Chunk, _following: Following) -> None:
        copied.append(chunk)

    made = Transfers(cast(Schedule, script), copy, Recorder())
    made.start()
    # the reader has asked, and waits
    until(lambda: script.asked == ["moeplan-reader"])
    return made, script, copied


def test_the_reader_sleeps_through_what_gives_it_nothing_to_copy() -> None:
    """Each wake would take the interpreter from compute: a run in memory had thousands a second."""
    made, script, copied = channel()
    for _ in range(20):
        made.computed(UNIT)
    time.sleep(0.05)
    assert script.asked.count("moeplan-reader") == 1
    assert not copied
    script.more = 2
    made.computed(UNIT)
    # what compute chose for it, then what it chooses itself until there is nothing more
    until(lambda: len(copied) == 2 and script.asked.count("moeplan-reader") == 3)
    made.computed(UNIT)
    made.close()
    assert len(copied) == 2


def test_what_is_held_begins_when_it_no_longer_is() -> None:
    made, script, copied = channel()
    with made.held():
        script.more = 1
        made.computed(UNIT)
        time.sleep(0.05)
        assert not copied
    until(lambda: copied)
    made.close()


def test_nothing_is_chosen_after_the_end() -> None:
    made, script, copied = channel()
    made.close()
    script.more = 1
    made.computed(UNIT)
    assert not copied
    assert script.more == 1
