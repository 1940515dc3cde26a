"""The store in memory: for tests, for trying things out, and for events that need not outlive the process.

It keeps every rule of the port but durability. Events lie in a dictionary by their sequence, which is unique, and
the order of each space is a list of positions; spread over partitions and keys, the lists stay short enough for
plain insertion.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import assert_never

from msgspec.structs import replace

from everbell.core.event import Event, Record, position
from everbell.core.ids import SEQUENCE_MAX, is_made
from everbell.core.time import HOUR_MS
from everbell.errors import StoreUnusable
from everbell.stores.memory_find import Name, Shelves, search
from everbell.stores.parcel import Parcel
from everbell.stores.port import (
    Add,
    Block,
    Change,
    Counts,
    Filter,
    Finish,
    Found,
    Move,
    Page,
    Poison,
    Refusal,
    Unblock,
    Write,
)
from everbell.stores.semantics import check_claim, check_fence, check_raise, is_current, is_left_out


class MemoryStore:
    """See the port."""

    group_changes = 1_000
    prepares = False
    takes_parcels = True

    def __init__(self, partitions: int = 256) -> None:
        self.partitions = partitions
        self.epoch = 0
        self._epochs = dict.fromkeys(range(partitions), 0)
        self._claim: tuple[str, int] | None = None
        self._blocks = -1
        self._shelves = Shelves(partitions)
        self._lies_at: dict[tuple[str, str], int | Name] = {}
        """By (tenant, id): the sequence of an event that is not finished, or the name of its record."""
        self._heads: dict[tuple[int, str, str], int] = {}
        self._counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(Counts.__struct_fields__, 0))

    async def claim(self, cluster: str) -> int:
        """See the port."""
        owner, epoch = self._claim = self._claim or (cluster, self.epoch)
        check_claim(owner, cluster)
        return epoch

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        """See the port. Several nodes of a test may share one store, so each taker gets sequences of its own."""
        check_raise(epochs, self._epochs)
        self._epochs.update(epochs)
        self.epoch = max(self.epoch, *epochs.values(), 0)
        self._blocks += 1
        return self._blocks << 32

    async def apply(self, changes: Sequence[Write], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        """See the port."""
        check_fence(changes, epochs, self._epochs)
        outcomes = ((index, self._make(change)) for index, change in enumerate(changes))
        return {index: refusal for index, refusal in outcomes if refusal is not None}

    def _make(self, change: Write) -> Refusal | None:
        match change:
            case Parcel():
                for event in change.events():
                    self._add(event)
            case Add():
                return self._add(change.event)
            case Move():
                return self._move(change)
            case Finish():
                return self._finish(change)
            case Block():
                self._heads[change.partition, change.tenant, change.key] = change.head
            case Unblock():
                self._heads.pop((change.partition, change.tenant, change.key), None)
            case _:
                assert_never(change)
        return None

    def _add(self, event: Event) -> Refusal | None:
        existing = None if is_made(event.id) else self._existing(event)
        if existing is not None:
            return Refusal(existing)
        self._put(event)
        self._counts[event.tenant][_kind(event)] += 1
        return None

    def _existing(self, event: Event) -> Event | Record | None:
        place = self._lies_at.get((event.tenant, event.id))
        if isinstance(place, int):
            return self._shelves.events.get(place)
        if place is None:
            return None
        record, keep_until_at = self._shelves.records[place[0]][place]
        return record if keep_until_at > event.created_at else None

    def _move(self, change: Move) -> Refusal | None:
        before, after = change.before, change.after
        if change.guarded and not self._is_stored(before):
            return Refusal(None)
        self._take(before)
        self._put(after)
        tally = self._counts[after.tenant]
        tally[_kind(before)] -= 1
        tally[_kind(after)] += 1
        return None

    def _finish(self, change: Finish) -> Refusal | None:
        before, record, following = change.before, change.record, change.following
        if change.guarded and not self._is_stored(before):
            return Refusal(None)
        hour = change.keep_until_at // HOUR_MS
        name = (hour, record.tenant, record.id, 0 if following is None else record.occurrence)
        self._shelves.records[hour][name] = record, change.keep_until_at
        self._take(before)
        tally = self._counts[record.tenant]
        tally[record.status] += 1
        if following is None:
            self._lies_at[record.tenant, record.id] = name
            tally[_kind(before)] -= 1
        else:
            self._put(following)
        return None

    def _is_stored(self, named: Event) -> bool:
        stored = self._shelves.events.get(named.sequence)
        return stored is not None and is_current(stored, named)

    def _put(self, event: Event) -> None:
        insort(*self._shelves.spot(event))
        self._shelves.events[event.sequence] = event
        self._lies_at[event.tenant, event.id] = event.sequence

    def _take(self, event: Event) -> None:
        shelf, place = self._shelves.spot(event)
        index = bisect_left(shelf, place)
        if shelf[index : index + 1] == [place]:
            del shelf[index]
        self._shelves.events.pop(event.sequence, None)

    async def prepare(self, changes: Sequence[Change]) -> None:
        """See the port."""

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        """See the port."""
        shelf = self._shelves.scheduled[partition]
        start = bisect_right(shelf, after)
        stop = bisect_right(shelf, position(until_at, SEQUENCE_MAX))
        next_at = shelf[stop] >> 56 if start <= stop < len(shelf) else None
        page = self._page(shelf, start, stop, limit, next_at)
        if not without:
            return page
        events = [event for event in page.events if not is_left_out(event, without)]
        left_out = len(page.events) - len(events)
        return replace(page, events=events, left_out=left_out, last=shelf[start + limit - 1] if page.more else None)

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        """See the port."""
        line = self._shelves.waiting.get((partition, tenant, key), [])
        return self._page(line, bisect_right(line, after), len(line), limit, None)

    def _page(self, shelf: list[int], start: int, stop: int, limit: int, next_at: int | None) -> Page:
        events = [self._shelves.at(place) for place in shelf[start : min(start + limit, stop)]]
        more = start + limit < stop
        return Page(events, more, None if more else next_at)

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        """See the port."""
        return [self._heads.get((partition, tenant, key)) for tenant, key in keys]

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        """See the port."""
        names = sorted(name[1:] for name in self._heads if name[0] == partition and name[1:] > after)
        return [(tenant, key, self._heads[partition, tenant, key]) for tenant, key in names[:limit]]

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        """See the port."""
        place = self._lies_at.get((tenant, event_id))
        if place is None:
            return None
        if isinstance(place, int):
            return self._shelves.events.get(place)
        return self._shelves.records[place[0]][place][0]

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        """See the port."""
        return search(self._shelves, filter, cursor, limit)

    async def counts(self) -> Mapping[str, Counts]:
        """See the port."""
        return {tenant: Counts(**tally) for tenant, tally in self._counts.items()}

    async def bury(self, poison: Poison) -> None:
        """See the port. Nothing here is ever undecodable, but what is named goes."""
        event = self._shelves.events.get(poison.sequence)
        if event is not None and event.state == "scheduled" and event.run_at == poison.run_at:
            self._take(event)

    async def sweep(self, now: int, limit: int) -> int:
        """See the port."""
        records = self._shelves.records
        gone = 0
        for hour in sorted(records):
            if (hour + 1) * HOUR_MS > now or gone >= limit:
                break
            for name in list(islice(sorted(records[hour]), limit - gone)):
                del records[hour][name]
                gone += 1
                if self._lies_at.get(name[1:3]) == name:
                    del self._lies_at[name[1:3]]
            if not records[hour]:
                del records[hour]
        return gone

    async def backup(self, path: str) -> None:
        """There is nothing that could be opened again."""
        raise StoreUnusable("memory: keeps nothing on disk, so it cannot be backed up: use rocksdb:PATH")

    async def close(self) -> None:
        """See the port."""


def _kind(event: Event) -> str:
    return "dead" if event.state == "dead" else "pending"
