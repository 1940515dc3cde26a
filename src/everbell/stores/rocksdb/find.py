"""Searching a RocksDB store: read rows in order, and keep those that match.

There is no index except the order of the keys, so a search reads every row that may match. Other tasks run after every
slice. Scheduled events are merged over all partitions, unless the filter names one. Finding the beginning of each
partition costs most, so the cursors stay open from slice to slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import merge
from itertools import islice
from struct import Struct

from rocksdict import Rdict

from everbell.stores.port import Filter, Found
from everbell.stores.rocksdb import keys
from everbell.stores.rocksdb.access import reading, scan, scan_back
from everbell.stores.rows import encode
from everbell.stores.searching import EXAMINED_MAX, Matches, Space, bad_cursor, read_cursor, spaces_of, write_cursor

SLICE = 2_000  # How many rows are examined before other tasks may run.

_PARTITION = Struct(">H")
_HOUR = Struct(">I")

RocksdbRows = Iterator[tuple[bytes, bytes]]  # (place, row): a cursor contains the place, without the tenant.


class RocksdbSearch:
    """One call of `find`."""

    def __init__(self, db: Rdict, partitions: int, hours: Collection[int], filter: Filter) -> None:
        self._db = db
        self._partitions = partitions
        self._hours = hours
        self._filter = filter
        self._needle = encode(filter.tenant)
        self._rows: dict[Space, Callable[[bytes], RocksdbRows]] = {
            "E": self._scheduled,
            "W": self._waiting,
            "D": self._dead,
            "H": self._finished,
        }

    async def run(self, cursor: str | None, limit: int) -> Found:
        """A page of at most `limit` matches, or the matches among `EXAMINED_MAX` rows."""
        first, place = read_cursor(self._filter, cursor)
        spaces = spaces_of(self._filter)
        found = Matches(self._filter, limit)
        examined = 0
        for space in spaces[spaces.index(first) :]:
            with reading:
                rows = self._rows[space](place)
            while True:
                with reading:
                    last = self._slice(space, rows, found)
                if last is None:
                    break
                examined += SLICE
                if found.is_full or examined >= EXAMINED_MAX:
                    return Found(found.events, write_cursor(space, last))
                await asyncio.sleep(0)
            place = b""
        return Found(found.events, None)

    def _slice(self, space: Space, rows: RocksdbRows, found: Matches) -> bytes | None:
        """Examine some rows. Returns the place of the last one, or None at the end."""
        place = None
        count = 0
        for place, row in islice(rows, SLICE):
            count += 1
            # Most rows may belong to other tenants, and searching bytes for the name is cheaper than decoding.
            if self._needle in row:
                found.examine_row(space, row)
                if found.is_full:
                    return place
        return place if count == SLICE else None

    def _scheduled(self, place: bytes) -> RocksdbRows:
        _check(place, len(place) in (0, keys.PLACE_BYTES))
        start = max(place + b"\0" if place else b"", keys.within(max(self._filter.from_at or 0, 0), 0))
        prefixes = [keys.partition_prefix(b"E", partition) for partition in self._own_partitions()]
        runs = [self._within(prefix + start, prefix) for prefix in prefixes]
        return merge(*runs) if len(runs) > 1 else runs[0]

    def _waiting(self, place: bytes) -> RocksdbRows:
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

    def _dead(self, place: bytes) -> RocksdbRows:
        _check(place, len(place) in (0, keys.PLACE_BYTES))
        prefix = keys.dead_prefix(self._filter.tenant)
        return self._within(prefix + place + b"\0" if place else prefix, prefix)

    def _finished(self, place: bytes) -> RocksdbRows:
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

    def _within(self, start: bytes, prefix: bytes) -> RocksdbRows:
        skip = len(prefix)
        for key, row in scan(self._db, start, keys.after_prefix(prefix)):
            yield key[skip:], row


def _check(place: bytes, is_right: bool) -> None:
    if not is_right:
        raise bad_cursor()
