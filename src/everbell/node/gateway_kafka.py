"""A gateway reads Kafka topics as a member of the consumer group, and schedules events over the link."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from everbell.clock import Clock
from everbell.core.reader_report import ReaderReport
from everbell.core.tenant import Tenants
from everbell.engine.requests import ReportReading, UntilStopping
from everbell.errors import EverbellError
from everbell.http.address_guard import Guard
from everbell.kafka.settings import KafkaSettings
from everbell.kafka.source import open_source
from everbell.links.remote_engine import RemoteEngine


class GatewayReading:
    """Reads, and reports to the node."""

    def __init__(
        self,
        engine: RemoteEngine,
        number: int,
        settings: KafkaSettings,
        tenants: Tenants,
        clock: Clock,
        value_bytes_max: int,
        guard: Guard,
    ) -> None:
        self._engine = engine
        self._number = number
        self._source = open_source(settings, engine.ask, tenants, clock, value_bytes_max, self._report, guard)

    async def run(self, stop: asyncio.Event) -> None:
        """Read until the node stops or ends, or until this process stops."""
        await self._report(ReaderReport())  # A stopping node waits for the readers that have reported.
        self._source.start()
        stopping = asyncio.ensure_future(self._engine.ask(UntilStopping()))
        ending = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopping, ending], return_when=asyncio.FIRST_COMPLETED)
        for wait in (stopping, ending):
            wait.cancel()
        await self._source.stop()

    async def _report(self, report: ReaderReport) -> None:
        with suppress(EverbellError):  # The node has ended, and its sums with it.
            await self._engine.ask(ReportReading(self._number, report))
