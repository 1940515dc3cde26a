"""When an event comes again, and which of its occurrences are left out."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everbell.core.event import Attempt, Course, Event, Misfire, Repeat
from everbell.core.recurrence import (
    GRACE_MS,
    NOTHING_YET,
    Jump,
    between,
    first_due,
    following,
    jump,
    missed,
    proceed,
    ring_at,
    step,
    upcoming,
)
from everbell.core.time import DAY_MS, HOUR_MS, INSTANT_MAX, MINUTE_MS, SECOND_MS, parse_instant

DUE_AT = parse_instant("2026-11-15T10:00:00Z")
EVENT = Event("report", "shop", 3, 17, DUE_AT, DUE_AT, "queue:work", b"{}", 1_000)
DAILY = Repeat(0, cron="0 10 * * *", tz="UTC")
HOURLY = Repeat(HOUR_MS)


def recurring(repeat: Repeat, **fields: object) -> Event:
    return replace(EVENT, repeat=repeat, **fields)


@pytest.mark.parametrize(
    ("repeat", "next_at"),
    [
        (HOURLY, DUE_AT + HOUR_MS),
        (Repeat(HOUR_MS, until_at=DUE_AT + HOUR_MS), DUE_AT + HOUR_MS),
        (Repeat(HOUR_MS, until_at=DUE_AT + HOUR_MS - 1), None),
        (Repeat(INSTANT_MAX), None),
        (DAILY, DUE_AT + DAY_MS),
        (replace(DAILY, until_at=DUE_AT + DAY_MS - 1), None),
        (Repeat(0, cron="@yearly", tz="Asia/Tokyo"), parse_instant("2026-12-31T15:00:00Z")),
    ],
)
def test_the_times_of_a_recurring_event(repeat: Repeat, next_at: int | None) -> None:
    assert step(repeat, DUE_AT) == (next_at, 0)


def test_a_time_between_two_seconds_leads_to_the_next_whole_one() -> None:
    every_second = Repeat(0, cron="* * * * * *")
    assert step(every_second, 5_999)[0] == 6_000
    assert step(every_second, 6_000)[0] == 7_000


@pytest.mark.parametrize(
    ("repeat", "not_before", "first_at"),
    [
        (DAILY, DUE_AT, DUE_AT),
        (DAILY, DUE_AT + 1, DUE_AT + DAY_MS),
        (HOURLY, DUE_AT, DUE_AT),
        (HOURLY, DUE_AT + 1, DUE_AT + HOUR_MS),
        (replace(HOURLY, until_at=DUE_AT), DUE_AT + 1, None),
    ],
)
def test_the_first_time_is_on_the_timetable_or_on_a_grid_from_1970(
    repeat: Repeat, not_before: int, first_at: int | None
) -> None:
    assert first_due(repeat, not_before) == first_at


def test_a_preview_ends_with_the_count_or_the_time() -> None:
    assert list(upcoming(Repeat(HOUR_MS, 3), DUE_AT)) == [(1, DUE_AT), (2, DUE_AT + HOUR_MS), (3, DUE_AT + 2 * HOUR_MS)]
    assert list(upcoming(Repeat(HOUR_MS, 3), DUE_AT, 3)) == [(3, DUE_AT)]
    assert [number for number, _ in upcoming(Repeat(HOUR_MS, until_at=DUE_AT + HOUR_MS), DUE_AT)] == [1, 2]


@pytest.mark.parametrize("repeat", [HOURLY, Repeat(0, cron="0 * * * *")])
def test_a_range_of_the_past_has_both_its_ends(repeat: Repeat) -> None:
    from_at, until_at = DUE_AT - 3 * HOUR_MS, DUE_AT - HOUR_MS
    expected = [from_at, from_at + HOUR_MS, until_at]

    assert list(between(repeat, DUE_AT, from_at, until_at)) == expected
    assert list(between(repeat, DUE_AT, from_at - 1, until_at + 1)) == expected
    assert list(between(repeat, DUE_AT, from_at + 1, until_at - 1)) == expected[1:2]
    assert list(between(repeat, DUE_AT, DUE_AT + 1, DUE_AT + HOUR_MS)) == [DUE_AT + HOUR_MS]


@given(st.text(max_size=20), st.integers(1, 10**9), st.integers(0, DAY_MS))
def test_jitter_is_never_early_bounded_and_always_the_same(event_id: str, occurrence: int, jitter_ms: int) -> None:
    repeat = Repeat(DAY_MS, jitter_ms=jitter_ms)
    at = ring_at(repeat, event_id, occurrence, DUE_AT)

    assert DUE_AT <= at <= DUE_AT + jitter_ms
    assert ring_at(repeat, event_id, occurrence, DUE_AT) == at


def test_jitter_spreads_events_and_occurrences() -> None:
    repeat = Repeat(DAY_MS, jitter_ms=HOUR_MS)
    of_events = [ring_at(repeat, f"event-{index}", 1, 0) for index in range(1_000)]
    of_occurrences = [ring_at(repeat, "event", number, 0) for number in range(1_000)]

    for offsets in (of_events, of_occurrences):
        assert len(set(offsets)) > 990
        assert 0.45 < sum(offsets) / 1_000 / HOUR_MS < 0.55


def test_jitter_is_given_to_every_occurrence() -> None:
    event = recurring(Repeat(DAY_MS, jitter_ms=HOUR_MS))
    following_event, _ = following(event, NOTHING_YET, DUE_AT, DUE_AT)

    assert following_event is not None
    assert following_event.due_at == DUE_AT + DAY_MS
    assert following_event.run_at == ring_at(event.repeat, "report", 2, DUE_AT + DAY_MS) > following_event.due_at


@pytest.mark.parametrize(
    ("misfire", "late_ms", "ahead"),
    [
        ("all", 10 * HOUR_MS, None),
        ("latest", HOUR_MS - 1, None),
        ("latest", HOUR_MS, Jump(DUE_AT + HOUR_MS, 1)),
        ("latest", 3 * HOUR_MS + 5, Jump(DUE_AT + 3 * HOUR_MS, 3)),
        ("skip", GRACE_MS, None),
        ("skip", GRACE_MS + 1, Jump(DUE_AT + HOUR_MS, 1)),
        ("skip", 3 * HOUR_MS + 5, Jump(DUE_AT + 4 * HOUR_MS, 4)),
        ("skip", 3 * HOUR_MS, Jump(DUE_AT + 4 * HOUR_MS, 4)),
    ],
)
@pytest.mark.parametrize("repeat", [HOURLY, Repeat(0, cron="0 * * * *", tz="Asia/Tokyo")])
def test_occurrences_missed_after_an_outage(repeat: Repeat, misfire: Misfire, late_ms: int, ahead: Jump | None) -> None:
    assert missed(recurring(replace(repeat, misfire=misfire)), DUE_AT + late_ms) == ahead


@pytest.mark.parametrize(
    ("misfire", "ahead"),
    [
        ("all", Jump(DUE_AT + 8 * HOUR_MS, 8)),
        ("latest", Jump(DUE_AT + 10 * HOUR_MS, 10)),
        ("skip", Jump(DUE_AT + 11 * HOUR_MS, 11)),
    ],
)
def test_the_window_bounds_how_late_an_occurrence_may_begin(misfire: Misfire, ahead: Jump) -> None:
    repeat = replace(HOURLY, misfire=misfire, catch_up_ms=2 * HOUR_MS + 10 * MINUTE_MS)
    assert missed(recurring(repeat), DUE_AT + 10 * HOUR_MS + 5 * MINUTE_MS) == ahead


def test_the_newest_is_missed_too_when_it_is_beyond_the_window() -> None:
    repeat = replace(HOURLY, misfire="latest", catch_up_ms=MINUTE_MS)
    assert missed(recurring(repeat), DUE_AT + 3 * HOUR_MS + 2 * MINUTE_MS) == Jump(DUE_AT + 4 * HOUR_MS, 4)


def test_with_nothing_after_it_an_occurrence_is_the_latest_however_late() -> None:
    assert missed(recurring(Repeat(HOUR_MS, 1, misfire="latest")), DUE_AT + DAY_MS) is None
    assert missed(recurring(Repeat(HOUR_MS, 1, misfire="skip")), DUE_AT + DAY_MS) == Jump(None, 1)


@pytest.mark.parametrize("repeat", [HOURLY, Repeat(0, cron="0 * * * *")])
def test_the_last_of_a_count_is_the_latest(repeat: Repeat) -> None:
    event = recurring(replace(repeat, count=5, misfire="latest"), occurrence=2)
    assert missed(event, DUE_AT + 300 * HOUR_MS) == Jump(DUE_AT + 3 * HOUR_MS, 3)
    event = recurring(replace(repeat, count=5, misfire="skip"), occurrence=2)
    assert missed(event, DUE_AT + 300 * HOUR_MS) == Jump(None, 4)


def test_an_occurrence_that_has_begun_is_not_missed() -> None:
    tried = recurring(replace(HOURLY, misfire="skip"), attempts=(Attempt(1, DUE_AT, 5, "failed"),), attempt_count=1)
    assert missed(tried, DUE_AT + DAY_MS) is None
    assert missed(replace(tried, attempt_count=0), DUE_AT + DAY_MS) is None, "nor what was redriven"


def test_jitter_is_no_lateness() -> None:
    repeat = replace(HOURLY, misfire="latest", jitter_ms=30 * MINUTE_MS)
    event = recurring(repeat, run_at=DUE_AT + 29 * MINUTE_MS)
    assert missed(event, DUE_AT + HOUR_MS + 29 * MINUTE_MS) is None
    assert missed(event, DUE_AT + HOUR_MS + 30 * MINUTE_MS) == Jump(DUE_AT + HOUR_MS, 1)


def test_an_outage_of_a_century_of_seconds_is_over_in_no_time() -> None:
    repeat = Repeat(0, cron="* * * * * *", tz="Europe/Berlin", misfire="latest")
    seconds = 36_525 * 86_400
    assert missed(recurring(repeat), DUE_AT + seconds * SECOND_MS) == Jump(DUE_AT + seconds * SECOND_MS, seconds)


def test_waiting_is_the_default_and_leaves_nothing_out() -> None:
    comes, course = following(recurring(HOURLY), Course(fired=1), DUE_AT, DUE_AT + 5 * HOUR_MS)

    assert comes is not None
    assert (comes.occurrence, comes.due_at, comes.run_at) == (2, DUE_AT + HOUR_MS, DUE_AT + HOUR_MS)
    assert comes.course == course == Course(fired=1)


def test_an_overlapping_occurrence_is_skipped_and_counted() -> None:
    event = recurring(replace(HOURLY, overlap="skip"))
    comes, course = following(event, Course(fired=1), DUE_AT + 5, DUE_AT + 3 * HOUR_MS)

    assert comes is not None
    assert (comes.occurrence, comes.due_at) == (5, DUE_AT + 4 * HOUR_MS)
    assert course == Course(fired=1, overlapped=3)


def test_an_occurrence_due_before_the_delivery_began_does_not_overlap_with_it() -> None:
    event = recurring(replace(HOURLY, overlap="skip"))
    comes, course = following(event, NOTHING_YET, DUE_AT + 2 * HOUR_MS, DUE_AT + 3 * HOUR_MS)

    assert comes is not None
    assert (comes.occurrence, course.overlapped) == (2, 0)


def test_an_overlap_may_be_the_end() -> None:
    event = recurring(replace(HOURLY, overlap="skip", count=3))
    assert following(event, NOTHING_YET, DUE_AT, DUE_AT + 9 * HOUR_MS) == (None, Course(overlapped=2))


def test_a_gap_of_the_clocks_is_counted() -> None:
    due_at = parse_instant("2026-03-28T02:30:00+01:00")
    event = recurring(Repeat(0, cron="30 2 * * *", tz="Europe/Berlin"), due_at=due_at)
    comes, course = following(event, NOTHING_YET, due_at, due_at)

    assert comes is not None
    assert comes.due_at == parse_instant("2026-03-30T02:30:00+02:00")
    assert course == Course(gaps=1)


def test_the_next_occurrence_of_a_paused_event_does_not_ring() -> None:
    comes = proceed(recurring(HOURLY), Jump(DUE_AT + HOUR_MS, 1), Course(paused_at=DUE_AT))
    assert comes is not None
    assert (comes.due_at, comes.run_at) == (DUE_AT + HOUR_MS, INSTANT_MAX)


repeats = st.builds(
    Repeat,
    st.sampled_from([7, 1_000, 90_000]),
    count=st.none() | st.integers(1, 60),
    until_at=st.none() | st.integers(DUE_AT, DUE_AT + 3_000_000),
    misfire=st.sampled_from(["all", "latest", "skip"]),
    catch_up_ms=st.none() | st.integers(0, 200_000),
) | st.builds(
    Repeat,
    st.just(0),
    count=st.none() | st.integers(1, 60),
    until_at=st.none() | st.integers(DUE_AT, DUE_AT + 3_000_000),
    cron=st.sampled_from(["* * * * *", "*/10 * * * * *", "5,40 * * * * *"]),
    misfire=st.sampled_from(["all", "latest", "skip"]),
    catch_up_ms=st.none() | st.integers(0, 200_000),
)


@given(repeats, st.integers(1, 60), st.integers(0, 400_000))
def test_the_decision_agrees_with_a_literal_reading_of_the_rules(repeat: Repeat, occurrence: int, late_ms: int) -> None:
    """By walking through every nominal time, one after the other."""
    if repeat.every_ms == 7:
        late_ms %= 2_000
    if repeat.count is not None:
        occurrence = min(occurrence, repeat.count)
    now = DUE_AT + late_ms
    times = dict(islice(upcoming(repeat, DUE_AT, occurrence), 500))
    window_ms = repeat.catch_up_ms
    if window_ms is None:
        window_ms = GRACE_MS if repeat.misfire == "skip" else INSTANT_MAX
    rings = {number: at for number, at in times.items() if at > now or now - at <= window_ms}
    past = [number for number, at in times.items() if at <= now]
    if repeat.misfire == "latest":
        rings = {number: at for number, at in rings.items() if number >= past[-1]}
    elif repeat.misfire == "skip" and (len(past) > 1 or occurrence not in rings):
        rings = {number: at for number, at in rings.items() if at > now}
    expected = min(rings, default=None)

    ahead = missed(recurring(repeat, occurrence=occurrence), now)

    if ahead is None:
        assert expected == occurrence
    elif ahead.due_at is None:
        assert expected is None
        assert ahead.steps == len(times)
    else:
        assert (expected, times[occurrence + ahead.steps]) == (occurrence + ahead.steps, ahead.due_at)


@given(repeats, st.integers(0, 400_000))
def test_a_jump_goes_beyond_and_leaves_nothing_out(repeat: Repeat, beyond_ms: int) -> None:
    if repeat.every_ms == 7:
        beyond_ms %= 2_000
    beyond_at = DUE_AT + beyond_ms
    times = dict(islice(upcoming(repeat, DUE_AT), 500))
    later = [number for number, at in times.items() if at > beyond_at]

    ahead = jump(recurring(repeat), beyond_at)

    assert ahead == (Jump(times[later[0]], later[0] - 1) if later else Jump(None, len(times)))
