"""The reports of readers: sums that only grow, and states that end with their readers."""

from __future__ import annotations

import asyncio

from everbell.core.reader_report import ReaderReport
from everbell.kafka.readers import Readers
from everbell.testing import VirtualClock, run_virtual


def test_the_counts_of_all_readers_are_added_up() -> None:
    readers = Readers()
    readers.add(0, ReaderReport(10, 12, 1, 0))
    readers.add(1, ReaderReport(5, 5, 2, 1))
    readers.add(0, ReaderReport(1, 1, 0, 0))

    assert (readers.records, readers.events, readers.refused, readers.letters_lost) == (16, 18, 3, 1)


def test_sums_stay_when_a_reader_ends_and_another_takes_its_place() -> None:
    readers = Readers()
    readers.add(0, ReaderReport(10, 10))
    readers.forget(0)
    readers.add(0, ReaderReport())
    readers.add(0, ReaderReport(2, 2, is_over=True))

    assert (readers.records, readers.events) == (12, 12)


def test_lags_and_troubles_are_those_of_the_last_news_and_go_with_the_reader() -> None:
    readers = Readers()
    readers.add(0, ReaderReport(lags={"orders": 7, "mails": 1}, trouble="all brokers are down"))
    readers.add(1, ReaderReport(lags={"orders": 2}))
    assert (readers.lags, readers.trouble) == ({"orders": 9, "mails": 1}, "all brokers are down")

    readers.add(0, ReaderReport(lags={"orders": 0, "mails": 0}))
    assert (readers.lags, readers.trouble) == ({"orders": 2, "mails": 0}, None)

    readers.add(0, ReaderReport(lags={"orders": 5}, trouble="gone"))
    readers.forget(0)
    assert (readers.lags, readers.trouble) == ({"orders": 2}, None)


def test_stopping_waits_for_all_readers_however_they_end() -> None:
    async def main(clock: VirtualClock) -> None:
        readers = Readers()
        assert await readers.until_gone(1), "nobody reads"
        for number in range(3):
            readers.add(number, ReaderReport())
        waiting = asyncio.ensure_future(readers.until_gone(60))
        readers.add(0, ReaderReport(is_over=True))
        readers.forget(1)
        await asyncio.sleep(1)
        assert not waiting.done()
        readers.add(2, ReaderReport(1, is_over=True))
        assert await waiting

    run_virtual(main)


def test_stopping_waits_for_a_reader_with_a_time_out() -> None:
    async def main(clock: VirtualClock) -> None:
        readers = Readers()
        readers.add(0, ReaderReport())
        assert not await readers.until_gone(5)

    run_virtual(main)
