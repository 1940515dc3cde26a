"""When each replica may start an attempt."""

from __future__ import annotations

from msgspec.structs import replace

from everbell.core.event import Event
from everbell.core.replicas.turns import Busy, rank, turn_at
from everbell.core.replication import Replication

EVENT = Event("x", "t", 0, 0, 20_000, 20_000, "https://a.example/", b"1", 0)
LINE = ("a", "b", "c")
TWO_SECONDS = Replication()


def turns(event: Event, busy: Busy | None = None) -> list[int]:
    return [turn_at(event, TWO_SECONDS, LINE, name, busy) for name in LINE]


def test_each_replica_waits_one_skew_longer_than_the_one_before() -> None:
    assert turns(EVENT) == [20_000, 22_000, 24_000]


def test_a_retry_begins_with_the_next_replica() -> None:
    assert turns(replace(EVENT, attempt_count=1, run_at=30_000)) == [34_000, 30_000, 32_000]


def test_replicas_wait_for_the_deadline_of_an_attempt_in_flight() -> None:
    assert turns(EVENT, Busy("t", "x", 1, 1, 30_500)) == [30_500, 32_500, 34_500]


def test_an_attempt_that_has_ended_postpones_nothing() -> None:
    assert turns(replace(EVENT, attempt_count=1), Busy("t", "x", 1, 1, 30_500)) == [24_000, 20_000, 22_000]


def test_a_former_replica_comes_last() -> None:
    assert rank("d", LINE, 2) == 3
