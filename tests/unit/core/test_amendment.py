"""What a change makes of an event."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from everbell.core.amendment import amended
from everbell.core.event import Attempt, Course, Event, Misfire, Repeat, is_paused, status_of
from everbell.core.recurrence import following, ring_at
from everbell.core.time import HOUR_MS, INSTANT_MAX, MINUTE_MS
from everbell.errors import Conflict, InvalidInput

DUE_AT = 100 * HOUR_MS
EVENT = Event("report", "shop", 3, 17, DUE_AT, DUE_AT, "queue:work", b"{}", 1_000)
HOURLY = replace(EVENT, repeat=Repeat(HOUR_MS))


def test_a_new_time_gives_the_event_its_attempts_back() -> None:
    tried = replace(EVENT, state="waiting", attempt_count=3, attempts=(Attempt(3, 1, 1, "failed"),))
    after = amended(tried, {"due_at": DUE_AT + 5}, DUE_AT)

    assert (after.due_at, after.run_at, after.state, after.attempt_count, after.version) == (
        DUE_AT + 5,
        DUE_AT + 5,
        "scheduled",
        0,
        2,
    )


def test_a_shift_goes_no_further_than_allowed() -> None:
    assert amended(EVENT, {"shift_ms": 5, "latest_at": DUE_AT + 5}, 0).due_at == DUE_AT + 5
    with pytest.raises(InvalidInput, match="by: lies beyond the tenant's horizon"):
        amended(EVENT, {"shift_ms": 6, "latest_at": DUE_AT + 5}, 0)
    # What is too far ahead already may come nearer.
    assert amended(EVENT, {"shift_ms": -6, "latest_at": DUE_AT - 50}, 0).due_at == DUE_AT - 6


def test_another_payload_leaves_it_where_it_is() -> None:
    after = amended(replace(EVENT, state="waiting"), {"payload": b"[]"}, DUE_AT)
    assert (after.state, after.run_at, after.payload, after.version) == ("waiting", DUE_AT, b"[]", 2)


def test_a_new_time_has_its_jitter() -> None:
    jittery = replace(EVENT, repeat=Repeat(HOUR_MS, jitter_ms=30 * MINUTE_MS))
    after = amended(jittery, {"due_at": DUE_AT + 5}, DUE_AT)
    assert after.run_at == ring_at(jittery.repeat, "report", 1, DUE_AT + 5) > DUE_AT + 5


def test_a_paused_event_keeps_its_time_and_does_not_ring() -> None:
    paused = amended(HOURLY, {"paused": True, "note": "moving house"}, DUE_AT - 7)

    assert is_paused(paused)
    assert status_of(paused) == "paused"
    assert (paused.due_at, paused.run_at) == (DUE_AT, INSTANT_MAX)
    assert paused.course == Course(paused_at=DUE_AT - 7, note="moving house")


def test_a_second_pause_changes_only_the_note() -> None:
    paused = amended(amended(HOURLY, {"paused": True}, 5), {"paused": True, "note": "still"}, 9)
    assert paused.course == Course(paused_at=5, note="still")


def test_only_what_repeats_can_be_paused_and_only_what_is_paused_resumed() -> None:
    with pytest.raises(Conflict, match="only an event that repeats"):
        amended(EVENT, {"paused": True}, DUE_AT)
    with pytest.raises(Conflict, match="not paused"):
        amended(HOURLY, {"paused": False}, DUE_AT)


def test_other_changes_do_not_end_a_pause_but_ringing_goes_through_it() -> None:
    paused = amended(HOURLY, {"paused": True}, DUE_AT)

    moved = amended(paused, {"due_at": DUE_AT + 1}, DUE_AT)
    assert is_paused(moved)
    assert moved.due_at == DUE_AT + 1
    assert is_paused(amended(paused, {"tags": ("a",)}, DUE_AT))
    rung = amended(paused, {"run_at": DUE_AT - 5}, DUE_AT)
    assert (rung.run_at, status_of(rung)) == (DUE_AT - 5, "scheduled")
    assert rung.course is not None
    comes, _ = following(rung, rung.course, DUE_AT, DUE_AT)
    assert comes is not None
    assert is_paused(comes), "the next one is paused again"


def test_to_replace_an_event_ends_its_pause() -> None:
    paused = amended(HOURLY, {"paused": True}, DUE_AT)
    assert not is_paused(amended(paused, {"due_at": DUE_AT, "occurrence": 1, "course": None}, DUE_AT))


def test_resumed_in_time_it_is_what_it_was() -> None:
    resumed = amended(amended(HOURLY, {"paused": True}, 5), {"paused": False, "note": "done"}, DUE_AT - 1)
    assert resumed == replace(HOURLY, version=3, course=Course(note="done"))


@pytest.mark.parametrize(
    ("misfire", "occurrence", "missed"),
    [("all", 1, 0), ("latest", 4, 3), ("skip", 5, 4)],
)
def test_what_passed_meanwhile_is_late(misfire: Misfire, occurrence: int, missed: int) -> None:
    event = replace(HOURLY, repeat=Repeat(HOUR_MS, misfire=misfire))
    paused = amended(event, {"paused": True}, 5)

    resumed = amended(paused, {"paused": False}, DUE_AT + 3 * HOUR_MS + MINUTE_MS)

    assert resumed.occurrence == occurrence
    assert resumed.due_at == resumed.run_at == DUE_AT + (occurrence - 1) * HOUR_MS
    assert resumed.course == Course(paused=missed)
    assert resumed.version == 3


def test_a_pause_may_outlast_the_event() -> None:
    paused = amended(replace(HOURLY, repeat=Repeat(HOUR_MS, 2, misfire="skip")), {"paused": True}, 5)
    resumed = amended(paused, {"paused": False}, DUE_AT + 9 * HOUR_MS)
    assert (resumed.occurrence, resumed.run_at) == (1, DUE_AT), "it rings, and is found to be over"


def test_what_has_a_key_cannot_be_made_to_overlap() -> None:
    with pytest.raises(Conflict, match="goes without a key"):
        amended(replace(HOURLY, key="k"), {"repeat": Repeat(HOUR_MS, overlap="allow")}, DUE_AT)


def test_a_retry_that_was_paused_is_made_at_once() -> None:
    retrying = replace(HOURLY, attempt_count=1, attempts=(Attempt(1, DUE_AT, 1, "failed"),), run_at=DUE_AT + 5_000)
    paused = amended(retrying, {"paused": True}, DUE_AT + 1_000)
    assert amended(paused, {"paused": False}, DUE_AT + 9_000).run_at == DUE_AT + 9_000
