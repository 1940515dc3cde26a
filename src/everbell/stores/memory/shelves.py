"""The layout of the store in memory.

Events lie in a dictionary by their sequence, which is unique. The order of each space is a sorted set of positions, one
for each partition, key or tenant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import islice

from everbell.core.event import Event, Record
from everbell.core.ids import SEQUENCE_MAX, place_in
from everbell.core.time import HOUR_MS
from everbell.stores.memory.positions import Positions
from everbell.stores.memory.row_maker import MemoryRowMaker
from everbell.stores.port import Finish, PreparedRows
from everbell.stores.rows import StatusCounts
from everbell.stores.write_path import EventName, Stored

RecordName = tuple[int, str, str, int]
"""The hour in which the record expires, tenant, id, and the occurrence; 0 for a finished event."""


class Shelves:
    """The `Layout` in memory. It makes changes at once, so a later change sees the earlier ones."""

    row_maker = MemoryRowMaker()

    def __init__(self, partitions: int) -> None:
        self.counts: dict[str, StatusCounts] = {}
        self.events: dict[int, Event] = {}  # The unfinished events, by sequence.
        self.scheduled: list[Positions] = [Positions() for _ in range(partitions)]
        self.waiting: defaultdict[tuple[int, str, str], Positions] = defaultdict(Positions)
        self.dead: defaultdict[str, Positions] = defaultdict(Positions)
        # By hour, then by name: the record, and the time until which it is kept.
        self.records: defaultdict[int, dict[RecordName, tuple[Record, int]]] = defaultdict(dict)
        self.heads: dict[tuple[int, str, str], int] = {}
        # The sequence of an unfinished event, or the name of a record.
        self._index: dict[EventName, int | RecordName] = {}

    def put(self, events: Collection[Event]) -> None:
        for event in events:
            shelf, place = self._spot(event)
            shelf.add(place)
            self.events[event.sequence] = event

    def put_prepared(self, rows: PreparedRows) -> None:
        self.put(self.row_maker.events(rows))

    def take(self, event: Event) -> None:
        shelf, place = self._spot(event)
        shelf.discard(place)
        self.events.pop(event.sequence, None)

    def end(self, ends: Sequence[Finish]) -> None:
        for change in ends:
            self.take(change.before)
            self._keep(change, 0)

    def keep(self, change: Finish) -> None:
        self._keep(change, change.record.occurrence)

    def _keep(self, change: Finish, occurrence: int) -> None:
        name = _record_name(change, occurrence)
        self.records[name[0]][name] = change.record, change.keep_until_at

    def put_claiming(self, events: Collection[Event]) -> None:
        self.put(events)
        for event in events:
            self.index_event(event)

    def index_event(self, event: Event) -> None:
        self._index[event.tenant, event.id] = event.sequence

    def index_records(self, ends: Sequence[Finish]) -> None:
        for change in ends:
            self._index[change.record.tenant, change.record.id] = _record_name(change, 0)

    def drop_index(self, event: Event) -> None:
        self._index.pop((event.tenant, event.id), None)

    def block(self, partition: int, tenant: str, key: str, head: int | None) -> None:
        if head is None:
            self.heads.pop((partition, tenant, key), None)
        else:
            self.heads[partition, tenant, key] = head

    def look_up(self, events: Collection[Event]) -> dict[EventName, Stored]:
        found = {name: self._indexed(name) for name in ((event.tenant, event.id) for event in events)}
        return {name: stored for name, stored in found.items() if stored is not None}

    def _indexed(self, name: EventName) -> Stored | None:
        place = self._index.get(name)
        if place is None:
            return None
        return self.events.get(place) if isinstance(place, int) else self.records[place[0]][place]

    def stored_at(self, event: Event) -> Event | None:
        return self.events.get(event.sequence)

    def get(self, tenant: str, event_id: str) -> Event | Record | None:
        stored = self._at_home(tenant, event_id) or self._indexed((tenant, event_id))
        if stored is not None:
            return stored[0] if isinstance(stored, tuple) else stored
        for hour, records in self.records.items():
            if (hour, tenant, event_id, 0) in records:
                return records[hour, tenant, event_id, 0][0]
        return None

    def _at_home(self, tenant: str, event_id: str) -> Event | None:
        place = place_in(event_id)
        event = None if place is None else self.events.get(place[1])
        return event if event is not None and (event.tenant, event.id) == (tenant, event_id) else None

    def at(self, place: int) -> Event:
        """The event with this position in one of the sets."""
        return self.events[place & SEQUENCE_MAX]

    def forget(self, hour: int, limit: int) -> int:
        """Forget records of an hour, with the index entries that point at them; returns how many."""
        names = list(islice(sorted(self.records[hour]), limit))
        for name in names:
            self.forget_one(name)
        return len(names)

    def forget_one(self, name: RecordName) -> None:
        """Forget one record, if it is known."""
        records = self.records.get(name[0])
        if records is None or records.pop(name, None) is None:
            return
        if self._index.get(name[1:3]) == name:
            del self._index[name[1:3]]
        if not records:
            del self.records[name[0]]

    def _spot(self, event: Event) -> tuple[Positions, int]:
        """The set in which the event lies, and its position there."""
        if event.state == "scheduled":
            return self.scheduled[event.partition], event.position
        if event.state == "waiting":
            return self.waiting[event.partition, event.tenant, event.key or ""], event.order
        return self.dead[event.tenant], event.position


def _record_name(change: Finish, occurrence: int) -> RecordName:
    return change.keep_until_at // HOUR_MS, change.record.tenant, change.record.id, occurrence
