"""The forecast: the number of due events in each span of time, and the number of overdue events.

It is read from the store in pages, always from the partition that has been read least far. If the limit of rows is
reached, the forecast is complete for the near future of all partitions. Only counts are kept in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush

from msgspec import Struct

from everbell.core.event import Event, Repeat, position_at
from everbell.core.recurrence import jump, upcoming
from everbell.stores.paging import last_of
from everbell.stores.port import Page, Store

# The number of rows, and of occurrences of recurring events, that one forecast counts.
ROWS_MAX = 200_000
_PAGE = 500
# The number of occurrences that are counted before other tasks run on the loop.
_STEPS_PER_TURN = 250

# `Store.page`, as a read of the store writer.
ReadPage = Callable[[int, int, int, int], Awaitable[Page]]


class Forecast(Struct, frozen=True):
    """The number of attempts due in each span of time from `from_at` on, and the overdue events."""

    from_at: int
    per_ms: int
    due: list[int]
    overdue: int = 0
    oldest_at: int | None = None
    """The due time of the oldest overdue event."""
    known_until_at: int | None = None
    """From this time on, events may be missing from the counts. None: all events were counted."""


class Forecaster:
    """Makes one forecast, for one tenant or for all tenants."""

    def __init__(self, store: Store, read: ReadPage, tenant: str | None, now: int, per_ms: int, count: int) -> None:
        self._store = store
        self._read = read
        self._tenant = tenant
        self._now = now
        self._from_at = now - now % per_ms
        self._until_at = self._from_at + per_ms * count - 1
        self._per_ms = per_ms
        self._due = [0] * count
        self._overdue = 0
        self._oldest_at: int | None = None
        self._rows_left = ROWS_MAX

    async def run(self) -> Forecast:
        """Read and count."""
        reached = [(-1, partition) for partition in range(self._store.partitions)]
        heapify(reached)
        while reached and self._rows_left > 0:
            after, partition = heappop(reached)
            page = await self._page(partition, after)
            if page.more:
                heappush(reached, (last_of(page), partition))
            await asyncio.sleep(0)
        known_until_at = max(position_at(reached[0][0]), self._now) if reached else None
        for partition in range(self._store.partitions):
            await self._count_waiting(partition)
        if self._rows_left <= 0 and known_until_at is None:
            known_until_at = self._now
        return Forecast(self._from_at, self._per_ms, self._due, self._overdue, self._oldest_at, known_until_at)

    async def _page(self, partition: int, after: int) -> Page:
        page = await self._read(partition, after, self._until_at, _PAGE)
        self._rows_left -= len(page.events)
        for event in page.events:
            if self._tenant not in (None, event.tenant):
                continue
            if event.run_at <= self._now:
                self._is_overdue(event)
            else:
                self._is_due(event.run_at)
            if event.repeat is not None:
                await self._count_later(event, event.repeat)
        return page

    async def _count_later(self, event: Event, repeat: Repeat) -> None:
        """Count the occurrences after the current one."""
        ahead = jump(event, self._now)
        if ahead.due_at is None:
            return
        for _, at in upcoming(repeat, ahead.due_at, event.occurrence + ahead.steps):
            if at > self._until_at or self._rows_left <= 0:
                return
            self._rows_left -= 1
            self._is_due(at)
            if self._rows_left % _STEPS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _count_waiting(self, partition: int) -> None:
        """Count the events in line behind a key. They are overdue, too."""
        after = ("", "")
        while self._rows_left > 0:
            rows = await self._store.blocked(partition, after, _PAGE)
            for tenant, key, _ in rows:
                if self._tenant in (None, tenant):
                    await self._count_line(partition, tenant, key)
            self._rows_left -= len(rows)
            if len(rows) < _PAGE:
                return
            after = rows[-1][:2]

    async def _count_line(self, partition: int, tenant: str, key: str) -> None:
        after = -1
        while self._rows_left > 0:
            page = await self._store.waiting(partition, tenant, key, after, _PAGE)
            self._rows_left -= len(page.events)
            for event in page.events:
                self._is_overdue(event)
            if not page.more or not page.events:
                return
            after = page.events[-1].order

    def _is_due(self, at: int) -> None:
        self._due[(at - self._from_at) // self._per_ms] += 1

    def _is_overdue(self, event: Event) -> None:
        self._overdue += 1
        if self._oldest_at is None or event.due_at < self._oldest_at:
            self._oldest_at = event.due_at
