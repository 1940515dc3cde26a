"""Places that were set aside."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everbell.core.allotment import RUN_BITS, Allotment


@given(st.integers(1, 1 << 40), st.integers(0, 500), st.lists(st.integers(0, 255), min_size=1, max_size=5))
def test_runs_say_the_partition_of_each_sequence(first: int, count: int, partitions: list[int]) -> None:
    allotment = Allotment(first, count, tuple(partitions), "memory")

    told = [partition for partition, share in allotment.runs() for _ in range(share)]

    assert told == [partitions[(sequence >> RUN_BITS) % len(partitions)] for sequence in range(first, first + count)]


@given(st.integers(1, 1 << 40), st.integers(0, 500), st.integers(0, 500))
def test_a_cut_leaves_the_rest(first: int, taken: int, left: int) -> None:
    whole = Allotment(first, taken + left, (3, 7), "memory")

    places, rest = whole.cut(taken)

    assert (places.first, places.count, rest.first, rest.count) == (first, taken, first + taken, left)
    assert places.partitions == rest.partitions == (3, 7)
