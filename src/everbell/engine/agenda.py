"""The near future in memory, in due order.

Events are kept in buckets of one millisecond, and a heap holds the milliseconds: adding costs a dictionary look-up,
and a herd at one instant is one bucket. A single timer is armed for the earliest bucket. It looks at the wall clock
at least once a second, so a clock that steps is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from everbell.clock import Clock
from everbell.engine.entry import Entry, Phase

SLICE = 5_000
"""How many events ring before others get a turn on the loop: a herd must not hold up intake or outcomes."""

NEVER = 1 << 62

_LOOKS = 5
"""How many times more often than the rest of the engine it looks at the clock, while something is near."""


class Agenda:
    """Rings each entry when its `run_at` has been reached on the clock, never before."""

    def __init__(self, clock: Clock, ring: Callable[[Entry], None], watch_clock_s: float = 5.0) -> None:
        self._clock = clock
        self._ring = ring
        self._look_again_s = watch_clock_s / _LOOKS
        self._buckets: dict[int, list[Entry]] = {}
        self._times: list[int] = []
        self._sorted_at = NEVER
        """The bucket that is in order, the last one first, because a part of it has rung."""
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._armed_for = NEVER
        self._stopped = False

    def add(self, entry: Entry) -> None:
        run_at = entry.event.run_at
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
        """The same for many, of which those for the same time mostly come together."""
        run_at = NEVER
        bucket: list[Entry] = []
        for entry in entries:
            if entry.event.run_at == run_at:
                bucket.append(entry)
            else:
                self.add(entry)
                run_at = entry.event.run_at
                bucket = self._buckets[run_at]

    def stop(self) -> None:
        """Ring nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, run_at: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped:
            return
        self._armed_for = run_at
        loop = asyncio.get_running_loop()
        wait_s = (run_at - self._clock.now()) / 1_000
        if wait_s <= 0:
            self._timer = loop.call_soon(self._wake)
        else:
            self._timer = loop.call_later(min(wait_s, self._look_again_s), self._wake)

    def _wake(self) -> None:
        self._timer, self._armed_for = None, NEVER
        self._ring_due(self._clock.now())
        if self._times and self._times[0] < self._armed_for:
            self._arm(self._times[0])

    def _ring_due(self, now: int) -> None:
        """Ring a slice of what is due, the earliest first.

        What is left stays in its bucket, so that an entry that comes late takes its place there: events of a key that
        had no room and went back to the store must not be passed by others that were in memory all the time.
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
                self._sorted_at = NEVER  # Those that come late make a bucket of their own, in the order of coming.
            for entry in reversed(ringing):
                if entry.phase is Phase.AHEAD:
                    self._ring(entry)


def _order(entry: Entry) -> int:
    event = entry.event
    return event.due_at << 56 | event.sequence  # `Event.order`, without two calls.
