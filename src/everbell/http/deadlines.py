"""The deadlines of everything that waits in an HTTP pool, served by one timer.

A timer of the loop per request would cost more than the request. So a deadline falls into a bucket of
10 ms. Most entries leave their bucket long before its time, and the timer is armed for the earliest bucket that still
holds an entry. Nothing expires early; everything expires within about a bucket's length.
"""

from __future__ import annotations

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable

TICKS_PER_S = 100


class Expiring(ABC):
    """Something with a deadline. It leaves with `bucket.pop(self, None)`, which is safe to repeat."""

    __slots__ = ("bucket",)

    bucket: dict[Expiring, None]

    @abstractmethod
    def expire(self) -> None:
        """Called once at the deadline, unless this entry left its bucket before."""


class Deadlines:
    """Calls `expire` of the added entries, in the order of their deadlines."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        # Dicts keep the order of insertion, so a replay expires entries in the same order.
        self._buckets: dict[int, dict[Expiring, None]] = {}
        self._ticks: list[int] = []  # A heap of the keys of `_buckets`.
        self._timer: asyncio.TimerHandle | None = None
        self._armed_tick = 0

    def add(self, entry: Expiring, at_s: float) -> None:
        """Let `entry` expire when `now` has reached `at_s`."""
        tick = int(at_s * TICKS_PER_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._open(tick)
        bucket[entry] = None
        entry.bucket = bucket

    def sweep(self) -> None:
        """Expire all entries that are due. The timer calls this; so does a test that moves its own clock."""
        due_tick = int(self._now() * TICKS_PER_S)
        try:
            while self._ticks and (self._ticks[0] <= due_tick or not self._buckets[self._ticks[0]]):
                bucket = self._buckets.pop(heapq.heappop(self._ticks))
                for entry in list(bucket):
                    if entry in bucket:  # One expiry may take others out.
                        del bucket[entry]
                        try:
                            entry.expire()
                        except Exception as error:  # The others must expire, too.
                            self._loop.call_exception_handler({"message": "A deadline failed", "exception": error})
        finally:
            self._arm()

    def close(self) -> None:
        """Forget everything; nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._buckets.clear()
        self._ticks.clear()

    def _open(self, tick: int) -> dict[Expiring, None]:
        bucket = self._buckets[tick] = {}
        heapq.heappush(self._ticks, tick)
        if self._timer is None or tick < self._armed_tick:
            self._arm()
        return bucket

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ticks:
            self._armed_tick = self._ticks[0]
            delay_s = self._armed_tick / TICKS_PER_S - self._now()
            self._timer = self._loop.call_later(max(delay_s, 0.001), self.sweep)
