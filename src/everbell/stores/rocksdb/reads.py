"""Reading events from RocksDB: pages in order, and single events by name. Every call has a limit of rows."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence

from rocksdict import Rdict

from everbell.core.event import Event, Record, position, position_at
from everbell.core.ids import SEQUENCE_MAX, is_made, place_in
from everbell.errors import StoreCorrupt
from everbell.stores import paging
from everbell.stores.paging import LEFT_OUT_PER_EVENT
from everbell.stores.port import Page, Poison
from everbell.stores.rocksdb import keys
from everbell.stores.rocksdb.access import get_many, scan
from everbell.stores.rocksdb.rows import read_number
from everbell.stores.rocksdb.writes import read_stored
from everbell.stores.rows import HEAD_BYTES, BadRow, head_of_stem, read_event, read_record

_HOURS_AT_ONCE = 256


def read_page(
    db: Rdict, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]]
) -> Page:
    prefix = keys.partition_prefix(b"E", partition)
    rows = scan(db, prefix + _beyond(after), keys.after_prefix(prefix))
    last = prefix + keys.within(until_at, SEQUENCE_MAX) if until_at >= 0 else prefix
    heads = frozenset(head_of_stem(tenant, stem) for tenant, stem in without)
    return _read_rows(rows, partition, last, limit, heads)


def read_line(db: Rdict, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
    prefix = keys.line_prefix(partition, tenant, key)
    end = keys.after_prefix(prefix)
    return _read_rows(scan(db, prefix + _beyond(after), end), partition, end, limit)


def _beyond(place: int) -> bytes:
    """The end of the first key after a position."""
    start = max(place + 1, 0)
    return keys.within(position_at(start), start & SEQUENCE_MAX)


def _read_rows(
    rows: Iterator[tuple[bytes, bytes]],
    partition: int,
    last: bytes,
    limit: int,
    heads: Container[bytes] = frozenset(),
) -> Page:
    """A page of the rows up to the key `last`, without rows with one of the heads."""
    events: list[Event] = []
    poison: list[Poison] = []
    left = limit
    left_out, left_out_max = 0, limit * LEFT_OUT_PER_EVENT
    size_bytes = 0
    place = last
    for key, row in rows:
        if key > last:
            return Page(events, False, keys.place_of(key)[0], poison, left_out)
        if not left or left_out == left_out_max or size_bytes >= paging.PAGE_BYTES_MAX:
            return Page(events, True, None, poison, left_out, position(*keys.place_of(place)))
        place = key
        if row[:HEAD_BYTES] in heads:
            left_out += 1
            continue
        left -= 1
        size_bytes += len(row)
        try:
            events.append(read_event(row))
        except BadRow as bad:
            poison.append(Poison(partition, *keys.place_of(key), row, str(bad), key))
    return Page(events, False, None, poison, left_out)


def read_heads(db: Rdict, partition: int, names: Sequence[tuple[str, str]]) -> list[int | None]:
    rows = get_many(db, [keys.head_key(partition, tenant, key) for tenant, key in names])
    return [None if row is None else read_number(row) for row in rows]


def read_blocked(db: Rdict, partition: int, after: tuple[str, str], limit: int) -> list[tuple[str, str, int]]:
    end = keys.after_prefix(keys.partition_prefix(b"L", partition))
    rows = scan(db, keys.head_key(partition, *after) + b"\0", end)
    return [(*keys.names_in(key), read_number(row)) for (key, row), _ in zip(rows, range(limit), strict=False)]


def read_one(db: Rdict, tenant: str, event_id: str, hours: Collection[int]) -> Event | Record | None:
    """An event or record by its id. Raises `StoreCorrupt` if it exists and cannot be decoded."""
    try:
        if not is_made(event_id):
            return _indexed(db, tenant, event_id)
        return (
            _at_home(db, tenant, event_id) or _indexed(db, tenant, event_id) or _finished(db, tenant, event_id, hours)
        )
    except BadRow as bad:
        raise _corrupt(event_id, bad) from bad


def read_many(db: Rdict, tenant: str, event_ids: Sequence[str], hours: Collection[int]) -> list[Event | Record | None]:
    """The same for many ids. Client-given ids are looked up together."""
    given = [event_id for event_id in event_ids if not is_made(event_id)]
    entries = get_many(db, [keys.index_key(tenant, event_id) for event_id in given])
    places = {event_id: place for event_id, place in zip(given, entries, strict=True) if place is not None}
    found: dict[str, Event | Record | None] = dict.fromkeys(given)
    for (event_id, place), row in zip(places.items(), get_many(db, list(places.values())), strict=True):
        try:
            found[event_id] = None if row is None else _read_row(place, row)
        except BadRow as bad:
            raise _corrupt(event_id, bad) from bad
    return [found[name] if name in found else read_one(db, tenant, name, hours) for name in event_ids]


def _read_row(place: bytes, row: bytes) -> Event | Record:
    stored = read_stored(place, row)
    return stored[0] if isinstance(stored, tuple) else stored


def _corrupt(event_id: str, bad: BadRow) -> StoreCorrupt:
    return StoreCorrupt(f"the row of event {event_id!r} cannot be decoded ({bad})")


def _indexed(db: Rdict, tenant: str, event_id: str) -> Event | Record | None:
    key = db.get(keys.index_key(tenant, event_id))
    row = None if key is None else db.get(key)
    return None if key is None or row is None else _read_row(key, row)


def _at_home(db: Rdict, tenant: str, event_id: str) -> Event | None:
    place = place_in(event_id)
    if place is None:
        return None
    due_at, sequence, partition = place
    row = db.get(keys.place_key(b"E", partition, due_at, sequence))
    event = None if row is None else read_event(row)
    return event if event is not None and (event.tenant, event.id) == (tenant, event_id) else None


def _finished(db: Rdict, tenant: str, event_id: str, hours: Collection[int]) -> Record | None:
    """Look for a record in every hour, the latest first. Bloom filters answer for most hours."""
    latest = sorted(hours, reverse=True)
    for start in range(0, len(latest), _HOURS_AT_ONCE):
        some = [keys.record_key(hour, tenant, event_id) for hour in latest[start : start + _HOURS_AT_ONCE]]
        for row in get_many(db, some):
            if row is not None:
                return read_record(row)[0]
    return None
