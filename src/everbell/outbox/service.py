"""The outboxes of a node: its own collectors, the reports of its gateways' collectors, and the health of all.

Gateways collect if the node has some, so that the rows are read on a core of their own; otherwise this process does.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from everbell.clock import Clock
from everbell.core.collector_report import CollectorReport
from everbell.core.exposition import labelled
from everbell.core.health import OutboxHealth
from everbell.core.kafka_targets import KafkaTargets
from everbell.core.request import Ask
from everbell.core.tenant import Tenants
from everbell.http.address_guard import Guard
from everbell.log_lines import redacted
from everbell.outbox.collector import Collector, open_collector
from everbell.outbox.settings import OutboxAddress

_log = logging.getLogger("everbell.outbox")

_LEAVE_S = 5.0  # How long gateways may take to finish their rows.
_COUNTS = {
    "events": "Events scheduled from an outbox.",
    "changes": "Cancels and reschedules made from an outbox.",
    "late": "Cancels and reschedules from an outbox of events that had ended, or never were.",
    "refused": "Rows of an outbox that were refused; everbell.outbox_refused has them.",
}
_GAUGES = {
    "waiting": ("rows", "Rows of an outbox that are not collected yet, as far as this node knows."),
    "oldest_ms": ("oldest_milliseconds", "How long the oldest of them has waited."),
}


class OutboxService:
    """Collects outboxes, and adds up the reports."""

    def __init__(self, outboxes: tuple[OutboxAddress, ...], clock: Clock) -> None:
        self._outboxes = outboxes
        self._clock = clock
        self._collectors: dict[int, Collector] = {}
        self._sums = {outbox.name: dict.fromkeys(_COUNTS, 0) for outbox in outboxes}
        self._latest: dict[int, CollectorReport] = {}
        self._are_over = asyncio.Event()

    def collect(self, ask: Ask, tenants: Tenants, kafka: KafkaTargets, guard: Guard) -> None:
        """Begin to collect all outboxes in this process."""
        for number, outbox in enumerate(self._outboxes):
            send = partial(self._add_own, number)
            collector = open_collector(outbox, ask, tenants, self._clock, kafka, send, guard)
            self._collectors[number] = collector
            collector.start()

    async def stop_collecting(self) -> None:
        """Stop collecting in this process and wait for the gateways, which have been told to stop."""
        await asyncio.gather(*(collector.stop() for collector in self._collectors.values()))
        self._collectors.clear()
        if self._latest:
            try:
                async with asyncio.timeout(_LEAVE_S):
                    await self._are_over.wait()
            except TimeoutError:
                _log.warning("a gateway has not stopped collecting in time; its rows will be collected again")

    def add(self, number: int, report: CollectorReport) -> None:
        """Add the report about an outbox."""
        sums = self._sums[self._outboxes[number].name]
        for name in _COUNTS:
            sums[name] += getattr(report, name)
        if report.is_over:
            self.forget([number])
        else:
            self._latest[number] = report
            self._are_over.clear()

    def forget(self, numbers: list[int]) -> None:
        """Remove the health of collectors that have ended."""
        for number in numbers:
            self._latest.pop(number, None)
        if not self._latest:
            self._are_over.set()

    def health(self) -> OutboxHealth:
        """Whether all outboxes can be collected, and how many rows wait."""
        self._catch_up()
        troubles = [report.trouble for report in self._latest.values() if report.trouble is not None]
        waiting = sum(report.waiting for report in self._latest.values())
        return OutboxHealth(not troubles, waiting, redacted("; ".join(troubles)) if troubles else None)

    def metrics(self) -> list[str]:
        """Counts and backlogs by outbox."""
        self._catch_up()
        lines: list[str] = []
        for name, help in _COUNTS.items():
            samples = {outbox: sums[name] for outbox, sums in self._sums.items()}
            lines += labelled(f"everbell_outbox_{name}_total", "counter", help, "outbox", samples)
        collecting = {self._outboxes[number].name: report for number, report in self._latest.items()}
        for name, (title, help) in _GAUGES.items():
            gauges = {outbox: getattr(report, name) for outbox, report in collecting.items()}
            lines += labelled(f"everbell_outbox_{title}", "gauge", help, "outbox", gauges)
        is_on = {outbox: int(report.is_collecting) for outbox, report in collecting.items()}
        help = "Whether this node collects the outbox; 0: another one does, or none can."
        return [*lines, *labelled("everbell_outbox_collecting", "gauge", help, "outbox", is_on)]

    def _catch_up(self) -> None:
        for number, collector in self._collectors.items():
            self.add(number, collector.report())

    async def _add_own(self, number: int, report: CollectorReport) -> None:
        self.add(number, report)
