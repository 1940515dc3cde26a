"""Copies of one event and their merge."""

from __future__ import annotations

import random
from itertools import permutations

from msgspec.structs import replace

from everbell.core.event import Event
from everbell.core.replicas.copies import Copy, HybridClock, Stamp, delivered_twice, for_wire, merge
from everbell.core.replication import Replication
from everbell.core.verdict import cancelled, record_of

EVENT = Event("x", "t", 3, 7, 1_000, 1_000, "https://a.example/", b"1", 0)


def any_copy(dice: random.Random) -> Copy:
    """A copy of one event, with few different values, so that many are nearly equal."""
    event = replace(EVENT, occurrence=dice.randint(1, 3), attempt_count=dice.randint(0, 2))
    event = replace(event, state=dice.choice(("scheduled", "dead")))
    record = record_of(event, dice.choice(("delivered", "expired")), 5, 1, ())
    has_ended = dice.random() < 0.3
    return Copy(
        None if has_ended else event,
        record if has_ended or dice.random() < 0.5 else None,
        Replication(),
        dice.randint(1, 2),
        Stamp(dice.randint(1, 2), dice.choice("ab")),
        Stamp(dice.randint(1, 2), dice.choice("ab")),
        dice.choice("ab"),
    )


def test_the_merge_is_associative_commutative_and_idempotent() -> None:
    dice = random.Random(4)
    for _ in range(3_000):
        one, two, three = (any_copy(dice) for _ in range(3))
        merged = {merge(merge(*pair), last).order for *pair, last in permutations((one, two, three))} | {
            merge(first, merge(*pair)).order for first, *pair in permutations((one, two, three))
        }

        assert len(merged) == 1
        assert merge(one, one) is one


def test_a_cancel_wins_over_deliveries_that_the_other_side_made() -> None:
    cancel = Copy(None, cancelled(EVENT, 9), Replication(), 2, Stamp(5, "a"), Stamp(5, "a"))
    further = Copy(replace(EVENT, occurrence=8), None, Replication(), 1, Stamp(1, "b"), Stamp(99, "b"))

    assert merge(cancel, further) is merge(further, cancel) is cancel


def test_of_two_changes_with_one_version_the_later_stamp_wins() -> None:
    one = Copy(EVENT, None, Replication(), 2, Stamp(5, "a"), Stamp(5, "a"))
    two = Copy(EVENT, None, Replication(), 2, Stamp(5, "b"), Stamp(5, "b"))

    assert merge(one, two) is merge(two, one) is two


def test_stamps_are_later_than_all_that_were_seen() -> None:
    clock = HybridClock("a")
    first = clock.stamp(10)
    clock.see(Stamp(first.at + 1_000_000, "b"))

    assert clock.stamp(9) > Stamp(first.at + 1_000_000, "b")


def test_places_of_the_holder_do_not_travel() -> None:
    sent = for_wire(Copy(EVENT, None, Replication()))

    assert sent.event is not None
    assert (sent.event.partition, sent.event.sequence) == (0, 0)


def test_an_occurrence_that_two_nodes_delivered_is_noticed() -> None:
    record = record_of(EVENT, "delivered", 5, 1, ())
    one = Copy(None, record, Replication(), ended_by="a")
    two = Copy(None, record, Replication(), ended_by="b")

    assert delivered_twice(one, two)
    assert not delivered_twice(one, one)
