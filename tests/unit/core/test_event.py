"""The event as a value: its order, its names, its repetition, its digest."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everbell.core.event import (
    ATTEMPTS_KEPT,
    TRANSITIONS,
    Attempt,
    Event,
    Record,
    Repeat,
    digest_of,
    is_repeated,
    position,
    position_at,
    status_of,
    with_attempt,
)
from everbell.core.ids import SEQUENCE_MAX
from everbell.core.retry import RetryPolicy
from everbell.core.time import INSTANT_MAX

EVENT = Event("order-17", "shop", 3, 17, 5_000, 5_000, "queue:work", b"{}", 1_000)

places = st.tuples(st.integers(0, INSTANT_MAX), st.integers(0, SEQUENCE_MAX))


@given(places, places)
def test_positions_are_ordered_like_time_and_sequence(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (position(*one) < position(*other)) == (one < other)
    assert position_at(position(*one)) == one[0]


def test_a_retry_changes_when_it_rings_but_not_its_place_in_the_key() -> None:
    later = replace(EVENT, run_at=9_000)

    assert later.position > EVENT.position
    assert later.order == EVENT.order


def test_a_recurring_event_has_a_name_for_each_occurrence() -> None:
    assert EVENT.name == "order-17"
    assert replace(EVENT, repeat=Repeat(1_000), occurrence=4).name == "order-17:4"
    assert replace(EVENT, id="ev_x", origin="order-17", occurrence=4).name == "order-17:4"


@pytest.mark.parametrize("kind", [Event, Record, Repeat])
def test_rows_of_earlier_releases_can_be_read(kind: type[Event | Record | Repeat]) -> None:
    rows: dict[type, tuple[object, ...]] = {
        Event: ("order-17", "shop", 3, 17, 5_000, 5_000, "queue:work", b"{}", 1_000, None, "scheduled", 1, 1, 0, ()),
        Record: ("order-17", "shop", "delivered", 5_000, 5_001, "queue:work", 1_000),
        Repeat: (1_000, 3, None),
    }
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(rows[kind]), type=kind)

    assert msgspec.to_builtins(read)[: len(rows[kind])] == list(map(msgspec.to_builtins, rows[kind]))
    assert getattr(read, "course", None) is None


def test_the_first_and_the_latest_attempts_are_kept() -> None:
    attempts: tuple[Attempt, ...] = ()
    for number in range(1, 51):
        attempts = with_attempt(attempts, Attempt(number, number, 1, "failed"))

    assert [attempt.number for attempt in attempts] == [1, *range(52 - ATTEMPTS_KEPT, 51)]


@pytest.mark.parametrize(
    "other",
    [
        replace(EVENT, to="queue:other"),
        replace(EVENT, payload=b"[]"),
        replace(EVENT, key="k"),
        replace(EVENT, content_type="text/plain"),
        replace(EVENT, headers=(("x-a", "1"),)),
        replace(EVENT, tags=("t",)),
        replace(EVENT, retry=RetryPolicy(2)),
        replace(EVENT, repeat=Repeat(60_000)),
        replace(EVENT, expires_ms=1_000),
    ],
)
def test_the_digest_tells_another_request(other: Event) -> None:
    assert digest_of(other) != digest_of(EVENT)


def test_the_digest_knows_a_repeated_request() -> None:
    later = replace(EVENT, due_at=9, run_at=9, sequence=99, attempt_count=2, version=4, state="waiting")

    assert digest_of(later) == digest_of(EVENT)
    assert is_repeated(later, EVENT)


def test_digests_that_were_stored_are_understood_for_ever() -> None:
    """Of both generations: the first did not look at retries, repetition and expiry."""
    whole = Event(
        "e",
        "t",
        0,
        1,
        5,
        5,
        "queue:q",
        b"{}",
        1,
        "k",
        headers=(("x-a", "1"),),
        tags=("t",),
        retry=RetryPolicy(5, 1_000, 60_000),
        repeat=Repeat(60_000, 3),
        expires_ms=9,
    )
    first, second = 3_745_447_375, 6_518_096_471
    other = replace(whole, retry=None)

    assert digest_of(whole) == second
    assert [is_repeated(record_with(first), event) for event in (whole, other)] == [True, True]
    assert [is_repeated(record_with(second), event) for event in (whole, other)] == [True, False]
    assert not is_repeated(record_with(first), replace(whole, payload=b"[]"))


def record_with(digest: int) -> Record:
    return Record("e", "t", "delivered", 5, 6, "queue:q", 1, "k", digest=digest)


def test_the_status_of_an_unfinished_event() -> None:
    assert status_of(EVENT) == "scheduled"
    assert status_of(replace(EVENT, attempt_count=1)) == "retrying"
    assert status_of(replace(EVENT, state="waiting", attempt_count=1)) == "waiting"
    assert status_of(replace(EVENT, state="dead", attempt_count=10)) == "dead"


def test_nothing_comes_back_from_an_end() -> None:
    ends = {"delivered", "cancelled", "expired"}

    assert not ends & {before for before, _ in TRANSITIONS}
    assert ends <= {after for _, after in TRANSITIONS}
