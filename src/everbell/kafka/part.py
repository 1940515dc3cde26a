"""Kafka as a part of a node: the way out for the engine, what is told of the way in, and how both are.

Topics are read in gateways, where the node has some; else in this process (`read`).
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException

from everbell.channels.kafka import KafkaChannel
from everbell.clock import Clock
from everbell.core.health import KafkaHealth
from everbell.core.tenant import Tenants
from everbell.engine.port import OperationsPort
from everbell.errors import InvalidInput
from everbell.kafka.metrics import render_kafka
from everbell.kafka.news import KafkaNews, Readers
from everbell.kafka.outlet import check_cluster
from everbell.kafka.settings import KafkaSettings
from everbell.kafka.source import KafkaSource, open_source

_log = logging.getLogger("everbell.kafka")

_OWN = 0
"""The number of the reader in this process."""
_LEAVE_S = 5.0
"""How long gateways may take to finish what they read, and to leave the group."""


class KafkaPart:
    """Both ways of one node."""

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        """Raises `InvalidInput` for properties that librdkafka does not take."""
        for name, cluster in settings.clusters.items():
            try:
                check_cluster(cluster)
            except KafkaException as wrong:
                where = f"kafka.clusters.{name}" if name else "--kafka-properties"
                raise InvalidInput(f"{where}: {wrong.args[0].str()}") from wrong
        self._settings = settings
        self._clock = clock
        self._source: KafkaSource | None = None
        self.channel = KafkaChannel(settings.clusters, clock)
        self.readers = Readers()

    def read(self, operations: OperationsPort, tenants: Tenants, value_bytes_max: int) -> None:
        """Begin to read topics in this process, if any are to be read."""
        if self._settings.topics:
            self._source = open_source(
                self._settings, operations, tenants, self._clock, value_bytes_max, self._hear_own
            )
            self._source.start()

    async def stop_reading(self) -> None:
        """Take in nothing more; gateways have been told."""
        if self._source is not None:
            await self._source.stop()
            self._source = None
        if not await self.readers.until_gone(_LEAVE_S):
            _log.warning("a gateway has not left the consumer group in time; what it holds will be read again")

    def health(self) -> KafkaHealth:
        """Whether clusters can be reached, and how far behind the reading is."""
        self._catch_up()
        troubles = dict(self.channel.troubles)
        if self.readers.trouble is not None:
            troubles[""] = self.readers.trouble
        said = [f"{name or 'the brokers'}: {trouble}" for name, trouble in sorted(troubles.items())]
        reason = "; ".join(said) or None
        return KafkaHealth(reason is None, sum(self.readers.lags.values()), reason)

    def metrics(self) -> list[str]:
        """Of the way in."""
        self._catch_up()
        return render_kafka(self.readers) if self._settings.topics else []

    def _catch_up(self) -> None:
        """Who reads in this process can be asked."""
        if self._source is not None:
            self.readers.hear(_OWN, self._source.news())

    async def _hear_own(self, news: KafkaNews) -> None:
        self.readers.hear(_OWN, news)
