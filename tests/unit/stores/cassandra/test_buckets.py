"""Shards of a bucket: none exceeds its limit, and the fields of an event are enough to find it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.errors import StoreUnavailable
from everbell.stores.cassandra.buckets import BUCKET_MS, SHARDS, Buckets, Shards
from everbell.stores.cassandra.rows import RowChange
from everbell.stores.cassandra.session import CassandraSession

sequences = st.lists(st.integers(0, 400), unique=True, max_size=120)


@given(sequences, st.integers(1, 9))
def test_no_shard_exceeds_its_limit_in_any_order_of_events(arriving: list[int], limit: int) -> None:
    shards = Shards()
    lies: dict[int, int] = {}
    for sequence in arriving:
        lies[sequence], _ = shards.choose(sequence, limit)
    counts = [list(lies.values()).count(shard) for shard in shards.counts]
    assert max(counts, default=0) <= limit
    assert sum(counts) == len(arriving)


@given(sequences, st.integers(1, 9))
def test_an_event_is_among_the_candidates_for_ever(arriving: list[int], limit: int) -> None:
    shards = Shards()
    lies: dict[int, int] = {}
    for sequence in arriving:
        lies[sequence], _ = shards.choose(sequence, limit)
    for sequence, shard in lies.items():
        assert shard in shards.candidates(sequence)


@given(st.integers(1, 9), st.integers(0, 100))
def test_events_in_order_fill_one_shard_after_the_other(limit: int, count: int) -> None:
    shards = Shards()
    for sequence in range(count):
        shards.choose(sequence, limit)
    assert len(shards.counts) == -(-count // limit)
    assert not shards.overflow


class SlowLink:
    """An empty store that answers some requests late or never."""

    address = SimpleNamespace(store="store")

    def __init__(self) -> None:
        self.answers: dict[int, asyncio.Future[None]] = {}
        """By bucket: resolved with the answer to the request for its shards, or with an error."""

    async def ask(self, text: str, *values: Any) -> list[Any]:
        if text == SHARDS and values[-1] in self.answers:
            await self.answers[values[-1]]
        return []

    async def ask_all(self, text: str, places: list[Any]) -> list[Any]:
        return []


def test_a_late_answer_after_a_failure_changes_nothing() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        link = SlowLink()
        late = link.answers[1] = loop.create_future()
        link.answers[2] = loop.create_future()
        link.answers[2].set_exception(StoreUnavailable("away"))
        buckets = Buckets(cast(CassandraSession, link), 1)
        with pytest.raises(StoreUnavailable):
            await buckets.know({(0, 1), (0, 2)})
        buckets.forget()
        link.answers.clear()
        await buckets.know({(0, 1)})
        changes: list[RowChange] = []
        for sequence in (7, 8):
            buckets.put(0, BUCKET_MS, sequence, b"", changes)
        late.set_result(None)
        for _ in range(10):
            await asyncio.sleep(0)
        # The second shard must begin with the second event for ever, or that event could not be found and removed.
        buckets.put(0, BUCKET_MS, 9, b"", changes)
        assert [change for change in changes if change[0] == "B"] == [
            ("B", 0, 1, 0, 0),
            ("B", 0, 1, 1, 8),
            ("B", 0, 1, 2, 9),
        ]

    asyncio.run(scenario())


def test_readers_report_empty_buckets_also_after_partitions_were_taken() -> None:
    buckets = Buckets(cast(CassandraSession, None), 10)
    found_by_readers = buckets.idle
    found_by_readers |= {(0, 5), (1, 5)}
    buckets.forget({1})
    assert buckets.idle == {(0, 5)}
    found_by_readers.add((2, 7))
    assert buckets.idle == {(0, 5), (2, 7)}
    buckets.forget()
    assert not found_by_readers
