"""The copy channel of the replay: what it copies, and when (docs/runtime.md, "Copies")."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import Counter

from solvers.host import host_takes
from solvers.outcome import HostShare, Schedule
from solvers.problem import Problem
from solvers.replay_copies import (
    START,
    Copy,
    CopyPart,
    Lists,
    Parts,
    needs_of,
    slot_share,
    streams_start,
)
from solvers.replay_pace import Credit, Pace

__all__ = ["Channel", "CopyPart", "slot_share"]

_KINDS = {"start": 0, "prefetch": 1, "demand": 2}


class Channel:
    """State of the channel and of all slots.

    The channel chooses next at ``_now``; everything before that is settled. A chunk that is still
    on the channel (``_flight``) ends then. ``busy_ns`` sums the copies that have begun: start
    units, prefetches, on demand, and items of sequential stages. ``came_ahead`` holds, of the stage
    whose demand became known last, items and the ns for which they had been copied by then.
    """

    def __init__(
        self,
        problem: Problem,
        schedule: Schedule,
        passes: range,
        now: int,
        record: bool,
        credit: Credit | None = None,
    ) -> None:
        self._stages = problem.stages
        self._short = problem.scenarios.shortened[passes.start : passes.stop]
        self._count = len(problem.stages)
        self._total = self._count * len(passes)
        self._resident = [frozenset(choice.resident) for choice in schedule.stages]
        self._streams_start = streams_start(problem, schedule)
        self._lists = Lists(problem, schedule)
        self._eviction = schedule.eviction
        self._caches = schedule.eviction != "none"
        self._shares = slot_share(problem, schedule) if schedule.eviction == "lifo" else 0
        self._held = [0] * self._count  # slots of each stage
        self._landed = 0
        self._came: dict[tuple[int, int], int] = {}  # what lies in a slot -> when it came
        self._reserve = schedule.reserve
        self._hold = self._count if schedule.hold is None else schedule.hold
        self._farthest = self._count  # how many stages on the chain may copy for now
        self._free = schedule.slots
        self._free_start = schedule.start_slots
        self._now = now
        self._pace = Pace(credit, now)
        self._current = 0  # compute's stage, counted through all passes
        self._cursor = 0  # the chain's stage, likewise
        self._position = 0  # and its place in that stage's list
        self._chain: Copy | None = None
        self._queue: list[Copy] = []
        self._head = 0
        self._flight: Copy | None = None
        self._flight_bytes = 0
        self._item_ended: dict[int, int] = {}  # of the current stage's demand
        self._start_ended: dict[int, int] = {}
        self._prefetched: list[set[int]] = [set() for _ in range(self._count)]
        self.came_ahead: list[tuple[int, int]] = []
        self._cached: dict[tuple[int, int], int] = {}  # what may be evicted -> its age
        self._ages: list[tuple[tuple[int, ...], int, int]] = []
        self._uses: Counter[tuple[int, int]] = Counter()  # stages that an item was worked on in
        self._turned: dict[tuple[int, int], int] = {}  # and the last turn of its stage
        self._known = -1  # the last stage whose demand is known
        self._places = [
            {item: place for place, item in enumerate(choice.prefetch)}
            for choice in schedule.stages
        ]
        self._future = needs_of(problem, passes) if schedule.eviction == "belady" else {}
        self.busy_ns = [0, 0, 0, 0]
        self._bytes = 0
        self.wasted_bytes = 0
        self._parts = Parts(problem.stages, passes.start) if record else None

    # What compute tells and asks the channel ---------------------------------------------------

    def wait_start(self, here: int, now: int) -> int | None:
        """When the start unit of a stage is there, ``now`` at the earliest; None if never."""
        self._advance(now)
        while here not in self._start_ended:
            if not self._next_end():
                return None
        return max(self._start_ended.pop(here), now)

    def lead_begins(self, here: int, now: int) -> None:
        """A stage's lead begins: until its demand is known, copies may be held back."""
        self._advance(now)
        stage = self._stages[here % self._count]
        if not stage.sequential and len(self._resident[here % self._count]) < len(stage.items):
            self._farthest = self._hold
            self._now = max(self._now, now)

    def wait_item(self, item: int, now: int) -> int | None:
        """When a demanded item is there, ``now`` at the earliest; None if never."""
        self._advance(now)
        while item not in self._item_ended:
            if not self._next_end():
                return None
        return max(self._item_ended[item], now)

    def release(self, stage: int, item: int, now: int) -> None:
        """The work on an item that lies in a slot has ended."""
        self._advance(now)
        self._uses[stage, item] += 1
        self._turned[stage, item] = self._turns(stage)
        self._leave(stage, item, now)
        self._now = max(self._now, now)

    def stage_ended(self, now: int) -> None:
        """Compute goes on to the next stage."""
        self._advance(now)
        self._current += 1
        self._now = max(self._now, now)

    def demand_known(self, here: int, now: int, active: list[tuple[int, int]]) -> list[int]:
        """The lead has ended: drops what is not demanded, and queues what is missing.

        Returns the queued items in the order of the queue; the other active ones are ready.
        """
        self._advance(now)
        self._known, self._farthest = here, self._count
        stage = here % self._count
        if self._streams_start[stage]:
            self._free_start += 1
        partial = self._chain if self._chain is not None and self._chain.here == here else None
        if self._cursor == here:
            self._cursor, self._position, self._chain = here + 1, 0, None
        self._queue, self._head = [], 0
        self._item_ended = {}
        wanted = {item for item, _ in active}
        if partial is not None:
            if partial.item in wanted:
                partial.kind = "demand"
                self._queue.append(partial)
            else:
                partial.kind = "dropped"
                self.wasted_bytes += partial.begun_bytes
                self._free += 1
                self._held[stage] -= 1
        copied = self._prefetched[stage]
        items = self._stages[stage].items
        self.came_ahead = [(item, items[item].copy_ns) for item in copied]
        if partial is not None:
            left = max(self._now - now, 0) if self._flight is partial else 0
            self.came_ahead.append((partial.item, partial.begun_ns - left))
        if copied:
            self._prefetched[stage] = set()
            for item in copied - wanted:
                self.wasted_bytes += items[item].size_bytes
                self._leave(stage, item, now)
        resident = self._resident[stage]
        for item, _ in active:
            if item in resident or item in copied or (partial and item == partial.item):
                continue
            if (stage, item) in self._cached:
                del self._cached[stage, item]
            else:
                self._queue.append(Copy("demand", here, item, items[item]))
        self._now = max(self._now, now)
        return [copy.item for copy in self._queue]

    def give_to_host(self, rows: list[int], share: HostShare) -> list[int]:
        """Called right after ``demand_known``: the queued items that the host takes, which are
        copied no more. ``rows`` are those of all the stage's items."""
        begun = sum(one.begun_bytes > 0 or one.left < one.unit.chunks for one in self._queue)
        waiting = self._queue[begun:]
        count = host_takes([rows[copy.item] for copy in waiting], share)
        taken = waiting[len(waiting) - count :]
        self._queue = self._queue[: len(self._queue) - count]
        return [copy.item for copy in taken]

    def expect(self, there: int, items: tuple[int, ...]) -> None:
        """A predictor names items for a later stage: they replace its copies not yet begun.

        Called right after ``demand_known``; no more items than are replaced, and no residents.
        """
        if self._cursor > there:
            return
        begun = self._position + (self._chain is not None) if self._cursor == there else 0
        self._lists.name(there, begun, items)

    def ended_bytes(self, now: int) -> int:
        """Bytes of all chunks that ended by ``now``."""
        self._advance(now)
        return self._bytes - (self._flight_bytes if self._now > now else 0)

    def parts_until(self, now: int) -> list[CopyPart]:
        """The record of all parts that began before ``now``, in order."""
        made = [] if self._parts is None else self._parts.made
        return [part for part in made if part.start_ns < now]

    # Slots -------------------------------------------------------------------------------------

    def _leave(self, stage: int, item: int, now: int) -> None:
        """An item's slot is needed no longer."""
        if not self._caches:
            self._free += 1
            self._held[stage] -= 1
        elif self._shares:
            self._cached[stage, item] = self._came[stage, item]
        else:
            age: tuple[int, ...] = (now,)
            if self._eviction == "fifo":
                age = (self._came[stage, item],)
            elif self._eviction == "frequency":
                age = (self._uses[stage, item], now)
            self._cached[stage, item] = age[-1]
            heapq.heappush(self._ages, (age, stage, item))

    def _take_slot(self, stage: int) -> bool:
        """A slot for an item of this stage; returns whether there is one."""
        own = self._shares > 0 and self._held[stage] >= self._shares
        if self._free and not own:
            self._free -= 1
        elif self._shares:
            among = [key for key in self._cached if key[0] == stage or not own]
            if not among:
                return False
            victim = max(among, key=self._cached.__getitem__)
            del self._cached[victim], self._came[victim]
            self._held[victim[0]] -= 1
        elif self._cached:
            self._evict()
        else:
            return False
        self._held[stage] += 1
        return True

    def _evict(self) -> None:
        """Give up one content for a slot, whatever its stage."""
        if self._eviction in ("plan", "stale", "belady"):
            by = {"plan": self._planned, "stale": self._stale, "belady": self._needed}
            ahead = by[self._eviction]
            # the farthest ahead; of equals the least recently used
            farthest = max(map(ahead, self._cached))
            among = [(age, key) for key, age in self._cached.items() if ahead(key) == farthest]
            stage, item = min(among)[1]
        else:
            while True:
                age, stage, item = heapq.heappop(self._ages)
                # an entry is stale where the item has left and come back since
                if (stage, item) in self._cached and self._cached[stage, item] == age[-1]:
                    break
        del self._cached[stage, item]
        self._held[stage] -= 1

    def _planned(self, key: tuple[int, int]) -> tuple[float, int]:
        """How far ahead the chain comes to an item again: stages, and its place among them."""
        stage, item = key
        if item not in self._places[stage]:
            return math.inf, 0
        return self._far(stage), self._places[stage][item]

    def _far(self, stage: int) -> int:
        """Stages until a stage's demand becomes known next."""
        far = (stage - self._current) % self._count
        return self._count if not far and self._known == self._current else far

    def _turns(self, stage: int) -> int:
        """How often a stage's demand has become known in this run."""
        return self._known // self._count + (stage <= self._known % self._count)

    def _stale(self, key: tuple[int, int]) -> tuple[float, int]:
        """Turns of its stage since an item was worked on, and how far ahead the next one is."""
        return self._turns(key[0]) - self._turned.get(key, 0), self._far(key[0])

    def _needed(self, key: tuple[int, int]) -> tuple[float, int]:
        """The stage, counted through all passes, that demands an item next."""
        after = self._current + (self._known == self._current)
        uses = self._future.get(key, [])
        index = bisect_left(uses, after)
        return (uses[index] if index < len(uses) else math.inf), 0

    # The channel's own clock -------------------------------------------------------------------

    def _advance(self, limit: int) -> None:
        """Settle everything that the channel chooses before ``limit`` and that ends by then."""
        while self._now < limit:
            if not self._run(limit):
                return
        if self._now == limit:
            self._land()

    def _next_end(self) -> bool:
        """Go on to the next end of a copy and no further: compute may be waiting for it."""
        if self._flight is not None:
            self._land()
            return True
        return self._run(None)

    def _run(self, limit: int | None) -> bool:
        """One choice: copies the chosen unit until it ends, or the chunks begun before ``limit``.

        Returns False where no unit may start.
        """
        self._land()
        copy = self._choose()
        if copy is None:
            return False
        unit, now, left = copy.unit, self._now, copy.left
        begun = left
        if limit is not None and unit.chunk_ns:
            begun = min(left, self._pace.begun(now, unit.chunk_ns, limit))
        rest = unit.size_bytes - copy.begun_bytes
        if begun == left:
            size, flying = rest, rest - (left - 1) * unit.chunk_bytes
            self._now = self._pace.end(now, unit.chunk_ns, left - 1, unit.last_ns)
        else:
            size, flying = begun * unit.chunk_bytes, unit.chunk_bytes
            self._now = self._pace.end(now, unit.chunk_ns, begun)
        copy.left -= begun
        copy.begun_bytes += size
        self._bytes += size
        self._flight, self._flight_bytes = copy, flying
        sequential = self._stages[copy.here % self._count].sequential
        self.busy_ns[3 if sequential else _KINDS[copy.kind]] += self._now - now
        if self._parts is not None:
            self._parts.note(copy, now, self._now, size)
        if limit is None or self._now <= limit:
            self._land()
        return True

    def _land(self) -> None:
        """The chunk on the channel has ended."""
        copy, self._flight = self._flight, None
        if copy is None or copy.left:
            return
        if self._caches and copy.item != START:
            self._came[copy.here % self._count, copy.item] = self._landed
            self._landed += 1
        if copy.kind == "demand":
            self._item_ended[copy.item] = self._now
            self._head += 1
        elif copy.kind != "dropped":
            if copy.kind == "start":
                self._start_ended[copy.here] = self._now
            else:
                self._prefetched[copy.here % self._count].add(copy.item)
            self._chain = None
            self._position += 1

    def _choose(self) -> Copy | None:
        if self._head < len(self._queue):
            copy = self._queue[self._head]
            if copy.begun_bytes or copy.left < copy.unit.chunks:
                return copy
            if self._take_slot(copy.here % self._count):
                return copy
        if self._chain is None:
            self._chain = self._next_of_chain()
        elif self._chain.here > self._current + self._farthest:
            return None
        return self._chain

    def _next_of_chain(self) -> Copy | None:
        last = min(self._total, self._current + min(self._count, self._farthest + 1))
        while self._cursor < last:
            stage = self._cursor % self._count
            items = self._lists.of(self._cursor)
            if self._position >= len(items):
                self._lists.passed(self._cursor)
                self._cursor, self._position = self._cursor + 1, 0
                continue
            item = items[self._position]
            if item == START:
                start = self._stages[stage].start_in(self._short[self._cursor // self._count])
                if not self._free_start or start is None:
                    return None
                self._free_start -= 1
                return Copy("start", self._cursor, item, start)
            if self._lists.waits(self._cursor):
                return None
            if (stage, item) in self._cached:
                self._position += 1
                continue
            if self._free + len(self._cached) <= self._reserve:
                return None
            if not self._take_slot(stage):
                return None
            return Copy("prefetch", self._cursor, item, self._stages[stage].items[item])
        return None
