"""Changes of an event."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from everbell.core.amendment import Amendment, amended
from everbell.core.batch_item import put_over
from everbell.core.event import Attempt, Course, Event, Misfire, Repeat, is_paused, status_of
from everbell.core.recurrence import following, ring_at
from everbell.core.spec import Draft
from everbell.core.time import HOUR_MS, INSTANT_MAX, MINUTE_MS
from everbell.errors import Conflict, InvalidInput

DUE_AT = 100 * HOUR_MS
EVENT = Event("report", "shop", 3, 17, DUE_AT, DUE_AT, "queue:work", b"{}", 1_000)
HOURLY = replace(EVENT, repeat=Repeat(HOUR_MS))


def test_a_new_time_gives_the_event_its_attempts_back() -> None:
    tried = replace(EVENT, state="waiting", attempt_count=3, attempts=(Attempt(3, 1, 1, "failed"),))
    after = amended(tried, Amendment(due_at=DUE_AT + 5), DUE_AT)

    assert (after.due_at, after.run_at, after.state, after.attempt_count, after.version) == (
        DUE_AT + 5,
        DUE_AT + 5,
        "scheduled",
        0,
        2,
    )


def test_a_shift_goes_no_further_than_allowed() -> None:
    assert amended(EVENT, Amendment(shift_ms=5, latest_at=DUE_AT + 5), 0).due_at == DUE_AT + 5
    with pytest.raises(InvalidInput, match="by: lies beyond the tenant's horizon"):
        amended(EVENT, Amendment(shift_ms=6, latest_at=DUE_AT + 5), 0)
    # An event that is already beyond the horizon may come nearer.
    assert amended(EVENT, Amendment(shift_ms=-6, latest_at=DUE_AT - 50), 0).due_at == DUE_AT - 6


def test_a_new_payload_does_not_move_the_event() -> None:
    after = amended(replace(EVENT, state="waiting"), Amendment(payload=b"[]"), DUE_AT)
    assert (after.state, after.run_at, after.payload, after.version) == ("waiting", DUE_AT, b"[]", 2)


def test_a_new_time_has_its_jitter() -> None:
    jittery = replace(EVENT, repeat=Repeat(HOUR_MS, jitter_ms=30 * MINUTE_MS))
    after = amended(jittery, Amendment(due_at=DUE_AT + 5), DUE_AT)
    assert after.run_at == ring_at(jittery.repeat, "report", 1, DUE_AT + 5) > DUE_AT + 5


def test_a_paused_event_keeps_its_time_and_does_not_ring() -> None:
    paused = amended(HOURLY, Amendment(paused=True, note="moving house"), DUE_AT - 7)

    assert is_paused(paused)
    assert status_of(paused) == "paused"
    assert (paused.due_at, paused.run_at) == (DUE_AT, INSTANT_MAX)
    assert paused.course == Course(paused_at=DUE_AT - 7, note="moving house")


def test_a_second_pause_changes_only_the_note() -> None:
    paused = amended(amended(HOURLY, Amendment(paused=True), 5), Amendment(paused=True, note="still"), 9)
    assert paused.course == Course(paused_at=5, note="still")


def test_only_a_recurring_event_can_be_paused_and_only_a_paused_one_resumed() -> None:
    with pytest.raises(Conflict, match="only an event that repeats"):
        amended(EVENT, Amendment(paused=True), DUE_AT)
    with pytest.raises(Conflict, match="not paused"):
        amended(HOURLY, Amendment(paused=False), DUE_AT)


def test_other_changes_do_not_end_a_pause_but_ringing_goes_through_it() -> None:
    paused = amended(HOURLY, Amendment(paused=True), DUE_AT)

    moved = amended(paused, Amendment(due_at=DUE_AT + 1), DUE_AT)
    assert is_paused(moved)
    assert moved.due_at == DUE_AT + 1
    assert is_paused(amended(paused, Amendment(tags=("a",)), DUE_AT))
    rung = amended(paused, Amendment(run_at=DUE_AT - 5), DUE_AT)
    assert (rung.run_at, status_of(rung)) == (DUE_AT - 5, "scheduled")
    assert rung.course is not None
    comes, _ = following(rung, rung.course, DUE_AT, DUE_AT)
    assert comes is not None
    assert is_paused(comes), "the next one is paused again"


def test_to_replace_an_event_ends_its_pause() -> None:
    paused = amended(HOURLY, Amendment(paused=True), DUE_AT)
    again = put_over(paused, Draft(DUE_AT, "queue:other", b"2", repeat=HOURLY.repeat))
    assert not is_paused(again)
    assert (again.version, again.to, again.payload, again.course) == (3, "queue:other", b"2", None)


def test_an_event_resumed_in_time_is_unchanged() -> None:
    resumed = amended(amended(HOURLY, Amendment(paused=True), 5), Amendment(paused=False, note="done"), DUE_AT - 1)
    assert resumed == replace(HOURLY, version=3, course=Course(note="done"))


@pytest.mark.parametrize(
    ("misfire", "occurrence", "missed"),
    [("all", 1, 0), ("latest", 4, 3), ("skip", 5, 4)],
)
def test_occurrences_that_passed_during_a_pause_are_late(misfire: Misfire, occurrence: int, missed: int) -> None:
    event = replace(HOURLY, repeat=Repeat(HOUR_MS, misfire=misfire))
    paused = amended(event, Amendment(paused=True), 5)

    resumed = amended(paused, Amendment(paused=False), DUE_AT + 3 * HOUR_MS + MINUTE_MS)

    assert resumed.occurrence == occurrence
    assert resumed.due_at == resumed.run_at == DUE_AT + (occurrence - 1) * HOUR_MS
    assert resumed.course == Course(paused=missed)
    assert resumed.version == 3


def test_a_pause_may_outlast_the_event() -> None:
    paused = amended(replace(HOURLY, repeat=Repeat(HOUR_MS, 2, misfire="skip")), Amendment(paused=True), 5)
    resumed = amended(paused, Amendment(paused=False), DUE_AT + 9 * HOUR_MS)
    assert (resumed.occurrence, resumed.run_at) == (1, DUE_AT), "it rings, and is found to be over"


def test_an_event_with_a_key_cannot_be_made_to_overlap() -> None:
    with pytest.raises(Conflict, match="goes without a key"):
        amended(replace(HOURLY, key="k"), Amendment(repeat=Repeat(HOUR_MS, overlap="allow")), DUE_AT)


def test_a_retry_that_was_paused_is_made_at_once() -> None:
    retrying = replace(HOURLY, attempt_count=1, attempts=(Attempt(1, DUE_AT, 1, "failed"),), run_at=DUE_AT + 5_000)
    paused = amended(retrying, Amendment(paused=True), DUE_AT + 1_000)
    assert amended(paused, Amendment(paused=False), DUE_AT + 9_000).run_at == DUE_AT + 9_000
