"""The answers of the API as JSON: their types, and how they are made from the engine's values.

Times are RFC 3339, durations are text, and absent fields are left out. A payload is spliced in as the bytes that came:
it is neither decoded nor encoded again. The OpenAPI document describes answers by these types.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from everbell.api.repeat_views import CountersView, PauseView, RepeatView, counters_view, pause_view, repeat_view
from everbell.api.timestamps import Instant, instant
from everbell.channels.queue import Lease
from everbell.core.delivery_form import DeliveryForm, own_form, users_headers
from everbell.core.event import Attempt, Event, Record, Status
from everbell.core.ids import is_made
from everbell.core.retry import Outcome, Result, RetryPolicy
from everbell.core.time import format_duration
from everbell.core.why import Why
from everbell.engine.seen import Seen
from everbell.http.message import HttpResponse

Version = Annotated[int, Meta(ge=1, description="goes up with every change; the ETag is this number in quotes")]

_encode = msgspec.json.Encoder().encode


class AttemptView(Struct, frozen=True, omit_defaults=True, gc=False):
    """One try at delivering an occurrence."""

    number: int
    started_at: Instant
    duration_ms: int
    result: Result
    reason: str | None = None
    code: int | None = None


class RetryView(Struct, frozen=True, gc=False):
    """The event's own retry policy."""

    max_attempts: int | None
    backoff: str
    max_backoff: str


class AcceptedView(Struct, frozen=True):
    """The answer when an event is scheduled."""

    id: str
    at: Instant
    status: Status
    version: Version


class ChangedView(Struct, frozen=True):
    """The event after a change, for an access key that may not read events."""

    id: str
    tenant: str
    at: Instant
    status: Status
    version: Version


class HoldersView(Struct, frozen=True, omit_defaults=True):
    """The nodes that hold an event in memory, in this form."""

    count: Annotated[int, Meta(description="how many nodes shall hold it")]
    held_by: Annotated[tuple[str, ...], Meta(description="in the order of their turns, when one event is read")]
    unreached: Annotated[
        tuple[str, ...],
        Meta(description="nodes that may hold it in an earlier form: no answer came, or they left with their copies"),
    ] = ()
    next: Annotated[str, Meta(description="the node that attempts it next, if it is alive")] | None = None


class EventView(Struct, frozen=True, omit_defaults=True, gc=False):
    """An event as it is now. Payload and headers are kept until it ends."""

    id: str
    tenant: str
    at: Instant
    status: Status
    version: Version
    to: str
    occurrence: int
    created_at: Instant
    attempt_count: int
    key: str | None = None
    tags: tuple[str, ...] | None = None
    headers: dict[str, str] | None = None
    payload: Raw | UnsetType = UNSET
    payload_base64: bytes | None = None
    content_type: str | None = None
    retry: RetryView | None = None
    repeat: RepeatView | None = None
    expires: str | None = None
    traceparent: str | None = None
    attempts: tuple[AttemptView, ...] | None = None
    next_attempt_at: Annotated[Instant, Meta(description="where it is not the due time")] | None = None
    finished_at: Instant | None = None
    reason: Annotated[str, Meta(description="the reason why it is dead, or was not delivered")] | None = None
    counters: Annotated[CountersView, Meta(description="of an event that repeats")] | None = None
    paused: PauseView | None = None
    repeat_of: Annotated[str, Meta(description="the recurring event that this is an occurrence of")] | None = None
    delivery: Annotated[DeliveryForm, Meta(description="the form of its deliveries, if it has its own")] | None = None
    why: Annotated[Why, Meta(description="why it has not been delivered yet, when one event is read")] | None = None
    replicas: Annotated[HoldersView, Meta(description="of an event with durability replicas")] | None = None
    produced_at: Annotated[Instant, Meta(description="the timestamp of the Kafka record it came in")] | None = None


class EventsView(Struct, frozen=True, omit_defaults=True):
    """One page of a search. It goes on while there is a cursor, even after an empty page."""

    events: list[EventView]
    cursor: str | None = None


class OutcomeView(Struct, frozen=True, omit_defaults=True):
    """The outcome of one attempt."""

    result: Result
    reason: str | None = None
    code: int | None = None


class TrialView(Struct, frozen=True):
    """The outcome of an attempt that changed nothing."""

    outcome: OutcomeView


class LeaseView(Struct, frozen=True, omit_defaults=True, gc=False):
    """An event that a worker holds; (id, occurrence) is the same on every attempt."""

    lease: Annotated[str, Meta(description="the token to acknowledge, extend or fail it with")]
    until: Annotated[Instant, Meta(description="the end of the lease, unless it is extended")]
    id: str
    occurrence: int
    attempt: int
    epoch: int
    at: Instant
    key: str | None = None
    payload: Raw | UnsetType = UNSET
    payload_base64: bytes | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    tags: tuple[str, ...] | None = None
    traceparent: str | None = None
    attempts_max: Annotated[int, Meta(description="attempts that the retry policy allows")] | UnsetType | None = UNSET


