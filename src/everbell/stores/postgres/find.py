"""Searching a PostgreSQL store: read rows in order, and keep those that match.

There are no indexes except the primary keys, so a search reads every row that may match, in slices of a limited number
of rows and bytes. Scheduled events lie by partition and are merged: a slice takes the next few of each partition, and
is complete up to the place where the first partition ends. The server looks for the tenant's name in the bytes of a
row, so it does not send most rows of other tenants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everbell.stores import paging
from everbell.stores.port import Filter, Found
from everbell.stores.postgres.connection import Connection
from everbell.stores.postgres.reads import bounded
from everbell.stores.rows import encode
from everbell.stores.searching import (
    FIRST,
    NUMBER_MAX,
    SearchPlace,
    SearchSlice,
    SearchSlices,
    collect,
    read_cursor,
    read_place,
)

SLICE = 2_000  # How many rows one statement examines.

_SCHEDULED = bounded(
    "run_at, sequence",
    """
    SELECT s.run_at, s.sequence, CASE WHEN position($1 IN s.body) > 0 THEN s.body END AS body, p.partition
    FROM unnest($2::int[]) AS p (partition) CROSS JOIN LATERAL (
        SELECT run_at, sequence, body FROM scheduled
        WHERE partition = p.partition AND (run_at, sequence) > ($3, $4)
        ORDER BY run_at, sequence LIMIT $5
    ) AS s""",
    "$6",
    "partition",
)
_WAITING = bounded(
    "partition, key, due_at, sequence",
    """
    SELECT w.* FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[]) AS p (partition, key, due_at, sequence)
    CROSS JOIN LATERAL (
        SELECT * FROM waiting
        WHERE partition = p.partition AND tenant = $1 AND (key, due_at, sequence) > (p.key, p.due_at, p.sequence)
        ORDER BY key, due_at, sequence LIMIT $6
    ) AS w""",
    "$7",
)
_LINE = bounded(
    "due_at, sequence",
    """
    SELECT * FROM waiting WHERE partition = $2 AND tenant = $1 AND key = $3 AND (due_at, sequence) > ($4, $5)
    ORDER BY due_at, sequence LIMIT $6""",
    "$7",
)
_DEAD = bounded(
    "run_at, sequence",
    """
    SELECT run_at, sequence, body FROM dead WHERE tenant = $1 AND (run_at, sequence) > ($2, $3)
    ORDER BY run_at, sequence LIMIT $4""",
    "$5",
)
# The rest of the hour in which the last slice ended, then the hours before it. Records have no payloads, so nothing
# limits their bytes.
_FINISHED = """
    WITH RECURSIVE hours (hour) AS (
        (SELECT hour FROM records WHERE hour < $2 ORDER BY hour DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT r.hour FROM records AS r WHERE r.hour < hours.hour ORDER BY r.hour DESC LIMIT 1)
        FROM hours WHERE hours.hour IS NOT NULL
    )
    (SELECT hour, id, occurrence, body FROM records
     WHERE hour = $2 AND tenant = $1 AND (id, occurrence) < ($3, $4)
     ORDER BY hour DESC, tenant DESC, id DESC, occurrence DESC LIMIT $5)
    UNION ALL
    (SELECT r.hour, r.id, r.occurrence, r.body FROM hours CROSS JOIN LATERAL (
        SELECT * FROM records WHERE hour = hours.hour AND tenant = $1
        ORDER BY hour DESC, tenant DESC, id DESC, occurrence DESC LIMIT $5
     ) AS r)
    LIMIT $5
"""


class PostgresSearch:
    """One call of `find`."""

    def __init__(self, connection: Connection, partitions: int, filter: Filter) -> None:
        self._connection = connection
        self._filter = filter
        self._partitions = list(range(partitions)) if filter.partition is None else [filter.partition]
        self._slices: SearchSlices = {"E": self._scheduled, "W": self._waiting, "D": self._dead, "H": self._finished}
        self._depth = max(SLICE // len(self._partitions), 4)

    async def run(self, cursor: str | None, limit: int) -> Found:
        """A page of at most `limit` matches, or the matches among a limited number of rows."""
        if "\0" in self._filter.tenant + (self._filter.key or ""):
            read_place(*read_cursor(self._filter, cursor))
            return Found([], None)  # No name contains a zero byte, and the server refuses to look for one.
        return await collect(self._slices, self._filter, cursor, limit)

    async def _scheduled(self, place: SearchPlace) -> SearchSlice:
        start = max(place, ((self._filter.from_at or 0) - 1, NUMBER_MAX))
        rows = await self._connection.fetch(
            _SCHEDULED, encode(self._filter.tenant), self._partitions, *start, self._depth, paging.PAGE_BYTES_MAX
        )
        return self._cut([((*row,)[:2], row) for row in rows])

    async def _waiting(self, place: SearchPlace) -> SearchSlice:
        tenant, key, partition = self._filter.tenant, self._filter.key, self._filter.partition
        if key is not None and partition is not None:
            # A forged place may name another key; the search stays with the filter's key.
            values = tenant, partition, key, *place[2:]
            line, is_last = _within(await self._connection.fetch(_LINE, *values, SLICE, paging.PAGE_BYTES_MAX))
            return [((partition, key, *spot), body) for spot, body in line], is_last
        own = [number for number in self._partitions if number >= place[0]]
        starts = [place if number == place[0] else (number, *FIRST["W"][1:]) for number in own]
        columns = map(list, zip(*starts, strict=True)) if starts else ([], [], [], [])
        rows = await self._connection.fetch(_WAITING, tenant, *columns, self._depth, paging.PAGE_BYTES_MAX)
        return self._cut([((*row,)[:4], row) for row in rows])

    def _cut(self, rows: list[tuple[SearchPlace, Any]]) -> SearchSlice:
        """The complete part of a slice: up to the last row that was read of some partition, or up to the bytes of a
        slice."""
        counts: dict[int, int] = {}
        good: list[tuple[SearchPlace, bytes | None]] = []
        for place, row in rows:
            if row["is_beyond"]:
                return good, False
            good.append((place, row["body"]))
            partition = row["partition"]
            counts[partition] = counts.get(partition, 0) + 1
            if counts[partition] == self._depth:
                if len(good) < SLICE // 4:
                    self._depth = min(self._depth * 4, SLICE)
                return good, False
        return good, True

    async def _dead(self, place: SearchPlace) -> SearchSlice:
        values = self._filter.tenant, *place
        return _within(await self._connection.fetch(_DEAD, *values, SLICE, paging.PAGE_BYTES_MAX))

    async def _finished(self, place: SearchPlace) -> SearchSlice:
        rows = await self._connection.fetch(_FINISHED, self._filter.tenant, *place, SLICE)
        return [((*row,)[:3], row["body"]) for row in rows], len(rows) < SLICE


def _within(rows: Sequence[Any]) -> SearchSlice:
    """The slice of rows (time, sequence, body) that need no merging."""
    good = [((*row,)[:2], row["body"]) for row in rows if not row["is_beyond"]]
    return good, len(good) < SLICE and len(good) == len(rows)
