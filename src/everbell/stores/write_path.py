"""The meaning of each change: the one write path of all stores.

The write path decides, and a `Layout` keeps. The write path refuses a taken id or a stale guard, counts, and knows
which ids need an entry in the index of ids. A layout knows where a row is placed, how it is named, and how it is
encoded. RocksDB, the tables of PostgreSQL and Cassandra, and memory are layouts.

Changes take effect in the order given. A layout answers `look_up` and `stored_at` with the changes that it was already
told of, so a later change of an apply sees the earlier ones, although nothing is written yet.

An event with a made id is *at home* while it lies where its id says. Such an event is found without the index, which
spares most events an entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar, assert_never

from everbell.core.event import Event, Record
from everbell.core.ids import PREFIX, make_id
from everbell.stores.port import Add, Block, Change, Finish, Move, PreparedRows, Refusal, Unblock
from everbell.stores.rows import DEAD, ENDED, PENDING, StatusCounts

EventName = tuple[str, str]
"""(tenant, id)"""

Stored = Event | tuple[Record, int]
"""An unfinished event, or the record of a finished one and the time until which it is kept."""

_STEP = 512  # How many changes are made before other tasks may run.


class Layout(Protocol):
    """How a store keeps the changes of one apply."""

    counts: dict[str, StatusCounts]
    """The counts of tenants; the write path adds to them."""

    def put(self, events: Collection[Event]) -> None:
        """Write the rows of unfinished events, each where its fields place it."""

    def put_prepared(self, rows: PreparedRows) -> None:
        """Write rows that the store's own `RowMaker` made."""

    def take(self, event: Event) -> None:
        """Remove the row of an event. The same event is put again next, perhaps in the same place."""

    def end(self, ends: Sequence[Finish]) -> None:
        """Remove the rows of finished events for good, and keep their records."""

    def keep(self, change: Finish) -> None:
        """Keep the record of an occurrence that another one follows."""

    def put_claiming(self, events: Collection[Event]) -> None:
        """Write the rows of new events with client-given ids, and point the index at them. `look_up` was just asked
        about these events, and their ids are free or over.
        """

    def index_event(self, event: Event) -> None:
        """Point the index at an unfinished event."""

    def index_records(self, ends: Sequence[Finish]) -> None:
        """Point the index at the records of finished events."""

    def drop_index(self, event: Event) -> None:
        """Remove the event's entry from the index."""

    def block(self, partition: int, tenant: str, key: str, head: int | None) -> None:
        """Write the head of a key; None removes it."""

    def look_up(self, events: Collection[Event]) -> dict[EventName, Stored]:
        """The events and records that have the client-given ids of new events. Rows that cannot be decoded are left
        out.
        """

    def stored_at(self, event: Event) -> Event | None:
        """The event that lies where this one says that it lies; None if nothing there can be decoded."""


L = TypeVar("L", bound=Layout)