def created_response(tenant: str, event_id: str, due_at: int) -> HttpResponse:
    """The answer to the scheduling of one event. It is the most frequent answer, so it is built by hand."""
    at = instant(due_at)
    if is_made(event_id):
        body = f'{{"id":"{event_id}","at":"{at}","status":"scheduled","version":1}}'.encode()
        location = f"/v1/tenants/{tenant}/events/{event_id}"
    else:
        body = _encode(AcceptedView(event_id, at, "scheduled", 1))
        location = location_of(tenant, event_id)
    return HttpResponse(201, body, "application/json", (("location", location), ("etag", '"1"')))


def found_response(seen: Seen) -> HttpResponse:
    """The answer to a repeated request: the event that the first one made."""
    event = seen.event
    body = _encode(AcceptedView(event.id, instant(event.due_at), seen.status, event.version))
    headers = (("location", location_of(event.tenant, event.id)), ("etag", f'"{event.version}"'))
    return HttpResponse(200, body, "application/json", headers)


def event_response(seen: Seen, why: Why | None = None, *, hidden: bool, may_read: bool = True) -> HttpResponse:
    """A whole event, with its version as the ETag. `hidden`: without its payload and headers.

    A caller that may not read gets no more than it needs to continue: a change must not be a way to read an event.
    """
    event = seen.event
    headers: tuple[tuple[str, str], ...] = (("etag", f'"{event.version}"'),)
    if seen.created:
        headers = (("location", location_of(event.tenant, event.id)), *headers)
    if may_read:
        body = _encode(event_view(seen, why, hidden=hidden))
    else:
        body = _encode(ChangedView(event.id, event.tenant, instant(event.due_at), seen.status, event.version))
    return HttpResponse(201 if seen.created else 200, body, "application/json", headers)


def json_response(content: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, _encode(content))


def location_of(tenant: str, event_id: str) -> str:
    return f"/v1/tenants/{tenant}/events/{quote(event_id, safe='')}"


def event_view(seen: Seen, why: Why | None = None, *, hidden: bool) -> EventView:
    """An event, or the record of a finished one. `hidden`: without its payload and headers."""
    event = seen.event
    attempts = tuple(map(_attempt_view, event.attempts)) or None
    shared = (
        event.id,
        event.tenant,
        instant(event.due_at),
        seen.status,
        event.version,
        event.to,
        event.occurrence,
        instant(event.created_at),
        event.attempt_count,
        event.key,
        event.tags or None,
    )
    if isinstance(event, Record):
        return EventView(
            *shared,
            attempts=attempts,
            finished_at=instant(event.finished_at),
            reason=event.reason,
            counters=None if event.course is None else counters_view(event.course),
            repeat_of=event.origin,
            replicas=_holders_view(seen),
            produced_at=_instant_or_none(event.produced_at),
        )
    is_json = event.content_type is None
    return EventView(
        *shared,
        None if hidden else dict(users_headers(event.headers)) or None,
        Raw(event.payload) if is_json and not hidden else UNSET,
        None if is_json or hidden else event.payload,
        event.content_type,
        None if event.retry is None else _retry_view(event.retry),
        None if event.repeat is None else repeat_view(event.repeat),
        None if event.expires_ms is None else format_duration(event.expires_ms),
        event.traceparent,
        attempts,
        _next_attempt_at(event, seen.status),
        None,
        event.reason,
        None if event.repeat is None else counters_view(event.course),
        pause_view(event.course),
        event.origin,
        delivery=own_form(event.headers),
        why=why,
        replicas=_holders_view(seen),
        produced_at=_instant_or_none(event.produced_at),
    )


def lease_view(lease: Lease) -> LeaseView:
    """A lease as a worker gets it."""
    held = lease.occurrence
    is_json = held.content_type is None
    return LeaseView(
        lease.token,
        instant(lease.until_at),
        held.id,
        held.number,
        held.attempt,
        held.epoch,
        instant(held.due_at),
        held.key,
        Raw(held.raw) if is_json else UNSET,
        None if is_json else held.raw,
        held.content_type,
        dict(held.headers) if held.headers else None,
        held.tags or None,
        held.traceparent,
        held.attempts_max,
    )


def trial_view(outcome: Outcome) -> TrialView:
    """The outcome of a dry run."""
    return TrialView(OutcomeView(outcome.result, outcome.reason, outcome.code))


def _attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt.number,
        instant(attempt.started_at),
        attempt.duration_ms,
        attempt.result,
        attempt.reason,
        attempt.code,
    )


def _holders_view(seen: Seen) -> HoldersView | None:
    if not seen.replicas:
        return None
    is_waiting = seen.status in ("scheduled", "retrying") and seen.holders
    return HoldersView(seen.replicas, seen.holders, seen.unreached, seen.holders[0] if is_waiting else None)


def _instant_or_none(at: int | None) -> str | None:
    return None if at is None else instant(at)


def _retry_view(retry: RetryPolicy) -> RetryView:
    return RetryView(retry.limit, format_duration(retry.backoff_ms), format_duration(retry.max_backoff_ms))


def _next_attempt_at(event: Event, status: Status) -> str | None:
    if status in ("scheduled", "retrying") and event.run_at != event.due_at:
        return instant(event.run_at)
    return None
