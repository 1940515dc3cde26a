"""What a test does with a Kafka besides Everbell: topics that are new, records that go in, records that came out."""

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
    """A record that came out."""

    key: bytes | None
    value: bytes
    headers: Mapping[str, str]
    partition: int
    offset: int
    at: int
    """When it was written, as its writer said."""


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
        self._producer = self._new_producer()  # The one before would learn of them in five minutes.

    def send(self, topic: str, value: bytes | None, *, headers: Sequence[tuple[str, bytes]] = (), **place: Any) -> None:
        """Begin to write a record; `flush` waits until it is there. `key`, `timestamp` and `partition` may be given."""
        self._producer.produce(topic, value, headers=list(headers), on_delivery=self._report, **place)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything is written."""
        assert self._producer.flush(PATIENCE_S) == 0, "records could not be written"
        assert not self._failed, self._failed

    def write(self, topic: str, *values: bytes | None, **options: Any) -> None:
        """Write records, and wait until they are there."""
        for value in values:
            self.send(topic, value, **options)
        self.flush()

    def read(self, topic: str, count: int) -> list[Got]:
        """The records of a topic, once there are so many."""
        return self.read_until(topic, lambda got: len(got) >= count)

    def read_until(self, topic: str, is_enough: Callable[[list[Got]], bool]) -> list[Got]:
        """The records of a topic, those of each partition in order; waits until that is enough."""
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
        """How many records of a topic the group has read for good, over all partitions."""
        consumer = Consumer({**self._config, "group.id": group})
        try:
            partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            places = consumer.committed([TopicPartition(topic, partition) for partition in partitions], PATIENCE_S)
            return sum(max(place.offset, 0) for place in places)
        finally:
            consumer.close()

    def members(self, group: str) -> list[int] | None:
        """How many partitions each member of a group has, once that is settled; nothing where everybody has left."""
        (future,) = self._admin.describe_consumer_groups([group]).values()
        try:
            found = future.result(PATIENCE_S)
        except KafkaException:
            return None  # Nobody knows the group yet, or where it is looked after.
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
