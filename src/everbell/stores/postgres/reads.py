"""Reading events from PostgreSQL: pages in order, and single events by name. Every call has a limit of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from everbell.core.event import Event, Record
from everbell.stores import paging
from everbell.stores.paging import AT_MAX, LEFT_OUT_PER_EVENT, first_after, page_of
from everbell.stores.port import Page
from everbell.stores.postgres.connection import Connection
from everbell.stores.rows import HEAD_BYTES, head_of_stem
from everbell.stores.table_reads import read_many, read_one
from everbell.stores.table_writes import IndexEntry, TableLetter, TablePlace
from everbell.stores.write_path import EventName


def bounded(place: str, rows: str, bytes_max: str, *more: str) -> str:
    """The statement for rows in the order of their places, with their bodies up to a number of bytes. Rows beyond that
    come without a body and with `is_beyond`."""
    body = f"CASE WHEN before < {bytes_max} THEN body END AS body"
    columns = ", ".join((place, body, f"before >= {bytes_max} AS is_beyond", *more))
    return f"""
    SELECT {columns} FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY {place}) - octet_length(body) AS before
        FROM ({rows}) AS looked
    ) AS counted ORDER BY {place}
"""  # noqa: S608 - made of constants of this package; values are arguments


_NEXT = """
    UNION ALL
    (SELECT run_at, sequence, NULL, false FROM scheduled
     WHERE partition = $1 AND (run_at, sequence) >= ($2, $3) AND run_at > $4
     ORDER BY run_at, sequence LIMIT 1)
"""
_PAGE_ROWS = """
    SELECT run_at, sequence, body FROM scheduled
    WHERE partition = $1 AND (run_at, sequence) >= ($2, $3) AND run_at <= $4
    ORDER BY run_at, sequence LIMIT $5"""
_PAGE = f"({bounded('run_at, sequence', _PAGE_ROWS, '$6')}) {_NEXT}"
# The rows of events that the page leaves out come without bodies, and do not count.
_PAGE_WITHOUT = f"""
    (SELECT run_at, sequence, CASE WHEN is_wanted AND before < $9 THEN body END AS body,
        is_wanted AND before >= $9
     FROM (
        SELECT *, sum(is_wanted::int) OVER (ORDER BY run_at, sequence) AS wanted,
            sum(is_wanted::int * octet_length(body)) OVER (ORDER BY run_at, sequence) - octet_length(body) AS before
        FROM (
            SELECT run_at, sequence, body, substring(body FOR $8) <> ALL ($7::bytea[]) AS is_wanted FROM scheduled
            WHERE partition = $1 AND (run_at, sequence) >= ($2, $3) AND run_at <= $4
            ORDER BY run_at, sequence LIMIT $6
        ) AS looked
     ) AS counted WHERE wanted <= $5 ORDER BY run_at, sequence)
    {_NEXT}
"""  # noqa: S608 - as above
_LINE = bounded(
    "due_at, sequence",
    """
    SELECT due_at, sequence, body FROM waiting
    WHERE partition = $1 AND tenant = $2 AND key = $3 AND (due_at, sequence) >= ($4, $5)
    ORDER BY due_at, sequence LIMIT $6""",
    "$7",
)
# One subquery for each name, because the planner begins a join with the wrong table if it believes that one is empty.
_HEADS = """
    SELECT (SELECT h.head FROM heads AS h WHERE h.partition = $1 AND h.tenant = n.tenant AND h.key = n.key)
    FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS n (tenant, key, place) ORDER BY n.place
"""
_BLOCKED = """
    SELECT tenant, key, head FROM heads
    WHERE partition = $1 AND (tenant, key) > ($2, $3) ORDER BY tenant, key LIMIT $4
"""
_LOOK_UP = """
    SELECT n.tenant, n.id, i.space, i.partition, i.at, i.sequence, i.key,
        CASE i.space
        WHEN 'E' THEN (SELECT body FROM scheduled AS s
                       WHERE s.partition = i.partition AND s.run_at = i.at AND s.sequence = i.sequence)
        WHEN 'W' THEN (SELECT body FROM waiting AS w WHERE w.partition = i.partition AND w.tenant = i.tenant
                       AND w.key = i.key AND w.due_at = i.at AND w.sequence = i.sequence)
        WHEN 'D' THEN (SELECT body FROM dead AS d
                       WHERE d.tenant = i.tenant AND d.run_at = i.at AND d.sequence = i.sequence)
        ELSE (SELECT body FROM records AS r
              WHERE r.hour = i.at AND r.tenant = i.tenant AND r.id = i.id AND r.occurrence = 0)
        END AS body
    FROM unnest($1::text[], $2::text[]) AS n (tenant, id)
    CROSS JOIN LATERAL (SELECT * FROM ids WHERE ids.tenant = n.tenant AND ids.id = n.id LIMIT 1) AS i
