"""Searching a PostgreSQL store: reading rows in order, and keeping those that match.

There is no index but the primary keys, so a search reads whatever may match, in slices of a bounded number of rows and
of bytes. Scheduled events lie by partition, and are merged: a slice takes the next few of each partition, and is good
up to where the first of them ends. The server compares bytes to spare the sending of most rows that belong to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everbell.stores.collecting import Slice, Slices, collect
from everbell.stores.places import FIRST, NUMBER_MAX, Place, read_place
from everbell.stores.port import Filter, Found
from everbell.stores.postgres_link import Connection
from everbell.stores.rows import encode
from everbell.stores.semantics import PAGE_BYTES_MAX, read_cursor

SLICE = 2_000
"""Rows that are examined by one statement."""

# What is beyond the bytes of a slice comes without its body, and marked.
_SCHEDULED = """
    SELECT run_at, sequence, CASE WHEN before < $6 THEN body END AS body, before >= $6 AS is_beyond, partition FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY run_at, sequence) - octet_length(body) AS before FROM (
            SELECT s.run_at, s.sequence, CASE WHEN position($1 IN s.body) > 0 THEN s.body END AS body, p.partition
            FROM unnest($2::int[]) AS p (partition) CROSS JOIN LATERAL (
                SELECT run_at, sequence, body FROM scheduled
                WHERE partition = p.partition AND (run_at, sequence) > ($3, $4)
                ORDER BY run_at, sequence LIMIT $5
            ) AS s
        ) AS looked
    ) AS counted ORDER BY run_at, sequence
"""
_WAITING = """
    SELECT partition, key, due_at, sequence, CASE WHEN before < $7 THEN body END AS body, before >= $7 AS is_beyond
    FROM (
        SELECT w.*, sum(octet_length(w.body)) OVER (ORDER BY w.partition, w.key, w.due_at, w.sequence)
            - octet_length(w.body) AS before
        FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[]) AS p (partition, key, due_at, sequence)
        CROSS JOIN LATERAL (
            SELECT * FROM waiting
            WHERE partition = p.partition AND tenant = $1 AND (key, due_at, sequence) > (p.key, p.due_at, p.sequence)
            ORDER BY key, due_at, sequence LIMIT $6
        ) AS w
    ) AS counted ORDER BY partition, key, due_at, sequence
"""
_LINE = """
    SELECT partition, key, due_at, sequence, CASE WHEN before < $7 THEN body END AS body, before >= $7 AS is_beyond
    FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY due_at, sequence) - octet_length(body) AS before FROM (
            SELECT * FROM waiting
            WHERE partition = $2 AND tenant = $1 AND key = $3 AND (due_at, sequence) > ($4, $5)
            ORDER BY due_at, sequence LIMIT $6
        ) AS looked
    ) AS counted ORDER BY due_at, sequence
"""
_DEAD = """
    SELECT run_at, sequence, CASE WHEN before < $5 THEN body END AS body, before >= $5 AS is_beyond FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY run_at, sequence) - octet_length(body) AS before FROM (
            SELECT run_at, sequence, body FROM dead WHERE tenant = $1 AND (run_at, sequence) > ($2, $3)
            ORDER BY run_at, sequence LIMIT $4
        ) AS looked
    ) AS counted ORDER BY run_at, sequence
"""
# Records have no payloads, and need no such care.
# The rest of the hour in which the last slice ended, then the hours before it.
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


class Search:
    """One call of `find`."""

    def __init__(self, connection: Connection, partitions: int, filter: Filter) -> None:
        self._connection = connection
        self._filter = filter
        self._partitions = list(range(partitions)) if filter.partition is None else [filter.partition]
        self._slices: Slices = {
            "E": self._scheduled,
            "W": self._waiting,
            "D": self._dead,
            "H": self._finished,
        }
        self._depth = max(SLICE // len(self._partitions), 4)

    async def run(self, cursor: str | None, limit: int) -> Found:
        """Collect a page of at most `limit` matches, or what is found among a number of rows."""
        if "\0" in self._filter.tenant + (self._filter.key or ""):
            read_place(*read_cursor(self._filter, cursor))
            return Found([], None)  # No name has it, and the server refuses to look for it.
        return await collect(self._slices, self._filter, cursor, limit)

    async def _scheduled(self, place: Place) -> Slice:
        start = max(place, ((self._filter.from_at or 0) - 1, NUMBER_MAX))
        rows = await self._connection.fetch(
            _SCHEDULED, encode(self._filter.tenant), self._partitions, *start, self._depth, PAGE_BYTES_MAX
        )
        return self._cut([((*row,)[:2], row) for row in rows])

    async def _waiting(self, place: Place) -> Slice:
        tenant, key, partition = self._filter.tenant, self._filter.key, self._filter.partition
        if key is not None and partition is not None:
            # A forged place may name another key; it is only ever continued in the line of the filter.
            return _within(
                await self._connection.fetch(_LINE, tenant, partition, key, *place[2:], SLICE, PAGE_BYTES_MAX), 4
            )
        own = [number for number in self._partitions if number >= place[0]]
        starts = [place if number == place[0] else (number, *FIRST["W"][1:]) for number in own]
        columns = map(list, zip(*starts, strict=True)) if starts else ([], [], [], [])
        rows = await self._connection.fetch(_WAITING, tenant, *columns, self._depth, PAGE_BYTES_MAX)
        return self._cut([((*row,)[:4], row) for row in rows])

    def _cut(self, rows: list[tuple[Place, Any]]) -> Slice:
        """The part of a slice up to where there may be more of a partition than was read, or where it is too large."""
        counts: dict[int, int] = {}
        good: list[tuple[Place, bytes | None]] = []
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

    async def _dead(self, place: Place) -> Slice:
        return _within(await self._connection.fetch(_DEAD, self._filter.tenant, *place, SLICE, PAGE_BYTES_MAX), 2)

    async def _finished(self, place: Place) -> Slice:
        rows = await self._connection.fetch(_FINISHED, self._filter.tenant, *place, SLICE)
        return [((*row,)[:3], row["body"]) for row in rows], len(rows) < SLICE


def _within(rows: Sequence[Any], width: int) -> Slice:
    """The rows of a slice of one place, which begin with where they lie."""
    good = [((*row,)[:width], row["body"]) for row in rows if not row["is_beyond"]]
    return good, len(good) < SLICE and len(good) == len(rows)
