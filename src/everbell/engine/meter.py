"""The counters of the engine. Health, metrics, history and benchmarks read them."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.core.event import Course
from everbell.core.recurrence import NOTHING_YET
from everbell.core.retry import Outcome
from everbell.engine.entry import Entry, Phase
from everbell.engine.flow import Flow
from everbell.engine.tally import CANCELLED, DEAD, DELIVERED, EXPIRED, FAILED, RETRIED, SCHEDULED, LastError, Tallies


class Meter:
    """Counts what happens to events, by tenant and target, and the occurrences that did not ring."""

    __slots__ = ("missed", "skipped", "tallies")

    def __init__(self) -> None:
        self.tallies = Tallies()
        self.missed = {"late": 0, "paused": 0, "expired": 0}
        """The number of occurrences of recurring events that should have rung but did not, by reason."""
        self.skipped = {"overlap": 0, "gap": 0}
        """The number of occurrences that were not meant to ring, by reason."""

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

    def count_scheduled(self, tenant: str, count: int) -> None:
        """Count new events."""
        self.tallies.of(tenant).counts[SCHEDULED] += count

    def count_cancelled(self, tenant: str) -> None:
        """Count an event that a user cancelled."""
        self.tallies.of(tenant).counts[CANCELLED] += 1

    def count_started(self, flow: Flow, late_ms: int, count: int) -> None:
        """Count first attempts of a flow that started this late."""
        self.tallies.of(flow.tenant.name, flow.group).count_started(late_ms, count)

    def count_ended(self, entries: Sequence[Entry], outcome: Outcome, now: int) -> None:
        """Count attempts that ended together. Consecutive attempts that began together are counted in one step."""
        result = DELIVERED if outcome.result == "delivered" else FAILED
        flow, started_at, count, under_way = None, 0, 0, Phase.IN_FLIGHT
        for entry in entries:
            # This runs for every event, so `Entry.is_judged` is written out here.
            if entry.phase is not under_way or entry.is_cancelled:
                continue
            if entry.started_at != started_at or entry.flow is not flow:
                if flow is not None:
                    self.tallies.of(flow.tenant.name, flow.group).count_ended(result, now - started_at, count)
                flow, started_at, count = entry.flow, entry.started_at, 0
            count += 1
        if flow is None:
            return
        tally = self.tallies.of(flow.tenant.name, flow.group)
        tally.count_ended(result, now - started_at, count)
        if result is FAILED:
            tally.last_error = LastError(now, entries[-1].event.id, outcome.reason, outcome.code)

    def count_retried(self, flow: Flow) -> None:
        """Count a failed attempt that another attempt follows."""
        self.tallies.of(flow.tenant.name, flow.group).counts[RETRIED] += 1

    def count_dead(self, flow: Flow) -> None:
        """Count an event that died."""
        self.tallies.of(flow.tenant.name, flow.group).counts[DEAD] += 1

    def count_expired(self, flow: Flow) -> None:
        """Count an event that came too late to be worth an attempt."""
        self.tallies.of(flow.tenant.name, flow.group).counts[EXPIRED] += 1
