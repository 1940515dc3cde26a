"""The counts of processes that are gone are added up, never lost or added twice, even if a process ends in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from everbell.errors import Fenced, StoreUnavailable
from everbell.stores.cassandra import journal as cassandra_journal
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.cassandra.store import CassandraStore
from everbell.stores.port import Add, Change
from tests.conformance.stores import NOW, PARTITIONS, event, page_all
from tests.services import shared

COMMIT = "UPDATE writers SET op = ?, made"
_COUNTED = "SELECT writer FROM counts WHERE store = ?"
_JOURNAL = "SELECT writer FROM journal WHERE store = ? ALLOW FILTERING"


class Stage:
    """Stores that are opened one after the other, each of which takes all partitions."""

    def __init__(self) -> None:
        self._url = shared.cassandra().fresh_store()
        self.stores: list[CassandraStore] = []
        self._numbers = iter(range(1, 100))

    def open(self) -> CassandraStore:
        self.stores.append(CassandraStore(self._url, partitions=PARTITIONS))
        return self.stores[-1]

    def some(self, count: int) -> list[Change]:
        return [Add(event(next(self._numbers), partition=1)) for _ in range(count)]

    async def takes(self, store: CassandraStore) -> Mapping[int, int]:
        epochs = dict.fromkeys(range(PARTITIONS), max(each.epoch for each in self.stores) + 1)
        await store.raise_fence(epochs)
        return epochs

    def play(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await scenario()
            finally:
                for store in self.stores:
                    await store.close()

        asyncio.run(run())


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    # A process that owns nothing counts as gone at once, and each apply looks for such processes.
    monkeypatch.setattr("everbell.stores.cassandra.fold.FOLD_MS", -60_000)
    monkeypatch.setattr("everbell.stores.cassandra.store.FOLD_MS", 0)
    return Stage()


async def pending(store: CassandraStore) -> int:
    return (await store.counts())["shop"].pending


async def writers(store: CassandraStore, text: str) -> set[int]:
    return {row[0] for row in await store._link.ask(text, store._link.address.store)}


def test_the_counts_of_gone_processes_become_one_row(stage: Stage) -> None:
    first, second, third = stage.open(), stage.open(), stage.open()

    async def scenario() -> None:
        await first.apply(stage.some(2), await stage.takes(first))
        await second.apply(stage.some(2), await stage.takes(second))
        epochs = await stage.takes(third)
        await third.apply(stage.some(2), epochs)
        assert await writers(third, _COUNTED) == {third._journal.writer}
        assert await pending(third) == 6
        await third.apply(stage.some(1), epochs)
        assert await pending(third) == 7

    stage.play(scenario)


def test_a_killed_process_leaves_nothing_in_the_journal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = stage.open(), stage.open()

    async def scenario() -> None:
        async def away(*_: object) -> None:
            raise StoreUnavailable("away")

        epochs = await stage.takes(first)
        with monkeypatch.context() as patch:
            patch.setattr(cassandra_journal, "make", away)
            await first.apply(stage.some(2), epochs)
        killed, first._journal._left = first._journal.writer, None
        epochs = await stage.takes(second)
        await second.apply(stage.some(1), epochs)
        assert await pending(second) == 3
        assert killed not in await writers(second, _COUNTED)
        assert killed not in await writers(second, _JOURNAL)

    stage.play(scenario)


@pytest.mark.parametrize("is_made", [True, False])
def test_counts_stay_right_when_a_process_ends_while_it_adds_them_up(
    stage: Stage, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = stage.open(), stage.open(), stage.open()

    async def scenario() -> None:
        await first.apply(stage.some(2), await stage.takes(first))
        epochs = await stage.takes(second)
        decide = CassandraSession.decide
        commits = 0

        async def ends(link: CassandraSession, statements: Sequence[Any], **options: Any) -> Any:
            nonlocal commits
            commits += statements[0][0].startswith(COMMIT)
            if commits == 2:  # The first commit is the apply's, the second adds up counts.
                if is_made:
                    await decide(link, statements, **options)
                raise asyncio.CancelledError
            return await decide(link, statements, **options)

        with monkeypatch.context() as patch:
            patch.setattr(CassandraSession, "decide", ends)
            with pytest.raises(asyncio.CancelledError):
                await second.apply(stage.some(1), epochs)
        assert commits == 2
        await third.apply(stage.some(1), await stage.takes(third))
        assert await writers(third, _COUNTED) == {third._journal.writer}
        assert await pending(third) == 4

    stage.play(scenario)


@pytest.mark.parametrize("way", ["asked", "told"])
def test_a_process_that_was_frozen_continues_as_a_new_writer(stage: Stage, way: str) -> None:
    first, second = stage.open(), stage.open()

    async def scenario() -> None:
        epochs = await stage.takes(first)
        await first.apply(stage.some(2), epochs)
        asleep = first._journal.writer
        if way == "told":  # It knows that its partition was taken, and takes it back.
            mine = {1: epochs[1] + 1}
            await second.raise_fence(mine)
            with pytest.raises(Fenced):
                await first.apply(stage.some(1), epochs)
        await second.apply(stage.some(1), await stage.takes(second))
        assert asleep not in await writers(second, _COUNTED)
        epochs = await stage.takes(first)
        await first.apply(stage.some(1), epochs)
        assert first._journal.writer != asleep
        assert await pending(first) == 4
        assert len((await page_all(first, 1, NOW + 1, 100))[0]) == 4

    stage.play(scenario)


def test_a_forgotten_process_takes_partitions_and_gives_them_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stage.open(), stage.open()
    monkeypatch.setattr("everbell.stores.cassandra.fold._KEPT_MS", -60_000)

    async def scenario() -> None:
        await first.apply(stage.some(1), await stage.takes(first))
        epochs = await stage.takes(second)
        for _ in range(3):  # The process is ended, then its counts are removed, then its row.
            await second.apply(stage.some(1), epochs)
        assert first._journal.writer not in await writers(
            second, "SELECT writer FROM writers WHERE store = ? ALLOW FILTERING"
        )
        await first.apply(stage.some(1), await stage.takes(first))
        await second.apply(stage.some(1), await stage.takes(second))
        assert await pending(second) == 6

    stage.play(scenario)
