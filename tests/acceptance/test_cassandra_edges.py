"""A Cassandra store in rare races and at its limits: an owner that is just being replaced, rows that wait to be
written,
buckets that end out of order, consistency levels that cannot be reached, and more bytes than a server accepts at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from everbell.clock import SystemClock
from everbell.core.time import HOUR_MS
from everbell.errors import Fenced, StoreUnavailable
from everbell.stores.cassandra import journal as cassandra_journal
from everbell.stores.cassandra.fence import Fence
from everbell.stores.cassandra.journal import Journal, Revoked, WriterEnded
from everbell.stores.cassandra.rows import make
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.cassandra.store import CassandraStore
from everbell.stores.port import Add, Block, Change, Filter, Move
from tests.conformance.stores import NOW, PARTITIONS, event, finish, page_all
from tests.services import shared

FAR = NOW + 10**12
BUCKET_MS = 600_000
_NUMBER_TAKEN = "UPDATE stores SET blocks"


@pytest.fixture
def url() -> str:
    return shared.cassandra().fresh_store()


def opened(url: str, **options: Any) -> CassandraStore:
    return CassandraStore(url, partitions=PARTITIONS, **options)


async def owning(store: CassandraStore, epoch: int = 1) -> Mapping[int, int]:
    epochs = dict.fromkeys(range(PARTITIONS), epoch)
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


def some(first: int, count: int = 1, **fields: Any) -> list[Change]:
    return [Add(event(number, partition=1, **fields)) for number in range(first, first + count)]


async def stored(store: CassandraStore) -> list[int]:
    return [each.sequence for each in (await page_all(store, 1, FAR, 100))[0]]


def test_a_write_of_an_owner_that_is_being_replaced_is_stored_or_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened(url), opened(url)

    async def scenario() -> None:
        epochs = await owning(first)
        await first.apply(some(1), epochs)
        write = Fence._write
        met: list[str] = []

        async def meeting(fence: Fence, *what: Any) -> bool:
            if fence is second._fence and not met:
                # The partition was taken from its owner, but does not name the new owner yet.
                met.append("")
                await first.apply(some(2), epochs)
            return await write(fence, *what)

        with monkeypatch.context() as patch:
            patch.setattr(Fence, "_write", meeting)
            higher = await owning(second, 2)
        assert met
        assert await stored(second) == [1, 2]
        with pytest.raises(Fenced):
            await first.apply(some(3), epochs)
        await second.apply(some(4), higher)
        assert await stored(second) == [1, 2, 4]

    play(first, second, scenario=scenario)


@pytest.mark.parametrize("is_at_the_fence", [True, False])
def test_taking_partitions_can_be_repeated_after_a_lost_answer(
    url: str, is_at_the_fence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened(url), opened(url)

    async def scenario() -> None:
        await first.apply(some(1), await owning(first))
        decide, see = CassandraSession.decide, CassandraSession.see
        lost: list[str] = []

        async def unlucky(link: CassandraSession, statements: Sequence[Any], **options: Any) -> Any:
            text = statements[0][0]
            if is_at_the_fence and text.startswith("UPDATE fence"):
                await decide(link, statements, **options)
                lost.append(text)
                raise StoreUnavailable("the answer was lost")
            if not is_at_the_fence and text.startswith(_NUMBER_TAKEN):
                lost.append(text)
                raise StoreUnavailable("away")
            return await decide(link, statements, **options)

        async def blind(link: CassandraSession, *what: Any, **options: Any) -> Any:
            if lost:
                raise StoreUnavailable("away")
            return await see(link, *what, **options)

        with monkeypatch.context() as patch:
            patch.setattr(CassandraSession, "decide", unlucky)
            patch.setattr(CassandraSession, "see", blind)
            with pytest.raises(StoreUnavailable):
                await owning(second, 2)
        assert lost
        epochs = await owning(second, 2)
        await second.apply(some(2), epochs)
        assert await stored(second) == [1, 2]
        with pytest.raises(Fenced):
            await owning(second, 2)
        with pytest.raises(Fenced):
            await owning(first, 2)

    play(first, second, scenario=scenario)


def test_more_bytes_than_a_server_takes_at_once_are_stored(url: str) -> None:
    store = opened(url)

    async def scenario() -> None:
        epochs = await owning(store)
        await store.apply(some(1, 40, payload=bytes(256 << 10)), epochs)
        assert await stored(store) == list(range(1, 41))

    play(store, scenario=scenario)


def test_an_event_too_large_for_the_server_is_refused_and_the_others_are_stored(url: str) -> None:
    store = opened(url)

    async def scenario() -> None:
        epochs = await owning(store)
        small = event(2, partition=1)
        refused = await store.apply([*some(1, payload=bytes(9 << 20)), Add(small)], epochs)
        assert [(index, refusal.existing) for index, refusal in refused.items()] == [(0, None)]
        assert "4 MiB" in refused[0].unmet
        assert refused[0].is_for_good
        assert await stored(store) == [2]
        grown = replace(small, payload=bytes(9 << 20), version=2)
        assert "4 MiB" in (await store.apply([Move(small, grown, guarded=True)], epochs))[0].unmet
        assert await store.apply(some(3), epochs) == {}

    play(store, scenario=scenario)


@pytest.mark.parametrize("trouble", [Revoked([3]), WriterEnded()])
def test_records_of_a_repeated_operation_are_found(
    url: str, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    store = opened(url)

    async def scenario() -> None:
        epochs = await owning(store)
        ended = event(1, partition=1)
        await store.apply([Add(ended)], epochs)
        run = Journal.run
        troubles = [trouble]

        async def once_in_vain(journal: Journal, *arguments: Any) -> None:
            if troubles:
                raise troubles.pop()
            await run(journal, *arguments)

        monkeypatch.setattr(Journal, "run", once_in_vain)
        assert await store.apply([finish(ended)], epochs) == {}
        assert not troubles
        found = await store.find(Filter("shop", "delivered"), None, 10)
        assert [record.id for record in found.events] == [ended.id]

    play(store, scenario=scenario)


def test_the_mark_never_passes_unfinished_events(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(f"{url}&shard_events=1"), opened(url)

    async def scenario() -> None:
        epochs = await owning(first)
        # More shards than are looked at, all finished; then unfinished events, then finished ones again.
        crowd = some(1, 70)
        left, late = event(71, partition=1, due_in=BUCKET_MS), event(72, partition=1, due_in=2 * BUCKET_MS)
        await first.apply([*crowd, Add(left), Add(late)], epochs)
        monkeypatch.setattr("everbell.stores.cassandra.store.RETIRE_MS", 0)
        first._retire_at = 0
        await first.apply([*(finish(add.event) for add in crowd if isinstance(add, Add)), finish(late)], epochs)
        await owning(second, 2)
        assert await stored(second) == [71]

    play(first, second, scenario=scenario)


@pytest.mark.parametrize("is_new_bucket", [True, False])
def test_a_bucket_is_not_finished_while_rows_of_it_wait_to_be_written(
    url: str, is_new_bucket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened(url), opened(url)

    async def scenario() -> None:
        epochs = await owning(first)
        early, late = event(1, partition=1), event(2, partition=1, due_in=5 * BUCKET_MS)
        await first.apply([Add(early), Add(late)], epochs)
        first._retire_at = FAR * 10
        await first.apply([finish(early), finish(late)], epochs)
        first._retire_at = 0
        failed: list[str] = []

        async def unlucky(link: CassandraSession, *what: Any) -> None:
            if not failed:
                failed.append("")
                raise StoreUnavailable("away")
            await make(link, *what)

        with monkeypatch.context() as patch:
            patch.setattr(cassandra_journal, "make", unlucky)
            add = some(3, due_in=BUCKET_MS if is_new_bucket else 0)
            assert await first.apply(add, epochs) == {}, "the operation is committed, so it is acknowledged"
        assert failed
        assert await stored(first) == [3]
        await owning(second, 2)
        assert await stored(second) == [3]

    play(first, second, scenario=scenario)


async def poor(link: CassandraSession, statements: Sequence[Any], clock: int, level: str) -> None:
    if level == "ALL":
        raise StoreUnavailable("not enough replicas answer")
    await write(link, statements, clock, level)


write = CassandraSession.write


def test_an_outcome_is_stored_although_the_tenants_level_cannot_be_reached(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(url, level=lambda tenant: "ALL")

    async def scenario() -> None:
        epochs = await owning(store)
        parent = event(1, partition=1)
        await store.apply([Add(parent)], epochs)
        # One write makes the occurrence an event of its own and moves the recurring event to the next occurrence.
        following = replace(parent, occurrence=2, due_at=NOW + 5, run_at=NOW + 5)
        mark = Block(1, "shop", "k", 0)
        monkeypatch.setattr(CassandraSession, "write", poor)
        runs: list[Sequence[Any]] = []
        run = Journal.run

        async def counting(journal: Journal, changes: Sequence[Any], *rest: Any) -> None:
            runs.append(changes)
            await run(journal, changes, *rest)

        monkeypatch.setattr(Journal, "run", counting)
        edit = Move(event(9, partition=1), event(9, partition=1, version=2), guarded=True)
        outcome: list[Change] = [Add(event(2, partition=1), follows=True), Move(parent, following)]
        assert set(await store.apply([edit, mark, *outcome], epochs)) == {0}
        assert await stored(store) == [2, 1]
        assert await store.heads(1, [("shop", "k")]) == [0]
        assert len([changes for changes in runs if any(change[0] == "E" for change in changes)]) == 1

    play(store, scenario=scenario)


def test_an_unreachable_consistency_level_does_not_make_the_store_unavailable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(url, level=lambda tenant: "ALL")

    async def scenario() -> None:
        epochs = await owning(store)
        monkeypatch.setattr(CassandraSession, "write", poor)
        refused = await store.apply(some(1), epochs)
        assert [refusal.unmet for refusal in refused.values()] == ["not enough replicas answer"]
        # An outcome has to be stored, so the engine has to retry it without the events of the same write.
        mixed: list[Change] = [*some(2, key="k"), finish(event(3, partition=1, key="k"))]
        with pytest.raises(StoreUnavailable):
            await store.apply(mixed, epochs)
        with pytest.raises(Fenced):
            await store.apply(some(4), {1: 7})

    play(store, scenario=scenario)


def test_the_journal_keeps_nothing_of_refused_events(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(url, level=lambda tenant: "ALL")

    async def scenario() -> None:
        epochs = await owning(store)

        async def unanswered(link: CassandraSession, statements: Sequence[Any], clock: int, level: str) -> None:
            await write(link, statements, clock, link.floor)
            if level == "ALL":
                raise StoreUnavailable("not enough replicas answer")

        monkeypatch.setattr(CassandraSession, "write", unanswered)
        assert set(await store.apply(some(1), epochs)) == {0}
        await asyncio.gather(*store._journal._tidying)
        assert (
            await store._link.ask("SELECT op FROM journal WHERE store = ? ALLOW FILTERING", store._link.address.store)
            == []
        )

    play(store, scenario=scenario)


class FastClock(SystemClock):
    """A clock that is one hour ahead of all others."""

    def now(self) -> int:
        return super().now() + HOUR_MS


@pytest.mark.parametrize("has_written", [True, False])
def test_a_late_write_is_kept_although_an_earlier_owners_clock_was_ahead(url: str, has_written: bool) -> None:
    first, second, third = opened(url, clock=FastClock()), opened(url), opened(url)

    async def scenario() -> None:
        epochs = await owning(first)
        if has_written:
            await second.raise_fence({0: 2})
            await second.apply([Add(event(9, partition=0))], {0: 2})
        await first.apply(some(1), epochs)
        await owning(second, 3)  # It is replaced before it writes.
        epochs = await owning(third, 4)
        await third.apply([finish(event(1, partition=1)), *some(2)], epochs)
        assert await stored(third) == [2]

    play(first, second, third, scenario=scenario)
