"""Reading events from Cassandra: pages in order, and single ones by name. Each call reads a bounded number of rows.

A page goes through the buckets of a partition, from the one where unfinished work begins: what is finished before that
was deleted, and reading over it would take longer and longer. The shards of a bucket are read at once and merged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Any
from zlib import crc32

import msgspec

from everbell.core.event import Event, Record, position, position_at
from everbell.core.ids import SEQUENCE_MAX, is_made, place_in
from everbell.errors import StoreCorrupt
from everbell.stores.cassandra_buckets import BUCKET_MS, SHARDS, Buckets, Place, bucket_of
from everbell.stores.cassandra_link import Link
from everbell.stores.port import Page, Poison
from everbell.stores.rows import HEAD_BYTES, BadRow, head_of_stem, read_event, read_record
from everbell.stores.semantics import LEFT_OUT_PER_EVENT, PAGE_BYTES_MAX, Space
from everbell.stores.table_batch import Entry, Looked, Name, Spot, spot_of
from everbell.stores.view import Stored

RECORD_PARTS = 16
DEAD_PARTS = 16
_AT_MAX = (1 << 63) - 1
_BUCKETS_AT_ONCE = 64
_FEW = 16
_ROWS_AT_FIRST = 100
_GROWTH = 4

ShelfRow = tuple[int, int, bytes]
"""A time, a sequence and a body."""

_BUCKETS = "SELECT bucket, shard FROM buckets WHERE store = ? AND partition = ? AND bucket >= ? LIMIT ?"
_SHARD = (
    "SELECT run_at, sequence, body FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ? "
    "AND (run_at, sequence) >= (?, ?) AND (run_at) <= (?) LIMIT ?"
)
_FIRST_AFTER = (
    "SELECT run_at FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ? "
    "AND (run_at, sequence) >= (?, ?) LIMIT 1"
)
_LINE = (
    "SELECT due_at, sequence, body FROM waiting WHERE store = ? AND partition = ? AND tenant = ? AND key = ? "
    "AND (due_at, sequence) >= (?, ?) LIMIT ?"
)
_HEAD = "SELECT head FROM heads WHERE store = ? AND partition = ? AND tenant = ? AND key = ?"
_BLOCKED = "SELECT tenant, key, head FROM heads WHERE store = ? AND partition = ? AND (tenant, key) > (?, ?) LIMIT ?"
_SCHEDULED_ONE = (
    "SELECT body FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ? "
    "AND run_at = ? AND sequence = ?"
)
_WAITING_ONE = (
    "SELECT body FROM waiting WHERE store = ? AND partition = ? AND tenant = ? AND key = ? "
    "AND due_at = ? AND sequence = ?"
)
_DEAD_ONE = "SELECT body FROM dead WHERE store = ? AND tenant = ? AND part = ? AND run_at = ? AND sequence = ?"
_RECORD = (
    "SELECT body FROM records WHERE store = ? AND hour = ? AND tenant = ? AND part = ? AND id = ? AND occurrence = 0"
)
HOURS = "SELECT hour FROM hours WHERE store = ?"
_ID = "SELECT entry FROM ids WHERE store = ? AND tenant = ? AND id = ?"

_read_entry = msgspec.msgpack.Decoder(tuple[str, int, int, int, str | None]).decode


def part_of_record(event_id: str) -> int:
    """In which part of its hour the record of an event lies. Fixed for ever."""
    return crc32(event_id.encode()) % RECORD_PARTS


def part_of_dead(sequence: int) -> int:
    """In which part a dead event lies. Fixed for ever."""
    return sequence % DEAD_PARTS


class Pace:
    """How many rows to ask for at a time: few at first, for nobody knows how large they are."""

    def __init__(self) -> None:
        self.rows = _ROWS_AT_FIRST
        self._bytes = 0

    def is_enough(self, rows: Sequence[Any]) -> bool:
        """Take note of what came; whether that, with what came before, is all that may be read at a time."""
        self._bytes += sum(len(row[2]) for row in rows)
        if self._bytes * _GROWTH < PAGE_BYTES_MAX:
            self.rows *= _GROWTH
        return self._bytes >= PAGE_BYTES_MAX


class Reader:
    """Reads at one level of consistency; None is the floor."""

    def __init__(self, link: Link, level: str | None = None, empty: set[Place] | None = None) -> None:
        """`empty` is told of buckets in which nothing was found."""
        self._link = link
        self._store = link.address.store
        self._level = level
        self._empty = empty

    async def scheduled(
        self, partition: int, low: int, after: int, until_at: int, limit: int
    ) -> tuple[list[ShelfRow], bool, int | None]:
        """Up to `limit` rows after a position and up to a time, from the bucket `low` on; whether there are more, and
        if not, when the first beyond that time is.
        """
        start, until_at = beyond(after), min(until_at, _AT_MAX)
        rows: list[ShelfRow] = []
        pace = Pace()
        async for bucket, shards in self._buckets(partition, max(bucket_of(start[0]), low)):
            is_whole = bucket > bucket_of(until_at)
            before = len(rows) if start <= (bucket * BUCKET_MS, 0) and not is_whole else -1
            while not is_whole:
                # One more than fits tells whether there is more.
                left = min(limit + 1 - len(rows), pace.rows)
                more, is_whole = await self._merged(partition, bucket, shards, start, until_at, left)
                rows += more
                if len(rows) > limit:
                    return rows[:limit], True, None
                if pace.is_enough(more):
                    return rows, True, None
                if more:
                    start = beyond(position(*more[-1][:2]))
            if (bucket + 1) * BUCKET_MS <= until_at:
                if len(rows) == before and self._empty is not None:
                    self._empty.add((partition, bucket))
            else:
                first_at = await self._first_after(partition, bucket, shards, start, until_at)
                if first_at is not None:
                    return rows, False, first_at
        return rows, False, None

    async def _buckets(self, partition: int, bucket: int) -> AsyncIterator[tuple[int, list[int]]]:
        """The buckets of a partition from one on, with their shards."""
        is_last = False
        while not is_last:
            found = await self._ask(_BUCKETS, partition, bucket, _BUCKETS_AT_ONCE)
            is_last = len(found) < _BUCKETS_AT_ONCE
            shards: dict[int, list[int]] = {}
            for bucket, shard in found:
                shards.setdefault(bucket, []).append(shard)
            if not is_last:  # The last one may have more shards.
                shards[bucket] = [row[0] for row in await self._ask(SHARDS, partition, bucket)]
            for number, own in shards.items():
                yield number, own
            bucket += 1

    async def _merged(
        self, partition: int, bucket: int, shards: Sequence[int], start: tuple[int, int], until_at: int, limit: int
    ) -> tuple[list[ShelfRow], bool]:
        """Rows of a bucket in order, as far as all shards were read; and whether that is all of them."""
        depth = limit if len(shards) == 1 else min(max(2 * limit // len(shards), _FEW), limit)
        places = [(self._store, partition, bucket, shard, *start, until_at, depth) for shard in shards]
        parts = await self._link.ask_all(_SHARD, places, self._level)
        rows = sorted(row for part in parts for row in part)
        ends = [part[-1][:2] for part in parts if len(part) == depth]
        if ends:
            end = min(ends)
            rows = [row for row in rows if row[:2] <= end]
        is_whole = not ends and len(rows) <= limit
        return rows[:limit], is_whole

    async def _first_after(
        self, partition: int, bucket: int, shards: Sequence[int], start: tuple[int, int], until_at: int
    ) -> int | None:
        """The time of the first row of a bucket beyond a time."""
        if until_at == _AT_MAX:
            return None
        start = max(start, (until_at + 1, 0))
        places = [(self._store, partition, bucket, shard, *start) for shard in shards]
        found = await self._link.ask_all(_FIRST_AFTER, places, self._level)
        return min((rows[0][0] for rows in found if rows), default=None)

    async def line(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        """A page of the waiting events of a key."""
        rows: list[tuple[Any, ...]] = []
        pace = Pace()
        more = True
        while more and len(rows) <= limit:
            wanted = min(limit + 1 - len(rows), pace.rows)
            some = await self.line_rows(partition, tenant, key, after, wanted)
            rows += some
            more = len(some) == wanted
            if pace.is_enough(some):
                break
            after = position(*some[-1][:2]) if some else after
        return page_of(rows[:limit], partition, limit, None, more=more, place=msgspec.msgpack.encode((tenant, key)))

    async def line_rows(self, partition: int, tenant: str, key: str, after: int, limit: int) -> list[tuple[Any, ...]]:
        """Rows of the waiting events of a key."""
        return await self._ask(_LINE, partition, tenant, key, *beyond(after), limit)

    async def heads(self, partition: int, names: Sequence[tuple[str, str]]) -> list[int | None]:
        """The head of each (tenant, key), None where it is not blocked."""
        found = await self._link.ask_all(_HEAD, [(self._store, partition, *name) for name in names], self._level)
        return [rows[0][0] if rows else None for rows in found]

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> list[tuple[str, str, int]]:
        """The blocked keys of a partition after (tenant, key)."""
        return [(row[0], row[1], row[2]) for row in await self._ask(_BLOCKED, partition, *after, limit)]

    async def one(self, tenant: str, event_id: str) -> Event | Record | None:
        """The event, or what is kept of it. Raises `StoreCorrupt` when it is there and cannot be decoded."""
        try:
            home = await self._at_home(tenant, event_id)
            if home is not None:
                return home
            found = await self.look_up([(tenant, event_id)], strict=True)
            stored = found[tenant, event_id][1] if found else None
            if stored is None and is_made(event_id):
                stored = await self._record(tenant, event_id)
        except BadRow as bad:
            raise StoreCorrupt(f"the row of event {event_id!r} cannot be decoded ({bad})") from bad
        return stored[0] if isinstance(stored, tuple) else stored

    async def _at_home(self, tenant: str, event_id: str) -> Event | None:
        place = place_in(event_id)
        if place is None:
            return None
        due_at, sequence, partition = place
        body = await self.body("E", (partition, due_at, sequence)) if due_at <= _AT_MAX else None
        event = None if body is None else read_event(body)
        return event if event is not None and (event.tenant, event.id) == (tenant, event_id) else None

    async def _record(self, tenant: str, event_id: str) -> Stored | None:
        """There is no index of records by id, for each costs as much as the record itself; the hours are few."""
        part = part_of_record(event_id)
        hours = [row[0] for row in await self._ask(HOURS)]
        places = [(self._store, hour, tenant, part, event_id) for hour in hours]
        for rows in await self._link.ask_all(_RECORD, places, self._level):
            if rows:
                return read_record(rows[0][0])
        return None

    async def look_up(self, names: Collection[Name], *, strict: bool = False) -> Looked:
        """What ids stand for, by their entries. What cannot be read is left out, or raises `BadRow`."""
        places = [(self._store, *name) for name in names]
        rows = zip(names, await self._link.ask_all(_ID, places, self._level), strict=True)
        entries: dict[Name, Any] = {name: _read_entry(row[0][0]) for name, row in rows if row}
        bodies = await asyncio.gather(*(self._entry_body(name, entry) for name, entry in entries.items()))
        found: dict[Name, tuple[Entry, Stored | None]] = {}
        for (name, entry), body in zip(entries.items(), bodies, strict=True):
            stored: Stored | None = None
            try:
                if body is not None:
                    stored = read_record(body) if entry[0] == "H" else read_event(body)
            except BadRow:
                if strict:
                    raise
            found[name] = entry, stored
        return found

    async def _entry_body(self, name: Name, entry: Entry) -> bytes | None:
        space, partition, at, sequence, key = entry
        tenant, event_id = name
        if space == "W":
            return await self.body("W", (partition, tenant, key or "", at, sequence))
        if space == "H":
            rows = await self._ask(_RECORD, at, tenant, part_of_record(event_id), event_id)
            return rows[0][0] if rows else None
        return await self.body(space, (partition, at, sequence) if space == "E" else (tenant, at, sequence))

    async def spots(self, events: Iterable[Event]) -> dict[Spot, Event]:
        """What lies where these events are said to be."""
        spots = list({spot_of(event) for event in events})
        found: dict[Spot, Event] = {}
        for spot, body in zip(spots, await asyncio.gather(*(self.body(*spot) for spot in spots)), strict=True):
            try:
                if body is not None:
                    found[spot] = read_event(body)
            except BadRow:
                continue
        return found

    async def body(self, space: Space, key: Sequence[Any]) -> bytes | None:
        """The row at a spot."""
        if space == "W":
            rows = await self._ask(_WAITING_ONE, *key)
        elif space == "D":
            tenant, run_at, sequence = key
            rows = await self._ask(_DEAD_ONE, tenant, part_of_dead(sequence), run_at, sequence)
        else:
            partition, run_at, sequence = key
            bucket = bucket_of(run_at)
            shards = await self._ask(SHARDS, partition, bucket)
            places = [(self._store, partition, bucket, shard, run_at, sequence) for shard, _ in shards]
            rows = [row for rows in await self._link.ask_all(_SCHEDULED_ONE, places, self._level) for row in rows]
        return rows[0][0] if rows else None

    async def _ask(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._link.ask(text, self._store, *values, level=self._level)


async def read_page(
    reader: Reader,
    buckets: Buckets,
    partition: int,
    after: int,
    until_at: int,
    limit: int,
    without: Collection[tuple[str, str]],
) -> Page:
    """A page of scheduled events."""
    low = await buckets.low_of(partition)
    looked = limit + limit * LEFT_OUT_PER_EVENT if without else limit
    rows, more, next_at = await reader.scheduled(partition, low, after, until_at, looked)
    heads = {head_of_stem(tenant, stem) for tenant, stem in without}
    return page_of(rows, partition, limit, next_at, more=more, heads=heads)


def page_of(
    rows: Sequence[Any],
    partition: int,
    limit: int,
    next_at: int | None,
    *,
    more: bool,
    heads: Collection[bytes] = (),
    place: bytes = b"",
) -> Page:
    """A page of these rows; nobody wants those with these heads."""
    events: list[Event] = []
    poison: list[Poison] = []
    left = limit
    left_out, left_out_max = 0, limit * LEFT_OUT_PER_EVENT
    size_bytes = 0
    last = None
    for at, sequence, body in rows:
        if not left or (left_out == left_out_max and heads) or size_bytes >= PAGE_BYTES_MAX:
            return Page(events, True, None, poison, left_out, last)
        last = position(at, sequence)
        if heads and body[:HEAD_BYTES] in heads:
            left_out += 1
            continue
        left -= 1
        size_bytes += len(body)
        try:
            events.append(read_event(body))
        except BadRow as bad:
            poison.append(Poison(partition, at, sequence, body, str(bad), place))
    return Page(events, more, next_at, poison, left_out, last if more else None)


def beyond(place: int) -> tuple[int, int]:
    """The first (time, sequence) after a position."""
    start = max(place + 1, 0)
    return min(position_at(start), _AT_MAX), start & SEQUENCE_MAX
