"""The counters of the engine. Health, metrics and benchmarks read them."""

from __future__ import annotations

from bisect import bisect_left

from everbell.core.event import Course
from everbell.core.recurrence import NOTHING_YET

LATENESS_BOUNDS_MS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000)


class Meter:
    """Counters since the start, and a histogram of how late first attempts started."""

    __slots__ = (
        "cancelled",
        "dead",
        "delivered",
        "expired",
        "lateness",
        "lateness_max_ms",
        "lateness_sum_ms",
        "missed",
        "retried",
        "scheduled",
        "skipped",
    )

    def __init__(self) -> None:
        self.scheduled = 0
        self.delivered = 0
        self.retried = 0
        self.dead = 0
        self.expired = 0
        self.cancelled = 0
        self.missed = {"late": 0, "paused": 0, "expired": 0}
        """The number of occurrences of recurring events that should have rung but did not, by reason."""
        self.skipped = {"overlap": 0, "gap": 0}
        """The number of occurrences that were not meant to ring, by reason."""
        self.lateness = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.lateness_sum_ms = 0
        self.lateness_max_ms = 0

    def count_occurrences(self, before: Course | None, after: Course | None) -> None:
        """Count the occurrences that a recurring event missed or skipped in its last step."""
        if after is None or after is before:
            return
        was = before or NOTHING_YET
        self.missed["late"] += after.late - was.late
        self.missed["paused"] += after.paused - was.paused
        self.missed["expired"] += after.expired - was.expired
        self.skipped["overlap"] += after.overlapped - was.overlapped
        self.skipped["gap"] += after.gaps - was.gaps

    def count_started(self, late_ms: int, count: int = 1) -> None:
        """Count first attempts that started this late."""
        self.lateness[bisect_left(LATENESS_BOUNDS_MS, late_ms)] += count
        self.lateness_sum_ms += late_ms * count
        if late_ms > self.lateness_max_ms:
            self.lateness_max_ms = late_ms
