"""One producer of librdkafka, driven by the loop: records go in, reports come out, both many at a time.

- librdkafka sends from threads of its own, without the interpreter. What it has to report is fetched by a timer, every
  few milliseconds while something is under way: a thread that waited for it would fight the loop for the interpreter.
- A deadline belongs to the producer (`message.timeout.ms`), and not to us: what it gave up is never sent after all, so
  a record cannot come in late behind the next of its key.
- Brokers that are away would fill the outlet with records, each waiting for its deadline. So while they are, a few
  records are let in as probes, and the others fail at once, as a refused connection would.
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
_QUIET_S = 2.0
"""Brokers that have reported nothing for this long, although there was something to report, are away."""
_PROBES = 64

_OUT_OF_REACH = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._AUTHENTICATION, KafkaError._SSL}
)

ANY_PARTITION = -1
THIS_MOMENT = 0

Report = Callable[[KafkaError | None], None]
Produce = Callable[
    [str, bytes | None, bytes | None, int, Callable[[KafkaError | None, Message], None], None, int, Any], None
]
"""Topic, value, key, partition, whom to report to, another name of the same, timestamp, headers. All by position, as
names make a call a tenth dearer."""

Travel = Literal["soon", "together", "alone"]
"""How records travel: as soon as they may; longer, so that many go in one request; or each by itself."""

_LINGER_MS: dict[Travel, int] = {"soon": 5, "together": 25, "alone": 0}

_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "allow.auto.create.topics": False,
    "partitioner": "murmur2_random",  # as producers in Java place their keys
    "batch.size": 900_000,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 128 * 1024,
    "message.max.bytes": 100_000_000,  # what a topic takes is for its broker to say
    "reconnect.backoff.max.ms": 1_000,
}


def client_config(cluster: KafkaCluster, own: Mapping[str, Any]) -> dict[str, Any]:
    """What librdkafka is told: our wishes, over which the user's go, over which go those that we depend on."""
    return {
        "client.id": "everbell",
        "log.connection.close": False,
        **own,
        **cluster.properties,
        "bootstrap.servers": cluster.brokers,
    }


class Outlet:
    """Sends records. What comes of each is told to its report, those of one moment before `on_reports`."""

    def __init__(
        self,
        cluster: KafkaCluster,
        timeout_ms: int,
        on_reports: Callable[[], None] = lambda: None,
        travel: Travel = "soon",
    ) -> None:
        """Raises `KafkaException` for properties that are wrong."""
        own = {**_PRODUCER, "message.timeout.ms": timeout_ms, "linger.ms": _LINGER_MS[travel]}
        # A topic that somebody has just made takes a moment to be known everywhere.
        own["topic.metadata.propagation.max.ms"] = min(1_000, timeout_ms // 2)
        if travel == "alone":
            own["batch.num.messages"] = 1
        config = client_config(cluster, own) | {"error_cb": self._heard}
        self._producer = Producer(config, logger=library_log)
        self._on_reports = on_reports
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._polls_soon = False
        self._answered_s = 0.0
        """When something was reported, or when there was nothing to report."""
        self._probing: asyncio.Task[None] | None = None
        self.under_way = 0
        self.trouble: str | None = None
        """Why the brokers cannot be reached, since they said something last."""
        self.is_fatal = False
        """It cannot go on; another one can."""
        self._poll_within(IDLE_S)

    @property
    def room(self) -> int:
        """How many more records are let in now."""
        if self.trouble is None and (not self.under_way or self._loop.time() - self._answered_s < _QUIET_S):
            return 1 << 60
        return max(_PROBES - self.under_way, 0)

    def send(self, topic: str, value: bytes | None, key: bytes | None, headers: Any, report: Report) -> None:
        """Send one record. Raises `KafkaException` and `BufferError` where that is wrong from the start."""

        def delivered(error: KafkaError | None, message: object) -> None:
            report(error)

        self._producer.produce(topic, value, key, on_delivery=delivered, headers=headers)
        self.began(1)

    @property
    def produce(self) -> Produce:
        """The producer's own `produce`, for who sends many: tell `began` how many were sent."""
        return self._producer.produce

    def began(self, count: int) -> None:
        """So many records were sent; their reports are fetched soon."""
        if not self.under_way:
            self._answered_s = self._loop.time()
        self.under_way += count
        if not self._polls_soon:
            self._polls_soon = True
            self._poll_within(BUSY_S)

    def answered(self, count: int) -> None:
        """So many records were reported as delivered, or as not."""
        self.under_way -= count

    def poll(self) -> None:
        """Fetch reports now."""
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
        """Nobody sends anything that would tell whether the brokers are back."""
        try:
            await asyncio.to_thread(self._producer.list_topics, timeout=_QUIET_S)
            self.trouble = None
        except KafkaException:
            await asyncio.sleep(IDLE_S)
        finally:
            self._probing = None

    async def look_for(self, topic: str, timeout_ms: int) -> None:
        """Ask the brokers whether there is a topic; from then on `produce` goes by that."""
        with suppress(KafkaException):
            await asyncio.to_thread(self._producer.list_topics, topic, timeout_ms / 1_000)

    async def close(self) -> None:
        """Forget what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._probing is not None:
            self._probing.cancel()
        self._on_reports = lambda: None
        producer = self._producer
        await asyncio.to_thread(_give_up, producer)

    def _poll_within(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.poll)

    def _heard(self, error: KafkaError) -> None:
        """What librdkafka says about the cluster as a whole."""
        if error.fatal():
            self.is_fatal = True
            _log.error("a producer of Kafka is given up, and another takes its place: %s", error)
        elif error.code() in _OUT_OF_REACH:
            self.trouble = trouble_of(error, self.trouble)


def _give_up(producer: Producer) -> None:
    producer.purge()
    producer.flush(1.0)


def check_cluster(cluster: KafkaCluster) -> None:
    """Raises `KafkaException` where a property is unknown or wrong; nothing is asked of the brokers."""
    Producer(client_config(cluster, _PRODUCER), logger=library_log)


def what_is_wrong(error: KafkaException) -> KafkaError:
    """The error in an exception of librdkafka."""
    found = error.args[0]
    assert isinstance(found, KafkaError)
    return found
