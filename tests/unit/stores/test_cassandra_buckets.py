"""Shards of a bucket: none gets more than its share, and every event is found again by its own fields."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everbell.stores.cassandra_buckets import Shards

sequences = st.lists(st.integers(0, 400), unique=True, max_size=120)


@given(sequences, st.integers(1, 9))
def test_no_shard_is_overfull_however_events_arrive(arriving: list[int], limit: int) -> None:
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
def test_what_comes_in_order_fills_one_shard_after_the_other(limit: int, count: int) -> None:
    shards = Shards()
    for sequence in range(count):
        shards.choose(sequence, limit)
    assert len(shards.counts) == -(-count // limit)
    assert not shards.overflow
