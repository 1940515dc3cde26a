"""Tallies: what happened to the events of each tenant and target, in bounded memory.

A tally is a row of counters that only grow, so a rate is the difference of two copies of the row. Only so many tenants
and targets have a tally of their own. The others share the tally of their tenant, and further tenants share one tally.
A tally that does not change for a long time makes room for another: its counts move to the tally of its tenant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

BOUNDS_MS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000)
"""The upper bounds of the buckets of both histograms. One more bucket has everything above."""

SCHEDULED, DELIVERED, FAILED, RETRIED, DEAD, EXPIRED, CANCELLED, LATE_MS, TOOK_MS = range(9)
LATENESS = 9
"""The first bucket of the lateness of first attempts; their sum is in `LATE_MS`."""
DURATIONS = LATENESS + len(BOUNDS_MS) + 1
"""The first bucket of the durations of attempts; their sum is in `TOOK_MS`."""
SIZE = DURATIONS + len(BOUNDS_MS) + 1

SAMPLE_MS = 10_000
"""The time between two samples."""
TENANTS_MAX = 64
TALLIES_MAX = 1_024
_MINUTE = 60_000 // SAMPLE_MS
_IDLE_MAX = 3_600_000 // SAMPLE_MS  # The number of samples without a change after which a tally makes room.


class LastError(Struct, frozen=True):
    """The latest failed attempt at a target."""

    at: int
    event: str
    reason: str | None
    code: int | None


class TargetTally:
    """The counters of one target of a tenant. The dispatcher and the outcomes add to them."""

    __slots__ = ("counts", "idle", "last_error", "samples")

    def __init__(self) -> None:
        self.counts = [0] * SIZE
        self.last_error: LastError | None = None
        self.idle = 0
        """The number of samples in a row without a change."""
        self.samples: deque[list[int]] = deque([[0] * SIZE], _MINUTE)
        """The counts at the last samples."""

    def count_started(self, late_ms: int, count: int) -> None:
        """Count first attempts that started this late."""
        counts = self.counts
        counts[LATENESS + bisect_left(BOUNDS_MS, late_ms)] += count
        counts[LATE_MS] += late_ms * count

    def count_ended(self, result: int, took_ms: int, count: int) -> None:
        """Count attempts that took this long and ended as `DELIVERED` or `FAILED`."""
        counts = self.counts
        counts[result] += count
        counts[DURATIONS + bisect_left(BOUNDS_MS, took_ms)] += count
        counts[TOOK_MS] += took_ms * count

    def last_minute(self) -> list[int]:
        """The counts of about the last minute."""
        return _less(self.counts, self.samples[0])

    def sample(self) -> list[int]:
        """Keep a copy of the counts, and return what was counted since the last copy."""
        fresh = _less(self.counts, self.samples[-1])
        self.idle = 0 if any(fresh) else self.idle + 1
        self.samples.append(list(self.counts))
        return fresh

    def absorb(self, other: TargetTally) -> None:
        """Take over the counts of another tally, as if they had been counted here long ago."""
        for row in (self.counts, *self.samples):
            for index, count in enumerate(other.counts):
                row[index] += count


class Tallies:
    """The tallies by tenant and target group. The group "" is the tenant itself, the tenant "" all further tenants."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], TargetTally] = {("", ""): TargetTally()}
        self._groups: dict[str, int] = {"": 1}  # The number of tallies of each tenant.

    def of(self, tenant: str, group: str = "") -> TargetTally:
        """The tally in which events of this tenant and target are counted at the moment."""
        tally = self._tallies.get((tenant, group))
        return self._add(tenant, group) if tally is None else tally

    def find(self, tenant: str, group: str) -> TargetTally | None:
        """The tally of this target, if it has one of its own."""
        return self._tallies.get((tenant, group))

    def items(self) -> Iterator[tuple[str, str, TargetTally]]:
        """All tallies, with their tenants and groups."""
        for (tenant, group), tally in self._tallies.items():
            yield tenant, group, tally

    def total(self) -> list[int]:
        """The sum of all tallies."""
        return [sum(column) for column in zip(*(tally.counts for tally in self._tallies.values()), strict=True)]

    def sample(self) -> dict[str, list[int]]:
        """What was counted since the last call, by tenant. Tenants without news are left out."""
        news: dict[str, list[int]] = {}
        for (tenant, _), tally in self._tallies.items():
            fresh = tally.sample()
            if not tally.idle:
                news[tenant] = fresh if tenant not in news else _plus(news[tenant], fresh)
        self._make_room()
        return news

    def _add(self, tenant: str, group: str) -> TargetTally:
        if tenant not in self._groups:
            if len(self._groups) > TENANTS_MAX:
                return self._tallies["", ""]
            self._put(tenant, "")
        if group and len(self._tallies) < TALLIES_MAX:
            self._put(tenant, group)
            return self._tallies[tenant, group]
        return self._tallies[tenant, ""]

    def _put(self, tenant: str, group: str) -> None:
        self._tallies[tenant, group] = TargetTally()
        self._groups[tenant] = self._groups.get(tenant, 0) + 1

    def _make_room(self) -> None:
        idle = [name for name, tally in self._tallies.items() if tally.idle >= _IDLE_MAX and name != ("", "")]
        # The targets of a tenant go before the tenant itself, which takes over their counts.
        for tenant, group in sorted(idle, key=lambda name: not name[1]):
            if group or self._groups[tenant] == 1:
                rest = self._tallies[(tenant, "") if group else ("", "")]
                rest.absorb(self._tallies.pop((tenant, group)))
                self._groups[tenant] -= 1
                if not self._groups[tenant]:
                    del self._groups[tenant]


def percentile(buckets: Sequence[int], share: float) -> int | None:
    """About the value below which this share of a histogram lies, in milliseconds; None if it is empty.

    Values above the last bound count as that bound.
    """
    total = sum(buckets)
    if not total:
        return None
    for bound_ms, reached in zip(BOUNDS_MS, accumulate(buckets), strict=False):
        if reached >= share * total:
            return bound_ms
    return BOUNDS_MS[-1]


def lateness_in(counts: Sequence[int]) -> Sequence[int]:
    """The histogram of the lateness of first attempts."""
    return counts[LATENESS:DURATIONS]


def durations_in(counts: Sequence[int]) -> Sequence[int]:
    """The histogram of the durations of attempts."""
    return counts[DURATIONS:SIZE]


def _plus(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _less(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip(one, other, strict=True)]
