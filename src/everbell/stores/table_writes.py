"""The layout of tables, for PostgreSQL and Cassandra: the rows of one apply, before they are sent.

Changes take effect in the order given, but tables are changed one after the other. So this keeps only the result: a row
that is added and removed again is not written, and all deletions come before all insertions.

Events with made ids need no reads. A client-given id is claimed as if it were new. Only if the database refuses the
claim, the apply is made again, with the stored events that have its ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from everbell.core.event import Event
from everbell.core.time import HOUR_MS
from everbell.stores.port import Finish, PreparedRows
from everbell.stores.rows import NO_LABEL, StatusCounts, encode, head_of, read_event, read_record, record_head
from everbell.stores.write_path import EventName, Stored

TableLetter = Literal["E", "W", "D", "H"]
"""Scheduled, waiting and dead events, and records."""

TableKey = tuple[int | str, ...]
"""The primary key of a row."""

TablePlace = tuple[TableLetter, TableKey]

IndexEntry = tuple[TableLetter, int, int, int, str | None]
"""An entry of the table of ids, without the id: table, partition, time, sequence, key."""

KnownIds = Mapping[EventName, tuple[IndexEntry, Stored | None]]
"""Stored ids: the entry, and the event or record there, if it can be decoded."""

RecordKey = tuple[int, str, str, int]
"""Hour, tenant, id and occurrence; the occurrence of a finished event is 0."""


class EventTable:
    """The new rows of a table of events, and the keys of removed rows."""

    __slots__ = ("gone", "rows")

    def __init__(self) -> None:
        self.rows: dict[TableKey, bytes] = {}
        self.gone: set[TableKey] = set()


class TableWrites:
    """The `Layout` of tables."""

    def __init__(self, known: KnownIds, guarded: Mapping[TablePlace, Event]) -> None:
        """`guarded` has the events that lie where guarded changes say."""
        self.counts: dict[str, StatusCounts] = {}  # The apply adds these to the stored counts.
        self.scheduled, self.waiting, self.dead = EventTable(), EventTable(), EventTable()
        self.records: dict[RecordKey, tuple[int, str, str, int, bytes]] = {}  # Whole rows.
        self.claims: dict[EventName, IndexEntry] = {}  # New entries, if the database agrees that they are new.
        # Old entries that claims replace: those of an expired record, or of a row that was set aside.
        self.freed: dict[EventName, IndexEntry] = {}
        self.entries: dict[EventName, IndexEntry | None] = {}  # Changed entries of known events; None removes.
        self.heads: dict[tuple[int, str, str], int | None] = {}
        self._known = known
        self._guarded = guarded
        self._tables = {"scheduled": self.scheduled, "waiting": self.waiting, "dead": self.dead}

    def put(self, events: Collection[Event]) -> None:
        # This loop runs for every event that is ever scheduled, so it makes few calls.
        scheduled, row = self.scheduled.rows, encode
        for event in events:
            head = head_of(event.tenant, event.to) if event.key is None else NO_LABEL
            if event.state == "scheduled":
                scheduled[event.partition, event.run_at, event.sequence] = head + row(event)
            else:
                self._tables[event.state].rows[place_of(event)[1]] = head + row(event)

    def put_prepared(self, rows: PreparedRows) -> None:
        raise AssertionError("a store of tables has no row maker")

    def take(self, event: Event) -> None:
        key = place_of(event)[1]
        table = self._tables[event.state]
        table.rows.pop(key, None)
        table.gone.add(key)

    def end(self, ends: Sequence[Finish]) -> None:
        # This loop runs for every event, too.
        records, row = self.records, encode
        scheduled, gone = self.scheduled.rows, self.scheduled.gone
        keep_until_at, hour, head = -1, 0, b""
        for change in ends:
            before, record = change.before, change.record
            if change.keep_until_at != keep_until_at:
                keep_until_at = change.keep_until_at
                hour, head = keep_until_at // HOUR_MS, record_head(keep_until_at)
            tenant, event_id = record.tenant, record.id
            records[hour, tenant, event_id, 0] = (hour, tenant, event_id, 0, head + row(record))
            if before.state == "scheduled":
                key = before.partition, before.run_at, before.sequence
                gone.add(key)
                if scheduled:  # Mostly, an apply that ends events adds none.
                    scheduled.pop(key, None)
            else:
                self.take(before)

    def keep(self, change: Finish) -> None:
        record = change.record
        key = change.keep_until_at // HOUR_MS, record.tenant, record.id, record.occurrence
        self.records[key] = *key, record_head(change.keep_until_at) + encode(record)

    def put_claiming(self, events: Collection[Event]) -> None:
        self.put(events)
        for event in events:
            name = event.tenant, event.id
            if name in self.entries:
                self.entries[name] = entry_of(event)
                continue
            if name in self._known and name not in self.claims:
                self.freed[name] = self._known[name][0]
            self.claims[name] = entry_of(event)

    def index_event(self, event: Event) -> None:
        self._index((event.tenant, event.id), entry_of(event))

    def index_records(self, ends: Sequence[Finish]) -> None:
        for change in ends:
            hour = change.keep_until_at // HOUR_MS
            self._index((change.record.tenant, change.record.id), ("H", change.before.partition, hour, 0, None))

    def _index(self, name: EventName, entry: IndexEntry) -> None:
        if name in self.claims:
            self.claims[name] = entry
        else:
            self.entries[name] = entry

    def drop_index(self, event: Event) -> None:
        self.entries[event.tenant, event.id] = None

    def block(self, partition: int, tenant: str, key: str, head: int | None) -> None:
        self.heads[partition, tenant, key] = head

    def look_up(self, events: Collection[Event]) -> dict[EventName, Stored]:
        found: dict[EventName, Stored] = {}
        for event in events:
            name = event.tenant, event.id
            entry, stored = self._known.get(name, (None, None))
            entry = self.claims.get(name) or self.entries.get(name) or entry
            if entry is not None:
                stored = self._written(name, entry) or stored
            if stored is not None:
                found[name] = stored
        return found

    def _written(self, name: EventName, entry: IndexEntry) -> Stored | None:
        """The event or record that this apply has written where an entry points."""
        table, partition, at, sequence, key = entry
        if table == "H":
            row = self.records.get((at, *name, 0))
            return None if row is None else read_record(row[-1])
        if table == "E":
            body = self.scheduled.rows.get((partition, at, sequence))
        elif table == "W":
            body = self.waiting.rows.get((partition, name[0], key or "", at, sequence))
        else:
            body = self.dead.rows.get((name[0], at, sequence))
        return None if body is None else read_event(body)

    def stored_at(self, event: Event) -> Event | None:
        place = place_of(event)
        table = self._tables[event.state]
        if place[1] in table.rows:
            return read_event(table.rows[place[1]])
        return None if place[1] in table.gone else self._guarded.get(place)


def place_of(event: Event) -> TablePlace:
    """The place of an unfinished event, which follows from its fields alone."""
    if event.state == "scheduled":
        return "E", (event.partition, event.run_at, event.sequence)
    if event.state == "waiting":
        return "W", (event.partition, event.tenant, event.key or "", event.due_at, event.sequence)
    return "D", (event.tenant, event.run_at, event.sequence)


def entry_of(event: Event) -> IndexEntry:
    if event.state == "waiting":
        return "W", event.partition, event.due_at, event.sequence, event.key or ""
    return "E" if event.state == "scheduled" else "D", event.partition, event.run_at, event.sequence, None
