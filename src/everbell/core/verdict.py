"""What becomes of an event after an attempt: a pure function from event and outcome to the change to store."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from everbell.core.event import Attempt, End, Event, Record, digest_of, next_due, with_attempt
from everbell.core.ids import is_made
from everbell.core.retry import Outcome, may_retry, pause_ms
from everbell.core.tenant import Tenant


class Ended(Struct, frozen=True, gc=False):
    """The occurrence is over: delivered, or too late for another attempt."""

    record: Record
    following: Event | None


class Again(Struct, frozen=True, gc=False):
    """Another attempt at `event.run_at`."""

    event: Event


class Dead(Struct, frozen=True, gc=False):
    """No attempts are left, or the receiver said no for good."""

    event: Event


Verdict = Ended | Again | Dead


def verdict(
    event: Event, tenant: Tenant, outcome: Outcome, number: int, started_at: int, now: int, jitter: float
) -> Verdict:
    """Judge attempt `number`, which began at `started_at` and is over now."""
    attempt = Attempt(number, started_at, max(now - started_at, 0), outcome.result, outcome.reason, outcome.code)
    attempts = with_attempt(event.attempts, attempt) if event.attempts else (attempt,)
    if outcome.result == "delivered":
        return Ended(record_of(event, "delivered", now, number, attempts), following(event))
    tried = replace(event, attempt_count=number, attempts=attempts)
    policy = event.retry or tenant.retry
    if not may_retry(policy, number, outcome):
        reason = outcome.reason or outcome.result
        if outcome.result != "refused":
            reason = f"gave up after {number} attempts; the last: {reason}"
        return Dead(replace(tried, state="dead", run_at=now, reason=reason))
    run_at = now + pause_ms(policy, number, jitter, outcome.retry_after_ms)
    if event.expires_ms is not None and run_at > event.due_at + event.expires_ms:
        return Ended(
            record_of(tried, "expired", now, number, attempts, "too late for another attempt"),
            following(event),
        )
    return Again(replace(tried, state="scheduled", run_at=run_at))


def expired(event: Event, now: int) -> Ended:
    """The event was not begun in time."""
    reason = "its time was over before an attempt could start"
    return Ended(record_of(event, "expired", now, event.attempt_count, event.attempts, reason), following(event))


def cancelled(event: Event, now: int) -> Record:
    """The record of a cancelled event."""
    return record_of(event, "cancelled", now, event.attempt_count, event.attempts)


def record_of(
    event: Event, status: End, now: int, count: int, attempts: tuple[Attempt, ...], reason: str | None = None
) -> Record:
    """What is kept of the event: for a client-given id also a digest, to tell a repeated request from another event."""
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
    )


def following(event: Event) -> Event | None:
    """The next occurrence, if there is one: the same event, fresh attempts, its next due time."""
    due_at = next_due(event)
    if due_at is None:
        return None
    return replace(
        event,
        due_at=due_at,
        run_at=due_at,
        state="scheduled",
        occurrence=event.occurrence + 1,
        attempt_count=0,
        attempts=(),
        reason=None,
    )
