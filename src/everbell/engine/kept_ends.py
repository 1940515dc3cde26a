"""Ends of events that this node delivered, but could not store before it lost their partitions.

If the log and the store are away for longer than a lease, a node loses its partitions, and often gets them back. Its
receivers have the events already. So the node keeps these ends for a while, and stores them when it takes the partition
again, before it reads events: otherwise it would deliver them a second time. Each end is guarded: it is stored only if
the event is exactly as it was when it was delivered, whatever other owners did in the meantime.

An end that must be stored together with other changes is not kept: that of a recurring event, and of an event whose key
has a mark. Such an attempt is repeated, as it is after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.errors import Fenced, StoreFull
from everbell.stores.port import Block, Change, Finish, Store

KEPT_MS = 60_000
"""How long an end is kept. By then, another owner has repeated the attempt."""
KEPT_MAX = 10_000
KEPT_BYTES_MAX = 8 * 1024 * 1024


class KeptEnds:
    """The ends of delivered events by partition, within a limit of their number and bytes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[int, list[tuple[int, Finish]]] = {}
        self._count = 0
        self._bytes = 0

    def keep_all(self, changes: Sequence[Change]) -> None:
        """Keep the ends of deliveries among changes that were not stored. Users were told that theirs failed."""
        marked = {(change.partition, change.tenant, change.key) for change in changes if isinstance(change, Block)}
        for change in changes:
            if isinstance(change, Finish) and not change.guarded:
                event = change.before
                if event.key is None or (event.partition, event.tenant, event.key) not in marked:
                    self.keep(change)

    def keep(self, end: Finish) -> None:
        """Keep one end, if it is the delivery of an event that does not repeat, and if there is room."""
        size = len(end.before.payload)
        if end.record.status != "delivered" or end.before.repeat is not None:
            return
        if self._count >= KEPT_MAX or self._bytes + size > KEPT_BYTES_MAX:
            return
        until_ms = self._clock.elapsed_ms() + KEPT_MS
        self._ends.setdefault(end.before.partition, []).append((until_ms, replace(end, guarded=True)))
        self._count += 1
        self._bytes += size

    async def store(self, store: Store, epochs: Mapping[int, int]) -> None:
        """Store the ends of partitions that this node has just taken. Raises `StoreUnavailable`; then try again."""
        now_ms = self._clock.elapsed_ms()
        ends = [end for index in epochs for until_ms, end in self._ends.get(index, ()) if until_ms > now_ms]
        try:
            if ends:
                await store.apply(ends, epochs)
        except (Fenced, StoreFull):
            pass  # Another node owns a partition now, or there is no room: the attempts are repeated.
        self._forget(epochs)

    def _forget(self, partitions: Collection[int]) -> None:
        for index in partitions:
            for _, end in self._ends.pop(index, ()):
                self._count -= 1
                self._bytes -= len(end.before.payload)
