"""One event over HTTP: schedule, put, look at, change, cancel, ring.

Scheduling is not a coroutine: it returns a future that the connection waits for by itself, which saves a task for
each request.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal

from msgspec import Struct

from everbell.core.event import Record
from everbell.core.ids import PREFIX, is_made
from everbell.core.spec import ChangeSpec, Draft, EventSpec
from everbell.engine.port import OperationsPort
from everbell.errors import Conflict, InvalidInput, NotFound, VersionMismatch
from everbell.server.bodies import ANY_VERSION, Body, if_match, read_query, version_of
from everbell.server.edge import Edge, check_id, trace_of
from everbell.server.gatherer import Gatherer
from everbell.server.message import Request, Response
from everbell.server.once import HEADER, mismatch, once_id
from everbell.server.problem import problem_of
from everbell.server.views import event_response, json_response, trial_view


class DeliverQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How to ring."""

    dry_run: Literal["true", "false"] = "false"


class EventsApi:
    """The handlers of `/events` and `/events/{id}`, for one event."""

    def __init__(self, operations: OperationsPort, edge: Edge) -> None:
        self._operations = operations
        self._edge = edge
        self._gatherer = Gatherer(operations)
        self._specs = Body(EventSpec)
        self._changes = Body(ChangeSpec)

    def schedule(self, request: Request, tenant: str) -> Awaitable[Response]:
        """Schedule one; a repeated request with the same id or key finds what the first one made."""
        spec = self._specs.read(request)
        trace = trace_of(request) if "traceparent" in request.headers else None
        if HEADER in request.headers and spec.id is None:
            spec.id = once_id(request)
            return self._schedule_once(tenant, self._edge.draft(spec, tenant, trace))
        return self._gatherer.add(tenant, self._edge.draft(spec, tenant, trace))

    async def _schedule_once(self, tenant: str, draft: Draft) -> Response:
        response = await self._gatherer.add(tenant, draft)
        return problem_of(mismatch()) if response.status == Conflict.status else response

    async def put(self, request: Request, tenant: str, event_id: str) -> Response:
        """Create the event, or put what is sent in its place."""
        check_id(event_id)
        spec = self._specs.read(request)
        if spec.id not in (None, event_id):
            raise InvalidInput("differs from the id in the path; leave it out", "id")
        # An id of ours cannot be asked for, so it is not part of the draft.
        spec.id = None if is_made(event_id) else event_id
        draft = self._edge.draft(spec, tenant, trace_of(request))
        version = if_match(request)
        if version == ANY_VERSION or is_made(event_id):
            await self._check_there(tenant, event_id, matched=version is not None)
        version = version if isinstance(version, int) else None
        return event_response(await self._operations.replace(tenant, event_id, draft, version))

    async def get(self, request: Request, tenant: str, event_id: str) -> Response:
        """The event as it is now."""
        return event_response(await self._operations.get(tenant, check_id(event_id)))

    async def change(self, request: Request, tenant: str, event_id: str) -> Response:
        """Change what is given, leave the rest."""
        check_id(event_id)
        version = version_of(request)
        fields = self._edge.changes(self._changes.read(request), tenant)
        return event_response(await self._operations.change(tenant, event_id, fields, version))

    async def cancel(self, request: Request, tenant: str, event_id: str) -> Response:
        """No attempt starts after this is answered."""
        return event_response(await self._operations.cancel(tenant, check_id(event_id), version_of(request)))

    async def deliver(self, request: Request, tenant: str, event_id: str) -> Response:
        """Ring it now, or only try it."""
        check_id(event_id)
        if read_query(request, DeliverQuery).dry_run == "true":
            return json_response(trial_view(await self._operations.try_out(tenant, event_id)))
        return event_response(await self._operations.ring(tenant, event_id))

    async def _check_there(self, tenant: str, event_id: str, *, matched: bool) -> None:
        """Raise unless the event exists and can be replaced: `replace` would make a new one otherwise."""
        try:
            seen = await self._operations.get(tenant, event_id)
        except NotFound as error:
            if matched:
                raise VersionMismatch(f"there is no event {event_id!r} to replace") from None
            raise InvalidInput(f"ids that begin with {PREFIX} are made by Everbell; choose another", "id") from error
        if isinstance(seen.event, Record):
            raise Conflict(f"the event is already {seen.status}")
