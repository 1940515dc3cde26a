"""Owners take turns, each as often as it owns partitions."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

from hypothesis import given
from hypothesis import strategies as st

from everbell.cluster.spreading import Spreading, interleaved
from everbell.core.cluster.value import Placement

OWNERS = st.lists(st.sampled_from("abcde"), max_size=60)


@given(OWNERS)
def test_interleaving_changes_only_the_order(owners: list[str]) -> None:
    assert Counter(interleaved(owners)) == Counter(owners)


@given(OWNERS.filter(bool), st.integers(1, 60))
def test_every_stretch_has_about_the_share_of_each_owner(owners: list[str], length: int) -> None:
    stretch = Counter(interleaved(owners)[:length])
    for owner, count in Counter(owners).items():
        assert abs(stretch[owner] - count * min(length, len(owners)) / len(owners)) <= len(set(owners))


def test_the_turn_goes_on_from_request_to_request() -> None:
    spreading = Spreading()
    partitions = tuple(Placement(owner, 1) for owner in "aabb")
    got = [next(spreading.owners(partitions)) for _ in range(8)]
    assert Counter(got) == {"a": 4, "b": 4}
    assert all(first != second for first, second in pairwise(got))


def test_partitions_that_move_or_have_no_owner_get_no_turn() -> None:
    spreading = Spreading()
    partitions = (Placement("a", 1, to="b"), Placement("", 1), Placement("b", 1))
    assert set(islice(spreading.owners(partitions), 5)) == {"b"}
    assert list(islice(spreading.owners(partitions[:2]), 2)) == ["", ""]
