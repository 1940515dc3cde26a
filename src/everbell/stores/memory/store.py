"""The store in memory: for tests, for first experiments, and for events that need not outlive the process.

It keeps every rule of the port except durability.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from everbell.core.event import Event, Record, position, position_at
from everbell.core.ids import SEQUENCE_MAX
from everbell.core.time import HOUR_MS
from everbell.errors import StoreUnusable
from everbell.stores.fence_checks import check_claim, check_fence, check_raise
from everbell.stores.memory.find import search
from everbell.stores.memory.positions import Positions
from everbell.stores.memory.shelves import Shelves
from everbell.stores.paging import is_left_out
from everbell.stores.port import Change, Counts, Filter, Found, Page, Poison, Preparer, Refusal
from everbell.stores.write_path import WritePath

_LAST = 1 << 128
"""Above all positions."""


class MemoryStore:
    """A `Store` in memory."""

    group_changes = 1_000
    row_maker = Shelves.row_maker
    preparer: Preparer | None = None

    def __init__(self, partitions: int = 256) -> None:
        self.partitions = partitions
        self.epoch = 0
        self._epochs = dict.fromkeys(range(partitions), 0)
        self._claim: tuple[str, int] | None = None
        self._blocks = -1
        self._shelves = Shelves(partitions)

    async def claim(self, cluster: str) -> int:
        owner, epoch = self._claim = self._claim or (cluster, self.epoch)
        check_claim(owner, cluster)
        return epoch

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        # Several nodes of a test may share one store, so each caller gets its own sequences.
        check_raise(epochs, self._epochs)
        self._epochs.update(epochs)
        self.epoch = max(self.epoch, *epochs.values(), 0)
        self._blocks += 1
        return self._blocks << 32

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        check_fence(changes, epochs, self._epochs)
        path = WritePath(changes, self._shelves)
        path.make(0, len(changes))
        return path.refusals

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        page, places = self._page(self._shelves.scheduled[partition], after, position(until_at, SEQUENCE_MAX), limit)
        if not without:
            return page
        events = [event for event in page.events if not is_left_out(event, without)]
        left_out = len(page.events) - len(events)
        return replace(page, events=events, left_out=left_out, last=places[-1] if page.more else None)

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        line = self._shelves.waiting.get((partition, tenant, key))
        return Page([], False, None) if line is None else self._page(line, after, _LAST, limit)[0]

    def _page(self, shelf: Positions, after: int, until: int, limit: int) -> tuple[Page, list[int]]:
        """A page, and the positions of its events."""
        found = list(islice(shelf.after(after), limit + 1))
        count = bisect_right(found, until)
        more = count > limit
        next_at = position_at(found[count]) if count < len(found) and not more else None
        places = found[: min(count, limit)]
        return Page([self._shelves.at(place) for place in places], more, next_at), places

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        return [self._shelves.heads.get((partition, tenant, key)) for tenant, key in keys]

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        heads = self._shelves.heads
        names = sorted(name[1:] for name in heads if name[0] == partition and name[1:] > after)
        return [(tenant, key, heads[partition, tenant, key]) for tenant, key in names[:limit]]

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        return self._shelves.get(tenant, event_id)

    async def get_many(self, tenant: str, event_ids: Sequence[str]) -> list[Event | Record | None]:
        return [self._shelves.get(tenant, event_id) for event_id in event_ids]

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        return await search(self._shelves, filter, cursor, limit)

    async def counts(self) -> Mapping[str, Counts]:
        return {tenant: Counts(*tally) for tenant, tally in self._shelves.counts.items()}

    async def bury(self, poison: Poison) -> None:
        # All events here can be decoded, but a test may bury one.
        event = self._shelves.events.get(poison.sequence)
        if event is not None and event.state == "scheduled" and event.run_at == poison.run_at:
            self._shelves.take(event)

    async def sweep(self, now: int, limit: int) -> int:
        gone = 0
        for hour in sorted(self._shelves.records):
            if (hour + 1) * HOUR_MS > now or gone >= limit:
                break
            gone += self._shelves.forget(hour, limit - gone)
        return gone

    async def backup(self, path: str) -> None:
        raise StoreUnusable("this server keeps nothing on disk, so there is nothing to back up: use rocksdb:PATH")

    async def close(self) -> None:
        """Nothing to release."""
