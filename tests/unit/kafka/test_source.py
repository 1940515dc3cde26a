"""Reading from Kafka without a broker: no record is lost, no partition is blocked for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition

from everbell.core.reader_report import ReaderReport
from everbell.kafka.dead_letters import DeadLetters
from everbell.kafka.record import KafkaRecord
from everbell.kafka.settings import KafkaCluster, KafkaSettings, KafkaTopic
from everbell.kafka.source import KafkaSource, _record_of

NOBODY = KafkaCluster("127.0.0.1:1")
PLACE = ("orders", 0)


def message(
    timestamp: tuple[int, int] = (1, 1_767_225_600_000), headers: Any = None, partition: int = 0, offset: int = 7
) -> Any:
    """A record as librdkafka reports it; `headers` may be an exception to raise."""

    def told() -> Any:
        if isinstance(headers, Exception):
            raise headers
        return headers

    return SimpleNamespace(
        topic=lambda: "orders",
        partition=lambda: partition,
        offset=lambda: offset,
        timestamp=lambda: timestamp,
        key=lambda: None,
        value=lambda: b"{}",
        headers=told,
        error=lambda: None,
    )


@pytest.mark.parametrize(
    ("timestamp", "at"), [((1, 5_000), 5_000), ((2, 5_000), 5_000), ((0, 5_000), 0), ((1, -1), 0), ((1, 0), 0)]
)
def test_a_record_without_a_time_has_none(timestamp: tuple[int, int], at: int) -> None:
    assert _record_of(message(timestamp)).timestamp_at == at


def test_headers_that_cannot_be_read_are_a_fault_of_the_record() -> None:
    broken = _record_of(message(headers=SystemError("returned a result with an exception set")))

    assert (broken.offset, broken.headers, broken.fault) == (7, None, "the name of a header is not UTF-8")
    assert _record_of(message(headers=[("a", b"b")])).fault is None


class Consumer:
    """Remembers paused partitions, and returns the records of `queue`. Its callbacks run before the next record."""

    def __init__(self) -> None:
        self.acts: list[str] = []
        self.error: Exception | None = None
        self.queue: list[Any] = []

    def pause(self, places: list[Any]) -> None:
        self.acts.append("pause")

    def resume(self, places: list[Any]) -> None:
        self.acts.append("resume")

    def poll(self, wait_s: float) -> Any:
        if self.error is not None:
            raise self.error
        while self.queue and callable(self.queue[0]):
            self.queue.pop(0)()
        return self.queue.pop(0) if self.queue else None


def source_of(consumer: Consumer, news: list[ReaderReport]) -> KafkaSource:
    settings = KafkaSettings({"": NOBODY}, topics=(KafkaTopic("orders"),))

    async def tell(told: ReaderReport) -> None:
        news.append(told)

    reader = SimpleNamespace(read=lambda record: ((), ()))
    letters = cast(DeadLetters, SimpleNamespace(unwritten=0, send_all=None))
    source = KafkaSource(settings, cast(Any, None), cast(Any, reader), letters, tell)
    source._consumer = cast(Any, consumer)
    return source


def test_a_reading_that_has_left_does_not_pause_the_partition_of_its_successor() -> None:
    async def main() -> None:
        consumer = Consumer()
        source = source_of(consumer, [])
        left = source._readings[PLACE] = source._reading(PLACE)
        left._on_pause(True)
        assert (consumer.acts, source._paused) == (["pause"], {PLACE})

        source._paused.clear()
        source._readings[PLACE] = source._reading(PLACE)
        left._on_pause(True)
        left._on_pause(False)
        assert (consumer.acts, source._paused) == (["pause"], set())

    asyncio.run(main())


def test_an_offset_that_could_not_be_committed_is_committed_again_unless_the_partition_has_gone() -> None:
    async def main() -> None:
        source = source_of(Consumer(), [])
        refused, fine = (
            SimpleNamespace(topic="orders", partition=0, error="rebalancing"),
            TopicPartition("orders", 1, 5),
        )
        for place, offset in ((PLACE, 7), (("orders", 1), 5)):
            source._readings[place] = reading = source._reading(place)
            reading._is_done(offset)
        assert source._take_done() == {PLACE: 7, ("orders", 1): 5}

        source._committed(None, [cast(Any, refused), fine])
        assert source._take_done() == {PLACE: 7}
        assert source._take_done() == {}
        source._committed(cast(KafkaError, "no coordinator"), [cast(Any, refused), fine])
        source._readings[PLACE]._is_done(9)
        assert source._take_done() == {PLACE: 9, ("orders", 1): 5}, "as far as it is by now"

        source._lose(cast(Any, None), [TopicPartition("orders", 0)])
        source._follow_moves()
        source._committed(None, [cast(Any, refused)])
        assert source._take_done() == {}

    asyncio.run(main())


def test_an_unforeseen_error_ends_reading_and_is_reported() -> None:
    async def main() -> None:
        consumer, news = Consumer(), list[ReaderReport]()
        source = source_of(consumer, news)
        source._committed_s = source._loop.time()
        consumer.error = ValueError("no such thing")
        await source._run()

        assert news[-1].trouble is not None
        assert "start the process again: ValueError('no such thing')" in news[-1].trouble

    asyncio.run(main())


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_record_of_a_partition_that_moved_during_the_fetch_is_left_to_the_next_reader(comes_back: bool) -> None:
    async def main() -> None:
        consumer = Consumer()
        source = source_of(consumer, [])
        read: list[tuple[int, int]] = []

        async def note(record: KafkaRecord) -> tuple[tuple[()], tuple[()]]:
            read.append((record.partition, record.offset))
            return (), ()

        source._read = note
        both = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
        source._gain(cast(Any, None), both)
        source._follow_moves()
        # Earlier records wait: the engine cannot store them yet.
        source._readings[PLACE] = waiting = source._reading(PLACE)
        waiting._on_pause(True)

        def move() -> None:
            source._lose(cast(Any, None), both[:1])
            if comes_back:
                source._gain(cast(Any, None), both[:1])

        # Kafka continues with the records that were not committed.
        again = [message(offset=5)] if comes_back else []
        consumer.queue = [
            message(offset=7),
            message(partition=1, offset=2),
            move,
            message(partition=1, offset=3),
            *again,
        ]
        await source._step()
        await asyncio.sleep(0.01)

        assert read == [(1, 2), (1, 3), *[(0, 5)] * comes_back]
        assert source._take_done() == {("orders", 1): 4} | ({PLACE: 6} if comes_back else {})

    asyncio.run(main())
