"""Searching a Cassandra store: read rows in order, and keep those that match.

There are no indexes except the primary keys, so a search reads every row that may match, in slices of a limited number
of rows. Rows of several partitions are merged: a slice takes the next few of each, and is complete up to the place
where the first partition ends.
"""

from __future__ import annotations

import asyncio

from everbell.core.event import position
from everbell.core.ids import SEQUENCE_MAX
from everbell.stores.cassandra.buckets import LOW
from everbell.stores.cassandra.reads import DEAD_PARTS, HOURS, CassandraReader, merged
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.port import Filter, Found
from everbell.stores.searching import SearchPlace, SearchSlice, SearchSlices, collect

SLICE = 2_000  # How many rows are examined at a time.
_DEPTH_MIN = 8
_FAR = (1 << 63) - 1

_LINES = "SELECT key FROM lines WHERE store = ? AND partition = ? AND tenant = ? AND key >= ? LIMIT 1000"
_DEAD = (
    "SELECT run_at, sequence, body FROM dead WHERE store = ? AND tenant = ? AND part = ? "
    "AND (run_at, sequence) > (?, ?) LIMIT ?"
)
_SHELVES = "SELECT part FROM shelves WHERE store = ? AND hour = ? AND tenant = ?"
_RECORDS = (
    "SELECT id, occurrence, body FROM records WHERE store = ? AND hour = ? AND tenant = ? AND part = ? "
    "AND (id, occurrence) < (?, ?) LIMIT ?"
)
_RECORDS_ALL = (
    "SELECT id, occurrence, body FROM records WHERE store = ? AND hour = ? AND tenant = ? AND part = ? LIMIT ?"
)


class CassandraSearch:
    """One call of `find`."""

    def __init__(self, link: CassandraSession, partitions: int, filter: Filter, level: str | None) -> None:
        self._link = link
        self._store = link.address.store
        self._reader = CassandraReader(link, level)
        self._level = level
        self._filter = filter
        self._partitions = list(range(partitions)) if filter.partition is None else [filter.partition]
        self._slices: SearchSlices = {"E": self._scheduled, "W": self._waiting, "D": self._dead, "H": self._finished}
        self._lows: dict[int, int] | None = None

    async def run(self, cursor: str | None, limit: int) -> Found:
        """A page of at most `limit` matches, or the matches among a limited number of rows."""
        return await collect(self._slices, self._filter, cursor, limit)

    async def _scheduled(self, place: SearchPlace) -> SearchSlice:
        at, sequence = max(place, ((self._filter.from_at or 0) - 1, SEQUENCE_MAX))
        after = position(at, min(sequence, SEQUENCE_MAX)) if at >= 0 else -1
        if self._lows is None:
            rows = await self._link.ask_all(LOW, [(self._store, p) for p in self._partitions], self._level)
            self._lows = {p: row[0][0] if row else 0 for p, row in zip(self._partitions, rows, strict=True)}
        depth = max(SLICE // len(self._partitions), _DEPTH_MIN)
        reads = [self._reader.scheduled(p, low, after, _FAR, depth) for p, low in self._lows.items()]
        parts = await asyncio.gather(*reads)
        found, is_whole = merged((part, more) for part, more, _ in parts)
        return [((at, sequence), body) for at, sequence, body in found], is_whole

    async def _waiting(self, place: SearchPlace) -> SearchSlice:
        """One key after the other, in each partition; a slice ends with a partition, or when it is long enough."""
        partition, key, due_at, sequence = place
        rows: list[tuple[SearchPlace, bytes]] = []
        for number in self._partitions:
            if number < partition:
                continue
            is_same = number == partition
            for name in await self._lines(number, key if is_same else ""):
                after = position(due_at, min(sequence, SEQUENCE_MAX)) if is_same and name == key and due_at >= 0 else -1
                line = await self._reader.line_rows(number, self._filter.tenant, name, after, SLICE)
                rows += [((number, name, *spot), body) for *spot, body in line]
                if len(rows) >= SLICE:
                    return rows, False
        return rows, True

    async def _lines(self, partition: int, start: str) -> list[str]:
        only = self._filter.key
        names: list[str] = [only] if only is not None else []
        while only is None:
            page = await self._link.ask(_LINES, self._store, partition, self._filter.tenant, start, level=self._level)
            names += [row[0] for row in page]
            if len(page) < 1_000:
                break
            start = names[-1] + "\0"
        return names if only is None or only >= start else []

    async def _dead(self, place: SearchPlace) -> SearchSlice:
        depth = SLICE // DEAD_PARTS
        places = [(self._store, self._filter.tenant, part, *place, depth) for part in range(DEAD_PARTS)]
        parts = await self._link.ask_all(_DEAD, places, self._level)
        rows, is_whole = merged((part, len(part) == depth) for part in parts)
        return [((at, sequence), body) for at, sequence, body in rows], is_whole

    async def _finished(self, place: SearchPlace) -> SearchSlice:
        """The latest hour first; a slice is from one hour."""
        hour, event_id, occurrence = place
        hours = [row[0] for row in await self._link.ask(HOURS, self._store, level=self._level) if row[0] <= hour]
        for number in hours:
            within = (event_id, occurrence) if number == hour else None
            rows, is_last = await self._of_hour(number, within)
            if rows or not is_last:
                return rows, is_last and number == hours[-1]
        return [], True

    async def _of_hour(self, hour: int, before: tuple[str, int] | None) -> SearchSlice:
        tenant = self._filter.tenant
        parts = [row[0] for row in await self._link.ask(_SHELVES, self._store, hour, tenant, level=self._level)]
        depth = max(SLICE // max(len(parts), 1), _DEPTH_MIN)
        spot = (before or ()) + (depth,)
        places = [(self._store, hour, tenant, part, *spot) for part in parts]
        found = await self._link.ask_all(_RECORDS if before else _RECORDS_ALL, places, self._level)
        rows = sorted((row for part in found for row in part), key=lambda row: row[:2], reverse=True)
        ends = [part[-1][:2] for part in found if len(part) == depth]
        if ends:
            rows = [row for row in rows if row[:2] >= max(ends)]
        return [((hour, *spot), body) for *spot, body in rows], not ends
