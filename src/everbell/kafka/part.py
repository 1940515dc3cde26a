"""Kafka as a part of a node: the way out for the engine, the way in from the topics, and how both are."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import KafkaException

from everbell.channels.kafka import KafkaChannel
from everbell.clock import Clock
from everbell.core.health import KafkaHealth
from everbell.core.tenant import Tenants
from everbell.engine.port import OperationsPort
from everbell.errors import InvalidInput
from everbell.kafka.dead_letters import DeadLetters
from everbell.kafka.metrics import render_kafka
from everbell.kafka.outlet import check_cluster
from everbell.kafka.record import RecordReader
from everbell.kafka.settings import KafkaSettings
from everbell.kafka.source import KafkaSource
from everbell.server.edge import Edge


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

    @property
    def clusters(self) -> Collection[str]:
        """The names of the clusters that can be delivered to."""
        return self._settings.clusters.keys()

    def start(self, operations: OperationsPort, tenants: Tenants, value_bytes_max: int) -> None:
        """Begin to read topics, if any are to be read."""
        settings = self._settings
        if settings.topics:
            edge = Edge(tenants, self._clock, allows_handlers=False, kafka=self.clusters)
            reader = RecordReader(settings.topics, edge, self._clock, value_bytes_max)
            letters = DeadLetters(settings.clusters[""], settings.dead_letters)
            self._source = KafkaSource(settings, operations, reader, letters)
            self._source.start()

    async def stop_reading(self) -> None:
        """Take in nothing more."""
        if self._source is not None:
            await self._source.stop()

    def health(self) -> KafkaHealth:
        """Whether clusters can be reached, and how far behind the reading is."""
        troubles = dict(self.channel.troubles)
        source = self._source
        if source is not None and source.trouble is not None:
            troubles[""] = source.trouble
        said = [f"{name or 'the brokers'}: {trouble}" for name, trouble in sorted(troubles.items())]
        reason = "; ".join(said) or None
        return KafkaHealth(reason is None, 0 if source is None else sum(source.lags.values()), reason)

    def metrics(self) -> list[str]:
        """Of the way in."""
        source = self._source
        if source is None:
            return []
        return render_kafka(source.tally, source.letters_lost, source.lags)
