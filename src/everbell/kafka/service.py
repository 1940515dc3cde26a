"""Kafka in a node: the channel for the engine, the reports of the readers, and the health of both.

Gateways read the topics if the node has some; otherwise this process does (`read`).
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException

from everbell.clock import Clock
from everbell.core.health import KafkaHealth
from everbell.core.reader_report import ReaderReport
from everbell.core.request import Ask
from everbell.core.tenant import Tenants
from everbell.errors import InvalidInput
from everbell.http.address_guard import Guard
from everbell.kafka.channel import KafkaChannel
from everbell.kafka.metrics import render_kafka
from everbell.kafka.outlet import check_cluster
from everbell.kafka.readers import Readers
from everbell.kafka.settings import KafkaSettings
from everbell.kafka.source import KafkaSource, open_source

_log = logging.getLogger("everbell.kafka")

_OWN = 0  # The number of the reader in this process.
_LEAVE_S = 5.0  # How long gateways may take to finish their records and to leave the consumer group.


class KafkaService:
    """Reading and writing of Kafka in one node."""

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        """Raises `InvalidInput` for properties that librdkafka refuses."""
        for name, cluster in settings.clusters.items():
            try:
                check_cluster(cluster)
            except KafkaException as wrong:
                where = f"kafka.clusters.{name}" if name else "--kafka-properties"
                raise InvalidInput(f"{where}: {wrong.args[0].str()}") from wrong
        self._settings = settings
        self._clock = clock
        self._source: KafkaSource | None = None
        self.channel = KafkaChannel(settings.clusters, settings.targets, clock)
        self.readers = Readers()

    def read(self, ask: Ask, tenants: Tenants, value_bytes_max: int, guard: Guard) -> None:
        """Begin to read the topics of the settings in this process."""
        if self._settings.topics:
            self._source = open_source(self._settings, ask, tenants, self._clock, value_bytes_max, self._add_own, guard)
            self._source.start()

    async def stop_reading(self) -> None:
        """Stop reading in this process and wait for the gateways, which have been told to stop."""
        if self._source is not None:
            await self._source.stop()
            self._source = None
        if not await self.readers.until_gone(_LEAVE_S):
            _log.warning("a gateway has not left the consumer group in time; what it holds will be read again")

    def health(self) -> KafkaHealth:
        """Whether the clusters are reachable, and how far behind the readers are."""
        self._catch_up()
        troubles = dict(self.channel.troubles)
        if self.readers.trouble is not None:
            troubles[""] = self.readers.trouble
        said = [f"{name or 'the brokers'}: {trouble}" for name, trouble in sorted(troubles.items())]
        reason = "; ".join(said) or None
        return KafkaHealth(reason is None, sum(self.readers.lags.values()), reason)

    def metrics(self) -> list[str]:
        """The metrics of the readers."""
        self._catch_up()
        return render_kafka(self.readers) if self._settings.topics else []

    def _catch_up(self) -> None:
        """Fetch the report of the reader in this process."""
        if self._source is not None:
            self.readers.add(_OWN, self._source.report())

    async def _add_own(self, report: ReaderReport) -> None:
        self.readers.add(_OWN, report)
