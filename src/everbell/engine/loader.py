"""The loader: reads the near future from the store, in pages, a little ahead of time.

Its front moves through each partition up to `lookahead_ms` from now, oldest partition first; a partition whose next
event is further away is not touched. Behind the front, it goes back for the events of flows that had no room, when
they have room again. Both reads go through the scribe, one at a time, so nothing can be stored between reading and
deciding.

After an outage the oldest events go first: what is past due is read in steps of time, all partitions up to the end of
one step before any of them goes further. A step is as long as it takes to find about `STEP_PAGES` pages of events, so a
dense backlog is read in short steps and a thin one in long ones.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from everbell.clock import Clock
from everbell.core.event import position, position_at
from everbell.core.time import DAY_MS
from everbell.engine.agenda import NEVER
from everbell.engine.floor import Floor
from everbell.engine.flow import EVENT_OVERHEAD_BYTES, Flow, Skip
from everbell.engine.partition import Partition
from everbell.engine.scribe import Read
from everbell.stores.port import Page, Poison, Store
from everbell.stores.semantics import LEFT_OUT_PER_EVENT

_log = logging.getLogger("everbell.engine")

STEP_PAGES = 4
BACK_EVENTS_MIN = 4
"""About how many events one partition yields at least when the loader goes back: fewer are not worth a read."""
PARTITIONS_AT_ONCE = 32
"""How many partitions one read goes through, when they have little each: a busy scribe does one read for each write."""
AHEAD_EVENTS = 128
"""How many events one read yields that is ahead of the time: there is no hurry, and an embedded store reads on the
loop, where whatever is due meanwhile has to wait."""
CATCH_UP_PAGES = 16
CATCH_UP_MS = 8
"""How long a front that is behind the time may read before the scribe writes again."""
FLOWS_TRIED = 32
"""How many starved flows are looked at for one read; the others have their turn next."""


class Loader:
    """Decides which read comes next; the scribe runs it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        partitions: list[Partition],
        owned: list[Partition],
        floor: Floor,
        lookahead_ms: int,
        page_events: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._partitions = partitions
        self._owned = owned
        self._floor = floor
        self._lookahead_ms = lookahead_ms
        self._page_events = page_events
        self._turn = 0
        self._front_wanted = True
        self._step_ms = 16
        self._back_ms = 16
        self._back_events = 0
        self._step_until_at = 0
        self._step_events = 0

    def tick(self) -> None:
        """Time has passed: the front may have to move."""
        self._front_wanted = True

    def next_at(self) -> int:
        """When the first event is due that is not read yet, at the earliest."""
        return min((partition.next_at for partition in self._owned), default=NEVER)

    def next_read(self) -> Read | None:
        """The read to do now, if any.

        Front and back take turns, so neither a herd nor its followers starve. A front that is behind the time has three
        turns of four: what it has not reached yet may be somebody's only event, while a flow that left events behind
        has others in memory.
        """
        self._turn = (self._turn + 1) % 4
        is_behind = self._front_wanted and self.next_at() < self._clock.now()
        backs_turn = self._turn == 0 if is_behind else self._turn % 2 == 0
        back = self._next_back() if self._floor.starved and (backs_turn or not self._front_wanted) else None
        if back is not None:
            return back
        front = self._next_front() if self._front_wanted else None
        self._front_wanted = front is not None
        if front is None and self._floor.starved and not backs_turn:
            return self._next_back()
        return front

    def _next_front(self) -> Read | None:
        now = self._clock.now()
        until_at = now + self._lookahead_ms
        next_at = self.next_at()
        if next_at > until_at:
            return None
        if next_at < now:
            return partial(self._catch_up, min(until_at, self._step_for(next_at)))
        return partial(self._read_fronts, until_at, min(AHEAD_EVENTS, self._page_events))

    def _step_for(self, next_at: int) -> int:
        """The end of the step in which the oldest event lies that is past due and was not read yet."""
        if next_at > self._step_until_at:
            wanted = STEP_PAGES * self._page_events
            if self._step_events < wanted // 2:
                self._step_ms = min(self._step_ms * 2, DAY_MS)
            elif self._step_events > wanted * 2:
                self._step_ms = max(self._step_ms // 2, 1)
            self._step_events = 0
            self._step_until_at = next_at + self._step_ms
        return self._step_until_at

    async def _catch_up(self, until_at: int) -> None:
        """Read several pages: with one for each write, a front that is behind would get on no faster than the herd
        before it goes out."""
        end_ms = self._clock.elapsed_ms() + CATCH_UP_MS
        for _ in range(CATCH_UP_PAGES):
            if not await self._read_fronts(until_at, self._page_events) or self._clock.elapsed_ms() >= end_ms:
                return
            await asyncio.sleep(0)

    async def _read_fronts(self, until_at: int, events: int) -> bool:
        """Read about so many events, from as many partitions as it takes; returns whether there may be more."""
        rows = 0
        for _ in range(PARTITIONS_AT_ONCE):
            partition = min(self._owned, key=_next_at, default=None)
            if partition is None or partition.next_at > until_at:
                return False
            if rows >= events:
                break
            rows += await self._read_front(partition, until_at, events)
        return True

    async def _read_front(self, partition: Partition, until_at: int, events: int) -> int:
        """Read on in a partition, so many at most; returns how many events that was worth."""
        epoch = partition.epoch
        # What stays behind a skip is not even read: a herd that does not fit into memory lies between all the others.
        # Where somebody has no room and nobody has a skip yet, a short page tells whose events lie here.
        unwanted = partition.unwanted()
        limit = events if partition.skips or not self._floor.starved else max(events // 8, 1)
        page = await self._store.page(partition.index, partition.checkpoint, until_at, limit, unwanted)
        await self._bury(page)
        if partition.epoch != epoch or not partition.is_open:
            return 0  # Lost, or about to be handed over, while it was being read.
        self._step_events += len(page.events)
        self._floor.admit_all(page.events, partition)
        if page.more:
            last = _last_position(page)
            partition.checkpoint = last
            partition.next_at = position_at(last)
        else:
            partition.read_to(until_at, page.next_at)
        return len(page.events) + page.left_out // LEFT_OUT_PER_EVENT

    def _next_back(self) -> Read | None:
        starved = self._floor.starved
        for _ in range(min(FLOWS_TRIED, len(starved))):
            flow = next(iter(starved))
            del starved[flow]
            if not flow.skips:
                continue
            starved[flow] = None
            if self._floor.budget.has_room_again(flow):
                return partial(self._read_backs, flow)
        return None

    async def _read_backs(self, flow: Flow) -> None:
        """Go back for the oldest events of a flow, from partition to partition, while there is room."""
        for _ in range(PARTITIONS_AT_ONCE):
            if not flow.skips:
                return
            index = min(flow.skips, key=lambda index: flow.skips[index].position)
            if not await self._read_back(flow, self._partitions[index]):
                return
            if self._back_events >= self._page_events:
                self._back_events = 0
                await asyncio.sleep(0)  # About a page, after which the others on the loop have their turn.

    async def _read_back(self, flow: Flow, partition: Partition) -> bool:
        """Read what lies behind one skip; returns whether there was room for all of it."""
        skip = flow.skips[partition.index]
        until_at = min(position_at(partition.checkpoint), self._step_behind(flow, skip))
        unwanted = partition.unwanted(besides=flow)
        page = await self._store.page(partition.index, skip.position - 1, until_at, self._page_events, unwanted)
        await self._bury(page)
        self._back_events += len(page.events)
        self._adapt_back(len(page.events), flow)
        if flow.skips.get(partition.index) is not skip:
            return True  # The partition was lost while it was being read.
        behind = [event for event in page.events if event.position <= partition.checkpoint]
        refused = self._floor.admit_left_behind(behind, partition, flow)
        if refused is not None:
            skip.position = refused.position
            return False
        if len(behind) == len(page.events):
            if page.more:
                skip.position = _last_position(page) + 1
                return True
            if page.next_at is not None and page.next_at <= position_at(partition.checkpoint):
                skip.position = position(page.next_at, 0)
                return True
        partition.unskip(flow)
        return True

    def _step_behind(self, flow: Flow, skip: Skip) -> int:
        """How far to go back for the events behind a skip before those behind the flow's next one have their turn."""
        others = [other.position for other in flow.skips.values() if other is not skip]
        return position_at(max(skip.position, min(others))) + self._back_ms if others else NEVER

    def _adapt_back(self, events: int, flow: Flow) -> None:
        """Choose steps in which one partition yields its share of what the flow has room for.

        What is behind lies in all of them, and whatever is taken from one beyond its share comes before older ones of
        the others.
        """
        budget = self._floor.budget
        room = (budget.free_bytes - flow.held_bytes) // max(flow.left_bytes, EVENT_OVERHEAD_BYTES)
        share = max(room // max(len(flow.skips), 1), BACK_EVENTS_MIN)
        if events < share // 2:
            self._back_ms = min(self._back_ms * 2, DAY_MS)
        elif events > share * 2:
            self._back_ms = max(self._back_ms // 2, 1)

    async def _bury(self, page: Page) -> None:
        for poison in page.poison:
            await bury(self._store, poison)


async def bury(store: Store, poison: Poison) -> None:
    """Set a row aside that cannot be read, so that its neighbours can; loudly, for somebody's event is in it."""
    _log.error("an event of partition %d cannot be read (%s): its row is set aside", poison.partition, poison.reason)
    await store.bury(poison)


def _last_position(page: Page) -> int:
    """How far a page got; poison counts, for it was read too."""
    if page.last is not None:
        return page.last
    events = [event.position for event in page.events[-1:]]
    poison = [position(row.run_at, row.sequence) for row in page.poison[-1:]]
    return max(events + poison)


def _next_at(partition: Partition) -> int:
    return partition.next_at
