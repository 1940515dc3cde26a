"""The test's own access to Kafka, without Everbell: create topics, write records, read records."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.services.kafka import KafkaServer

PATIENCE_S = 60.0


class Got(NamedTuple):
    """A record that was read."""

    key: bytes | None
    value: bytes
    headers: Mapping[str, str]
    partition: int
    offset: int
    at: int
    """The time of the record, as set by its writer."""


class Topics:
    """The topics of one server."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": server.address,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
        }
        self._admin = AdminClient(self._config)
        self._producer = self._new_producer()
        self._failed: list[object] = []

    def _new_producer(self) -> Producer:
        return Producer({**self._config, "partitioner": "murmur2_random", "enable.idempotence": True})

    def new(self, partitions: int = 1, **settings: str) -> str:
        """Create an unused topic."""
        name = self._server.fresh_name()
        self.create(name, partitions, **settings)
        return name

    def create(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Create a topic; `max_message_bytes` stands for `max.message.bytes`."""
        config = {setting.replace("_", "."): value for setting, value in settings.items()}
        self._done(self._admin.create_topics([NewTopic(name, partitions, 1, config=config)]))

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        self._done(self._admin.create_partitions([NewPartitions(name, partitions)]))
        self._producer = self._new_producer()  # The old producer would learn of them in five minutes.

    def send(self, topic: str, value: bytes | None, *, headers: Sequence[tuple[str, bytes]] = (), **place: Any) -> None:
        """Begin to write a record; `flush` waits until it is written. Accepts `key`, `timestamp` and `partition`."""
        self._producer.produce(topic, value, headers=list(headers), on_delivery=self._report, **place)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything is written."""
        assert self._producer.flush(PATIENCE_S) == 0, "records could not be written"
        assert not self._failed, self._failed

    def write(self, topic: str, *values: bytes | None, **options: Any) -> None:
        """Write records, and wait until they are written."""
        for value in values:
            self.send(topic, value, **options)
        self.flush()

    def read(self, topic: str, count: int) -> list[Got]:
        """The records of a topic, once it has `count` records."""
        return self.read_until(topic, lambda got: len(got) >= count)

    def read_until(self, topic: str, is_enough: Callable[[list[Got]], bool]) -> list[Got]:
        """The records of a topic, those of each partition in order; waits until `is_enough` accepts them."""
        consumer = Consumer({**self._config, "group.id": "reading", "enable.auto.commit": False})
        got: list[Got] = []
        until_s = time.monotonic() + PATIENCE_S
        try:
            partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            while not is_enough(got):
                assert time.monotonic() < until_s, f"only {len(got)} records after {PATIENCE_S} s"
                got += [_got(message) for message in consumer.consume(1_000, 0.05)]
        finally:
            consumer.close()
        return got

    def committed(self, topic: str, group: str) -> int:
        """The group's committed offset in a topic, summed over all partitions."""
        consumer = Consumer({**self._config, "group.id": group})
        try:
            partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            places = consumer.committed([TopicPartition(topic, partition) for partition in partitions], PATIENCE_S)
            return sum(max(place.offset, 0) for place in places)
        finally:
            consumer.close()

    def members(self, group: str) -> list[int] | None:
        """The number of partitions of each member of a group, once the group is stable; empty without members."""
        (future,) = self._admin.describe_consumer_groups([group]).values()
        try:
            found = future.result(PATIENCE_S)
        except KafkaException:
            return None  # The group, or its coordinator, is not known yet.
        if found.state not in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY):
            return None
        return sorted(len(member.assignment.topic_partitions) for member in found.members)

    def _report(self, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(error)

    @staticmethod
    def _done(futures: Mapping[str, Any]) -> None:
        for future in futures.values():
            future.result(PATIENCE_S)


def _got(message: Message) -> Got:
    if message.error():
        raise KafkaException(message.error())
    told: Any = message
    headers = {name: value.decode() for name, value in told.headers() or ()}
    return Got(told.key(), told.value(), headers, told.partition(), told.offset(), told.timestamp()[1])
