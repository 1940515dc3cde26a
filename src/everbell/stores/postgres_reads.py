"""Reading events from PostgreSQL: pages in order, and single ones by name. Each call reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from everbell.core.event import Event, Record, position, position_at
from everbell.core.ids import SEQUENCE_MAX, is_made, place_in
from everbell.errors import StoreCorrupt
from everbell.stores.port import Page, Poison
from everbell.stores.postgres_link import Connection
from everbell.stores.rows import HEAD_BYTES, BadRow, head_of_stem, read_event, read_record
from everbell.stores.semantics import LEFT_OUT_PER_EVENT, PAGE_BYTES_MAX, Space
from everbell.stores.table_batch import Looked, Name, Spot, spot_of
from everbell.stores.view import Stored

_AT_MAX = (1 << 63) - 1

# The sums of bytes tell where a page ends because its rows are large: what is beyond comes without its body.
_PAGE = """
    (SELECT run_at, sequence, CASE WHEN before < $6 THEN body END AS body, before >= $6
     FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY run_at, sequence) - octet_length(body) AS before
        FROM (
            SELECT run_at, sequence, body FROM scheduled
            WHERE partition = $1 AND (run_at, sequence) >= ($2, $3) AND run_at <= $4
            ORDER BY run_at, sequence LIMIT $5
        ) AS looked
     ) AS counted ORDER BY run_at, sequence)
    UNION ALL
    (SELECT run_at, sequence, NULL, false FROM scheduled
     WHERE partition = $1 AND (run_at, sequence) >= ($2, $3) AND run_at > $4
     ORDER BY run_at, sequence LIMIT 1)
"""
# The same, passing by a herd: rows that nobody wants come without their bodies, and do not count.
_PAGE_WITHOUT = """
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
    UNION ALL
    (SELECT run_at, sequence, NULL, false FROM scheduled
     WHERE partition = $1 AND (run_at, sequence) >= ($2, $3) AND run_at > $4
     ORDER BY run_at, sequence LIMIT 1)
"""
_LINE = """
    SELECT due_at, sequence, CASE WHEN before < $7 THEN body END AS body, before >= $7
    FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY due_at, sequence) - octet_length(body) AS before
        FROM (
            SELECT due_at, sequence, body FROM waiting
            WHERE partition = $1 AND tenant = $2 AND key = $3 AND (due_at, sequence) >= ($4, $5)
            ORDER BY due_at, sequence LIMIT $6
        ) AS looked
    ) AS counted ORDER BY due_at, sequence
