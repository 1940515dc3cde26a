"""From changes to one write batch: what each change does to which rows.

Nothing in here writes. A batch is filled while the store stays as it is, so a change that looks at what an earlier
one of the same batch did finds it in a view, which is only made when somebody looks: adding events with made ids,
ending them and moving them reads nothing.

Counts and the last sequence travel in the same batch as the changes that they count, so a crash cannot part them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import assert_never

from rocksdict import Rdict, WriteBatch

from everbell.core.event import Event, Record
from everbell.core.ids import PREFIX, is_made
from everbell.stores import rocksdb_keys as keys
from everbell.stores.parcel import Parcel
from everbell.stores.port import Add, Block, Change, Finish, Move, Refusal, Unblock, Write
from everbell.stores.rocksdb_access import present
from everbell.stores.rocksdb_fronts import Fronts
from everbell.stores.rocksdb_rows import counts_row, number_row
from everbell.stores.rows import (
    DEAD,
    ENDED,
    NO_LABEL,
    PENDING,
    BadRow,
    Tally,
    encode,
    head_of,
    labelled_row,
    read_event,
    read_record,
    record_head,
    record_row,
)
from everbell.stores.semantics import is_current, is_home, tenant_of_change
from everbell.stores.view import Stored, View

RANGE_MIN = 32
"""So many that follow each other go as one range. Whoever reads next sorts all ranges of the last minutes: that costs
what stepping over single marks does if they are this long, and twice as much at half the length."""

_Run = tuple[int, int, int, int]
"""Events that follow each other in a partition: the partition, their time, the first sequence, the one after the last.
A sequence is given once, so no other event can lie between them."""


class Batch:
    """The changes of one apply, on their way into one atomic write."""

    def __init__(
        self,
        db: Rdict,
        changes: Sequence[Write],
        counts: Mapping[str, Tally],
        last_sequence: int,
        fronts: Fronts,
    ) -> None:
        self.refusals: dict[int, Refusal] = {}
        self.counts: dict[str, Tally] = {}
        """The new counts of tenants for whom they change."""
        self.tenants: set[str] = set()
        """Whom the changes concern."""
        self.last_sequence = last_sequence
        self.hours: set[int] = set()
        """The hours into which records were put."""
        self.ends = 0
        self.rung_at = 0
        """How many occurrences ended, and when the latest that was delivered rang."""
        self._db = db
        self._changes = changes
        self._parcels: list[Parcel] = []
        self._rows: dict[bytes, bytes | None] = {}
        """What is to be written where; None: nothing is there any more."""
        self._run: _Run = (0, 0, 0, 0)
        self._runs: list[_Run] = []
        """The scheduled events that go beside those, the last run of them apart, as it may go on."""
        self._stored_counts = counts
        self._stored_sequence = last_sequence
        self._fronts = fronts
        self._view = View(changes, self.refusals)

    def fill(self, start: int, stop: int) -> None:
        """Take in some of the changes, in order. Those of one kind mostly come together."""
        changes = self._changes
        index = start
        while index < stop:
            change = changes[index]
            if type(change) is Add:
                index = self._fill_adds(index, stop)
            elif type(change) is Finish:
                index = self._fill_ends(index, stop)
            elif isinstance(change, Parcel):
                self._fill_parcel(change)
                index += 1
            else:
                self._change(index, change)
                index += 1

    def _fill_adds(self, start: int, stop: int) -> int:
        """Take in changes as long as they add events; returns where that ends."""
        # This loop runs for every event that is ever scheduled: it calls no more than it must.
        rows, place, row = self._rows, keys.place_key, encode
        names: dict[int, bytes] = {}
        fronts, changes = self._fronts.at, self._changes
        last_sequence, tenant, tally = self.last_sequence, None, [0]
        taken: set[bytes] = set()
        for index in range(start, stop):
            change = changes[index]
            if type(change) is not Add:
                stop = index
                break
            event = change.event
            run_at = event.run_at
            if run_at == event.due_at and event.state == "scheduled":
                partition, sequence = event.partition, event.sequence
                where = place(b"E", partition, run_at, sequence)
                if not event.id.startswith(PREFIX):
                    if not names:
                        names = self._names(index, stop)
                        taken = present(self._db, names.values())
                    named = names[index]
                    if named in rows or named in taken:
                        self._add(index, event)  # It may be somebody's.
                        continue
                    rows[named] = where
                if run_at < fronts[partition]:
                    self._fronts.lower(partition, run_at)
                head = head_of(event.tenant, event.to) if event.key is None else NO_LABEL
                rows[where] = head + row(event)
                if event.tenant != tenant:
                    tenant = event.tenant
                    tally = self._tally(tenant)
                tally[PENDING] += 1
                if sequence > last_sequence:
                    last_sequence = sequence
            else:
                self._add(index, event)
        self.last_sequence = max(last_sequence, self.last_sequence)
        return stop

    def _fill_parcel(self, parcel: Parcel) -> None:
        """Take in rows that are ready. No other change can be about the same ones, for nobody knows their ids yet."""
        self._parcels.append(parcel)
        fronts = self._fronts
        for run in parcel.runs:
            if run.first_at < fronts.at[run.partition]:
                fronts.lower(run.partition, run.first_at)
        self._tally(parcel.tenant)[PENDING] += len(parcel)
        self.last_sequence = max(self.last_sequence, parcel.last_sequence)

    def _names(self, start: int, stop: int) -> dict[int, bytes]:
        """Where the index names the clients' ids among those that are added next."""
        names: dict[int, bytes] = {}
        for index in range(start, stop):
            change = self._changes[index]
            if type(change) is not Add:
                break
            if not change.event.id.startswith(PREFIX):
                names[index] = keys.index_key(change.event.tenant, change.event.id)
        return names

    def _fill_ends(self, start: int, stop: int) -> int:
        """Take in changes as long as they end events; returns where that ends."""
        # This loop runs for every event, too: it is `_finish` for those that were scheduled, came once and never moved.
        rows, row = self._rows, encode
        tenant, tally, keep_until_at, head, prefix = None, [0], -1, b"", b""
        partition, at, first, after = self._run
        for index in range(start, stop):
            change = self._changes[index]
            if type(change) is not Finish:
                stop = index
                break
            before, record = change.before, change.record
            run_at = before.run_at
            if (
                change.guarded
                or change.following is not None
                or before.state != "scheduled"
                or before.version != 1
                or before.occurrence != 1
                or run_at != before.due_at
            ):
                self._finish(index, change)
                continue
            if change.keep_until_at != keep_until_at or before.tenant != tenant:
                keep_until_at, tenant = change.keep_until_at, before.tenant
                hour = keys.hour_of(keep_until_at)
                self.hours.add(hour)
                head, prefix = record_head(keep_until_at), keys.records_prefix(hour, tenant)
                tally = self._tally(tenant)
            where = prefix + record.id.encode()
            rows[where] = head + row(record)
            if not record.id.startswith(PREFIX):
                rows[keys.index_key(tenant, record.id)] = where
            if before.sequence == after and run_at == at and before.partition == partition:
                after += 1
            else:
                self._runs.append((partition, at, first, after))
                partition, at, first, after = before.partition, run_at, before.sequence, before.sequence + 1
            tally[ENDED[record.status]] += 1
            tally[PENDING] -= 1
            self.ends += 1
            if run_at > self.rung_at and record.status == "delivered":
                self.rung_at = run_at
        self._run = partition, at, first, after
        return stop

    def seal(self) -> WriteBatch:
        """All changes are in: add what is counted, and write it down in the order of the keys.

        RocksDB looks for the place of a key beside that of the last one: with rows that lie far apart, as those of ids
        that clients gave do, this halves what a write costs.
        """
        rows, ranges = self._rows, self._ranges()
        for tenant, tally in self.counts.items():
            rows[keys.counts_key(tenant)] = counts_row(tally)
        if self.last_sequence != self._stored_sequence:
            rows[keys.SEQUENCE_KEY] = number_row(self.last_sequence)
        fronts = self._fronts.row()
        if fronts is not None:
            rows[keys.FRONTS_KEY] = fronts
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key in sorted(rows):
            row = rows[key]
            if row is None:
                delete(key)
            else:
                put(key, row)
        for parcel in self._parcels:
            deque(map(put, parcel.keys, parcel.rows), maxlen=0)
        for begin, end in ranges:  # After the rows, for an event may come and go in one batch.
            batch.delete_range(begin, end)
        return batch

    def _ranges(self) -> list[tuple[bytes, bytes]]:
        """The keys between which everything goes. Those of short runs go one by one, as rows."""
        ranges: list[tuple[bytes, bytes]] = []
        rows, place = self._rows, keys.place_key
        for partition, at, first, after in (*self._runs, self._run):
            if after - first >= RANGE_MIN:
                ranges.append((place(b"E", partition, at, first), place(b"E", partition, at, after)))
            else:
                for sequence in range(first, after):
                    rows[place(b"E", partition, at, sequence)] = None
        return ranges

    def _change(self, index: int, change: Change) -> None:
        self.tenants.add(tenant_of_change(change))
        match change:
            case Move():
                self._move(index, change)
            case Block(partition, tenant, key, head):
                self._rows[keys.head_key(partition, tenant, key)] = number_row(head)
            case Unblock(partition, tenant, key):
                self._rows[keys.head_key(partition, tenant, key)] = None
            case Finish():
                self._finish(index, change)
            case Add():
                self._add(index, change.event)
            case _:
                assert_never(change)

    def _add(self, index: int, event: Event) -> None:
        """A new event that needs an entry in the index: its id is a client's, or it does not start at home."""
        if not is_made(event.id):
            existing = self._existing(index, event)
            if existing is not None:
                self.refusals[index] = Refusal(existing)
                return
        place = self._put(event)
        self._rows[keys.index_key(event.tenant, event.id)] = place
        self._tally(event.tenant)[DEAD if event.state == "dead" else PENDING] += 1
        self.last_sequence = max(self.last_sequence, event.sequence)

    def _move(self, index: int, change: Move) -> None:
        before, after = change.before, change.after
        if change.guarded and not self._is_stored(index, before):
            self.refusals[index] = Refusal(None)
            return
        self._replace(before, after)
        if before.state != after.state:
            tally = self._tally(after.tenant)
            tally[DEAD if before.state == "dead" else PENDING] -= 1
            tally[DEAD if after.state == "dead" else PENDING] += 1

    def _finish(self, index: int, change: Finish) -> None:
        before, record, following = change.before, change.record, change.following
        if change.guarded and not self._is_stored(index, before):
            self.refusals[index] = Refusal(None)
            return
        tenant, event_id = record.tenant, record.id
        hour = keys.hour_of(change.keep_until_at)
        occurrence = None if following is None else record.occurrence
        place = keys.record_key(hour, tenant, event_id, occurrence)
        self._rows[place] = record_row(record, change.keep_until_at)
        self.hours.add(hour)
        self.ends += 1
        if record.status == "delivered" and before.run_at > self.rung_at:
            self.rung_at = before.run_at
        tally = self._tally(tenant)
        tally[ENDED[record.status]] += 1
        if following is not None:
            self._replace(before, following)
            return
        tally[DEAD if before.state == "dead" else PENDING] -= 1
        self._rows[keys.event_key(before)] = None
        if not is_made(event_id):
            self._rows[keys.index_key(tenant, event_id)] = place
        elif not is_home(before):
            self._rows[keys.index_key(tenant, event_id)] = None

    def _replace(self, before: Event, after: Event) -> None:
        """Put an event in the place of its older form, and keep the index right."""
        old = keys.event_key(before)
        new = self._put(after)
        if old == new:
            return
        self._rows[old] = None
        made = is_made(after.id)
        if not (made and is_home(after)):
            self._rows[keys.index_key(after.tenant, after.id)] = new
        elif not is_home(before):
            self._rows[keys.index_key(after.tenant, after.id)] = None

    def _put(self, event: Event) -> bytes:
        place = keys.event_key(event)
        self._rows[place] = labelled_row(event)
        if event.state == "scheduled" and event.run_at < self._fronts.at[event.partition]:
            self._fronts.lower(event.partition, event.run_at)
        return place

    def _tally(self, tenant: str) -> Tally:
        tally = self.counts.get(tenant)
        if tally is None:
            self.tenants.add(tenant)
            tally = self.counts[tenant] = list(self._stored_counts.get(tenant, (0, 0, 0, 0, 0)))
        return tally

    def _is_stored(self, index: int, named: Event) -> bool:
        """Whether an event is still what a guarded change says."""
        stored = self._view.before(index, named.tenant, named.id)
        if stored is None:
            row = self._db.get(keys.event_key(named))
            if row is None:
                return False
            try:
                stored = read_event(row)
            except BadRow:
                return False
        return isinstance(stored, Event) and is_current(stored, named)

    def _existing(self, index: int, event: Event) -> Event | Record | None:
        """What has the id of a new event already; a record whose time is over does not count, nor what nobody can
        read.
        """
        try:
            name = event.tenant, event.id
            stored = self._view.before(index, *name) or stored_at_index(self._db, *name)
        except BadRow:
            return None
        if isinstance(stored, tuple):
            record, keep_until_at = stored
            return record if keep_until_at > event.created_at else None
        return stored


def stored_at_index(db: Rdict, tenant: str, event_id: str) -> Stored | None:
    """What lies where the index says; None where it says nothing, or where a row was set aside. Raises `BadRow`."""
    place: bytes | None = db.get(keys.index_key(tenant, event_id))
    row = None if place is None else db.get(place)
    if place is None or row is None:
        return None
    return read_record(row) if place[:1] == b"H" else read_event(row)
