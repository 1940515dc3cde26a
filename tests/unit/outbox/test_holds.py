"""Pauses of tenants: they grow, they end, and no row is forgotten."""

from __future__ import annotations

from everbell.errors import Overloaded, Throttled
from everbell.outbox.holds import PAUSE_S, PAUSE_S_MAX, Holds


def test_pauses_grow_until_rows_are_taken() -> None:
    holds = Holds("app")
    pauses = []
    for _ in range(8):
        holds.put({"a": (7, Overloaded("busy", 0))}, 9, 0.0)
        assert holds.tenants == ["a"]
        pauses.append(holds.wait_s(0.0, 100.0))
        assert holds.end(pauses[-1]) == 7
        assert holds.tenants == []
    assert pauses[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert pauses[-1] == PAUSE_S_MAX
    assert [holds.trouble] == ["busy"]

    holds.forget(["a"])

    assert [holds.trouble] == [None]
    holds.put({"a": (7, Overloaded("busy", 0))}, 9, 0.0)
    assert holds.wait_s(0.0, 100.0) == PAUSE_S


def test_rows_are_looked_for_from_the_smallest_number_that_may_still_appear() -> None:
    holds = Holds("app")
    holds.put({"a": (7, Throttled("full")), "b": (20, Overloaded("busy", 0))}, 5, 0.0)
    assert holds.end(PAUSE_S) == 5
    assert holds.tenants == ["a"]
    assert holds.end(PAUSE_S) is None
    assert holds.end(1.0) == 5
