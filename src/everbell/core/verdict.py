"""The result of an attempt for its event: a pure function from event and outcome to the change to store."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from everbell.core.event import Attempt, Course, End, Event, Record, digest_of, with_attempt
from everbell.core.ids import PREFIX, is_made
from everbell.core.recurrence import NOTHING_YET, Jump, following, goes_apart, missed, proceed
from everbell.core.retry import Outcome, may_retry, pause_ms
from everbell.core.tenant import Tenant


class OccurrenceEnded(Struct, frozen=True, gc=False):
    """The occurrence has ended: delivered, or too late for another attempt."""

    record: Record
    following: Event | None


class Again(Struct, frozen=True, gc=False):
    """Another attempt follows at `event.run_at`."""

    event: Event


class Dead(Struct, frozen=True, gc=False):
    """No attempts are left, or the receiver refused permanently."""

    event: Event


class SentOff(Struct, frozen=True, gc=False):
    """The occurrence becomes an event of its own, and the recurring event moves on or ends."""

    record: Record
    following: Event | None


Verdict = OccurrenceEnded | Again | Dead


def verdict(
    event: Event, tenant: Tenant, outcome: Outcome, number: int, started_at: int, now: int, jitter: float
) -> Verdict:
    """Judge attempt `number`, which started at `started_at` and ended now."""
    attempt = Attempt(number, started_at, max(now - started_at, 0), outcome.result, outcome.reason, outcome.code)
    attempts = with_attempt(event.attempts, attempt) if event.attempts else (attempt,)
    if outcome.result == "delivered":
        return _ended(event, "delivered", now, number, attempts)
    tried = replace(event, attempt_count=number, attempts=attempts)
    policy = event.retry or tenant.retry
    if not may_retry(policy, number, outcome):
        reason = outcome.reason or outcome.result
        if outcome.result != "refused":
            reason = f"gave up after {number} {'attempt' if number == 1 else 'attempts'}; the last: {reason}"
        return Dead(replace(tried, state="dead", run_at=now, reason=reason))
    run_at = now + pause_ms(policy, number, jitter, outcome.retry_after_ms)
    if event.expires_ms is not None and run_at > event.due_at + event.expires_ms:
        return _ended(event, "expired", now, number, attempts, "too late for another attempt")
    return Again(replace(tried, state="scheduled", run_at=run_at))


def unjudged(event: Event, count: int, fault: Exception, now: int) -> Event:
    """The dead form of an event that raised an exception when it was looked at. `count`: the attempts until then."""
    reason = f"Everbell failed to handle the event ({type(fault).__name__}); the server's log has the details"
    return replace(event, attempt_count=count, state="dead", run_at=now, reason=reason)


def delivered(event: Event, outcome: Outcome, number: int, started_at: int, now: int) -> Record:
    """The record of a delivered event without recurrence. It equals the record that `verdict` makes, in less time."""
    took_ms = now - started_at if now > started_at else 0
    attempt = Attempt(number, started_at, took_ms, "delivered", outcome.reason, outcome.code)
    event_id = event.id
    return Record(
        event_id,
        event.tenant,
        "delivered",
        event.due_at,
        now,
        event.to,
        event.created_at,
        event.key,
        event.version,
        event.occurrence,
        number,
        with_attempt(event.attempts, attempt) if event.attempts else (attempt,),
        event.tags,
        None,
        0 if event_id.startswith(PREFIX) else digest_of(event),
        None,
        event.origin,
        event.produced_at,
    )


def instead(event: Event, now: int) -> OccurrenceEnded | SentOff | None:
    """What happens instead of an attempt; None if the attempt may start.

    An event that is late because of a long outage is evaluated once, because this may need much arithmetic.
    """
    too_late = event.expires_ms is not None and now > event.due_at + event.expires_ms
    if event.repeat is not None:
        ahead = missed(event, now)
        if ahead is not None:
            return _missed(event, ahead, now)
        if goes_apart(event) and not too_late:
            ended = _ended(event, "delivered", now, 0, ())
            return SentOff(ended.record, ended.following)
    if not too_late:
        return None
    reason = "its time was over before an attempt could start"
    return _ended(event, "expired", now, event.attempt_count, event.attempts, reason)


def _missed(event: Event, ahead: Jump, now: int) -> OccurrenceEnded:
    """One or more occurrences were too late; a single record covers all of them."""
    course = event.course or NOTHING_YET
    course = replace(course, late=course.late + ahead.steps)
    reason = "missed: it could not begin in time"
    if ahead.steps > 1:
        reason += f", nor could the {ahead.steps - 1} after it"
    record = record_of(event, "expired", now, event.attempt_count, event.attempts, reason, course)
    return OccurrenceEnded(record, proceed(event, ahead, course))


def _ended(
    event: Event, status: End, now: int, count: int, attempts: tuple[Attempt, ...], reason: str | None = None
) -> OccurrenceEnded:
    if event.repeat is None:
        return OccurrenceEnded(record_of(event, status, now, count, attempts, reason), None)
    course = event.course or NOTHING_YET
    if status == "delivered":
        course = replace(course, fired=course.fired + 1)
    else:
        course = replace(course, expired=course.expired + 1)
    began_at = attempts[0].started_at if attempts else now
    comes, course = following(event, course, began_at, now)
    return OccurrenceEnded(record_of(event, status, now, count, attempts, reason, course), comes)


def cancelled(event: Event, now: int) -> Record:
    """The record of a cancelled event."""
    return record_of(event, "cancelled", now, event.attempt_count, event.attempts, course=event.course)


def record_of(
    event: Event,
    status: End,
    now: int,
    count: int,
    attempts: tuple[Attempt, ...],
    reason: str | None = None,
    course: Course | None = None,
) -> Record:
    """The record of an event. For a client-given id it has a digest, to recognise repeated requests."""
    return Record(
        event.id,
        event.tenant,
        status,
        event.due_at,
        now,
        event.to,
        event.created_at,
        event.key,
        event.version,
        event.occurrence,
        count,
        attempts,
        event.tags,
        reason,
        0 if is_made(event.id) else digest_of(event),
        course,
        event.origin,
        event.produced_at,
    )
