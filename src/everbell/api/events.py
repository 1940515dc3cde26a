"""One event over HTTP: schedule, replace, read, change, cancel and deliver it.

Scheduling is not a coroutine. It returns a future that the connection awaits directly, which saves a task per request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from everbell.api.route import TENANT, MayRead, Resource, ResponseKind, Route
from everbell.api.views import (
    AcceptedView,
    ChangedView,
    EventView,
    TrialView,
    created_response,
    event_response,
    found_response,
    json_response,
    trial_view,
)
from everbell.core.event import Record
from everbell.core.ids import is_made
from everbell.core.replicas.ids import is_replica_id
from everbell.core.request import Ask, Request
from everbell.core.spec import ChangeSpec, Draft, EventSpec
from everbell.core.time import Duration, parse_duration
from everbell.edge.bodies import ANY_VERSION, Body, if_match, read_query, version_of
from everbell.edge.drafting import Edge, check_id, trace_of
from everbell.edge.idempotency import HEADER, idempotent_id, mismatch
from everbell.engine.requests import Amend, Cancel, Get, Replace, Ring, TryOut
from everbell.engine.seen import DraftResult, Seen
from everbell.engine.turn_batch import TurnBatch
from everbell.engine.view_requests import Explain
from everbell.errors import Conflict, EverbellError, InvalidInput, NotFound, VersionMismatch
from everbell.http.message import HttpRequest, HttpResponse
from everbell.http.problem import INTERNAL, problem_of

EVENTS = TENANT + "/events"
EVENT = EVENTS + "/{id}"
EXAMPLE = {"id": "order-17-timeout", "in": "20m", "to": "https://shop.example/timeouts", "payload": {"order": 17}}
SEEN = ResponseKind(200, "the event as it is now", EventView, headers=("etag",))
CHANGED = ResponseKind(
    200,
    "the event as it is now; for a key without the scope read only its id, time, status and version",
    EventView | ChangedView,
    headers=("etag",),
)

_PLACED = ("location", "etag")
_STORED = "the event is stored, and will be delivered"


class DeliverQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How to deliver."""

    dry_run: Literal["true", "false"] = "false"


class SnoozeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How much later an event is due."""

    by: Annotated[Duration, Meta(description="10m, 2h, PT20M or a number of seconds")]


class EventsApi(Resource, tag="events"):
    """One event."""

    def __init__(self, ask: Ask, edge: Edge, may_read: MayRead) -> None:
        self._ask = ask
        self._edge = edge
        self._may_read = may_read
        self._turn = TurnBatch(ask, _scheduled, _failed)
        self._specs = Body(EventSpec)
        self._changes = Body(ChangeSpec)
        self._snoozes = Body(SnoozeSpec)

    @Route(
        "POST",
        EVENTS,
        "Schedule an event",
        (
            ResponseKind(201, _STORED, AcceptedView, headers=_PLACED),
            ResponseKind(200, "an earlier request with this id made this event", AcceptedView, headers=_PLACED),
        ),
        access="schedule",
        problems=(409, 429, 507),
        body=EventSpec,
        example=EXAMPLE,
        idempotent=True,
        routine=True,
    )
    def schedule_event(self, request: HttpRequest, tenant: str) -> Awaitable[HttpResponse]:
        """A repeated request with the same id or `Idempotency-Key` returns the event that the first one made."""
        spec = self._specs.read(request, self._edge.event_bytes_max(tenant))
        trace = trace_of(request) if "traceparent" in request.headers else None
        if HEADER in request.headers:
            derived = idempotent_id(request)  # Also of a request with an id of its own: a malformed key is refused.
            if spec.id is None:
                spec.id = derived
                return self._schedule_idempotently(tenant, self._edge.draft(spec, tenant, trace))
        return self._turn.add(tenant, (self._edge.new_draft(spec, tenant, trace),))

    async def _schedule_idempotently(self, tenant: str, draft: Draft) -> HttpResponse:
        response = await self._turn.add(tenant, (draft,))
        return problem_of(mismatch()) if response.status == Conflict.status else response

    @Route(
        "PUT",
        EVENT,
        "Create an event, or replace it",
        (
            ResponseKind(201, _STORED, EventView | ChangedView, headers=_PLACED),
            CHANGED,
        ),
        access="schedule",
        problems=(409, 429, 507),
        body=EventSpec,
        example={"at": "2026-11-27T00:00:00Z", "to": "https://shop.example/prices", "payload": {"sale": True}},
        conditional=True,
        routine=True,
        no_command="everbell schedule --id creates an event, everbell reschedule changes it",
    )
    async def put_event(self, request: HttpRequest, tenant: str, event_id: str) -> HttpResponse:
        """An event that has ended cannot be replaced."""
        check_id(event_id)
        spec = self._specs.read(request, self._edge.event_bytes_max(tenant))
        if spec.id not in (None, event_id):
            raise InvalidInput("differs from the id in the path; leave it out", "id")
        # A draft cannot ask for an id that Everbell made, so the draft leaves it out.
        is_ours = is_made(event_id) or is_replica_id(event_id)
        spec.id = None if is_ours else event_id
        draft = self._edge.draft(spec, tenant, trace_of(request))
        version = if_match(request)
        if version == ANY_VERSION or is_ours:
            await self._check_there(tenant, event_id, matched=version is not None)
        version = version if isinstance(version, int) else None
        return await self._answer(request, tenant, Replace(tenant, event_id, draft, version))

    @Route("GET", EVENT, "Read an event", (SEEN,), access="read", problems=(404,))
    async def get_event(self, request: HttpRequest, tenant: str, event_id: str) -> HttpResponse:
        """The answer has the latest attempts, and `why` an unfinished event has not been delivered yet.

        Payload and headers are kept until the event ends.
        """
        explained = await self._ask(Explain(tenant, check_id(event_id)))
        return event_response(explained.seen, explained.why, hidden=self._edge.hides_payloads(tenant))

    @Route(
        "PATCH",
        EVENT,
        "Reschedule or change an event",
        (CHANGED,),
        access="schedule",
        problems=(404, 409, 507),
        body=ChangeSpec,
        example={"in": "1h", "tags": ["checkout"]},
        conditional=True,
    )
    async def change_event(self, request: HttpRequest, tenant: str, event_id: str) -> HttpResponse:
        """Fields that the body leaves out stay as they are; null removes an optional one."""
        check_id(event_id)
        version = version_of(request)
        amendment = self._edge.amendment(self._changes.read(request, self._edge.event_bytes_max(tenant)), tenant)
        return await self._answer(request, tenant, Amend(tenant, event_id, amendment, version))

    @Route(
        "POST",
        EVENT + "/snooze",
        "Snooze an event",
        (CHANGED,),
        access="schedule",
        problems=(404, 409, 507),
        body=SnoozeSpec,
        example={"by": "10m"},
        conditional=True,
    )
    async def snooze_event(self, request: HttpRequest, tenant: str, event_id: str) -> HttpResponse:
        """The due time moves by this duration, whatever it is at that moment."""
        check_id(event_id)
        version = version_of(request)
        by_ms = parse_duration(self._snoozes.read(request).by, "by")
        # The owner works the new time out. The request travels as a change, which peers of every version know.
        amendment = self._edge.amendment(ChangeSpec(by=f"{by_ms}ms"), tenant)
        return await self._answer(request, tenant, Amend(tenant, event_id, amendment, version))

    @Route(
        "DELETE", EVENT, "Cancel an event", (CHANGED,), access="schedule", problems=(404, 409, 507), conditional=True
    )
    async def cancel_event(self, request: HttpRequest, tenant: str, event_id: str) -> HttpResponse:
        """No attempt starts after the answer."""
        return await self._answer(request, tenant, Cancel(tenant, check_id(event_id), version_of(request)))

    @Route(
        "POST",
        EVENT + "/deliver",
        "Deliver an event now, or try it out",
        (
            ResponseKind(
                200,
                "the event as it is now; with dry_run, the outcome of the attempt",
                EventView | ChangedView | TrialView,
            ),
        ),
        access="schedule",
        problems=(404, 409, 507),
        query=DeliverQuery,
    )
    async def deliver_event(self, request: HttpRequest, tenant: str, event_id: str) -> HttpResponse:
        """With `dry_run=true`, one attempt is made and its outcome returned. The event itself does not change."""
        check_id(event_id)
        if read_query(request, DeliverQuery).dry_run == "true":
            return json_response(trial_view(await self._ask(TryOut(tenant, event_id))))
        return await self._answer(request, tenant, Ring(tenant, event_id))

    async def _answer(self, request: HttpRequest, tenant: str, asked: Request[Seen]) -> HttpResponse:
        """The event after a change."""
        hidden = self._edge.hides_payloads(tenant)
        return event_response(await self._ask(asked), hidden=hidden, may_read=self._may_read(request, tenant))

    async def _check_there(self, tenant: str, event_id: str, *, matched: bool) -> None:
        """Raise unless the event exists and can be replaced: `replace` would make a new one otherwise."""
        try:
            seen = await self._ask(Get(tenant, event_id))
        except NotFound as error:
            if matched:
                raise VersionMismatch(f"there is no event {event_id!r} to replace") from None
            raise InvalidInput(
                f"ids that begin with {event_id[:3]} are made by Everbell; choose another", "id"
            ) from error
        if isinstance(seen.event, Record):
            raise Conflict(f"the event is already {seen.status}")


def _scheduled(
    tenant: str, drafts: Sequence[Draft], results: Sequence[DraftResult], index: int, _end: int
) -> HttpResponse:
    """The response to the request that sent one draft of a batch."""
    result = results[index]
    if isinstance(result, str):
        return created_response(tenant, result, drafts[index].due_at)
    return found_response(result) if isinstance(result, Seen) else problem_of(result)


def _failed(error: BaseException) -> HttpResponse:
    """A problem. One of an unexpected error hides its details."""
    if isinstance(error, EverbellError):
        return problem_of(error)
    unexpected = EverbellError(INTERNAL)
    unexpected.__cause__ = error
    return problem_of(unexpected)
