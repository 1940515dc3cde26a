"""Reading single events from tables, for PostgreSQL and Cassandra."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from everbell.core.event import Event, Record
from everbell.core.ids import is_made, place_in
from everbell.errors import StoreCorrupt
from everbell.stores.paging import AT_MAX
from everbell.stores.rows import BadRow, read_event, read_record
from everbell.stores.table_writes import IndexEntry, KnownIds, TablePlace, place_of
from everbell.stores.write_path import EventName, Stored

T = TypeVar("T")

_LOOK_AGAIN_S = (0.01, 0.02, 0.04, 0.08)
"""The pauses before further looks at an event that seems to be moving."""


class TableReader(Protocol):
    """Reads the bodies of rows."""

    async def bodies(self, places: Sequence[TablePlace]) -> Sequence[bytes | None]:
        """The bodies of rows of events, in the order of their places."""

    async def entries(self, names: Collection[EventName]) -> dict[EventName, tuple[IndexEntry, bytes | None]]:
        """The index entries of ids, with the bodies of the rows that they point at. Unknown ids are missing."""

    async def finished(self, tenant: str, event_id: str) -> bytes | None:
        """The body of the record of an event with a made id."""


async def read_one(reader: TableReader, tenant: str, event_id: str) -> Event | Record | None:
    """An event or record by its id. Raises `StoreCorrupt` if it is there and cannot be decoded.

    An event may move while it is being read, and Cassandra shows a move in parts. An id of a client keeps its index
    entry, so an entry without a row is a sign of a move. A made id may have its event, its entry or its record, and a
    move changes which. In both cases the event is absent only if further looks do not find it either.
    """
    for pause_s in (*_LOOK_AGAIN_S, None):
        try:
            stored, has_entry = await _look(reader, tenant, event_id)
        except BadRow as bad:
            raise StoreCorrupt(f"the row of event {event_id!r} cannot be decoded ({bad})") from bad
        if stored is not None:
            return stored[0] if isinstance(stored, tuple) else stored
        if pause_s is None or not (has_entry or (is_made(event_id) and pause_s == _LOOK_AGAIN_S[0])):
            return None
        await asyncio.sleep(pause_s)
    return None


async def read_many(reader: TableReader, tenant: str, event_ids: Sequence[str]) -> dict[str, Event | Record]:
    """Events and records by their ids; unknown ids are missing.

    Events where they are expected are read together. The others are moving or have ended, and are read one by one.
    """
    found: dict[str, Event | Record] = {}
    homes: dict[str, TablePlace] = {}
    for name in event_ids:
        place = place_in(name)
        if place is not None and place[0] <= AT_MAX:
            homes[name] = ("E", (place[2], place[0], place[1]))
    for name, body in zip(homes, await reader.bodies(list(homes.values())), strict=True):
        event = None if body is None else _decoded(read_event, body, name)
        if event is not None and (event.tenant, event.id) == (tenant, name):
            found[name] = event
    entries = await reader.entries([(tenant, name) for name in event_ids if name not in found])
    for (_, name), (entry, body) in entries.items():
        if body is not None:
            found[name] = _decoded(read_record, body, name)[0] if entry[0] == "H" else _decoded(read_event, body, name)
    for name in event_ids:
        if name not in found and (is_made(name) or (tenant, name) in entries):
            stored = await read_one(reader, tenant, name)
            if stored is not None:
                found[name] = stored
    return found


def _decoded(read: Callable[[bytes], T], body: bytes, event_id: str) -> T:
    try:
        return read(body)
    except BadRow as bad:
        raise StoreCorrupt(f"the row of event {event_id!r} cannot be decoded ({bad})") from bad


async def _look(reader: TableReader, tenant: str, event_id: str) -> tuple[Stored | None, bool]:
    """The event or record, and whether its id has an index entry."""
    home = await _at_home(reader, tenant, event_id)
    if home is not None:
        return home, False
    for entry, body in (await reader.entries([(tenant, event_id)])).values():
        return _read_stored(entry, body), True
    body = await reader.finished(tenant, event_id) if is_made(event_id) else None
    return None if body is None else read_record(body), False


async def _at_home(reader: TableReader, tenant: str, event_id: str) -> Event | None:
    place = place_in(event_id)
    if place is None or place[0] > AT_MAX:
        return None
    due_at, sequence, partition = place
    [body] = await reader.bodies([("E", (partition, due_at, sequence))])
    event = None if body is None else read_event(body)
    return event if event is not None and (event.tenant, event.id) == (tenant, event_id) else None


async def known_ids(reader: TableReader, names: Collection[EventName]) -> KnownIds:
    """The stored ids among some, for `TableWrites`."""
    found: dict[EventName, tuple[IndexEntry, Stored | None]] = {}
    for name, (entry, body) in (await reader.entries(names)).items():
        try:
            found[name] = entry, _read_stored(entry, body)
        except BadRow:
            found[name] = entry, None
    return found


def _read_stored(entry: IndexEntry, body: bytes | None) -> Stored | None:
    if body is None:
        return None
    return read_record(body) if entry[0] == "H" else read_event(body)


async def stored_events(reader: TableReader, events: Iterable[Event]) -> dict[TablePlace, Event]:
    """The events that lie where these ones say; rows that cannot be decoded are left out."""
    places = list(dict.fromkeys(map(place_of, events)))
    found: dict[TablePlace, Event] = {}
    for place, body in zip(places, await reader.bodies(places), strict=True):
        try:
            if body is not None:
                found[place] = read_event(body)
        except BadRow:
            continue
    return found
