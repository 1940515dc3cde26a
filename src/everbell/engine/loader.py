"""The loader: reads the near future from the store, in pages, a little ahead of time.

The loader's front moves through each partition up to `lookahead_ms` from now. The partition with the earliest next
event comes first, and a partition whose next event is further away is not read. Behind the front, the loader reads
skipped events of flows that have room again. The store writer runs both kinds of reads, one at a time, so nothing can
be stored between a read and the decision about it.

After an outage the oldest events go first. Overdue events are read in steps of time: the loader reads all partitions up
to the end of one step before it reads any partition further. A step is long enough to find about `STEP_PAGES` pages of
events, so a dense backlog is read in short steps and a thin one in long steps.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from everbell.clock import Clock
from everbell.core.event import position, position_at
from everbell.core.time import DAY_MS
from everbell.engine.agenda import NEVER
from everbell.engine.flow import EVENT_OVERHEAD_BYTES, Flow, Skip
from everbell.engine.partition import Partition
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import StoreRead
from everbell.stores.paging import LEFT_OUT_PER_EVENT
from everbell.stores.port import Page, Poison, Store

_log = logging.getLogger("everbell.engine")

STEP_PAGES = 4
# A read of skipped events should find at least about this many in one partition: fewer are not worth a read.
BACK_EVENTS_MIN = 4
# The number of partitions that one operation may read if each has few events: a busy writer does one read per write.
PARTITIONS_AT_ONCE = 32
# The number of events in a read of future events. They are not urgent, and an embedded store reads on the loop, where
# due events would have to wait.
AHEAD_EVENTS = 128
CATCH_UP_PAGES = 16
# How long a front that is behind the present may read before the next write.
CATCH_UP_MS = 8
# The number of starved flows that are checked for one read. The others are checked next time.
FLOWS_TRIED = 32


class Loader:
    """Decides which read comes next. The store writer runs it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        partitions: list[Partition],
        owned: list[Partition],
        memory: WorkingSet,
        lookahead_ms: int,
        page_events: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._partitions = partitions
        self._owned = owned
        self._memory = memory
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
        """Check again whether the front has to move, because time has passed."""
        self._front_wanted = True

    def next_at(self) -> int:
        """The earliest time at which an event may be due that has not been read."""
        return min((partition.next_at for partition in self._owned), default=NEVER)

    def next_read(self) -> StoreRead | None:
        """The read to do now, or None.

        Reads of the front and of skipped events take turns, so neither starves. A front that is behind the present has
        three turns of four: an unread event may be the only event of its flow, while a flow with skipped events has
        other events in memory.
        """
        self._turn = (self._turn + 1) % 4
        is_behind = self._front_wanted and self.next_at() < self._clock.now()
        backs_turn = self._turn == 0 if is_behind else self._turn % 2 == 0
        back = self._next_back() if self._memory.starved and (backs_turn or not self._front_wanted) else None
        if back is not None:
            return back
        front = self._next_front() if self._front_wanted else None
        self._front_wanted = front is not None
        if front is None and self._memory.starved and not backs_turn:
            return self._next_back()
        return front

    def _next_front(self) -> StoreRead | None:
        now = self._clock.now()
        until_at = now + self._lookahead_ms
        next_at = self.next_at()
        if next_at > until_at:
            return None
        if next_at < now:
            return partial(self._catch_up, min(until_at, self._step_for(next_at)))
        return partial(self._read_fronts, until_at, min(AHEAD_EVENTS, self._page_events))

    def _step_for(self, next_at: int) -> int:
        """The end of the step that contains the oldest unread overdue event."""
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
        """Read several pages. With one page per write, the front would move no faster than events are delivered."""
        end_ms = self._clock.elapsed_ms() + CATCH_UP_MS
        for _ in range(CATCH_UP_PAGES):
            if not await self._read_fronts(until_at, self._page_events) or self._clock.elapsed_ms() >= end_ms:
                return
            await asyncio.sleep(0)

    async def _read_fronts(self, until_at: int, events: int) -> bool:
        """Read about this many events, from several partitions if needed. Returns whether there may be more."""
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
        """Read up to this many events of a partition. Returns the cost of the read, as a number of events."""
        epoch = partition.epoch
        # The store leaves out skipped targets: a herd that does not fit into memory lies between all other events. If a
        # flow has no room and this partition has no skip yet, a short page is enough to find the flow's events.
        unwanted = partition.unwanted()
        limit = events if partition.has_skips or not self._memory.starved else max(events // 8, 1)
        page = await self._store.page(partition.index, partition.checkpoint, until_at, limit, unwanted)
        await self._bury(page)
        if partition.epoch != epoch or not partition.is_open:
            return 0  # The partition was lost, or is being handed over, since the read began.
        self._step_events += len(page.events)
        self._memory.admit_all(page.events, partition)
        if page.more:
            last = _last_position(page)
            partition.checkpoint = last
            partition.next_at = position_at(last)
        else:
            partition.read_to(until_at, page.next_at)
        return len(page.events) + page.left_out // LEFT_OUT_PER_EVENT

    def _next_back(self) -> StoreRead | None:
        starved = self._memory.starved
        for _ in range(min(FLOWS_TRIED, len(starved))):
            flow = starved.next()
            if not flow.skips:
                starved.discard(flow)
            elif self._memory.budget.has_room_again(flow):
                return partial(self._read_backs, flow)
        return None

    async def _read_backs(self, flow: Flow) -> None:
        """Read the oldest skipped events of a flow, partition by partition, while the flow has room."""
        for _ in range(PARTITIONS_AT_ONCE):
            if not flow.skips:
                return
            index = min(flow.skips, key=lambda index: flow.skips[index].position)
            if not await self._read_back(flow, self._partitions[index]):
                return
            if self._back_events >= self._page_events:
                self._back_events = 0
                await asyncio.sleep(0)  # After about a page, other tasks on the loop run.

    async def _read_back(self, flow: Flow, partition: Partition) -> bool:
        """Read the events behind one skip. Returns whether all of them had room."""
        skip = flow.skips[partition.index]
        begins_at = skip.position
        until_at = min(position_at(partition.checkpoint), self._step_behind(flow, skip))
        unwanted = partition.unwanted(besides=flow)
        limit = self._page_events
        if flow.is_overflow:
            # The page has events of many flows. Events without room would be read again, and again.
            limit = min(2 * self._memory.budget.room_for(flow, flow.skipped_bytes) + BACK_EVENTS_MIN, limit)
        page = await self._store.page(partition.index, begins_at - 1, until_at, limit, unwanted)
        await self._bury(page)
        self._back_events += len(page.events)
        self._adapt_back(len(page.events), flow)
        if flow.skips.get(partition.index) is not skip:
            return True  # The partition was lost during the read.
        if skip.position != begins_at:
            # A pause, or a change that was not stored, skipped an earlier event during the read. The page does not
            # contain that event, so the next read starts there.
            return True
        behind = [event for event in page.events if event.position <= partition.checkpoint]
        refused = self._memory.admit_skipped(behind, partition, flow)
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
        """The time up to which to read behind a skip before the flow's next skip has its turn."""
        others = [other.position for other in flow.skips.values() if other is not skip]
        return position_at(max(skip.position, min(others))) + self._back_ms if others else NEVER

    def _adapt_back(self, events: int, flow: Flow) -> None:
        """Choose steps in which one partition yields its share of the events that the flow has room for.

        Skipped events lie in all partitions. If one partition yields more than its share, its events come to memory
        before older events of other partitions.
        """
        room = self._memory.budget.room_for(flow, max(flow.skipped_bytes, EVENT_OVERHEAD_BYTES))
        share = max(room // max(len(flow.skips), 1), BACK_EVENTS_MIN)
        if events < share // 2:
            self._back_ms = min(self._back_ms * 2, DAY_MS)
        elif events > share * 2:
            self._back_ms = max(self._back_ms // 2, 1)

    async def _bury(self, page: Page) -> None:
        for poison in page.poison:
            await bury(self._store, poison)


async def bury(store: Store, poison: Poison) -> None:
    """Set an unreadable row aside, so that its neighbours can be read. Logs an error, because the row is an event."""
    _log.error("an event of partition %d cannot be read (%s): its row is set aside", poison.partition, poison.reason)
    await store.bury(poison)


def _last_position(page: Page) -> int:
    """The last position of a page, including rows that cannot be read."""
    if page.last is not None:
        return page.last
    events = [event.position for event in page.events[-1:]]
    poison = [position(row.run_at, row.sequence) for row in page.poison[-1:]]
    return max(events + poison)


def _next_at(partition: Partition) -> int:
    return partition.next_at
