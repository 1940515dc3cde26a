"""From changes to rows: what one apply leaves in which table, worked out before anything is sent.

Changes take effect in the order given, but tables are changed one after the other, and each of them at once. So what
is collected here is what remains in the end: a row that comes and goes again is not written, and whatever goes goes
before anything comes.

Nothing is read for events with made ids. A client-given id is claimed as if it were new; only when the database finds
one that is not, the apply is worked out once more, with what was read about all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from everbell.core.event import Event, Record
from everbell.core.ids import PREFIX, is_made
from everbell.core.time import HOUR_MS
from everbell.stores.port import Add, Block, Change, Finish, Move, Refusal, Unblock
from everbell.stores.rows import (
    DEAD,
    ENDED,
    NO_LABEL,
    PENDING,
    Tally,
    encode,
    head_of,
    labelled_row,
    record_head,
    record_row,
)
from everbell.stores.semantics import Space, is_current, is_home
from everbell.stores.view import Stored, View

Name = tuple[str, str]
"""(tenant, id)"""

Spot = tuple[Space, tuple[int | str, ...]]
"""A table, and the key of a row in it."""

Entry = tuple[Space, int, int, int, str | None]
"""What the table of ids says after the name: space, partition, time, sequence, key."""


Looked = Mapping[Name, tuple[Entry, Stored | None]]
"""By id: its entry, and what lies there, if that can be read. What has no entry is missing."""


class Shelf:
    """The new rows of a table of events, and the keys of those that go."""

    __slots__ = ("gone", "rows")

    def __init__(self) -> None:
        self.rows: dict[tuple[int | str, ...], bytes] = {}
        self.gone: set[tuple[int | str, ...]] = set()


class Batch:
    """The changes of one apply, on their way into one transaction."""

    def __init__(self, changes: Sequence[Change], looked: Looked, guarded: Mapping[Spot, Event]) -> None:
        """`guarded` is what lies where guarded changes say that their event is."""
        self.refusals: dict[int, Refusal] = {}
        self.scheduled, self.waiting, self.dead = Shelf(), Shelf(), Shelf()
        self.records: dict[tuple[int, str, str, int], bytes] = {}
        """By hour, tenant, id and occurrence."""
        self.ends: list[tuple[int, str, str, int, bytes]] = []
        """Records of events with made ids that came once and never moved: new for certain, each of another event."""
        self.claims: dict[Name, Entry] = {}
        self.freed: dict[Name, Entry] = {}
        """Entries that a claim takes the place of: of a record whose time is over, or of a row that was set aside."""
        self.entries: dict[Name, Entry | None] = {}
        """Entries of events that are ours already; None: it goes."""
        self.heads: dict[tuple[int, str, str], int | None] = {}
        self.counts: dict[str, Tally] = {}
        """What to add to each tenant's counts."""
        self.changes = changes
        self.is_guarded = False
        """Whether what becomes of the changes depends on what is stored."""
        self._looked = looked
        self._guarded = guarded
        self._view = View(changes, self.refusals)
        self._shelves = {"E": self.scheduled, "W": self.waiting, "D": self.dead}

    def fill(self, start: int, stop: int) -> None:
        """Take in some of the changes, in order."""
        while start < stop:
            start = (
                self._fill_ends(start, stop) if type(self.changes[start]) is Finish else self._fill_rest(start, stop)
            )

    def _fill_rest(self, start: int, stop: int) -> int:
        """Take in changes up to one that ends an event; returns where that is."""
        # This loop runs for every event that is ever scheduled: it calls no more than it must.
        scheduled, changes, row = self.scheduled.rows, self.changes, encode
        tenant, tally = None, [0]
        for index in range(start, stop):
            change = changes[index]
            if type(change) is Add:
                event = change.event
                run_at = event.run_at
                if event.id.startswith(PREFIX) and run_at == event.due_at and event.state == "scheduled":
                    head = head_of(event.tenant, event.to) if event.key is None else NO_LABEL
                    scheduled[event.partition, run_at, event.sequence] = head + row(event)
                    if event.tenant != tenant:
                        tenant = event.tenant
                        tally = self._tally(tenant)
                    tally[PENDING] += 1
                else:
                    self._add(index, event)
            elif type(change) is Finish:
                return index
            else:
                self._change(index, change)
        return stop

    def _fill_ends(self, start: int, stop: int) -> int:
        """Take in changes as long as they end events; returns where that ends."""
        # As above: it is `_finish` for events that came once and never moved.
        ends, changes, row = self.ends, self.changes, encode
        scheduled, gone = self.scheduled.rows, self.scheduled.gone
        keep_until_at, hour, head, tenant, tally = -1, 0, b"", None, [0]
        for index in range(start, stop):
            change = changes[index]
            if type(change) is not Finish:
                return index
            before = change.before
            run_at = before.run_at
            key = before.partition, run_at, before.sequence
            if (
                run_at != before.due_at
                or before.version != 1
                or before.occurrence != 1
                or before.state != "scheduled"
                or change.guarded
                or change.following is not None
                or key in gone  # Ended twice in one apply: the last one counts, as elsewhere.
                or not before.id.startswith(PREFIX)
            ):
                self._finish(index, change)
                continue
            if change.keep_until_at != keep_until_at:
                keep_until_at = change.keep_until_at
                hour, head = keep_until_at // HOUR_MS, record_head(keep_until_at)
            record = change.record
            ends.append((hour, record.tenant, record.id, 0, head + row(record)))
            gone.add(key)
            scheduled.pop(key, None)
            if record.tenant != tenant:
                tenant = record.tenant
                tally = self._tally(tenant)
            tally[PENDING] -= 1
            tally[ENDED[record.status]] += 1
        return stop

    def _change(self, index: int, change: Change) -> None:
        match change:
            case Move():
                self._move(index, change)
            case Block(partition, tenant, key, head):
                self.heads[partition, tenant, key] = head
            case Unblock(partition, tenant, key):
                self.heads[partition, tenant, key] = None
            case Finish():
                self._finish(index, change)
            case Add():
                self._add(index, change.event)
            case _:
                assert_never(change)

    def _add(self, index: int, event: Event) -> None:
        """A new event that needs an entry among the ids: its id is a client's, or it does not start at home."""
        if is_made(event.id):
            self.entries[event.tenant, event.id] = entry_of(event)
        else:
            existing = self._claim(index, event)
            if existing is not None:
                self.refusals[index] = Refusal(existing)
                return
        self._put(event)
        self._tally(event.tenant)[DEAD if event.state == "dead" else PENDING] += 1

    def _claim(self, index: int, event: Event) -> Event | Record | None:
        """Take a client-given id, or return what has it."""
        name = event.tenant, event.id
        seen = self._view.before(index, *name)
        entry, stored = (None, seen) if seen is not None else self._looked.get(name, (None, None))
        existing = _counts_still(stored, event.created_at)
        if existing is not None:
            return existing
        if seen is not None:
            self._index(name, entry_of(event))
        else:
            self.claims[name] = entry_of(event)
            if entry is not None:
                self.freed[name] = entry
        return None

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
        hour = change.keep_until_at // HOUR_MS
        occurrence = 0 if following is None else record.occurrence
        if (before.partition, before.run_at, before.sequence) in self.scheduled.gone:
            self.ends[:] = [end for end in self.ends if end[:3] != (hour, tenant, event_id)]
        self.records[hour, tenant, event_id, occurrence] = record_row(record, change.keep_until_at)
        tally = self._tally(tenant)
        tally[ENDED[record.status]] += 1
        if following is not None:
            self._replace(before, following)
            return
        tally[DEAD if before.state == "dead" else PENDING] -= 1
        self._take(before)
        if not is_made(event_id):
            self._index((tenant, event_id), ("H", before.partition, hour, 0, None))
        elif not is_home(before):
            self.entries[tenant, event_id] = None

    def _replace(self, before: Event, after: Event) -> None:
        """Put an event in the place of its older form, and keep its entry right."""
        self._take(before)
        self._put(after)
        old, new = entry_of(before), entry_of(after)
        if old == new:
            return
        name = after.tenant, after.id
        if not (is_made(after.id) and is_home(after)):
            self._index(name, new)
        elif not is_home(before):
            self.entries[name] = None

    def _index(self, name: Name, entry: Entry) -> None:
        if name in self.claims:
            self.claims[name] = entry
        else:
            self.entries[name] = entry

    def _put(self, event: Event) -> None:
        space, key = spot_of(event)
        self._shelves[space].rows[key] = labelled_row(event)

    def _take(self, event: Event) -> None:
        space, key = spot_of(event)
        shelf = self._shelves[space]
        shelf.rows.pop(key, None)
        shelf.gone.add(key)

    def _tally(self, tenant: str) -> Tally:
        tally = self.counts.get(tenant)
        if tally is None:
            tally = self.counts[tenant] = [0, 0, 0, 0, 0]
        return tally

    def _is_stored(self, index: int, named: Event) -> bool:
        """Whether an event is still what a guarded change says."""
        self.is_guarded = True
        stored = self._view.before(index, named.tenant, named.id) or self._guarded.get(spot_of(named))
        return isinstance(stored, Event) and is_current(stored, named)


def spot_of(event: Event) -> Spot:
    """Where an unfinished event belongs; follows from its fields alone."""
    if event.state == "scheduled":
        return "E", (event.partition, event.run_at, event.sequence)
    if event.state == "waiting":
        return "W", (event.partition, event.tenant, event.key or "", event.due_at, event.sequence)
    return "D", (event.tenant, event.run_at, event.sequence)


def entry_of(event: Event) -> Entry:
    """What the table of ids says about an unfinished event that needs an entry."""
    if event.state == "waiting":
        return "W", event.partition, event.due_at, event.sequence, event.key or ""
    return "E" if event.state == "scheduled" else "D", event.partition, event.run_at, event.sequence, None


def _counts_still(stored: Stored | None, created_at: int) -> Event | Record | None:
    """What has the id of a new event; a record whose time is over does not count."""
    if isinstance(stored, tuple):
        record, keep_until_at = stored
        return record if keep_until_at > created_at else None
    return stored
