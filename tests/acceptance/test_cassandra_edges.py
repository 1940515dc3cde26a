"""A Cassandra store where two things meet in the wrong moment: an owner that is just being replaced, rows that wait to
be written, buckets that end out of turn, levels that cannot be had, and more bytes than a server takes at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from everbell.errors import StoreUnavailable
from everbell.stores import cassandra_journal
from everbell.stores.cassandra import CassandraStore
from everbell.stores.cassandra_link import Link
from everbell.stores.port import Add, Change, Move
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


def test_more_bytes_than_a_server_takes_at_once_are_stored(url: str) -> None:
    store = opened(url)

    async def scenario() -> None:
        epochs = await owning(store)
        await store.apply(some(1, 40, payload=bytes(256 << 10)), epochs)
        assert await stored(store) == list(range(1, 41))

    play(store, scenario=scenario)


def test_an_event_that_no_server_takes_is_refused_for_itself_alone(url: str) -> None:
    store = opened(url)

    async def scenario() -> None:
        epochs = await owning(store)
        small = event(2, partition=1)
        refused = await store.apply([*some(1, payload=bytes(9 << 20)), Add(small)], epochs)
        assert [(index, refusal.existing) for index, refusal in refused.items()] == [(0, None)]
        assert "4 MiB" in refused[0].unmet
        assert await stored(store) == [2]
        grown = replace(small, payload=bytes(9 << 20), version=2)
        assert "4 MiB" in (await store.apply([Move(small, grown, guarded=True)], epochs))[0].unmet
        assert await store.apply(some(3), epochs) == {}

    play(store, scenario=scenario)


def test_the_mark_stays_behind_what_is_unfinished(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(f"{url}&shard_events=1"), opened(url)

    async def scenario() -> None:
        epochs = await owning(first)
        # More shards than are looked at, all of them finished; then what is under way, then something finished again.
        crowd = some(1, 70)
        left, late = event(71, partition=1, due_in=BUCKET_MS), event(72, partition=1, due_in=2 * BUCKET_MS)
        await first.apply([*crowd, Add(left), Add(late)], epochs)
        monkeypatch.setattr("everbell.stores.cassandra.RETIRE_MS", 0)
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
        make = cassandra_journal.make
        failed: list[str] = []

        async def unlucky(link: Link, *what: Any) -> None:
            if not failed:
                failed.append("")
                raise StoreUnavailable("away")
            await make(link, *what)

        with monkeypatch.context() as patch:
            patch.setattr(cassandra_journal, "make", unlucky)
            add = some(3, due_in=BUCKET_MS if is_new_bucket else 0)
            assert await first.apply(add, epochs) == {}, "it counts, so it is acknowledged"
        assert failed
        assert await stored(first) == [3]
        await owning(second, 2)
        assert await stored(second) == [3]

    play(first, second, scenario=scenario)
