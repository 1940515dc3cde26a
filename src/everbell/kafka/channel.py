"""Delivery to Kafka: `kafka://topic` and `kafka://cluster/topic`. One record per event, with the event's key.

The producer is idempotent and waits for all in-sync replicas; its delivery report is the outcome of the attempt. A
missing topic, a record that is too large and a missing permission are permanent refusals with advice; all other
failures are retried. The channel creates no topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

from confluent_kafka import KafkaError, KafkaException

from everbell.channels.port import Delivery
from everbell.clock import Clock
from everbell.core.kafka_targets import KafkaTargets, check_topics
from everbell.core.retry import DELIVERED, Outcome
from everbell.core.target import kafka_place
from everbell.errors import InvalidInput
from everbell.kafka.errors import NO_TOPIC, TOO_LARGE, outcome_of
from everbell.kafka.outgoing_record import record_of
from everbell.kafka.outlet import ANY_PARTITION, THIS_MOMENT, Outlet, Travel, what_is_wrong
from everbell.kafka.settings import KafkaCluster

_DEADLINES_MS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000)
"""A producer has one deadline for all its records, so there are a few producers, and a tenant gets the longest deadline
that it allows.
"""

MANY = 256
"""From this many records in flight on, records travel in larger requests. With small requests librdkafka was seen to
poll without a pause, presumably because an idempotent producer has at most five requests in flight.
"""


class KafkaChannel:
    """`kafka://` targets, on all clusters of the settings."""

    holds = False
    together = 16

    def __init__(self, clusters: Mapping[str, KafkaCluster], targets: KafkaTargets, clock: Clock) -> None:
        self._clusters = clusters
        self._targets = targets
        self._now = clock.now
        self._lines: dict[tuple[str, int, Travel], _ProducerLine] = {}  # By cluster, deadline, and mode of travel.

    def start(self, deliveries: Sequence[Delivery]) -> None:
        desk = deliveries[0].desk
        begun = desk.begin_all(deliveries)
        if not begun:
            return
        cluster, _ = kafka_place(begun[0].event.to)
        if cluster not in self._clusters:
            name = f"a Kafka cluster named {cluster!r}" if cluster else "a Kafka cluster without a name"
            desk.settle_all(begun, Outcome("refused", f"the settings of this node have no {name[2:]}"))
            return
        allowed = [delivery for delivery in begun if self._is_allowed(delivery)]
        if allowed:
            self._line_now(cluster, _deadline_ms(begun[0].tenant.timeout_ms)).send(allowed)

    def _is_allowed(self, delivery: Delivery) -> bool:
        """Whether the topic is a target. It was one when the event was scheduled, but settings and policies change."""
        to, topics = delivery.event.to, delivery.tenant.topics
        if topics is None and kafka_place(to) not in self._targets.reserved:
            return True
        try:
            self._targets.check(to)
            check_topics(to, topics)
        except InvalidInput as wrong:
            delivery.settle(Outcome("refused", wrong.reason))
            return False
        return True

    async def close(self) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.close()

    @property
    def troubles(self) -> dict[str, str]:
        """The unreachable clusters, with the reason."""
        found = [(cluster, line.outlet.trouble) for (cluster, _, _), line in self._lines.items()]
        return {cluster: trouble for cluster, trouble in found if trouble is not None}

    def _line_now(self, cluster: str, deadline_ms: int) -> _ProducerLine:
        """The producer for the next records: without delay, or with larger requests if many records are in flight."""
        soon, together = self._line(cluster, deadline_ms, "soon"), self._lines.get((cluster, deadline_ms, "together"))
        under_way = soon.outlet.under_way + (0 if together is None else together.outlet.under_way)
        return soon if under_way < MANY else self._line(cluster, deadline_ms, "together")

    def _line(self, cluster: str, deadline_ms: int, travel: Travel) -> _ProducerLine:
        place = (cluster, deadline_ms, travel)
        line = self._lines.get(place)
        if line is None or line.outlet.is_fatal:
            alone = None if travel == "alone" else partial(self._line, cluster, deadline_ms, "alone")
            line = self._lines[place] = _ProducerLine(self._clusters[cluster], deadline_ms, self._now, travel, alone)
        return line


class _ProducerLine:
    """Deliveries through one producer."""

    def __init__(
        self,
        cluster: KafkaCluster,
        deadline_ms: int,
        now: Callable[[], int],
        travel: Travel,
        alone: Callable[[], _ProducerLine] | None,
    ) -> None:
        self.outlet = Outlet(cluster, deadline_ms, self._settle, travel)
        self._deadline_ms = deadline_ms
        self._now = now
        self._alone = alone  # The producer for records that were too large together with others.
        self._done: list[Delivery] = []
        self._failed: list[tuple[Delivery, KafkaError]] = []
        self._doubted: dict[str, list[Delivery]] = {}
        """Deliveries by topics that librdkafka takes for missing. Its knowledge may be minutes old, so the topics are
        looked up.
        """
        self._looks: set[asyncio.Task[None]] = set()

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Send as many deliveries as there is room for; the others fail."""
        outlet = self.outlet
        room = outlet.room
        if len(deliveries) > room:
            left, deliveries = deliveries[room:], deliveries[:room]
            reason = outlet.trouble or "they have not answered for a while"
            left[0].desk.settle_all(left, Outcome("failed", f"the brokers cannot be reached: {reason}"))
        for delivery, error in self._send(deliveries):
            if error.code() in NO_TOPIC:
                self._doubt(delivery)
            else:
                delivery.settle(self._outcome(delivery, error))

    async def close(self) -> None:
        for look in self._looks:
            look.cancel()
        await self.outlet.close()

    def _send(self, deliveries: Sequence[Delivery]) -> list[tuple[Delivery, KafkaError]]:
        """Returns the deliveries that librdkafka refuses."""
        now, produce, report = self._now(), self.outlet.produce, self._report
        refused: list[tuple[Delivery, KafkaError]] = []
        for delivery in deliveries:
            event = delivery.event
            topic = kafka_place(event.to)[1]
            key = None if event.key is None else event.key.encode()
            value, headers = record_of(delivery, now)
            try:
                produce(topic, value, key, ANY_PARTITION, partial(report, delivery), None, THIS_MOMENT, headers)
            except KafkaException as wrong:
                refused.append((delivery, what_is_wrong(wrong)))
            except BufferError:
                refused.append((delivery, KafkaError(KafkaError._QUEUE_FULL)))
        if len(refused) < len(deliveries):
            self.outlet.began(len(deliveries) - len(refused))
        return refused

    def _doubt(self, delivery: Delivery) -> None:
        topic = kafka_place(delivery.event.to)[1]
        waiting = self._doubted.get(topic)
        if waiting is not None:
            waiting.append(delivery)
            return
        self._doubted[topic] = [delivery]
        look = asyncio.get_running_loop().create_task(self._look_for(topic))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look_for(self, topic: str) -> None:
        await self.outlet.look_for(topic, self._deadline_ms)
        for delivery, error in self._send(self._doubted.pop(topic)):
            delivery.settle(self._outcome(delivery, error))

    def _report(self, delivery: Delivery, error: KafkaError | None, message: object) -> None:
        if error is None:
            self._done.append(delivery)
        else:
            self._failed.append((delivery, error))

    def _settle(self) -> None:
        done, failed = self._done, self._failed
        if not done and not failed:
            return
        self._done, self._failed = [], []
        self.outlet.answered(len(done) + len(failed))
        if done:
            self.outlet.trouble = None
            done[0].desk.settle_all(done, DELIVERED)
        for delivery, error in failed:
            if error.code() in TOO_LARGE and self._alone is not None:
                self._alone().send((delivery,))  # The record may have been too large only together with others.
            else:
                delivery.settle(self._outcome(delivery, error))

    def _outcome(self, delivery: Delivery, error: KafkaError) -> Outcome:
        topic, trouble = kafka_place(delivery.event.to)[1], self.outlet.trouble
        return outcome_of(error, topic, self._deadline_ms, trouble)


@lru_cache(maxsize=256)
def _deadline_ms(timeout_ms: int) -> int:
    return max((rung for rung in _DEADLINES_MS if rung <= timeout_ms), default=_DEADLINES_MS[0])
