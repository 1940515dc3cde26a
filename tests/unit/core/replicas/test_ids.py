"""Ids that name their replicas."""

from __future__ import annotations

import random

import pytest

from everbell.core.ids import is_made, place_in
from everbell.core.replicas.ids import (
    ALL_BITS,
    bits_of,
    filter_in,
    filter_of,
    is_replica_id,
    make_replica_id,
    matches,
    place_name,
    stem_of,
)

NAMES = [f"node-{number}.example" for number in range(200)]


def test_an_id_tells_its_place_and_its_replicas() -> None:
    dice = random.Random(1)
    for _ in range(500):
        due_at, nonce, replicas = dice.randrange(1 << 47), dice.randbytes(9), dice.sample(NAMES, dice.randint(1, 7))
        made = make_replica_id(due_at, nonce, filter_of(replicas))

        assert is_replica_id(made)
        assert not is_made(made)
        assert place_in(made) is None
        assert place_name(made) == stem_of(due_at, nonce)
        bits = filter_in(made)
        assert bits == filter_of(replicas)
        assert all(matches(bits, name) for name in replicas)


@pytest.mark.parametrize(("count", "at_most"), [(3, 0.006), (7, 0.05)])
def test_few_other_members_match(count: int, at_most: float) -> None:
    dice = random.Random(2)
    wrong = asked = 0
    for _ in range(2_000):
        replicas = dice.sample(NAMES, count)
        bits = filter_of(replicas)
        others = [name for name in dice.sample(NAMES, 20) if name not in replicas]
        wrong += sum(matches(bits, name) for name in others)
        asked += len(others)

    assert wrong / asked <= at_most


def test_other_ids_have_no_filter() -> None:
    for given in ("x", "er_", "er_short", "er_" + "!" * 32, "ev_" + "0" * 32):
        assert filter_in(given) is None
        assert place_name(given) == given


def test_all_bits_match_every_member() -> None:
    assert all(matches(ALL_BITS, name) and bits_of(name) for name in NAMES)
