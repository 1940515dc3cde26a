"""What a test does with a Kafka besides Everbell: topics that are new, records that go in, records that came out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.services.kafka import KafkaServer

PATIENCE_S = 30.0


class Got(NamedTuple):
    """A record that came out."""

    key: bytes | None
    value: bytes
    headers: Mapping[str, str]
    partition: int
    offset: int


class Topics:
    """The topics of one server."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        self._producer = Producer(
            {"bootstrap.servers": server.address, "partitioner": "murmur2_random", "linger.ms": 5, "log_level": 0}
        )

    def new(self, partitions: int = 1, **settings: str) -> str:
        """A topic that nobody has used."""
        name = self._server.fresh_name()
        self.create(name, partitions, **settings)
        return name

    def create(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Make a topic; `max_message_bytes` stands for `max.message.bytes`."""
        config = {setting.replace("_", "."): value for setting, value in settings.items()}
        self._done(self._admin.create_topics([NewTopic(name, partitions, 1, config=config)]))

    def grow(self, name: str, partitions: int) -> None:
        """Let a topic have more partitions."""
        self._done(self._admin.create_partitions([NewPartitions(name, partitions)]))

    def write(
        self,
        topic: str,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        **place: Any,
    ) -> None:
        """Write records, and wait until they are there."""
        failed: list[object] = []
        for value in values:
            self._producer.produce(
                topic,
                value,
                key,
                headers=list(headers),
                on_delivery=lambda error, _: failed.append(error) if error else None,
                **place,
            )
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0, "records could not be written"
        assert not failed, failed

    def read(self, topic: str, count: int, *, more_s: float = 0.0) -> list[Got]:
        """The first `count` records of a topic, partition after partition in time; waits until there are so many, and
        `more_s` longer for any that should not be there.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self._server.address,
                "group.id": "reading",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            return _read(consumer, count, more_s)
        finally:
            consumer.close()

    def committed(self, topic: str, group: str) -> int:
        """How many records of a topic the group has read for good, over all partitions."""
        consumer = Consumer({"bootstrap.servers": self._server.address, "group.id": group, "log_level": 0})
        try:
            partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            places = consumer.committed([TopicPartition(topic, partition) for partition in partitions], PATIENCE_S)
            return sum(max(place.offset, 0) for place in places)
        finally:
            consumer.close()

    @staticmethod
    def _done(futures: Mapping[str, Any]) -> None:
        for future in futures.values():
            future.result(PATIENCE_S)


def _read(consumer: Consumer, count: int, more_s: float) -> list[Got]:
    got: list[Got] = []
    until_s = time.monotonic() + PATIENCE_S
    while len(got) < count or time.monotonic() < until_s:
        for message in consumer.consume(1_000, 0.05):
            if message.error():
                raise KafkaException(message.error())
            told: Any = message
            headers = {name: value.decode() for name, value in told.headers() or ()}
            got.append(Got(told.key(), told.value(), headers, told.partition(), told.offset()))
        if len(got) >= count and until_s > time.monotonic() + more_s:
            until_s = time.monotonic() + more_s
        assert len(got) >= count or time.monotonic() < until_s, f"{len(got)} records of {count} after {PATIENCE_S} s"
    return got
