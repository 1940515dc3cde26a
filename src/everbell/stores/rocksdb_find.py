"""Searching a RocksDB store: reading rows in order, and keeping those that match.

There is no index but the order of the keys, so a search reads whatever may match, and lets others have their turn
after every slice. Scheduled events are merged over all partitions, unless the filter's key tells which one; finding
the beginning of each partition is the larger part of the cost, so the cursors stay open from slice to slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import merge
from itertools import islice
from struct import Struct

from rocksdict import Rdict

from everbell.stores import rocksdb_keys as keys
from everbell.stores.port import Filter, Found
from everbell.stores.rocksdb_access import reading, scan, scan_back
from everbell.stores.rows import BadRow, encode, read_event, read_record
from everbell.stores.semantics import (
    EXAMINED_MAX,
    Catch,
    Space,
    bad_cursor,
    matches,
    read_cursor,
    spaces_of,
    write_cursor,
)

SLICE = 2_000
"""Rows that are examined without letting go of the loop."""

_PARTITION = Struct(">H")
_HOUR = Struct(">I")

Rows = Iterator[tuple[bytes, bytes]]
"""(place, row): the place is what a cursor remembers, without the tenant."""


class Search:
    """One call of `find`."""

    def __init__(self, db: Rdict, partitions: int, hours: Collection[int], filter: Filter) -> None:
        self._db = db
        self._partitions = partitions
        self._hours = hours
        self._filter = filter
        self._needle = encode(filter.tenant)
        self._rows: dict[Space, Callable[[bytes], Rows]] = {
            "E": self._scheduled,
            "W": self._waiting,
            "D": self._dead,
            "H": self._finished,
        }

    async def run(self, cursor: str | None, limit: int) -> Found:
        """Collect a page of at most `limit` matches, or what is found among `EXAMINED_MAX` rows."""
        first, place = read_cursor(self._filter, cursor)
        spaces = spaces_of(self._filter)
        catch = Catch(limit)
        examined = 0
        for space in spaces[spaces.index(first) :]:
            with reading:
                rows = self._rows[space](place)
            while True:
                with reading:
                    last = self._slice(space, rows, catch)
                if last is None:
                    break
                examined += SLICE
                if catch.is_full or examined >= EXAMINED_MAX:
                    return Found(catch.events, write_cursor(space, last))
                await asyncio.sleep(0)
            place = b""
        return Found(catch.events, None)

    def _slice(self, space: Space, rows: Rows, catch: Catch) -> bytes | None:
        """Examine some rows; the place of the last one, or None when there are no more."""
        place = None
        count = 0
        for place, row in islice(rows, SLICE):
            count += 1
            # Most rows may be those of other tenants: a glance spares their decoding.
            if self._needle in row:
                self._keep(space, row, catch)
                if catch.is_full:
                    return place
        return place if count == SLICE else None

    def _keep(self, space: Space, row: bytes, catch: Catch) -> None:
        try:
            event = read_record(row)[0] if space == "H" else read_event(row)
        except BadRow:
            return  # Whoever loads it will report it.
        if matches(self._filter, event):
            catch.add(event)

    def _scheduled(self, place: bytes) -> Rows:
        _check(place, len(place) in (0, keys.PLACE_BYTES))
        start = max(place + b"\0" if place else b"", keys.within(max(self._filter.from_at or 0, 0), 0))
        prefixes = [keys.partition_prefix(b"E", partition) for partition in self._own_partitions()]
        runs = [self._within(prefix + start, prefix) for prefix in prefixes]
        return merge(*runs) if len(runs) > 1 else runs[0]

    def _waiting(self, place: bytes) -> Rows:
        _check(place, not place or len(place) >= _PARTITION.size + keys.PLACE_BYTES)
        first = _PARTITION.unpack_from(place)[0] if place else 0
        tenant = self._filter.tenant.encode() + b"\0"
        for partition in self._own_partitions():
            if partition < first:
                continue
            tenants = keys.partition_prefix(b"W", partition) + tenant
            prefix = tenants if self._filter.key is None else tenants + self._filter.key.encode() + b"\0"
            after = place[_PARTITION.size :] + b"\0" if place and partition == first else b""
            start = max(prefix, tenants + after)
            for key, row in scan(self._db, start, keys.after_prefix(prefix)):
                yield _PARTITION.pack(partition) + key[len(tenants) :], row

    def _dead(self, place: bytes) -> Rows:
        _check(place, len(place) in (0, keys.PLACE_BYTES))
        prefix = keys.dead_prefix(self._filter.tenant)
        return self._within(prefix + place + b"\0" if place else prefix, prefix)

    def _finished(self, place: bytes) -> Rows:
        _check(place, not place or len(place) > _HOUR.size)
        latest = _HOUR.unpack_from(place)[0] if place else None
        tenant = self._filter.tenant.encode() + b"\0"
        for hour in sorted(self._hours, reverse=True):
            if latest is not None and hour > latest:
                continue
            prefix = keys.hour_prefix(hour) + tenant
            start = prefix + place[_HOUR.size :] if hour == latest else keys.after_prefix(prefix)
            for key, row in scan_back(self._db, start, prefix):
                yield _HOUR.pack(hour) + key[len(prefix) :], row

    def _own_partitions(self) -> Iterable[int]:
        return range(self._partitions) if self._filter.partition is None else (self._filter.partition,)

    def _within(self, start: bytes, prefix: bytes) -> Rows:
        skip = len(prefix)
        for key, row in scan(self._db, start, keys.after_prefix(prefix)):
            yield key[skip:], row


def _check(place: bytes, is_right: bool) -> None:
    if not is_right:
        raise bad_cursor()
