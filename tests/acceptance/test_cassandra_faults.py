"""A Cassandra store when operations fail halfway: lost answers, owners that come back late, operations that are half
done. Also the layout: bounded shards, and a mark before which no row is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from everbell.errors import Fenced, StoreUnavailable
from everbell.stores.cassandra import journal as cassandra_journal
from everbell.stores.cassandra.journal import Journal
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.cassandra.store import CassandraStore
from everbell.stores.port import Add, Change
from tests.conformance.stores import NOW, PARTITIONS, event, finish, page_all
from tests.services import shared

FAR = NOW + 10**12
COMMIT = "UPDATE writers SET op = ?, made"
_COUNT = "SELECT count(*) FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ?"


@pytest.fixture
def url() -> str:
    return shared.cassandra().fresh_store()


def opened(url: str, **options: Any) -> CassandraStore:
    return CassandraStore(url, partitions=PARTITIONS, **options)


async def owning(store: CassandraStore) -> Mapping[int, int]:
    epochs = dict.fromkeys(range(PARTITIONS), store.epoch + 1)
    await store.raise_fence(epochs)
    return epochs


def play(*stores: CassandraStore, scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await scenario()
        finally:
            for store in stores:
                await store.close()

    asyncio.run(run())


def some(first: int, count: int = 1) -> list[Change]:
    return [Add(event(number, partition=1)) for number in range(first, first + count)]


async def stored(store: CassandraStore) -> list[int]:
    return [each.sequence for each in (await page_all(store, 1, FAR, 100))[0]]


def test_a_half_done_operation_is_finished_by_the_next_owner(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(url), opened(url)

    async def scenario() -> None:
        epochs = await owning(first)

        async def away(*_: object) -> None:
            raise StoreUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(cassandra_journal, "make", away)
            assert await first.apply(some(1, 3), epochs) == {}, "the operation is committed, so it is acknowledged"
            with pytest.raises(StoreUnavailable):
                await first.apply(some(4), epochs)
        await owning_after(second, epochs)
        assert await stored(second) == [1, 2, 3]
        assert (await second.counts())["shop"].pending == 3

    play(first, second, scenario=scenario)


async def owning_after(store: CassandraStore, epochs: Mapping[int, int]) -> Mapping[int, int]:
    higher = {partition: epoch + 1 for partition, epoch in epochs.items()}
    await store.raise_fence(higher)
    return higher


def test_a_replaced_owner_that_comes_back_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(url), opened(url)

    async def scenario() -> None:
        epochs = await owning(first)
        await first.apply(some(1), epochs)
        decide = CassandraSession.decide
        higher: dict[int, int] = {}

        async def overtaken(link: CassandraSession, statements: Sequence[Any], **options: Any) -> Any:
            if link is first._link and statements[0][0].startswith(COMMIT) and not higher:
                higher.update(await owning_after(second, epochs))
                # The partition has a new owner by now, and that owner writes.
                await second.apply([finish(event(1, partition=1)), *some(10)], higher)
            return await decide(link, statements, **options)

        with monkeypatch.context() as patch:
            patch.setattr(CassandraSession, "decide", overtaken)
            with pytest.raises(Fenced) as fenced:
                await first.apply(some(2), epochs)
        assert fenced.value.partitions == (1,)
        assert await stored(second) == [10]
        await second.apply(some(11), higher)
        assert await stored(second) == [10, 11]

    play(first, second, scenario=scenario)


@pytest.mark.parametrize("is_made", [True, False])
def test_the_outcome_of_an_operation_with_a_lost_answer_is_looked_up(
    url: str, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(url)

    async def scenario() -> None:
        epochs = await owning(store)
        decide = CassandraSession.decide
        lost: list[Sequence[Any]] = []

        async def unlucky(link: CassandraSession, statements: Sequence[Any], **options: Any) -> Any:
            if statements[0][0].startswith(COMMIT) and not lost:
                lost.append(statements)
                if is_made:
                    await decide(link, statements, **options)
                raise StoreUnavailable("the answer was lost")
            return await decide(link, statements, **options)

        with monkeypatch.context() as patch:
            patch.setattr(CassandraSession, "decide", unlucky)
            if is_made:
                assert await store.apply(some(1), epochs) == {}
            else:
                with pytest.raises(StoreUnavailable):
                    await store.apply(some(1), epochs)
                # A process that still tries to commit the operation finds that it was given up.
                was_made, _ = await decide(store._link, lost[0])
                assert not was_made
        await store.apply(some(2), epochs)
        assert await stored(store) == [1, 2][not is_made :]

    play(store, scenario=scenario)


def test_an_unreachable_consistency_level_refuses_only_its_own_tenant(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(url, level=lambda tenant: "ALL" if tenant == "careful" else None)

    async def scenario() -> None:
        epochs = await owning(store)
        write = CassandraSession.write

        async def poor(link: CassandraSession, statements: Sequence[Any], clock: int, level: str) -> None:
            if level == "ALL":
                raise StoreUnavailable("not enough replicas answer")
            await write(link, statements, clock, level)

        theirs = event(1, partition=1, tenant="careful")
        with monkeypatch.context() as patch:
            patch.setattr(CassandraSession, "write", poor)
            refused = await store.apply([Add(theirs), *some(2)], epochs)
        assert {index: refusal.unmet for index, refusal in refused.items()} == {0: "not enough replicas answer"}
        assert await stored(store) == [2]
        assert await store.apply([Add(theirs)], epochs) == {}
        # The tenant's level does not apply to outcomes.
        with monkeypatch.context() as patch:
            patch.setattr(CassandraSession, "write", poor)
            assert await store.apply([finish(theirs)], epochs) == {}

    play(store, scenario=scenario)


def test_no_shard_exceeds_its_limit_even_after_a_change_of_owner(url: str) -> None:
    crowded = f"{url}&shard_events=20"
    first, second = opened(crowded), opened(crowded)

    async def count(store: CassandraStore) -> list[int]:
        name = store._link.address.store
        shards = await store._link.ask("SELECT bucket, shard FROM buckets WHERE store = ? AND partition = ?", name, 1)
        counted = await store._link.ask_all(_COUNT, [(name, 1, *shard) for shard in shards])
        return sorted(rows[0][0] for rows in counted)

    async def scenario() -> None:
        epochs = await owning(first)
        await first.apply(some(1, 130), epochs)
        assert await count(first) == [10, *[20] * 6]
        epochs = await owning_after(second, epochs)
        await second.apply(some(131, 50), epochs)
        assert await count(second) == [20] * 9
        assert await stored(second) == list(range(1, 181))

    play(first, second, scenario=scenario)


def test_finished_buckets_are_deleted_and_the_mark_advances(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.stores.cassandra.store.RETIRE_MS", 0)
    store = opened(url)

    async def scenario() -> None:
        epochs = await owning(store)
        early, late = event(1, partition=1), event(2, partition=1, due_in=3_600_000)
        await store.apply([Add(early), Add(late)], epochs)
        await store.apply([finish(early)], epochs)
        name = store._link.address.store
        buckets = await store._link.ask("SELECT bucket FROM buckets WHERE store = ? AND partition = ?", name, 1)
        assert buckets == [(late.run_at // 600_000,)]
        assert await store._link.ask("SELECT low FROM marks WHERE store = ? AND partition = ?", name, 1) == buckets
        assert await stored(store) == [2]
        # An event that is due before the mark moves the mark back.
        await store.apply([Add(event(3, partition=1))], epochs)
        assert await stored(store) == [3, 2]

    play(store, scenario=scenario)


def test_a_partition_taken_during_cleanup_or_another_take_stays_taken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbell.stores.cassandra.store.RETIRE_MS", 0)
    first, second = opened(url), opened(url)

    async def scenario() -> None:
        epochs = await owning(first)
        await first.apply(some(1), epochs)
        run = Journal.run
        higher: dict[int, int] = {}

        async def overtaken(journal: Journal, changes: Any, *rest: Any) -> None:
            if journal is first._journal and ("b", 1, NOW // 600_000) in changes and not higher:
                higher.update(await owning_after(second, epochs))
            await run(journal, changes, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "run", overtaken)
            await first.apply([finish(event(1, partition=1))], epochs)
        assert higher, "no partition was taken while a bucket was removed"
        with pytest.raises(Fenced):
            await first.apply(some(2), epochs)
        # The first owner gets one partition back, and loses another at the same moment.
        mine = {0: higher[0] + 1}
        decide = CassandraSession.decide
        highest: dict[int, int] = {}

        async def busy(link: CassandraSession, statements: Sequence[Any], **options: Any) -> Any:
            if statements[0][0].startswith("UPDATE writers SET revoked = revoked -") and not highest:
                highest[1] = higher[1] + 2
                await second.raise_fence(highest)
            return await decide(link, statements, **options)

        await first.raise_fence({1: higher[1] + 1})
        with monkeypatch.context() as patch:
            patch.setattr(CassandraSession, "decide", busy)
            await first.raise_fence(mine)
        assert highest, "no partition was taken while another was given back"
        with pytest.raises(Fenced):
            await first.apply(some(3), {1: higher[1] + 1})
        await second.apply(some(4), highest)
        assert await stored(second) == [4]

    play(first, second, scenario=scenario)


def test_an_operation_of_a_cancelled_caller_is_counted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(url)

    async def scenario() -> None:
        epochs = await owning(store)
        decide = CassandraSession.decide
        is_made = asyncio.Event()

        async def slow(link: CassandraSession, statements: Sequence[Any], **options: Any) -> Any:
            answer = await decide(link, statements, **options)
            if statements[0][0].startswith(COMMIT):
                is_made.set()
                await asyncio.Event().wait()
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(CassandraSession, "decide", slow)
            asked = asyncio.create_task(store.apply(some(1), epochs))
            await is_made.wait()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await store.apply(some(2), epochs)
        assert await stored(store) == [1, 2]
        assert (await store.counts())["shop"].pending == 2

    play(store, scenario=scenario)
