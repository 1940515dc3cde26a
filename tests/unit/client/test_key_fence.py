"""Fences of receivers: a delivery with a lower epoch than the last one of its key has no effect."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell import KeyFence, SqlKeyFence
from everbell.client.key_fence import key_and_epoch
from everbell.errors import InvalidInput

DELIVERIES = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["k1", "k2"]), st.integers(1, 5)), max_size=30)


def model(deliveries: list[tuple[str, str, int]]) -> list[bool]:
    seen: dict[tuple[str, str], int] = {}
    admitted = []
    for tenant, key, epoch in deliveries:
        admitted.append(epoch >= seen.get((tenant, key), 0))
        if admitted[-1]:
            seen[tenant, key] = epoch
    return admitted


@given(DELIVERIES)
def test_epochs_of_a_key_never_go_back(deliveries: list[tuple[str, str, int]]) -> None:
    fence = KeyFence()
    assert [fence.admits(key, epoch, tenant) for tenant, key, epoch in deliveries] == model(deliveries)


@given(DELIVERIES)
def test_a_table_gives_the_same_answers(deliveries: list[tuple[str, str, int]]) -> None:
    fence = SqlKeyFence(paramstyle="qmark")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(fence.create)
        answers = [fence.admits(connection, key, epoch, tenant) for tenant, key, epoch in deliveries]
        assert answers == model(deliveries)


def test_a_rolled_back_delivery_leaves_no_epoch() -> None:
    fence = SqlKeyFence(paramstyle="qmark")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(fence.create)
        connection.commit()
        assert fence.admits(connection, "k", 9)
        connection.rollback()
        assert fence.admits(connection, "k", 3)


def test_memory_is_bounded_and_the_keys_seen_last_stay() -> None:
    fence = KeyFence(keys_max=2)
    assert [fence.admits(key, 5) for key in ("a", "b", "a", "c")] == [True] * 4
    assert not fence.admits("a", 4)
    assert not fence.admits("c", 4)
    assert fence.admits("b", 4), "forgotten"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"ce-partitionkey": "order%2017%25", "everbell-epoch": "12"}, ("order 17%", 12)),
        ({"everbell-epoch": "12"}, None),
        ({}, None),
    ],
)
def test_key_and_epoch_come_from_the_headers(headers: dict[str, str], expected: tuple[str, int] | None) -> None:
    assert key_and_epoch(headers) == expected


@pytest.mark.parametrize("wrong", [lambda: SqlKeyFence("x; DROP"), lambda: SqlKeyFence(paramstyle="named")])
def test_wrong_arguments_are_refused(wrong: Callable[[], SqlKeyFence]) -> None:
    with pytest.raises(InvalidInput):
        wrong()
