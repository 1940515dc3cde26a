"""Reading events from Cassandra: pages in order, and single events by name. Every call has a limit of rows.

A page starts at the first bucket with unfinished events, because reading over deleted rows would take longer and
longer. The shards of a bucket are read at once and merged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Any
from zlib import crc32

import msgspec

from everbell.core.event import position
from everbell.stores import paging
from everbell.stores.cassandra.buckets import BUCKET_MS, SHARDS, BucketPlace, Buckets, bucket_of
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.paging import AT_MAX, LEFT_OUT_PER_EVENT, first_after, page_of
from everbell.stores.port import Page
from everbell.stores.rows import HEAD_BYTES, head_of_stem
from everbell.stores.table_writes import IndexEntry, TablePlace
from everbell.stores.write_path import EventName

RECORD_PARTS = 16
DEAD_PARTS = 16
_BUCKETS_AT_ONCE = 64
_FEW = 16
_ROWS_AT_FIRST = 100
_GROWTH = 4

ShelfRow = tuple[int, int, bytes]  # A time, a sequence and a body.

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

read_entry = msgspec.msgpack.Decoder(IndexEntry).decode


def part_of_record(event_id: str) -> int:
    """The part of its hour in which the record of an event lies. Fixed for ever."""
    return crc32(event_id.encode()) % RECORD_PARTS


def part_of_dead(sequence: int) -> int:
    """The part in which a dead event lies. Fixed for ever."""
    return sequence % DEAD_PARTS


class ReadPace:
    """How many rows to ask for at a time: few at first, because their size is unknown."""

    def __init__(self) -> None:
        self.rows = _ROWS_AT_FIRST
        self._bytes = 0

    def is_enough(self, rows: Sequence[Any]) -> bool:
        """Count the bytes of rows. Whether all rows so far have the bytes of a page."""
        self._bytes += sum(len(row[2]) for row in rows)
        if self._bytes * _GROWTH < paging.PAGE_BYTES_MAX:
            self.rows *= _GROWTH
        return self._bytes >= paging.PAGE_BYTES_MAX


class CassandraReader:
    """Reads at one level of consistency; None is the floor."""

    def __init__(self, link: CassandraSession, level: str | None = None, empty: set[BucketPlace] | None = None) -> None:
        """The reader adds buckets without events to `empty`."""
        self._link = link
        self._store = link.address.store
        self._level = level
        self._empty = empty

    async def scheduled(
        self, partition: int, low: int, after: int, until_at: int, limit: int
    ) -> tuple[list[ShelfRow], bool, int | None]:
        """Up to `limit` rows after a position and up to a time, from the bucket `low` on. Also whether there are more,
        and if not, the time of the first row beyond."""
        start, until_at = first_after(after), min(until_at, AT_MAX)
        rows: list[ShelfRow] = []
        pace = ReadPace()
        async for bucket, shards in self._buckets(partition, max(bucket_of(start[0]), low)):
            is_whole = bucket > bucket_of(until_at)
            before = len(rows) if start <= (bucket * BUCKET_MS, 0) and not is_whole else -1
            while not is_whole:
                # One more than the limit shows whether there are more.
                left = min(limit + 1 - len(rows), pace.rows)
                more, is_whole = await self._merged(partition, bucket, shards, start, until_at, left)
                rows += more
                if len(rows) > limit:
                    return rows[:limit], True, None
                if pace.is_enough(more):
                    return rows, True, None
                if more:
                    start = first_after(position(*more[-1][:2]))
            if (bucket + 1) * BUCKET_MS <= until_at:
                if len(rows) == before and self._empty is not None:
                    self._empty.add((partition, bucket))
            else:
                first_at = await self._first_after(partition, bucket, shards, start, until_at)
                if first_at is not None:
                    return rows, False, first_at
        return rows, False, None

    async def _buckets(self, partition: int, bucket: int) -> AsyncIterator[tuple[int, list[int]]]:
        """The buckets of a partition from `bucket` on, with their shards."""
        is_last = False
        while not is_last:
            found = await self._ask(_BUCKETS, partition, bucket, _BUCKETS_AT_ONCE)
            is_last = len(found) < _BUCKETS_AT_ONCE
            shards: dict[int, list[int]] = {}
            for bucket, shard in found:
                shards.setdefault(bucket, []).append(shard)
            if not is_last:  # The last bucket of the page may have more shards.
                shards[bucket] = [row[0] for row in await self._ask(SHARDS, partition, bucket)]
            for number, own in shards.items():
                yield number, own
            bucket += 1

    async def _merged(
        self, partition: int, bucket: int, shards: Sequence[int], start: tuple[int, int], until_at: int, limit: int
    ) -> tuple[list[ShelfRow], bool]:
        """Rows of a bucket in order, and whether they are all."""
        depth = limit if len(shards) == 1 else min(max(2 * limit // len(shards), _FEW), limit)
        places = [(self._store, partition, bucket, shard, *start, until_at, depth) for shard in shards]
        parts = await self._link.ask_all(_SHARD, places, self._level)
        rows, is_whole = merged((part, len(part) == depth) for part in parts)
        return rows[:limit], is_whole and len(rows) <= limit

    async def _first_after(
        self, partition: int, bucket: int, shards: Sequence[int], start: tuple[int, int], until_at: int
    ) -> int | None:
        """The time of the first row of a bucket after `until_at`."""
        if until_at == AT_MAX:
            return None
        start = max(start, (until_at + 1, 0))
        places = [(self._store, partition, bucket, shard, *start) for shard in shards]
        found = await self._link.ask_all(_FIRST_AFTER, places, self._level)
        return min((rows[0][0] for rows in found if rows), default=None)

    async def line(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        rows: list[tuple[Any, ...]] = []
        pace = ReadPace()
        more = True
        while more and len(rows) <= limit:
            wanted = min(limit + 1 - len(rows), pace.rows)
            some = await self.line_rows(partition, tenant, key, after, wanted)
            rows += some
            more = len(some) == wanted
            if pace.is_enough(some):
                break
            after = position(*some[-1][:2]) if some else after
        place = msgspec.msgpack.encode((tenant, key))
        return page_of(((*row,) for row in rows[:limit]), partition, limit, None, more=more, place=place)

    async def line_rows(self, partition: int, tenant: str, key: str, after: int, limit: int) -> list[tuple[Any, ...]]:
        return await self._ask(_LINE, partition, tenant, key, *first_after(after), limit)

    async def heads(self, partition: int, names: Sequence[tuple[str, str]]) -> list[int | None]:
        found = await self._link.ask_all(_HEAD, [(self._store, partition, *name) for name in names], self._level)
        return [rows[0][0] if rows else None for rows in found]

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> list[tuple[str, str, int]]:
        return [(row[0], row[1], row[2]) for row in await self._ask(_BLOCKED, partition, *after, limit)]

    async def bodies(self, places: Sequence[TablePlace]) -> Sequence[bytes | None]:
        return await asyncio.gather(*(self.body(place) for place in places))

    async def entries(self, names: Collection[EventName]) -> dict[EventName, tuple[IndexEntry, bytes | None]]:
        places = [(self._store, *name) for name in names]
        rows = zip(names, await self._link.ask_all(_ID, places, self._level), strict=True)
        entries = {name: read_entry(row[0][0]) for name, row in rows if row}
        bodies = await asyncio.gather(*(self._entry_body(name, entry) for name, entry in entries.items()))
        return dict(zip(entries, zip(entries.values(), bodies, strict=True), strict=True))

    async def finished(self, tenant: str, event_id: str) -> bytes | None:
        # There is no index of records by id, because an entry would cost as much as a record.
        part = part_of_record(event_id)
        places = [(self._store, hour, tenant, part, event_id) for (hour,) in await self._ask(HOURS)]
        found = await self._link.ask_all(_RECORD, places, self._level)
        return next((rows[0][0] for rows in found if rows), None)

    async def _entry_body(self, name: EventName, entry: IndexEntry) -> bytes | None:
        table, partition, at, sequence, key = entry
        tenant, event_id = name
        if table == "H":
            rows = await self._ask(_RECORD, at, tenant, part_of_record(event_id), event_id)
            return rows[0][0] if rows else None
        if table == "W":
            return await self.body(("W", (partition, tenant, key or "", at, sequence)))
        return await self.body((table, (partition, at, sequence) if table == "E" else (tenant, at, sequence)))

    async def body(self, place: TablePlace) -> bytes | None:
        table, key = place
        if table == "W":
            rows = await self._ask(_WAITING_ONE, *key)
        elif table == "D":
            tenant, run_at, sequence = key
            rows = await self._ask(_DEAD_ONE, tenant, part_of_dead(int(sequence)), run_at, sequence)
        else:
            partition, run_at, sequence = map(int, key)
            bucket = bucket_of(run_at)
            shards = await self._ask(SHARDS, partition, bucket)
            places = [(self._store, partition, bucket, shard, run_at, sequence) for shard, _ in shards]
            rows = [row for rows in await self._link.ask_all(_SCHEDULED_ONE, places, self._level) for row in rows]
        return rows[0][0] if rows else None

    async def _ask(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._link.ask(text, self._store, *values, level=self._level)


def merged(parts: Iterable[tuple[Sequence[Any], bool]]) -> tuple[list[Any], bool]:
    """Rows of several places, each with whether it has more, in order up to the place where the first of them ends.
    Also whether that is all."""
    rows: list[Any] = []
    ends: list[Any] = []
    for part, more in parts:
        rows += part
        if more:
            ends.append(part[-1][:2])
    rows.sort(key=lambda row: row[:2])
    if ends:
        end = min(ends)
        rows = [row for row in rows if row[:2] <= end]
    return rows, not ends


async def read_page(
    reader: CassandraReader,
    buckets: Buckets,
    partition: int,
    after: int,
    until_at: int,
    limit: int,
    without: Collection[tuple[str, str]],
) -> Page:
    low = await buckets.low_of(partition)
    looked = limit + limit * LEFT_OUT_PER_EVENT if without else limit
    rows, more, next_at = await reader.scheduled(partition, low, after, until_at, looked)
    heads = {head_of_stem(tenant, stem) for tenant, stem in without}
    wanted = ((at, sequence, None if body[:HEAD_BYTES] in heads else body) for at, sequence, body in rows)
    return page_of(wanted if heads else rows, partition, limit, next_at, more=more)
