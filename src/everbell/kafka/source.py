"""The way in from Kafka: each node reads its share of the topics, in one consumer group, and schedules what it finds.

- A record counts as read when its events are durable, and its refused ones are in the dead-letter topic. Only then is
  its offset kept; librdkafka commits it in the background, before a partition goes to another node, and at the end.
- Records are taken in order, some at a time, and the next ones only when these are done. So the events of a key keep
  their order, also when the engine refuses some for a while: then nothing behind them is taken.
- While the engine takes nothing (503, 429), partitions are paused: the node stays in the group, and nothing piles up.
- What is read twice (after a crash, a rebalance) has the same ids, and is found to be there.

Records that are there are taken on the loop, without a thread; only who waits for some waits in a thread, where
librdkafka needs no interpreter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from everbell.engine.port import OperationsPort
from everbell.errors import EverbellError, InvalidInput
from everbell.kafka.dead_letters import DeadLetters
from everbell.kafka.outlet import client_config, library_log
from everbell.kafka.record import Asked, Poison, Record, RecordReader
from everbell.kafka.settings import KafkaSettings

_log = logging.getLogger("everbell.kafka")

RECORDS_MAX = 1_000
"""Taken at a time: about what the engine stores with one fsync."""
_WAIT_S = 0.25
_PAUSE_S = 0.05
_PAUSE_S_MAX = 2.0

_CONSUMER = {
    "enable.auto.commit": True,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",  # also for partitions that are added later: nothing is skipped
    "auto.commit.interval.ms": 1_000,
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 10_000,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 1_000,
}


class KafkaSource:
    """Reads topics until it is stopped."""

    def __init__(
        self, settings: KafkaSettings, operations: OperationsPort, reader: RecordReader, letters: DeadLetters
    ) -> None:
        cluster = settings.clusters[""]
        own = client_config(cluster, _CONSUMER) | {"group.id": settings.group, "error_cb": self._heard}
        self._consumer = Consumer(own, logger=library_log)
        self._topics = [topic.name for topic in settings.topics]
        self._operations = operations
        self._read = reader.read
        self._letters = letters
        self._thread = ThreadPoolExecutor(1, "everbell-kafka")
        self._ahead: list[Message] = []
        """Read while the partitions should have been paused: the next ones."""
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.records = 0
        self.events = 0
        self.refused = 0
        self.trouble: str | None = None
        """Why nothing can be read, since something was."""

    def start(self) -> None:
        """Begin to read."""
        self._consumer.subscribe(self._topics)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Finish what was taken, unless the engine refuses it, and leave the group."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        await self._in_thread(self._consumer.close)
        self._thread.shutdown(wait=False)
        await self._letters.close()

    @property
    def letters_lost(self) -> int:
        """Refused records that no letter could be written for."""
        return self._letters.unwritten

    def lags(self) -> dict[str, int]:
        """How many records of each topic are not read yet, of the partitions that are read here."""
        found: dict[str, int] = {}
        with suppress(KafkaException, RuntimeError):  # It is being closed, or has just lost a partition.
            for place in self._consumer.position(self._consumer.assignment()):
                low, high = self._consumer.get_watermark_offsets(place, cached=True)
                behind = high - (place.offset if place.offset >= 0 else low)
                found[place.topic] = found.get(place.topic, 0) + max(behind, 0)
        return found

    async def _run(self) -> None:
        while not self._stopping.is_set():
            messages: list[Message] = []
            try:
                messages = await self._fetch()
                if messages:
                    await self._take_in(messages)
            except Exception as wrong:
                # Whatever it was, nothing may be passed over.
                self._ahead = messages + self._ahead
                self.trouble = str(wrong)
                _log.exception("reading from Kafka failed; trying again")
                await self._idle(_PAUSE_S_MAX)
                self._resume()

    async def _fetch(self) -> list[Message]:
        messages, self._ahead = self._ahead, []
        messages += self._consumer.consume(RECORDS_MAX, 0)
        if not messages:
            first = await self._in_thread(self._consumer.poll, _WAIT_S)
            if first is not None:
                messages = [first, *self._consumer.consume(RECORDS_MAX, 0)]
        return messages

    async def _take_in(self, messages: Sequence[Message]) -> None:
        asked: list[Asked] = []
        poisons: list[Poison] = []
        ends: dict[tuple[str, int], int] = {}
        count = 0
        for message in messages:
            error = message.error()
            if error is not None:
                self._heard(error)
                continue
            count += 1
            record = _record_of(message)
            events, wrong = self._read(record)
            asked += events
            poisons += wrong
            ends[record.topic, record.partition] = record.offset + 1
        if not ends:
            return
        self.trouble = None
        if not await self._schedule(asked, poisons):
            return  # It is read again, here or elsewhere.
        if poisons:
            self.refused += len(poisons)
            await self._letters.send_all(poisons)
        self.records += count
        self._keep(ends)

    async def _schedule(self, asked: list[Asked], poisons: list[Poison]) -> bool:
        """Store all, however long that takes; what can never be stored is poison. False when that was given up."""
        pause_s = _PAUSE_S
        while True:
            asked, reason = await self._schedule_once(asked, poisons)
            if not asked:
                if pause_s > _PAUSE_S:
                    self._resume()
                return True
            if pause_s == _PAUSE_S:
                _log.warning("reading from Kafka pauses, as nothing can be scheduled: %s", reason)
                self._pause()
            await self._idle(max(pause_s, min(reason.retry_after_s or 0, _PAUSE_S_MAX) if reason else 0))
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)
            if self._stopping.is_set():
                return False

    async def _schedule_once(
        self, asked: list[Asked], poisons: list[Poison]
    ) -> tuple[list[Asked], EverbellError | None]:
        """Returns what was not stored, in order, and why not."""
        by_tenant: dict[str, list[Asked]] = {}
        for one in asked:
            by_tenant.setdefault(one.tenant, []).append(one)
        left: list[Asked] = []
        reason: EverbellError | None = None
        for tenant, some in by_tenant.items():
            for start in range(0, len(some), RECORDS_MAX):
                part = some[start : start + RECORDS_MAX]
                refused = await self._schedule_part(tenant, part, poisons)
                if refused:
                    # What comes behind may be of the same keys.
                    reason = refused[0][1]
                    left += [one for one, _ in refused] + some[start + RECORDS_MAX :]
                    break
        return left, reason

    async def _schedule_part(
        self, tenant: str, part: list[Asked], poisons: list[Poison]
    ) -> list[tuple[Asked, EverbellError]]:
        results: Sequence[object]
        try:
            results = await self._operations.schedule_ids(tenant, [one.draft for one in part])
        except EverbellError as failed:
            results = [failed] * len(part)
        refused = []
        for one, result in zip(part, results, strict=True):
            if not isinstance(result, EverbellError):
                self.events += 1
            elif _is_for_good(result):
                poisons.append(Poison(one.record, str(result), one.index))
            else:
                refused.append((one, result))
        return refused

    def _keep(self, ends: dict[tuple[str, int], int]) -> None:
        """These are read. A partition that was taken away meanwhile is nobody's business here."""
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
        try:
            self._consumer.store_offsets(offsets=offsets)
        except KafkaException:
            for offset in offsets:
                with suppress(KafkaException):
                    self._consumer.store_offsets(offsets=[offset])

    def _pause(self) -> None:
        with suppress(KafkaException):  # Those that are taken away in this moment need no pause.
            self._consumer.pause(self._consumer.assignment())

    def _resume(self) -> None:
        _log.info("reading from Kafka goes on")
        with suppress(KafkaException):
            self._consumer.resume(self._consumer.assignment())

    async def _idle(self, seconds: float) -> None:
        """Wait, and stay in the group. Partitions that came meanwhile are paused, too."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        message = self._consumer.poll(0)
        if message is not None:
            self._ahead.append(message)
        self._pause()

    def _heard(self, error: KafkaError) -> None:
        if error.code() != KafkaError._TRANSPORT:  # One connection of several; what follows from it is said, too.
            self.trouble = error.str()
            _log.warning("Kafka: %s", error.str())

    async def _in_thread(self, call: object, *arguments: object) -> Message | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)  # type: ignore[arg-type]


def _record_of(message: Message) -> Record:
    # Told as values that may be missing, and texts that may be; of a record that was read they are there, as bytes.
    told: Any = message
    kind, timestamp_at = told.timestamp()
    return Record(
        told.topic(),
        told.partition(),
        told.offset(),
        timestamp_at if kind else 0,
        told.key(),
        told.value(),
        told.headers(),
    )


def _is_for_good(error: EverbellError) -> bool:
    """Whether asking again cannot help: what was asked is wrong, or in conflict with what is there."""
    return isinstance(error, InvalidInput) or error.status == 409