"""
# What is looked up by many names is a query of its own for each: a join would be done the wrong way round as soon as
# the planner believes that a table is empty.
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
_SPOTS: dict[Space, str] = {
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
# There is no index of records by id, for each costs as much as the record itself; the hours are few.
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


async def read_page(
    connection: Connection,
    partition: int,
    after: int,
    until_at: int,
    limit: int,
    without: Collection[tuple[str, str]],
) -> Page:
    """A page of scheduled events."""
    until_at = min(until_at, _AT_MAX)
    place = partition, *_beyond(after), until_at, limit + 1
    if without:
        looked = limit + limit * LEFT_OUT_PER_EVENT + 1
        heads = [head_of_stem(tenant, stem) for tenant, stem in without]
        rows = await connection.fetch(_PAGE_WITHOUT, *place, looked, heads, HEAD_BYTES, PAGE_BYTES_MAX)
    else:
        rows = await connection.fetch(_PAGE, *place, PAGE_BYTES_MAX)
    next_at = rows.pop()["run_at"] if rows and rows[-1]["run_at"] > until_at else None
    return _page(rows, partition, limit, next_at)


async def read_line(connection: Connection, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
    """A page of the waiting events of a key."""
    rows = await connection.fetch(_LINE, partition, tenant, key, *_beyond(after), limit + 1, PAGE_BYTES_MAX)
    return _page(rows, partition, limit, None, msgspec.msgpack.encode((tenant, key)))


def _beyond(place: int) -> tuple[int, int]:
    """The first (time, sequence) after a position."""
    start = max(place + 1, 0)
    return min(position_at(start), _AT_MAX), start & SEQUENCE_MAX


def _page(rows: Sequence[Any], partition: int, limit: int, next_at: int | None, place: bytes = b"") -> Page:
    """A page of these rows, with one more than fits, if there is one. Nobody wants those without a body."""
    events: list[Event] = []
    poison: list[Poison] = []
    left = limit
    left_out, left_out_max = 0, limit * LEFT_OUT_PER_EVENT
    last = None
    for at, sequence, body, is_beyond in rows:
        if not left or left_out == left_out_max or is_beyond:
            return Page(events, True, None, poison, left_out, last)
        last = position(at, sequence)
        if body is None:
            left_out += 1
            continue
        left -= 1
        try:
            events.append(read_event(body))
        except BadRow as bad:
            poison.append(Poison(partition, at, sequence, body, str(bad), place))
    return Page(events, False, next_at, poison, left_out)


async def read_heads(connection: Connection, partition: int, names: Sequence[tuple[str, str]]) -> list[int | None]:
    """The head of each (tenant, key), None where it is not blocked."""
    tenants, keys = [name[0] for name in names], [name[1] for name in names]
    return [row["head"] for row in await connection.fetch(_HEADS, partition, tenants, keys)]


async def read_blocked(
    connection: Connection, partition: int, after: tuple[str, str], limit: int
) -> list[tuple[str, str, int]]:
    """The blocked keys of a partition after (tenant, key)."""
    return [(*row,) for row in await connection.fetch(_BLOCKED, partition, *after, limit)]


async def read_one(connection: Connection, tenant: str, event_id: str) -> Event | Record | None:
    """The event, or what is kept of it. Raises `StoreCorrupt` when it is there and cannot be decoded."""
    if "\0" in tenant + event_id:
        return None
    try:
        home = await _at_home(connection, tenant, event_id)
        if home is not None:
            return home
        found = await look_up(connection, [(tenant, event_id)], strict=True)
        stored = found[tenant, event_id][1] if found else None
        if stored is None and is_made(event_id):
            body = await connection.fetchval(_FINISHED, tenant, event_id)
            stored = None if body is None else read_record(body)
    except BadRow as bad:
        raise StoreCorrupt(f"the row of event {event_id!r} cannot be decoded ({bad})") from bad
    return stored[0] if isinstance(stored, tuple) else stored


async def _at_home(connection: Connection, tenant: str, event_id: str) -> Event | None:
    place = place_in(event_id)
    if place is None:
        return None
    due_at, sequence, partition = place
    [row] = await connection.fetch(_SPOTS["E"], [partition], [due_at], [sequence])
    event = None if row["body"] is None else read_event(row["body"])
    return event if event is not None and (event.tenant, event.id) == (tenant, event_id) else None


async def look_up(connection: Connection, names: Collection[Name], *, strict: bool = False) -> Looked:
    """What ids stand for, by their entries. What cannot be read is left out, or raises `BadRow`."""
    tenants, ids = [name[0] for name in names], [name[1] for name in names]
    found: dict[Name, Any] = {}
    for tenant, event_id, space, partition, at, sequence, key, body in await connection.fetch(_LOOK_UP, tenants, ids):
        stored: Stored | None = None
        try:
            if body is not None:
                stored = read_record(body) if space == "H" else read_event(body)
        except BadRow:
            if strict:
                raise
        found[tenant, event_id] = (space, partition, at, sequence, key), stored
    return found


async def read_spots(connection: Connection, events: Iterable[Event]) -> dict[Spot, Event]:
    """What lies where these events are said to be."""
    keys: dict[Space, list[Any]] = {}
    for space, key in map(spot_of, events):
        keys.setdefault(space, []).append(key)
    found: dict[Spot, Event] = {}
    for space, own in keys.items():
        rows = await connection.fetch(_SPOTS[space], *map(list, zip(*own, strict=True)))
        for key, row in zip(own, rows, strict=True):
            try:
                if row["body"] is not None:
                    found[space, key] = read_event(row["body"])
            except BadRow:
                continue
    return found
