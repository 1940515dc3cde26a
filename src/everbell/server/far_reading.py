"""A gateway's share of the topics: a member of the consumer group like any other, with the engine over the link."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from everbell.clock import Clock
from everbell.core.tenant import Tenants
from everbell.engine.port import OperationsPort
from everbell.errors import EverbellError
from everbell.kafka.news import KafkaNews
from everbell.kafka.settings import KafkaSettings
from everbell.kafka.source import open_source
from everbell.links.link import GatewayEnd


class FarReading:
    """Reads, and tells the node."""

    def __init__(
        self,
        link: GatewayEnd,
        number: int,
        settings: KafkaSettings,
        operations: OperationsPort,
        tenants: Tenants,
        clock: Clock,
        value_bytes_max: int,
    ) -> None:
        self._link = link
        self._number = number
        self._source = open_source(settings, operations, tenants, clock, value_bytes_max, self._tell)

    async def run(self, stop: asyncio.Event) -> None:
        """Read until the node stops, or is gone, or this process is to stop."""
        await self._tell(KafkaNews())  # The node waits at its end for those that it knows of.
        self._source.start()
        stopping = self._link.call("until_stopping")
        ending = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopping, ending], return_when=asyncio.FIRST_COMPLETED)
        for wait in (stopping, ending):
            wait.cancel()
        await self._source.stop()

    async def _tell(self, news: KafkaNews) -> None:
        with suppress(EverbellError):  # The node is gone, and its sums with it.
            await self._link.call("kafka_news", self._number, news)
