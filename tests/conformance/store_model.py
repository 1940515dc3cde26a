"""A model of a store. It is obviously right, because it computes every answer from a few dictionaries."""

from __future__ import annotations

from collections import Counter
from typing import Any

from everbell.core.event import Event, Record, status_of
from everbell.core.ids import is_made
from everbell.core.target import group_of
from everbell.core.time import HOUR_MS
from everbell.stores.port import Add, Block, Change, Counts, Filter, Finish, Move, PreparedRows, Refusal, Unblock

Name = tuple[int, str, str, int]


class StoreModel:
    """Computes the answers that a store should give."""

    def __init__(self) -> None:
        self.events: dict[int, Event] = {}
        """Unfinished and dead events, by sequence."""
        self.records: dict[Name, tuple[Record, int]] = {}
        self.names: dict[tuple[str, str], int | Name] = {}
        self.heads: dict[tuple[int, str, str], int] = {}
        self.ends: Counter[tuple[str, str]] = Counter()
        self.buried: Counter[str] = Counter()
        self.tenants: set[str] = set()

    def make(self, change: Change) -> Refusal | None:
        """Make a change, or refuse it."""
        if isinstance(change, Add):
            return self._add(change.event)
        if isinstance(change, Block):
            self.heads[change.partition, change.tenant, change.key] = change.head
            return None
        if isinstance(change, Unblock):
            self.heads.pop((change.partition, change.tenant, change.key), None)
            return None
        assert not isinstance(change, PreparedRows), "the machine gives the model their events"
        if change.guarded and not self._is_stored(change.before):
            return Refusal(None)
        if isinstance(change, Move):
            self.events[change.after.sequence] = change.after
        else:
            self._finish(change)
        return None

    def _add(self, event: Event) -> Refusal | None:
        existing = None if is_made(event.id) else self._taken(event)
        if existing is not None:
            return Refusal(existing)
        self.events[event.sequence] = event
        self.names[event.tenant, event.id] = event.sequence
        self.tenants.add(event.tenant)
        return None

    def _taken(self, event: Event) -> Event | Record | None:
        place = self.names.get((event.tenant, event.id))
        if isinstance(place, tuple) and self.records[place][1] <= event.created_at:
            return None
        return self.get(event.tenant, event.id)

    def _is_stored(self, named: Event) -> bool:
        stored = self.events.get(named.sequence)
        if stored is None:
            return False
        time = "due_at" if named.state == "waiting" else "run_at"
        return all(getattr(stored, name) == getattr(named, name) for name in ("state", "version", time))

    def _finish(self, change: Finish) -> None:
        record, following = change.record, change.following
        self.ends[record.tenant, record.status] += 1
        occurrence = 0 if following is None else record.occurrence
        name = (change.keep_until_at // HOUR_MS, record.tenant, record.id, occurrence)
        self.records[name] = record, change.keep_until_at
        if following is None:
            del self.events[change.before.sequence]
            self.names[record.tenant, record.id] = name
        else:
            self.events[following.sequence] = following

    def bury(self, event: Event) -> None:
        """Set the row of a scheduled event aside."""
        del self.events[event.sequence]
        self.buried[event.tenant] += 1

    def sweep(self, now: int, limit: int) -> int:
        """Forget records; returns how many."""
        gone = sorted(name for name in self.records if (name[0] + 1) * HOUR_MS <= now)[:limit]
        for name in gone:
            del self.records[name]
        self.names = {name: place for name, place in self.names.items() if place not in gone}
        return len(gone)

    def get(self, tenant: str, event_id: str) -> Event | Record | None:
        """The event or its record."""
        place = self.names.get((tenant, event_id))
        return self.records[place][0] if isinstance(place, tuple) else self.events.get(place or 0)

    def scheduled(self, partition: int, until_at: int) -> tuple[list[Event], int | None]:
        """The scheduled events of a partition until a time, and the time of the next one."""
        own = [e for e in self.events.values() if e.state == "scheduled" and e.partition == partition]
        own.sort(key=lambda event: (event.run_at, event.sequence))
        beyond = [event.run_at for event in own if event.run_at > until_at]
        return [event for event in own if event.run_at <= until_at], min(beyond, default=None)

    def line(self, tenant: str, key: str) -> list[Event]:
        """The waiting events of a key."""
        own = [e for e in self.events.values() if e.state == "waiting" and (e.tenant, e.key) == (tenant, key)]
        return sorted(own, key=lambda event: (event.due_at, event.sequence))

    def blocked(self, partition: int) -> list[tuple[str, str, int]]:
        """The blocked keys of a partition."""
        return sorted((name[1], name[2], head) for name, head in self.heads.items() if name[0] == partition)

    def counts(self) -> dict[str, Counts]:
        """By tenant."""
        return {tenant: self._count(tenant) for tenant in self.tenants}

    def _count(self, tenant: str) -> Counts:
        dead = sum(event.tenant == tenant and event.state == "dead" for event in self.events.values())
        live = sum(event.tenant == tenant for event in self.events.values()) - dead + self.buried[tenant]
        return Counts(live, dead, *(self.ends[tenant, end] for end in ("delivered", "cancelled", "expired")))

    def find(self, filter: Filter) -> list[Event | Record]:
        """All matches, in order."""
        if filter.status in ("delivered", "cancelled", "expired"):
            # The latest hour first; then backwards by id and occurrence.
            names = sorted(self.records, reverse=True)
            return [self.records[name][0] for name in names if is_meant(filter, self.records[name][0])]
        events = [event for event in self.events.values() if is_meant(filter, event)]
        events.sort(key=_order)
        return list(events)


def is_meant(filter: Filter, found: Event | Record) -> bool:
    """Whether a filter means this event or record."""
    return (
        filter.tenant == found.tenant
        and filter.key in (None, found.key)
        and (filter.tag is None or filter.tag in found.tags)
        and found.to.startswith(filter.to or "")
        and found.id.startswith(filter.id_prefix or "")
        and (filter.from_at or 0) <= found.due_at <= (filter.until_at or found.due_at)
        and found.attempt_count >= filter.attempts_min
        and filter.target in (None, group_of(found.to))
        and filter.reason in (None, found.reason)
        and (not filter.repeats or (isinstance(found, Event) and found.repeat is not None))
        and (found.status if isinstance(found, Record) else _visible(found, filter.from_at or 0)) in _meant(filter)
    )


def _visible(event: Event, from_at: int) -> str:
    return "too early" if event.state == "scheduled" and event.run_at < from_at else status_of(event)


def _meant(filter: Filter) -> set[str | None]:
    if filter.status is None:
        return {"scheduled", "retrying", "waiting"}
    return {"scheduled", "retrying"} if filter.status == "delivering" else {filter.status}


def _order(event: Event) -> tuple[Any, ...]:
    if event.state == "waiting":
        return (1, event.partition, event.key, event.due_at, event.sequence)
    return (0, event.run_at, event.sequence)
