"""Events with a key that users are changing.

While a change is being stored, its entry is in no lane and in no agenda bucket that still rings it. The entry keeps its
place in its key all the same: until the change is over, no later event of the key starts. This holds for every entry
that `Edits` takes: one that waits in its lane, one that becomes due during the change, and one that was not in memory.

An entry that is not due yet has no place to keep, so a change of next year's event delays nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.engine.entry import Entry


class Changing:
    """The entries by tenant and key. Each is also in `WorkingSet.entries`, so the memory budget bounds their number."""

    __slots__ = ("_clock", "_entries")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str], list[Entry]] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, entry: Entry) -> None:
        """Record that a change of the entry begins."""
        event = entry.event
        if event.key is not None:
            self._entries.setdefault((event.tenant, event.key), []).append(entry)

    def remove(self, entry: Entry) -> None:
        """Record that the change of the entry is over. Does nothing if its partition has left this node."""
        event = entry.event
        if event.key is None:
            return
        entries = self._entries.get((event.tenant, event.key), [])
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del self._entries[event.tenant, event.key]

    def forget(self, partitions: Container[int]) -> None:
        """Forget the entries of these partitions. All events of a key are in one partition."""
        for name in [name for name, entries in self._entries.items() if entries[0].event.partition in partitions]:
            del self._entries[name]

    def has_before(self, event: Event) -> bool:
        """Whether the change of an earlier event of the same key is in progress."""
        if event.key is None or not self._entries:
            return False
        return any(entry.event.order < event.order for entry in self.due(event.tenant, event.key))

    def due(self, tenant: str, key: str) -> Iterator[Entry]:
        """The entries of a key that are due."""
        now = self._clock.now()
        for entry in self._entries.get((tenant, key), ()):
            # The clock of an earlier owner may be ahead of ours: an event that it sent to the store's line stays there.
            if entry.event.run_at <= now or entry.event.state == "waiting":
                yield entry

    def has(self, tenant: str, key: str) -> bool:
        """Whether the change of any event of the key is in progress."""
        return (tenant, key) in self._entries
