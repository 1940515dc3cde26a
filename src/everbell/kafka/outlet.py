"""One producer of librdkafka, driven by the loop: records go in and delivery reports come out in batches.

- librdkafka sends from its own threads, without the interpreter. A timer fetches the delivery reports every few
  milliseconds while records are in flight: a waiting thread would compete with the loop for the interpreter.
- The producer enforces deadlines (`message.timeout.ms`). A record that timed out is never sent later, so it cannot
  arrive behind the next record of its key.
- While brokers are away, only a few records are accepted as probes, and the others fail at once, as after a refused
  connection. Otherwise records would fill the queue until their deadlines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from everbell.kafka.errors import trouble_of
from everbell.kafka.library_log import library_log
from everbell.kafka.settings import KafkaCluster

_log = logging.getLogger("everbell.kafka")

BUSY_S = 0.003
IDLE_S = 1.0
_QUIET_S = 2.0  # Brokers without any report for this long, although records are in flight, count as away.
_PROBES = 64

_OUT_OF_REACH = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._AUTHENTICATION, KafkaError._SSL}
)

ANY_PARTITION = -1
THIS_MOMENT = 0

OnReport = Callable[[KafkaError | None], None]
Produce = Callable[
    [str, bytes | None, bytes | None, int, Callable[[KafkaError | None, Message], None], None, int, Any], None
]
"""Topic, value, key, partition, delivery callback, an alias of that callback, timestamp, headers. All by position,
because keyword arguments make the call a tenth slower.
"""

Travel = Literal["soon", "together", "alone"]
"""How records travel: without delay; with a longer delay, so that many share a request; or each in its own request."""

_LINGER_MS: dict[Travel, int] = {"soon": 5, "together": 25, "alone": 0}

_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "allow.auto.create.topics": False,
    "partitioner": "murmur2_random",  # the partitioner of Java producers
    "batch.size": 900_000,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 128 * 1024,
    "message.max.bytes": 100_000_000,  # the broker enforces the limit of a topic
    "reconnect.backoff.max.ms": 1_000,
}


def client_config(cluster: KafkaCluster, own: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for librdkafka. The user's properties override `own`; the brokers override all."""
    return {
        "client.id": "everbell",
        "log.connection.close": False,
        **own,
        **cluster.properties,
        "bootstrap.servers": cluster.brokers,
    }


class Outlet:
    """Sends records. Each delivery report goes to the record's callback; `on_reports` follows each batch of reports."""

    def __init__(
        self,
        cluster: KafkaCluster,
        timeout_ms: int,
        on_reports: Callable[[], None] = lambda: None,
        travel: Travel = "soon",
    ) -> None:
        """Raises `KafkaException` for wrong properties."""
        own = {**_PRODUCER, "message.timeout.ms": timeout_ms, "linger.ms": _LINGER_MS[travel]}
        # A new topic takes a moment to become known to all brokers.
        own["topic.metadata.propagation.max.ms"] = min(1_000, timeout_ms // 2)
        if travel == "alone":
            own["batch.num.messages"] = 1
        config = client_config(cluster, own) | {"error_cb": self._heard}
        self._producer = Producer(config, logger=library_log)
        self._on_reports = on_reports
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._polls_soon = False
        self._is_closed = False
        self._answered_s = 0.0  # The time of the last delivery report, or of the last moment without records in flight.
        self._probing: asyncio.Task[None] | None = None
        self.under_way = 0
        self.trouble: str | None = None
        """Why the brokers cannot be reached, since their last answer."""
        self.is_fatal = False
        """This producer cannot continue; a new one can."""
        self._poll_within(IDLE_S)

    @property
    def room(self) -> int:
        """The number of records that are accepted now."""
        if self.trouble is None and (not self.under_way or self._loop.time() - self._answered_s < _QUIET_S):
            return 1 << 60
        return max(_PROBES - self.under_way, 0)

    def send(self, topic: str, value: bytes | None, key: bytes | None, headers: Any, report: OnReport) -> None:
        """Send one record. Raises `KafkaException` and `BufferError` if librdkafka refuses it at once."""

        def delivered(error: KafkaError | None, message: object) -> None:
            report(error)

        self._producer.produce(topic, value, key, on_delivery=delivered, headers=headers)
        self.began(1)

    @property
    def produce(self) -> Produce:
        """The producer's own `produce`, for bulk senders, which must call `began` with the number of records."""
        return self._producer.produce

    def began(self, count: int) -> None:
        """Count records that were sent; their reports are fetched soon."""
        if not self.under_way:
            self._answered_s = self._loop.time()
        self.under_way += count
        if not self._polls_soon:
            self._polls_soon = True
            self._poll_within(BUSY_S)

    def answered(self, count: int) -> None:
        """Count records that were reported, delivered or not."""
        self.under_way -= count

    def poll(self) -> None:
        """Fetch delivery reports now."""
        if self._is_closed:
            return
        before = self.under_way
        self._producer.poll(0)
        self._on_reports()
        if self.under_way < before:
            self._answered_s = self._loop.time()
        if self.trouble is not None and not self.under_way and self._probing is None:
            self._probing = self._loop.create_task(self._probe())
        self._polls_soon = self.under_way > 0
        self._poll_within(BUSY_S if self._polls_soon else IDLE_S)

    async def _probe(self) -> None:
        # No record is in flight that would show whether the brokers are back.
        try:
            await asyncio.to_thread(self._producer.list_topics, timeout=_QUIET_S)
            self.trouble = None
        except KafkaException:
            await asyncio.sleep(IDLE_S)
        finally:
            self._probing = None

    async def look_for(self, topic: str, timeout_ms: int) -> None:
        """Ask the brokers for a topic; librdkafka then knows whether it exists."""
        with suppress(KafkaException):
            await asyncio.to_thread(self._producer.list_topics, topic, timeout_ms / 1_000)

    async def close(self) -> None:
        """Drop the records in flight."""
        if self._timer is not None:
            self._timer.cancel()
        if self._probing is not None:
            self._probing.cancel()
        self._is_closed = True
        await asyncio.to_thread(_give_up, self._producer)

    def _poll_within(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.poll)

    def _heard(self, error: KafkaError) -> None:
        """An error that concerns the whole cluster."""
        if error.fatal():
            self.is_fatal = True
            _log.error("a producer of Kafka is given up, and another takes its place: %s", error)
        elif error.code() in _OUT_OF_REACH:
            self.trouble = trouble_of(error, self.trouble)


def _give_up(producer: Producer) -> None:
    producer.purge()
    producer.flush(1.0)


def check_cluster(cluster: KafkaCluster) -> None:
    """Raise `KafkaException` if a property is unknown or wrong. The brokers are not contacted."""
    Producer(client_config(cluster, _PRODUCER), logger=library_log)


def what_is_wrong(error: KafkaException) -> KafkaError:
    """The error inside an exception of librdkafka."""
    found = error.args[0]
    assert isinstance(found, KafkaError)
    return found
