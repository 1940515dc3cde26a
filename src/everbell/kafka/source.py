"""The way in from Kafka: a member of a consumer group reads its share of the topics, and schedules what it finds.

- A record counts as read when its events are durable, and its refused ones are in the dead-letter topic. Only then is
  its offset committed: once a second, before a partition goes to another reader, and at the end. What was read is told
  to the node before that (see `news`).
- What is read twice (after a crash, a rebalance) has the same ids, and is found to be there.
- What was read and is not done is bounded: then nothing more is read, and the reader stays in the group all the same.

Records that are there are taken on the loop, without a thread; only who waits for some waits in a thread, where
librdkafka needs no interpreter. On the loop nothing is asked that librdkafka's own threads have to answer (what is
assigned, to store an offset): on a busy machine that took 50 ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from operator import sub
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from everbell.clock import Clock
from everbell.core.tenant import Tenants
from everbell.engine.port import OperationsPort
from everbell.kafka.dead_letters import DeadLetters
from everbell.kafka.errors import trouble_of
from everbell.kafka.library_log import library_log
from everbell.kafka.news import KafkaNews
from everbell.kafka.outlet import client_config
from everbell.kafka.reading import Reading, Tally
from everbell.kafka.record import Record, RecordReader
from everbell.kafka.settings import KafkaSettings
from everbell.server.edge import Edge

_log = logging.getLogger("everbell.kafka")

RECORDS_MAX = 1_000
"""Fetched at a time."""
WAITING_BYTES_MAX = 8 * 1024 * 1024
"""What may wait for the engine before no more is fetched."""
_WAIT_S = 0.25
_BREATH_S = 0.005
_FULL_S = 0.5
_FAILED_S = 1.0
_COMMIT_S = 1.0

_CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",  # also for partitions that are added later: nothing is skipped
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 10_000,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,  # it would rest for a second each time that its queue is full
    "reconnect.backoff.max.ms": 1_000,
}

T = TypeVar("T")
Place = tuple[str, int]
Tell = Callable[[KafkaNews], Awaitable[None]]


class KafkaSource:
    """Reads topics until it is stopped."""

    def __init__(
        self,
        settings: KafkaSettings,
        operations: OperationsPort,
        reader: RecordReader,
        letters: DeadLetters,
        tell: Tell,
    ) -> None:
        cluster = settings.clusters[""]
        told = {"error_cb": self._heard, "on_commit": self._committed}
        own = client_config(cluster, _CONSUMER) | {"group.id": settings.group, **told}
        self._consumer = Consumer(own, logger=library_log)
        self._topics = [topic.name for topic in settings.topics]
        self._operations = operations
        self._read = reader.read
        self._letters = letters
        self._tell = tell
        self._told = (0, 0, 0, 0)
        """What was read by the time of the last news: records, events, refused, letters lost."""
        self._thread = ThreadPoolExecutor(1, "everbell-kafka")
        self._readings: dict[Place, Reading] = {}
        self._leaving: list[Reading] = []
        """Of partitions that are read elsewhere by now."""
        self._places: set[Place] = set()
        """What is read here."""
        self._read_to: dict[Place, int] = {}
        self._done: dict[Place, int] = {}
        """The offsets to commit."""
        self._reached: dict[Place, int] = {}
        """How far all is durable, of what is read here."""
        self._uncommitted: list[TopicPartition] = []
        """Whose offsets could not be committed, told while records are fetched, perhaps in the thread."""
        self._committed_s = 0.0
        self._paused: set[Place] = set()
        self._full_since_s: float | None = None
        self._moved: list[tuple[bool, TopicPartition]] = []
        """Partitions that came and went, told while records are fetched, perhaps in the thread."""
        self._loop = asyncio.get_running_loop()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._tally = Tally()
        self._lags: dict[str, int] = {}
        """How many records of each topic are not read yet, of the partitions that are read here; a second old."""
        self._trouble: str | None = None
        """Why nothing can be read, since something was."""

    def start(self) -> None:
        """Begin to read."""
        self._consumer.subscribe(self._topics, on_assign=self._gain, on_revoke=self._lose, on_lost=self._lose)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Finish what the engine is storing, leave the group, and tell that it is over."""
        self._is_stopping = True
        if self._task is not None:
            await self._task
        await asyncio.gather(*(reading.finish() for reading in (*self._readings.values(), *self._leaving)))
        await self._tell_news()
        with suppress(KafkaException):  # What is not committed is read again.
            await self._in_thread(partial(self._commit, self._take_done(), at_once=True))
        await self._in_thread(self._consumer.close)
        self._thread.shutdown(wait=False)
        await self._letters.close()
        await self._tell(KafkaNews(is_over=True))

    async def _tell_news(self) -> None:
        await self._tell(self.news())

    def news(self) -> KafkaNews:
        """What was read since this was asked last, and how it is now."""
        tally = self._tally
        read = (tally.records, tally.events, tally.refused, self._letters.unwritten)
        told, self._told = self._told, read
        records, events, refused, letters_lost = map(sub, read, told)
        return KafkaNews(records, events, refused, letters_lost, self._lags, self._trouble)

    def _look_at_lags(self) -> dict[str, int]:
        """Also whether brokers are back; nobody else would tell while there is nothing to read."""
        if self._trouble is not None:
            with suppress(KafkaException):
                self._consumer.list_topics(self._topics[0], _WAIT_S)
                self._trouble = None
        found = dict.fromkeys(self._topics, 0)
        with suppress(KafkaException, RuntimeError):  # It is being closed, or has just lost a partition.
            for place in list(self._places):
                low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                found[place[0]] += max(high - self._read_to.get(place, low), 0)
        return found

    async def _run(self) -> None:
        while not self._is_stopping:
            try:
                await self._keep_up()
                await self._step()
            except KafkaException as wrong:
                self._trouble = str(wrong.args[0])
                _log.exception("reading from Kafka failed; trying again")
                await asyncio.sleep(_FAILED_S)
            except Exception as broken:
                # Records may have been fetched and not handed over: going on would pass them over.
                self._trouble = f"nothing is read any more, start the process again: {broken!r}"
                _log.exception("reading from Kafka has ended; start the process again")
                await self._tell_news()
                return

    async def _keep_up(self) -> None:
        """Once a second, look how far this is, tell it and commit it."""
        now_s = self._loop.time()
        if now_s - self._committed_s < _COMMIT_S:
            return
        self._committed_s = now_s
        self._lags = await self._in_thread(self._look_at_lags)
        done = self._take_done()
        await self._tell_news()
        self._commit(done)

    async def _step(self) -> None:
        if self._tally.waiting_bytes >= WAITING_BYTES_MAX:
            messages = await self._wait_for_room()
        else:
            messages = await self._fetch()
        self._follow_moves()
        if messages:
            self._hand_over(messages)
            # Whoever decodes and stores them is on the same loop.
            await asyncio.sleep(0)

    async def _fetch(self) -> list[Message]:
        if self._full_since_s is not None:
            self._full_since_s = None
            self._act_on_all(self._consumer.resume)
        messages = self._consumer.consume(RECORDS_MAX, 0)
        if not messages:
            first = await self._in_thread(self._consumer.poll, _WAIT_S)
            if first is not None:
                messages = [first, *self._consumer.consume(RECORDS_MAX, 0)]
        return messages

    async def _wait_for_room(self) -> list[Message]:
        """A moment of it is what happens all the time; whoever waits for longer pauses, so as to stay in the group."""
        await asyncio.sleep(_BREATH_S)
        now_s = self._loop.time()
        self._full_since_s = self._full_since_s or now_s
        if now_s - self._full_since_s < _FULL_S:
            return []
        self._act_on_all(self._consumer.pause)
        await asyncio.sleep(_FULL_S / 4)
        message = self._consumer.poll(0)
        return [] if message is None else [message]

    def _act_on_all(self, act: Callable[[list[TopicPartition]], object]) -> None:
        """Pause, or let go on, all but those that are paused by themselves."""
        with suppress(KafkaException):
            act([TopicPartition(*place) for place in self._places - self._paused])

    def _hand_over(self, messages: Sequence[Message]) -> None:
        by_place: dict[Place, list[Record]] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self._heard(error)
                continue
            record = _record_of(message)
            by_place.setdefault((record.topic, record.partition), []).append(record)
        if by_place:
            self._trouble = None
        for place, records in by_place.items():
            self._read_to[place] = records[-1].offset + 1
            reading = self._readings.get(place)
            if reading is None:
                reading = self._readings[place] = self._reading(place)
            reading.add(records)

    def _reading(self, place: Place) -> Reading:
        def is_done(offset: int) -> None:
            # A partition that was taken away meanwhile is nobody's business here.
            if self._readings.get(place) is reading:
                self._done[place] = self._reached[place] = offset

        def on_pause(pauses: bool) -> None:
            if self._readings.get(place) is not reading:
                return  # It would hold up whoever reads the partition now, and never let go.
            (self._paused.add if pauses else self._paused.discard)(place)
            act = self._consumer.pause if pauses else self._consumer.resume
            with suppress(KafkaException):
                act([TopicPartition(*place)])

        reading = Reading(self._operations, self._read, self._letters.send_all, self._tally, is_done, on_pause)
        return reading

    def _take_done(self) -> dict[Place, int]:
        done, self._done = self._done, {}
        failed, self._uncommitted = self._uncommitted, []
        for partition in failed:
            place = (partition.topic, partition.partition)
            if place in self._reached:  # Else it is read elsewhere, from what is committed.
                done[place] = self._reached[place]
        return done

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """What became of a commit. While the group shares partitions out it is refused, also for those that stay here,
        and perhaps nothing follows that would be committed instead."""
        self._uncommitted += [each for each in partitions if error is not None or each.error is not None]

    def _commit(self, done: dict[Place, int], *, at_once: bool = False) -> None:
        """Say how far this is; without waiting, unless it has to be known `at_once`."""
        if done:
            offsets = [TopicPartition(*place, offset) for place, offset in done.items()]
            if at_once:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)

    def _gain(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._moved += [(True, partition) for partition in partitions]

    def _lose(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._moved += [(False, partition) for partition in partitions]
        asyncio.run_coroutine_threadsafe(self._tell_news(), self._loop)
        with suppress(KafkaException):  # Whoever reads them next finds what is there already.
            self._commit(self._take_done())

    def _follow_moves(self) -> None:
        if not self._moved:
            return
        moved, self._moved = self._moved, []
        for came, partition in moved:
            place = (partition.topic, partition.partition)
            self._paused.discard(place)
            self._done.pop(place, None)
            self._reached.pop(place, None)
            self._read_to.pop(place, None)
            (self._places.add if came else self._places.discard)(place)
            reading = self._readings.pop(place, None)
            if reading is not None:
                reading.leave()
                self._leaving.append(reading)
            if came:
                with suppress(KafkaException):
                    self._consumer.resume([TopicPartition(*place)])
        self._leaving = [reading for reading in self._leaving if reading.is_busy]

    def _heard(self, error: KafkaError) -> None:
        if error.code() != KafkaError._TRANSPORT:  # One connection of several; what follows from it is said, too.
            if self._trouble is None:  # It is said again and again while it lasts.
                _log.warning("Kafka: %s", error.str())
            self._trouble = trouble_of(error, self._trouble)

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._thread, call, *arguments)


def open_source(
    settings: KafkaSettings,
    operations: OperationsPort,
    tenants: Tenants,
    clock: Clock,
    value_bytes_max: int,
    tell: Tell,
) -> KafkaSource:
    """What reads the topics of the settings. Raises `KafkaException` for properties that are wrong."""
    edge = Edge(tenants, clock, allows_handlers=False, kafka=settings.clusters.keys())
    reader = RecordReader(settings.topics, edge, clock, value_bytes_max)
    letters = DeadLetters(settings.clusters[""], settings.dead_letters)
    return KafkaSource(settings, operations, reader, letters, tell)


def _record_of(message: Message) -> Record:
    # Told as values that may be missing, and texts that may be; of a record that was read they are there, as bytes.
    told: Any = message
    kind, timestamp_at = told.timestamp()
    fault = None
    try:
        headers = told.headers()
    except (SystemError, UnicodeError):  # The binding raises the one because of the other.
        headers, fault = None, "the name of a header is not UTF-8"
    return Record(
        told.topic(),
        told.partition(),
        told.offset(),
        max(timestamp_at, 0) if kind else 0,
        told.key(),
        told.value(),
        headers,
        fault,
    )