"""
_BODIES: dict[TableLetter, str] = {
    "E": """
    SELECT (SELECT s.body FROM scheduled AS s
            WHERE s.partition = n.partition AND s.run_at = n.run_at AND s.sequence = n.sequence)
    FROM unnest($1::int[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS n (partition, run_at, sequence, place)
    ORDER BY n.place""",
    "W": """
    SELECT (SELECT w.body FROM waiting AS w
            WHERE w.partition = n.partition AND w.tenant = n.tenant AND w.key = n.key
                AND w.due_at = n.due_at AND w.sequence = n.sequence)
    FROM unnest($1::int[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
    WITH ORDINALITY AS n (partition, tenant, key, due_at, sequence, place)
    ORDER BY n.place""",
    "D": """
    SELECT (SELECT d.body FROM dead AS d
            WHERE d.tenant = n.tenant AND d.run_at = n.run_at AND d.sequence = n.sequence)
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS n (tenant, run_at, sequence, place)
    ORDER BY n.place""",
}
# There is no index of records by id, because an entry would cost as much as a record. There are few hours.
_FINISHED = """
    WITH RECURSIVE hours (hour) AS (
        (SELECT hour FROM records ORDER BY hour DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT r.hour FROM records AS r WHERE r.hour < hours.hour ORDER BY r.hour DESC LIMIT 1)
        FROM hours WHERE hours.hour IS NOT NULL
    )
    SELECT r.body FROM hours CROSS JOIN LATERAL (
        SELECT body FROM records WHERE hour = hours.hour AND tenant = $1 AND id = $2 AND occurrence = 0
    ) AS r LIMIT 1
"""


class PostgresReader:
    """A `TableReader` that uses one connection."""

    def __init__(self, connection: Connection) -> None:
        self._fetch = connection.fetch
        self._fetchval = connection.fetchval

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]]
    ) -> Page:
        until_at = min(until_at, AT_MAX)
        place = partition, *first_after(after), until_at, limit + 1
        if without:
            looked = limit + limit * LEFT_OUT_PER_EVENT + 1
            heads = [head_of_stem(tenant, stem) for tenant, stem in without]
            rows = await self._fetch(_PAGE_WITHOUT, *place, looked, heads, HEAD_BYTES, paging.PAGE_BYTES_MAX)
        else:
            rows = await self._fetch(_PAGE, *place, paging.PAGE_BYTES_MAX)
        next_at = rows.pop()["run_at"] if rows and rows[-1]["run_at"] > until_at else None
        return _page(rows, partition, limit, next_at)

    async def line(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        place = partition, tenant, key, *first_after(after)
        rows = await self._fetch(_LINE, *place, limit + 1, paging.PAGE_BYTES_MAX)
        return _page(rows, partition, limit, None, msgspec.msgpack.encode((tenant, key)))

    async def heads(self, partition: int, names: Sequence[tuple[str, str]]) -> list[int | None]:
        return [row["head"] for row in await self._fetch(_HEADS, partition, *columns_of(names, 2))]

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> list[tuple[str, str, int]]:
        return [(*row,) for row in await self._fetch(_BLOCKED, partition, *after, limit)]

    async def one(self, tenant: str, event_id: str) -> Event | Record | None:
        # No name contains a zero byte, and the server refuses to look for one.
        return None if "\0" in tenant + event_id else await read_one(self, tenant, event_id)

    async def many(self, tenant: str, event_ids: Sequence[str]) -> list[Event | Record | None]:
        names = [event_id for event_id in event_ids if "\0" not in tenant + event_id]
        found = await read_many(self, tenant, names)
        return [found.get(event_id) for event_id in event_ids]

    async def bodies(self, places: Sequence[TablePlace]) -> Sequence[bytes | None]:
        keys: dict[TableLetter, list[Any]] = {}
        for table, key in places:
            keys.setdefault(table, []).append(key)
        found: dict[TablePlace, bytes | None] = {}
        for table, own in keys.items():
            rows = await self._fetch(_BODIES[table], *columns_of(own, 0))
            found.update(((table, key), row["body"]) for key, row in zip(own, rows, strict=True))
        return [found[place] for place in places]

    async def entries(self, names: Collection[EventName]) -> dict[EventName, tuple[IndexEntry, bytes | None]]:
        rows = await self._fetch(_LOOK_UP, *columns_of(names, 2))
        return {(tenant, event_id): ((*entry,), body) for tenant, event_id, *entry, body in rows}

    async def finished(self, tenant: str, event_id: str) -> bytes | None:
        body: bytes | None = await self._fetchval(_FINISHED, tenant, event_id)
        return body


def _page(rows: Sequence[Any], partition: int, limit: int, next_at: int | None, place: bytes = b"") -> Page:
    """A page of the rows up to the first that is beyond the bytes of a page, by its last column."""
    within = [row[:3] for row in takewhile(lambda row: not row[3], rows)]
    return page_of(within, partition, limit, next_at, more=len(within) < len(rows), place=place)


def columns_of(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """The columns of rows; `width` empty ones if there are no rows."""
    return list(map(list, zip(*rows, strict=True))) or [[] for _ in range(width)]