class WritePath(Generic[L]):
    """The changes of one apply, on their way into a layout."""

    def __init__(self, changes: Sequence[Change], layout: L) -> None:
        self.changes = changes
        self.layout = layout
        self.refusals: dict[int, Refusal] = {}
        self.tenants: set[str] = set()  # The tenants that the changes concern.
        self.is_guarded = False  # Whether a guard was checked, so that the outcome depends on stored events.

    async def run(self) -> None:
        """Make all changes; other tasks run in between."""
        for start in range(0, len(self.changes), _STEP):
            if start:
                await asyncio.sleep(0)
            self.make(start, min(start + _STEP, len(self.changes)))

    def make(self, start: int, stop: int) -> None:
        """Make some of the changes, in order. Changes of one kind mostly come together."""
        index = start
        while index < stop:
            change = self.changes[index]
            if type(change) is Add:
                index = self._add(index, stop)
            elif type(change) is Finish:
                index = self._finish(index, stop)
            else:
                self._make_other(index, change)
                index += 1

    def _add(self, start: int, stop: int) -> int:
        """Make changes as long as they add events; returns the index of the first other one."""
        # This loop runs for every event that is ever scheduled, so it makes few calls.
        changes, layout = self.changes, self.layout
        known: dict[EventName, Stored] | None = None
        tenant, tally = None, [0]
        added: list[Event] = []
        claimed: list[Event] = []
        for index in range(start, stop):
            change = changes[index]
            if type(change) is not Add:
                stop = index
                break
            event = change.event
            if not event.id.startswith(PREFIX):
                if known is None:
                    known = layout.look_up(self._claiming(index, stop))
                name = event.tenant, event.id
                if name in known:
                    existing = _still_counts(known[name], change)
                    if existing is not None:
                        self.refusals[index] = Refusal(existing)
                        continue
                known[name] = event
                claimed.append(event)
            else:
                added.append(event)
                if event.run_at != event.due_at or event.state != "scheduled":
                    layout.index_event(event)
            if event.tenant != tenant:
                tenant = event.tenant
                tally = self._tally(tenant)
            tally[DEAD if event.state == "dead" else PENDING] += 1
        layout.put_claiming(claimed)
        layout.put(added)
        return stop

    def _claiming(self, start: int, stop: int) -> list[Event]:
        """The events with client-given ids among those that are added next."""
        events: list[Event] = []
        for change in islice(self.changes, start, stop):
            if type(change) is not Add:
                break
            if not change.event.id.startswith(PREFIX):
                events.append(change.event)
        return events

    def _finish(self, start: int, stop: int) -> int:
        """Make changes as long as they end occurrences; returns the index of the first other one."""
        # This loop runs for every event, too.
        changes, layout = self.changes, self.layout
        tenant, tally = None, [0]
        ends: list[Finish] = []
        ended: set[int] = set()  # The sequences of the guarded ones among them.
        given: list[Finish] = []
        for index in range(start, stop):
            change = changes[index]
            if type(change) is not Finish:
                stop = index
                break
            before, record = change.before, change.record
            if change.guarded or change.following is not None:
                if before.sequence in ended or change.following is not None:
                    layout.end(ends)  # A guard has to see them.
                    ends = []
                    ended.clear()
                if change.guarded and not self._is_current(before):
                    self.refusals[index] = Refusal(None)
                    continue
                ended.add(before.sequence)
            if record.tenant != tenant:
                tenant = record.tenant
                tally = self._tally(tenant)
            tally[ENDED[record.status]] += 1
            if change.following is not None:
                layout.keep(change)
                self._replace(before, change.following)
                continue
            tally[DEAD if before.state == "dead" else PENDING] -= 1
            ends.append(change)
            if not record.id.startswith(PREFIX):
                given.append(change)
            elif (
                before.run_at != before.due_at
                or before.version != 1
                or before.occurrence != 1
                or before.state != "scheduled"
            ) and not is_home(before):
                layout.drop_index(before)
        layout.index_records(given)
        layout.end(ends)
        return stop

    def _make_other(self, index: int, change: Change) -> None:
        match change:
            case Move():
                self._move(index, change)
            case Block(partition, tenant, key, head):
                self.tenants.add(tenant)
                self.layout.block(partition, tenant, key, head)
            case Unblock(partition, tenant, key):
                self.tenants.add(tenant)
                self.layout.block(partition, tenant, key, None)
            case PreparedRows():
                self._tally(change.tenant)[PENDING] += change.count
                self.layout.put_prepared(change)
            case Add() | Finish():
                raise AssertionError("made in runs, see `make`")
            case _:
                assert_never(change)

    def _move(self, index: int, change: Move) -> None:
        before, after = change.before, change.after
        self.tenants.add(after.tenant)
        if change.guarded and not self._is_current(before):
            self.refusals[index] = Refusal(None)
            return
        self._replace(before, after)
        if before.state != after.state:
            tally = self._tally(after.tenant)
            tally[DEAD if before.state == "dead" else PENDING] -= 1
            tally[DEAD if after.state == "dead" else PENDING] += 1

    def _replace(self, before: Event, after: Event) -> None:
        """Put an event in the place of its older form, and keep the index right."""
        self.layout.take(before)
        self.layout.put((after,))
        if _place_of(before) == _place_of(after):
            return
        if not (after.id.startswith(PREFIX) and is_home(after)):
            self.layout.index_event(after)
        elif not is_home(before):
            self.layout.drop_index(after)

    def _is_current(self, named: Event) -> bool:
        """Whether the event that a guarded change names is stored as the change says: same place, same version."""
        self.is_guarded = True
        stored = self.layout.stored_at(named)
        return (
            stored is not None
            and stored.state == named.state
            and stored.version == named.version
            and stored.sequence == named.sequence
            and (stored.due_at == named.due_at if named.state == "waiting" else stored.run_at == named.run_at)
        )

    def _tally(self, tenant: str) -> StatusCounts:
        self.tenants.add(tenant)
        return self.layout.counts.setdefault(tenant, [0, 0, 0, 0, 0])


def is_home(event: Event) -> bool:
    """Whether an event with a made id lies where the id says, so that finding it needs no index."""
    if event.state != "scheduled":
        return False
    if event.version == 1 and event.occurrence == 1:
        return event.run_at == event.due_at  # The id carries the first due time, which is still the due time.
    return event.id.startswith(make_id(event.run_at, event.sequence, event.partition, b""))


def _place_of(event: Event) -> tuple[str, int, str | None]:
    """The part of an event's place that a change of the same event can change."""
    return (event.state, event.due_at, event.key) if event.state == "waiting" else (event.state, event.run_at, None)


def _still_counts(stored: Stored, change: Add) -> Event | Record | None:
    """The event or record that has the id of a new event; an expired record does not count."""
    if isinstance(stored, tuple):
        record, keep_until_at = stored
        return record if keep_until_at > change.event.created_at and not change.reuses else None
    return stored


def given_names(changes: Sequence[Change]) -> dict[EventName, int]:
    """The client-given ids of new events, with their partitions."""
    events = (change.event for change in changes if type(change) is Add)
    return {(event.tenant, event.id): event.partition for event in events if not event.id.startswith(PREFIX)}


def guarded_events(changes: Sequence[Change]) -> list[Event]:
    """The events that guarded changes name."""
    return [change.before for change in changes if isinstance(change, (Move, Finish)) and change.guarded]
