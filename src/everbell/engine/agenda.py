"""The near future in memory, in due order.

Events are kept in buckets of one millisecond, and a heap holds the milliseconds. So adding an event costs one
dictionary look-up, and any number of events at one instant is one bucket. One timer is armed for the earliest bucket.
It reads the wall clock at least once a second, so it notices a clock that was set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.engine.entry import Entry, Phase
from everbell.engine.supervisor import Supervisor

# The number of events that ring before other tasks run on the loop: a herd must not delay intake or outcomes.
SLICE = 5_000

NEVER = 1 << 62

# The agenda reads the clock this many times as often as the rest of the engine, while it has events.
_LOOKS = 5


class Agenda:
    """Rings each entry when its `run_at` has been reached on the clock, never before."""

    def __init__(
        self,
        clock: Clock,
        supervisor: Supervisor,
        ring: Callable[[Entry], None],
        watch_clock_s: float = 5.0,
        turn_at: Callable[[Event], int] | None = None,
    ) -> None:
        """`turn_at`, if given, says when an event rings instead of its `run_at`."""
        self._turn_at = turn_at
        self._clock = clock
        self._supervisor = supervisor
        self._ring = ring
        self._look_again_s = watch_clock_s / _LOOKS
        self._buckets: dict[int, list[Entry]] = {}
        self._times: list[int] = []
        # The bucket that is sorted, last event first, because a part of it has rung.
        self._sorted_at = NEVER
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._armed_for = NEVER
        self._stopped = False
        self._is_ringing = False
        # Callbacks for the time after the next ringing, by the object that waits.
        self._waiting: dict[object, Callable[[], None]] = {}

    def add(self, entry: Entry) -> None:
        run_at = entry.event.run_at if self._turn_at is None else self._turn_at(entry.event)
        bucket = self._buckets.get(run_at)
        if bucket is not None:
            bucket.append(entry)
            if run_at == self._sorted_at:
                self._sorted_at = NEVER
            return
        self._buckets[run_at] = [entry]
        heappush(self._times, run_at)
        if run_at < self._armed_for:
            self._arm(run_at)

    def add_all(self, entries: Sequence[Entry]) -> None:
        """Add many entries. Entries with the same time usually follow each other."""
        if self._turn_at is not None:
            for entry in entries:
                self.add(entry)
            return
        run_at = NEVER
        bucket: list[Entry] = []
        for entry in entries:
            if entry.event.run_at == run_at:
                bucket.append(entry)
            else:
                self.add(entry)
                run_at = entry.event.run_at
                bucket = self._buckets[run_at]

    def rings_before(self, entry: Entry) -> bool:
        """Whether an entry that belongs before this one has not rung yet.

        The agenda rings in order, so this is rare. The other entry came to memory late, from the store or after a
        change, or many events are due and need several turns of the loop to ring.
        """
        if self._is_ringing or not self._times:
            return self._is_ringing
        first_at, run_at = self._times[0], entry.event.run_at
        if first_at != run_at:
            return first_at < run_at
        return self._sorted_at != run_at or _order(self._buckets[run_at][-1]) < _order(entry)

    def after_ringing(self, waiting: object, callback: Callable[[], None]) -> None:
        """Call back after the next slice has rung, and only once for each `waiting` object."""
        self._waiting[waiting] = callback

    @property
    def first_at(self) -> int:
        """When the next entry rings; in the past while due entries wait for their slice."""
        return self._times[0] if self._times else NEVER

    def stop(self) -> None:
        """Stop ringing."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, run_at: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped:
            return
        self._armed_for = run_at
        wait_s = (run_at - self._clock.now()) / 1_000
        if wait_s <= 0:
            self._timer = self._supervisor.call_soon(self._wake)
        else:
            self._timer = self._supervisor.call_later(min(wait_s, self._look_again_s), self._wake)

    def _wake(self) -> None:
        self._timer, self._armed_for = None, NEVER
        self._is_ringing = True
        try:
            self._ring_due(self._clock.now())
        finally:
            self._is_ringing = False
        waiting, self._waiting = self._waiting, {}
        for callback in waiting.values():
            callback()
        if self._times and self._times[0] < self._armed_for:
            self._arm(self._times[0])

    def _ring_due(self, now: int) -> None:
        """Ring a slice of the due entries, earliest first.

        The others stay in their bucket, where an entry that comes late takes its place. Events of a key that had no
        room and went back to the store must not be overtaken by events that were in memory all the time.
        """
        left = SLICE
        while left and self._times and self._times[0] <= now:
            run_at = self._times[0]
            bucket = self._buckets[run_at]
            if len(bucket) > 1 and self._sorted_at != run_at:
                bucket.sort(key=_order, reverse=True)
                self._sorted_at = run_at
            ringing = bucket[-left:]
            del bucket[-left:]
            left -= len(ringing)
            if not bucket:
                heappop(self._times)
                del self._buckets[run_at]
                self._sorted_at = NEVER  # Entries that come later make a new bucket, which is not sorted.
            for entry in reversed(ringing):
                if entry.phase is Phase.AHEAD:
                    self._ring(entry)


def _order(entry: Entry) -> int:
    event = entry.event
    return event.due_at << 56 | event.sequence  # `Event.order`, without its two calls.
