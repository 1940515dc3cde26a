"""Reading from Kafka: a member of a consumer group reads its partitions and schedules their events.

- A record counts as read when its events are durable and its refused ones are in the dead-letter topic. Only then is
  its offset committed: once a second, before a partition moves to another reader, and at the end. The node gets a
  report before each commit (see `reader_report`).
- A record that is read twice (after a crash or a rebalance) yields the same ids, so it makes no duplicates.
- The bytes in memory are bounded: at the limit nothing more is fetched, but the reader stays in the group.

Records that librdkafka has fetched are taken on the loop, without a thread; only waiting for records happens in a
thread, where librdkafka releases the interpreter. The loop never calls anything that librdkafka's own threads have
to answer (assignments, storing an offset), because on a busy machine that took 50 ms.
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
from everbell.core.reader_report import ReaderReport
from everbell.core.request import Ask
from everbell.core.tenant import Tenants
from everbell.edge.drafting import Edge
from everbell.http.address_guard import Guard
from everbell.kafka.dead_letters import DeadLetters
from everbell.kafka.errors import trouble_of
from everbell.kafka.library_log import library_log
from everbell.kafka.outlet import client_config
from everbell.kafka.reading import Reading, Tally
from everbell.kafka.record import KafkaRecord, RecordReader
from everbell.kafka.settings import KafkaSettings

_log = logging.getLogger("everbell.kafka")

RECORDS_MAX = 1_000
"""The limit of one fetch."""
WAITING_BYTES_MAX = 8 * 1024 * 1024
"""The bytes of records in memory above which no more are fetched."""
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
    "fetch.queue.backoff.ms": 5,  # the default is to pause for a second each time the queue is full
    "reconnect.backoff.max.ms": 1_000,
}

T = TypeVar("T")
Place = tuple[str, int]
SendReport = Callable[[ReaderReport], Awaitable[None]]


class KafkaSource:
    """Reads topics until it is stopped."""

    def __init__(
        self,
        settings: KafkaSettings,
        ask: Ask,
        reader: RecordReader,
        letters: DeadLetters,
        send: SendReport,
    ) -> None:
        cluster = settings.clusters[""]
        callbacks = {"error_cb": self._heard, "on_commit": self._committed}
        own = client_config(cluster, _CONSUMER) | {"group.id": settings.group, **callbacks}
        self._consumer = Consumer(own, logger=library_log)
        self._topics = [topic.name for topic in settings.topics]
        self._ask = ask
        self._read = reader.read
        self._letters = letters
        self._send = send
        self._reported = (0, 0, 0, 0)  # The totals at the last report: records, events, refused, dead letters lost.
        self._thread = ThreadPoolExecutor(1, "everbell-kafka")
        self._readings: dict[Place, Reading] = {}
        self._places: set[Place] = set()  # The partitions that this reader has.
        self._read_to: dict[Place, int] = {}
        self._done: dict[Place, int] = {}  # The offsets to commit.
        # The offsets up to which everything is durable, of the partitions that this reader has.
        self._reached: dict[Place, int] = {}
        # Partitions with a failed commit. Callbacks add to it during fetches, perhaps in the thread.
        self._uncommitted: list[TopicPartition] = []
        self._committed_s = 0.0
        self._paused: set[Place] = set()
        self._full_since_s: float | None = None
        # Partitions gained and lost. Callbacks add to it during fetches, perhaps in the thread.
        self._moved: list[tuple[bool, TopicPartition]] = []
        self._loop = asyncio.get_running_loop()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._tally = Tally()
        # Unread records by topic, of the partitions that this reader has; up to a second old.
        self._lags: dict[str, int] = {}
        self._trouble: str | None = None  # Why nothing can be read, since the last record.

    def start(self) -> None:
        self._consumer.subscribe(self._topics, on_assign=self._gain, on_revoke=self._lose, on_lost=self._lose)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Finish the batches that the engine is storing, leave the group, and report the end."""
        self._is_stopping = True
        if self._task is not None:
            await self._task
        await asyncio.gather(*(reading.finish() for reading in self._readings.values()))
        await self._send_report()
        with suppress(KafkaException):  # Records without a commit are read again.
            await self._in_thread(partial(self._commit, self._take_done(), at_once=True))
        await self._in_thread(self._consumer.close)
        self._thread.shutdown(wait=False)
        await self._letters.close()
        await self._send(ReaderReport(is_over=True))

    async def _send_report(self) -> None:
        await self._send(self.report())

    def report(self) -> ReaderReport:
        """The counts since the last call, and the present health."""
        tally = self._tally
        total = (tally.records, tally.events, tally.refused, self._letters.unwritten)
        reported, self._reported = self._reported, total
        records, events, refused, letters_lost = map(sub, total, reported)
        return ReaderReport(records, events, refused, letters_lost, self._lags, self._trouble)

    def _look_at_lags(self) -> dict[str, int]:
        # Without records nothing else would show that the brokers are back.
        if self._trouble is not None:
            with suppress(KafkaException):
                self._consumer.list_topics(self._topics[0], _WAIT_S)
                self._trouble = None
        found = dict.fromkeys(self._topics, 0)
        with suppress(KafkaException, RuntimeError):  # The consumer is being closed, or has just lost a partition.
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
                # Some fetched records may not have been handed over. Reading on would skip them.
                self._trouble = f"nothing is read any more, start the process again: {broken!r}"
                _log.exception("reading from Kafka has ended; start the process again")
                await self._send_report()
                return

    async def _keep_up(self) -> None:
        """Once a second: look at the lags, report, and commit."""
        now_s = self._loop.time()
        if now_s - self._committed_s < _COMMIT_S:
            return
        self._committed_s = now_s
        self._lags = await self._in_thread(self._look_at_lags)
        done = self._take_done()
        await self._send_report()
        self._commit(done)

    async def _step(self) -> None:
        if self._tally.waiting_bytes >= WAITING_BYTES_MAX:
            messages = await self._wait_for_room()
        else:
            messages = await self._fetch()
        if messages:
            self._hand_over(messages)
            # Let the tasks that decode and store the records run: they share this loop.
            await asyncio.sleep(0)

    async def _fetch(self) -> list[Message]:
        if self._full_since_s is not None:
            self._full_since_s = None
            self._act_on_all(self._consumer.resume)
        messages = self._take_fetched([])
        if not messages:
            first = await self._in_thread(self._consumer.poll, _WAIT_S)
            self._follow_moves()
            if first is not None:
                messages = self._take_fetched([first])
        return messages

    def _take_fetched(self, messages: list[Message]) -> list[Message]:
        """Add the records that librdkafka has fetched. Drop records of partitions that Kafka takes away meanwhile.

        The next reader reads the dropped records from the committed offset on. If this reader scheduled them too, they
        would overtake earlier records of their keys that are neither committed nor stored, and a commit behind them
        would skip those records. Records are taken one by one because `poll` runs the callbacks of moves before it
        returns a record; a call for several records does not tell which of them were taken before a move.
        """
        while len(messages) < RECORDS_MAX:
            message = self._consumer.poll(0)
            if self._moved:
                moved = self._follow_moves()
                messages = [each for each in messages if (each.topic(), each.partition()) not in moved]
            if message is None:
                break
            messages.append(message)
        return messages

    async def _wait_for_room(self) -> list[Message]:
        # A short wait is normal. During a longer one the partitions are paused, so that polling keeps this reader in
        # the group without fetching records.
        await asyncio.sleep(_BREATH_S)
        now_s = self._loop.time()
        self._full_since_s = self._full_since_s or now_s
        if now_s - self._full_since_s < _FULL_S:
            return []
        self._act_on_all(self._consumer.pause)
        await asyncio.sleep(_FULL_S / 4)
        message = self._consumer.poll(0)
        self._follow_moves()
        return [] if message is None else [message]

    def _act_on_all(self, act: Callable[[list[TopicPartition]], object]) -> None:
        """Pause or resume all partitions but those that their readings have paused."""
        with suppress(KafkaException):
            act([TopicPartition(*place) for place in self._places - self._paused])

    def _hand_over(self, messages: Sequence[Message]) -> None:
        by_place: dict[Place, list[KafkaRecord]] = {}
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
            # Ignore a partition that has moved to another reader meanwhile.
            if self._readings.get(place) is reading:
                self._done[place] = self._reached[place] = offset

        def on_pause(pauses: bool) -> None:
            if self._readings.get(place) is not reading:
                return  # A pause would stop the partition's new reading and never end.
            (self._paused.add if pauses else self._paused.discard)(place)
            act = self._consumer.pause if pauses else self._consumer.resume
            with suppress(KafkaException):
                act([TopicPartition(*place)])

        reading = Reading(self._ask, self._read, self._letters.send_all, self._tally, is_done, on_pause)
        return reading

    def _take_done(self) -> dict[Place, int]:
        done, self._done = self._done, {}
        failed, self._uncommitted = self._uncommitted, []
        for partition in failed:
            place = (partition.topic, partition.partition)
            if place in self._reached:  # Otherwise another reader continues from the committed offset.
                done[place] = self._reached[place]
        return done

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The result of a commit. During a rebalance Kafka refuses commits, also for partitions that stay here. No
        later commit may follow, so these offsets are committed again.
        """
        self._uncommitted += [each for each in partitions if error is not None or each.error is not None]

    def _commit(self, done: dict[Place, int], *, at_once: bool = False) -> None:
        """Commit offsets, and wait for the result only if `at_once`."""
        if done:
            offsets = [TopicPartition(*place, offset) for place, offset in done.items()]
            if at_once:  # Two calls, because the driver's types tell the two cases apart by a literal.
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)

    def _gain(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._moved += [(True, partition) for partition in partitions]

    def _lose(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._moved += [(False, partition) for partition in partitions]
        asyncio.run_coroutine_threadsafe(self._send_report(), self._loop)
        with suppress(KafkaException):  # The next reader finds the events that exist already.
            self._commit(self._take_done())

    def _follow_moves(self) -> set[Place]:
        """Begin and leave partitions as Kafka decided. Return the partitions that moved."""
        moves, self._moved = self._moved, []
        moved: set[Place] = set()
        for came, partition in moves:
            place = (partition.topic, partition.partition)
            moved.add(place)
            self._paused.discard(place)
            self._done.pop(place, None)
            self._reached.pop(place, None)
            self._read_to.pop(place, None)
            (self._places.add if came else self._places.discard)(place)
            reading = self._readings.pop(place, None)
            if reading is not None:
                reading.leave()
            if came:
                with suppress(KafkaException):
                    self._consumer.resume([TopicPartition(*place)])
        return moved

    def _heard(self, error: KafkaError) -> None:
        if error.code() != KafkaError._TRANSPORT:  # A single lost connection; librdkafka also reports its consequences.
            if self._trouble is None:  # librdkafka repeats an error while it lasts.
                _log.warning("Kafka: %s", error.str())
            self._trouble = trouble_of(error, self._trouble)

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._thread, call, *arguments)


def open_source(
    settings: KafkaSettings,
    ask: Ask,
    tenants: Tenants,
    clock: Clock,
    value_bytes_max: int,
    send: SendReport,
    guard: Guard | None = None,
) -> KafkaSource:
    """The reader of the settings' topics. Raises `KafkaException` for wrong properties."""
    edge = Edge(tenants, clock, allows_handlers=False, kafka=settings.targets, guard=guard)
    reader = RecordReader(settings.topics, edge, clock, value_bytes_max)
    letters = DeadLetters(settings.clusters[""], settings.dead_letters)
    return KafkaSource(settings, ask, reader, letters, send)


def _record_of(message: Message) -> KafkaRecord:
    # The driver's types allow missing values and texts; a record that was read has all values, as bytes.
    read: Any = message
    kind, timestamp_at = read.timestamp()
    fault = None
    try:
        headers = read.headers()
    except (SystemError, UnicodeError):  # The binding raises SystemError because of UnicodeError.
        headers, fault = None, "the name of a header is not UTF-8"
    return KafkaRecord(
        read.topic(),
        read.partition(),
        read.offset(),
        max(timestamp_at, 0) if kind else 0,
        read.key(),
        read.value(),
        headers,
        fault,
    )
