"""The layout of RocksDB: the rows that one apply writes, until they become one write batch.

Counts and the last sequence travel in the same batch as the changes that they count, so a crash cannot part them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from rocksdict import Rdict, WriteBatch

from everbell.core.event import Event
from everbell.stores.port import Change, Finish, PreparedRows
from everbell.stores.rocksdb import keys
from everbell.stores.rocksdb.access import get_many, present
from everbell.stores.rocksdb.fronts import Fronts
from everbell.stores.rocksdb.rows import counts_row, number_row
from everbell.stores.rows import (
    NO_LABEL,
    BadRow,
    StatusCounts,
    added,
    encode,
    head_of,
    read_event,
    read_record,
    record_head,
    record_row,
)
from everbell.stores.write_path import EventName, Stored, guarded_events

RANGE_MIN = 32
"""At least this many events that follow each other are deleted as one range. The next reader sorts all ranges of the
last minutes. For ranges of this length that costs as much as stepping over single marks; for ranges of half the length
it costs twice as much."""

# Events that follow each other in a partition: the partition, their time, the first sequence, and the one after the
# last. Each sequence belongs to one event, so no other event lies between them.
_Span = tuple[int, int, int, int]


class RocksdbWrites:
    """The `Layout` of RocksDB."""

    def __init__(
        self,
        db: Rdict,
        counts: Mapping[str, StatusCounts],
        last_sequence: int,
        fronts: Fronts,
        changes: Sequence[Change] = (),
    ) -> None:
        self._changes = changes
        # The rows that guards look at, as they were stored before this apply; None until the first guard.
        self._guarded: dict[bytes, bytes | None] | None = None
        self.counts: dict[str, StatusCounts] = {}  # The apply adds these to the stored counts.
        self.last_sequence = last_sequence
        self.hours: set[int] = set()  # The hours in which the new records expire.
        self.end_count = 0
        self.rung_at = 0  # The due time of the latest event that was delivered.
        self._db = db
        self._stored_counts = counts
        self._stored_sequence = last_sequence
        self._fronts = fronts
        self._rows: dict[bytes, bytes | None] = {}  # The rows to write, by key; None deletes.
        self._prepared: list[PreparedRows] = []
        self._span: _Span = (0, 0, 0, 0)
        self._spans: list[_Span] = []  # Finished events that were scheduled. The last span may still grow.
        self._ends: list[Sequence[Finish]] = []
        # The sequences of events in `_spans`, as far as `stored_at` needed them; the others are in `_ends`.
        self._ended: set[int] = set()
        # The index keys of the events whose ids were looked up last, by sequence. They are perhaps claimed next.
        self._id_keys: dict[int, bytes] = {}

    def put(self, events: Collection[Event]) -> None:
        self._put(events, {})

    def put_claiming(self, events: Collection[Event]) -> None:
        self._put(events, self._id_keys)

    def _put(self, events: Collection[Event], id_keys: Mapping[int, bytes]) -> None:
        """Write rows, and point the index at them if its keys are given, by sequence."""
        # This loop runs for every event that is ever scheduled, so it makes few calls.
        rows, place, row, fronts = self._rows, keys.place_key, encode, self._fronts.at
        last_sequence = self.last_sequence
        for event in events:
            sequence = event.sequence
            if event.state == "scheduled":
                partition, run_at = event.partition, event.run_at
                key = place(b"E", partition, run_at, sequence)
                if run_at < fronts[partition]:
                    self._fronts.lower(partition, run_at)
            else:
                key = keys.event_key(event)
            head = head_of(event.tenant, event.to) if event.key is None else NO_LABEL
            rows[key] = head + row(event)
            if id_keys:
                rows[id_keys[sequence]] = key
            if sequence > last_sequence:
                last_sequence = sequence
        self.last_sequence = last_sequence

    def put_prepared(self, rows: PreparedRows) -> None:
        self._prepared.append(rows)
        for run in rows.runs:
            if run.first_at < self._fronts.at[run.partition]:
                self._fronts.lower(run.partition, run.first_at)
        self.last_sequence = max(self.last_sequence, rows.last_sequence)

    def take(self, event: Event) -> None:
        self._rows[keys.event_key(event)] = None

    def end(self, ends: Sequence[Finish]) -> None:
        # This loop runs for every event, too.
        rows, row = self._rows, encode
        tenant, keep_until_at, head, prefix = None, -1, b"", b""
        partition, at, first, after = self._span
        rung_at = self.rung_at
        for change in ends:
            before, record = change.before, change.record
            if change.keep_until_at != keep_until_at or record.tenant != tenant:
                keep_until_at, tenant = change.keep_until_at, record.tenant
                hour = keys.hour_of(keep_until_at)
                self.hours.add(hour)
                head, prefix = record_head(keep_until_at), keys.records_prefix(hour, tenant)
            rows[prefix + record.id.encode()] = head + row(record)
            run_at = before.run_at
            if before.state != "scheduled":
                rows[keys.event_key(before)] = None
            elif before.sequence == after and run_at == at and before.partition == partition:
                after += 1
            else:
                self._spans.append((partition, at, first, after))
                partition, at, first, after = before.partition, run_at, before.sequence, before.sequence + 1
            if run_at > rung_at and record.status == "delivered":
                rung_at = run_at
        self._span = partition, at, first, after
        self.rung_at = rung_at
        self.end_count += len(ends)
        self._ends.append(ends)

    def keep(self, change: Finish) -> None:
        record, hour = change.record, keys.hour_of(change.keep_until_at)
        key = keys.record_key(hour, record.tenant, record.id, record.occurrence)
        self._rows[key] = record_row(record, change.keep_until_at)
        self.hours.add(hour)
        self.end_count += 1
        if record.status == "delivered":
            self.rung_at = max(self.rung_at, change.before.run_at)

    def index_event(self, event: Event) -> None:
        self._rows[keys.index_key(event.tenant, event.id)] = keys.event_key(event)

    def index_records(self, ends: Sequence[Finish]) -> None:
        rows, id_key = self._rows, keys.index_key
        tenant, keep_until_at, prefix = None, -1, b""
        for change in ends:
            record = change.record
            if change.keep_until_at != keep_until_at or record.tenant != tenant:
                keep_until_at, tenant = change.keep_until_at, record.tenant
                prefix = keys.records_prefix(keys.hour_of(keep_until_at), tenant)
            rows[id_key(tenant, record.id)] = prefix + record.id.encode()

    def drop_index(self, event: Event) -> None:
        self._rows[keys.index_key(event.tenant, event.id)] = None

    def block(self, partition: int, tenant: str, key: str, head: int | None) -> None:
        self._rows[keys.head_key(partition, tenant, key)] = None if head is None else number_row(head)

    def look_up(self, events: Collection[Event]) -> dict[EventName, Stored]:
        id_key = keys.index_key
        self._id_keys = id_keys = {event.sequence: id_key(event.tenant, event.id) for event in events}
        taken = present(self._db, id_keys.values()).union(self._rows.keys() & id_keys.values())
        found: dict[EventName, Stored] = {}
        if not taken:
            return found
        for event in events:
            if (key := id_keys[event.sequence]) in taken:
                try:
                    stored = self._stored_by_id(key)
                except BadRow:
                    continue
                if stored is not None:
                    found[event.tenant, event.id] = stored
        return found

    def _stored_by_id(self, id_key: bytes) -> Stored | None:
        key = self._row(id_key)
        row = None if key is None else self._row(key)
        return None if key is None or row is None else read_stored(key, row)

    def _row(self, key: bytes) -> bytes | None:
        """A row as it will be after the changes so far."""
        if key in self._rows:
            return self._rows[key]
        if self._guarded is not None and key in self._guarded:
            return self._guarded[key]
        row: bytes | None = self._db.get(key)
        return row

    def stored_at(self, event: Event) -> Event | None:
        for ends in self._ends:
            self._ended.update(change.before.sequence for change in ends)
        self._ends.clear()
        if self._guarded is None:
            # One lookup of all rows is much cheaper than one for each.
            places = [keys.event_key(named) for named in guarded_events(self._changes)]
            self._guarded = dict(zip(places, get_many(self._db, places), strict=True))
        row = None if event.sequence in self._ended else self._row(keys.event_key(event))
        try:
            return None if row is None else read_event(row)
        except BadRow:
            return None

    def new_counts(self) -> dict[str, StatusCounts]:
        """The counts after the apply, of the tenants that it concerns."""
        return {tenant: added(self._stored_counts.get(tenant), more) for tenant, more in self.counts.items()}

    def fill(self, batch: WriteBatch, counts: Mapping[str, StatusCounts]) -> None:
        """Put all of it into one write, with the new counts, in the order of the keys.

        RocksDB looks for the place of a key beside the place of the key before. For rows that lie far apart, as those
        of client-given ids do, this halves the cost of a write.
        """
        rows, ranges = self._rows, self._ranges()
        for tenant, tally in counts.items():
            rows[keys.counts_key(tenant)] = counts_row(tally)
        if self.last_sequence != self._stored_sequence:
            rows[keys.SEQUENCE_KEY] = number_row(self.last_sequence)
        fronts = self._fronts.row()
        if fronts is not None:
            rows[keys.FRONTS_KEY] = fronts
        put, delete = batch.put, batch.delete
        for key in sorted(rows):
            row = rows[key]
            if row is None:
                delete(key)
            else:
                put(key, row)
        for prepared in self._prepared:
            deque(map(put, *prepared.body), maxlen=0)
        for begin, end in ranges:  # After the rows, because an event may come and go in one batch.
            batch.delete_range(begin, end)

    def _ranges(self) -> list[tuple[bytes, bytes]]:
        """The ranges of keys to delete. Events of short spans are deleted one by one, as rows."""
        ranges: list[tuple[bytes, bytes]] = []
        rows, place = self._rows, keys.place_key
        for partition, at, first, after in (*self._spans, self._span):
            if after - first >= RANGE_MIN:
                ranges.append((place(b"E", partition, at, first), place(b"E", partition, at, after)))
            else:
                for sequence in range(first, after):
                    rows[place(b"E", partition, at, sequence)] = None
        return ranges


def read_stored(key: bytes, row: bytes) -> Stored:
    """The event or record in a row that the index points at. Raises `BadRow`."""
    return read_record(row) if key[:1] == b"H" else read_event(row)
