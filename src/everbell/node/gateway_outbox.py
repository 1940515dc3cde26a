"""A gateway collects outboxes, and schedules their events over the link."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from everbell.clock import Clock
from everbell.core.collector_report import CollectorReport
from everbell.core.kafka_targets import KafkaTargets
from everbell.core.tenant import Tenants
from everbell.engine.requests import ReportCollecting, UntilStopping
from everbell.errors import EverbellError
from everbell.http.address_guard import Guard
from everbell.links.remote_engine import RemoteEngine
from everbell.outbox.collector import open_collector
from everbell.outbox.settings import OutboxAddress


class GatewayCollecting:
    """Collects some outboxes, and reports to the node."""

    def __init__(
        self,
        engine: RemoteEngine,
        outboxes: Mapping[int, OutboxAddress],
        tenants: Tenants,
        clock: Clock,
        kafka: KafkaTargets,
        guard: Guard,
    ) -> None:
        self._engine = engine
        self._collectors = {
            number: open_collector(outbox, engine.ask, tenants, clock, kafka, partial(self._report, number), guard)
            for number, outbox in outboxes.items()
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Collect until the node stops or ends, or until this process stops."""
        for number, collector in self._collectors.items():
            await self._report(
                number, CollectorReport()
            )  # A stopping node waits for the collectors that have reported.
            collector.start()
        stopping = asyncio.ensure_future(self._engine.ask(UntilStopping()))
        ending = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopping, ending], return_when=asyncio.FIRST_COMPLETED)
        for wait in (stopping, ending):
            wait.cancel()
        await asyncio.gather(*(collector.stop() for collector in self._collectors.values()))

    async def _report(self, number: int, report: CollectorReport) -> None:
        with suppress(EverbellError):  # The node has ended, and its sums with it.
            await self._engine.ask(ReportCollecting(number, report))
