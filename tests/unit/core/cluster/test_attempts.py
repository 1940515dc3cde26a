"""The commands of a process that wants to join."""

from __future__ import annotations

from everbell.core.cluster import (
    AbortJoin,
    Member,
    PeerGc,
    PrepareJoin,
    first_try,
    inspected,
    next_try,
    report,
    withdrawn,
)
from tests.unit.core.cluster.towns import after, town

d = Member("d", "d")


def test_the_first_try_is_a_request_and_later_ones_begin_with_an_inspection() -> None:
    assert first_try(d) == (PrepareJoin(d),)
    assert next_try("d") == (PeerGc("d"),)
    assert withdrawn("d") == (AbortJoin("d", "it took too long"), PeerGc("d"))


def test_an_inspection_reports_the_dead_and_asks_again() -> None:
    value = town("abc", 3)

    assert inspected(value, d, ["b", "gone"]) == (report("d", "b"), PrepareJoin(d))


def test_an_inspection_reports_dead_joiners_too() -> None:
    value = after(town("abc", 3), PrepareJoin(Member("e", "e")))

    assert inspected(value, d, ["e"]) == (report("d", "e"), PrepareJoin(d))


def test_a_member_does_not_ask_again() -> None:
    assert inspected(town("abcd", 4), d, []) == ()
