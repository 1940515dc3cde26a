"""The result of an attempt for its event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everbell.core.event import Attempt, Event, Repeat, digest_of
from everbell.core.retry import DELIVERED, Outcome, Result, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.core.verdict import Again, Dead, OccurrenceEnded, cancelled, delivered, instead, verdict

EVENT = Event("order-17", "shop", 3, 17, 5_000, 5_000, "queue:work", b"{}", 1_000, "order-17", tags=("t",))
TENANT = Tenant("shop", retry=RetryPolicy(3, 1_000, 60_000))
FAILED = Outcome("failed", "HTTP 503", 503)


def test_success_ends_the_event_with_its_attempt_on_record() -> None:
    judged = verdict(EVENT, TENANT, DELIVERED, 1, 5_001, 5_041, 0.0)

    assert isinstance(judged, OccurrenceEnded)
    assert judged.following is None
    assert judged.record.status == "delivered"
    assert judged.record.attempts == (Attempt(1, 5_001, 40, "delivered"),)
    assert (judged.record.due_at, judged.record.finished_at) == (5_000, 5_041)
    assert (judged.record.key, judged.record.tags) == ("order-17", ("t",))


@pytest.mark.parametrize("number", [1, 2, 30])
@pytest.mark.parametrize("event_id", ["order-17", "ev_-"])
def test_the_short_way_to_success_leads_to_the_same_record(number: int, event_id: str) -> None:
    attempts = tuple(Attempt(earlier, 1, 1, "failed") for earlier in range(1, number))[-20:]
    event = replace(EVENT, id=event_id, attempts=attempts)
    outcome = Outcome("delivered", None, 204)

    judged = verdict(event, TENANT, outcome, number, 5_001, 5_041, 0.0)

    assert judged == OccurrenceEnded(delivered(event, outcome, number, 5_001, 5_041), None)


@pytest.mark.parametrize(("number", "jitter", "run_at"), [(1, 0.0, 7_000), (1, 0.5, 6_750), (2, 0.0, 8_000)])
def test_a_failed_attempt_is_retried_after_the_pause(number: int, jitter: float, run_at: int) -> None:
    judged = verdict(EVENT, TENANT, FAILED, number, 5_500, 6_000, jitter)

    assert isinstance(judged, Again)
    assert judged.event.run_at == run_at
    assert judged.event.due_at == EVENT.due_at
    assert judged.event.attempt_count == number
    assert judged.event.attempts == (Attempt(number, 5_500, 500, "failed", "HTTP 503", 503),)


def test_a_waiting_head_that_fails_is_scheduled_for_its_next_attempt() -> None:
    judged = verdict(replace(EVENT, state="waiting"), TENANT, FAILED, 1, 5_000, 5_000, 0.0)

    assert isinstance(judged, Again)
    assert judged.event.state == "scheduled"


def test_the_events_own_policy_comes_before_the_tenants() -> None:
    judged = verdict(replace(EVENT, retry=RetryPolicy(1, 1, 1)), TENANT, FAILED, 1, 5_000, 5_000, 0.0)

    assert isinstance(judged, Dead)


def test_after_the_last_attempt_the_event_is_dead_with_a_reason() -> None:
    judged = verdict(EVENT, TENANT, FAILED, 3, 5_000, 6_000, 0.0)

    assert isinstance(judged, Dead)
    assert judged.event.state == "dead"
    assert judged.event.run_at == 6_000
    assert judged.event.reason == "gave up after 3 attempts; the last: HTTP 503"


def test_a_refusal_is_final_at_once() -> None:
    judged = verdict(EVENT, TENANT, Outcome("refused", "no such user"), 1, 5_000, 5_100, 0.0)

    assert isinstance(judged, Dead)
    assert judged.event.reason == "no such user"


def test_an_attempt_that_would_come_too_late_is_not_made() -> None:
    in_time = replace(EVENT, expires_ms=2_000)
    too_late = replace(EVENT, expires_ms=1_999)

    assert isinstance(verdict(in_time, TENANT, FAILED, 1, 5_000, 6_000, 0.0), Again)
    judged = verdict(too_late, TENANT, FAILED, 1, 5_000, 6_000, 0.0)
    assert isinstance(judged, OccurrenceEnded)
    assert judged.record.status == "expired"
    assert judged.record.attempt_count == 1


def test_the_next_occurrence_is_fresh_and_on_the_grid() -> None:
    recurring = replace(
        EVENT,
        repeat=Repeat(10_000, 3),
        occurrence=2,
        attempt_count=1,
        attempts=(Attempt(1, 1, 1, "lost"),),
        run_at=7_777,
    )
    judged = verdict(recurring, TENANT, DELIVERED, 2, 8_000, 9_999, 0.0)

    assert isinstance(judged, OccurrenceEnded)
    following = judged.following
    assert following is not None
    assert (following.occurrence, following.due_at, following.run_at) == (3, 15_000, 15_000)
    assert (following.attempt_count, following.attempts, following.id) == (0, (), "order-17")
    assert [attempt.number for attempt in judged.record.attempts] == [1, 2]


def test_a_recurring_event_goes_on_after_an_expired_occurrence_but_not_after_a_dead_one() -> None:
    recurring = replace(EVENT, repeat=Repeat(10_000))

    missed = instead(replace(recurring, expires_ms=1_000), 99_000)
    assert isinstance(missed, OccurrenceEnded)
    assert (missed.record.status, missed.following is not None) == ("expired", True)
    assert isinstance(verdict(recurring, TENANT, Outcome("refused"), 1, 5_000, 5_000, 0.0), Dead)


def test_only_client_given_ids_need_a_digest() -> None:
    made = replace(EVENT, id="ev_" + "0" * 32)

    assert cancelled(EVENT, 6_000).digest == digest_of(EVENT)
    assert cancelled(made, 6_000).digest == 0


@given(
    st.sampled_from(["delivered", "failed", "refused", "timeout", "lost"]),
    st.integers(1, 12),
    st.floats(0, 1, exclude_max=True),
    st.integers(5_000, 10**12),
    st.integers(0, 10**6) | st.none(),
    st.integers(1, 10**6) | st.none(),
)
def test_every_outcome_has_a_verdict_that_is_never_in_the_past(
    result: Result, number: int, jitter: float, now: int, retry_after_ms: int | None, expires_ms: int | None
) -> None:
    event = replace(EVENT, expires_ms=expires_ms)
    judged = verdict(event, TENANT, Outcome(result, retry_after_ms=retry_after_ms), number, now - 10, now, jitter)

    match judged:
        case Again(event=again):
            assert number < TENANT.retry.max_attempts
            assert again.run_at >= now + (retry_after_ms or 0)
            assert expires_ms is None or again.run_at <= event.due_at + expires_ms
        case Dead(event=dead):
            assert result == "refused" or number >= TENANT.retry.max_attempts
            assert dead.reason
        case OccurrenceEnded(record=record):
            assert record.status == ("delivered" if result == "delivered" else "expired")


def test_a_clock_that_stepped_back_makes_no_negative_duration() -> None:
    judged = verdict(EVENT, TENANT, DELIVERED, 1, 9_000, 5_000, 0.0)

    assert isinstance(judged, OccurrenceEnded)
    assert judged.record.attempts[0].duration_ms == 0
