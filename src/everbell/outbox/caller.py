"""Scheduling inside the caller's transaction: `Outbox(connection).schedule(…)`, `await AsyncOutbox(connection)…`.

After a commit of the caller's transaction the event exists; after a rollback it never did. The arguments are those of
the clients. Input is checked here with the code of the API, before the database is asked, so that bad input raises
`InvalidInput` and leaves the transaction usable. The limits of a tenant's policy are checked by the server, later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from msgspec import UNSET

from everbell.client.event_json import DurationLike, InstantLike, Repeating, Retrying, encode_change, encode_event
from everbell.clock import SystemClock
from everbell.core.spec import ChangeSpec, EventSpec, amendment_of, check_name, draft
from everbell.core.tenant import Limits, Tenant, check_tenant_name
from everbell.edge.bodies import Body
from everbell.errors import InvalidInput
from everbell.outbox.drivers import OutboxCall, run, run_async

_NO_LIMIT = 1 << 62
_ANY_POLICY = Tenant(
    to="queue:default",
    limits=Limits(payload_bytes=_NO_LIMIT, headers=_NO_LIMIT, header_bytes=_NO_LIMIT, tags=_NO_LIMIT, depth=_NO_LIMIT),
)
"""Only the server knows the policy, so everything that some policy allows is accepted here."""

_event = Body(EventSpec)
_change = Body(ChangeSpec)


class EventFields(TypedDict, total=False):
    """The fields of an event beside its payload, as `Client.schedule` takes them."""

    to: str | None
    at: InstantLike | None
    in_: DurationLike | None
    id: str | None
    key: str | None
    headers: Mapping[str, str] | None
    tags: Sequence[str] | None
    retry: Retrying | None
    repeat: Repeating | None
    expires: DurationLike | None
    content_type: str | None


class NewTime(TypedDict, total=False):
    """One of them: a time, a duration from now, or a duration that the event is later (or, with a minus, earlier)."""

    at: InstantLike
    in_: DurationLike
    by: str


class _OutboxCalls:
    def __init__(self, connection: Any, tenant: str | None = None) -> None:
        """Without a tenant, the server decides: the tenant of its outbox, or `default`."""
        self._connection = connection
        self._tenant = None if tenant is None else check_tenant_name(tenant)

    def _schedule(self, payload: Any, event: EventFields) -> OutboxCall:
        body = encode_event({"payload": payload, **event})
        draft(_event.parse(body), _ANY_POLICY, SystemClock().now())
        return self._call("schedule", (body.decode(), "json"))

    def _cancel(self, id: str) -> OutboxCall:
        return self._call("cancel", (_checked(id), "text"))

    def _reschedule(self, id: str, time: NewTime) -> OutboxCall:
        body = encode_change({"at": UNSET, "in_": UNSET, "by": UNSET, **time})
        change = amendment_of(_change.parse(body), _ANY_POLICY, SystemClock().now())
        if change.due_at is UNSET and change.shift_ms is UNSET:
            raise InvalidInput("give at (a time) or in (a duration from now)", "at")
        return self._call("reschedule", (_checked(id), "text"), (body.decode(), "json"))

    def _call(self, function: str, *arguments: tuple[object, str]) -> OutboxCall:
        return OutboxCall(function, (*arguments, (self._tenant, "text")))


class Outbox(_OutboxCalls):
    """For a connection of psycopg 3 or Django, or a connection or session of SQLAlchemy."""

    def schedule(self, payload: Any = None, **event: Unpack[EventFields]) -> str:
        """Schedule an event when the transaction commits; returns its id. Raises `InvalidInput`."""
        return str(run(self._connection, self._schedule(payload, event)))

    def cancel(self, id: str) -> None:
        """Cancel an event when the transaction commits. An event that has ended by then stays as it is."""
        run(self._connection, self._cancel(id))

    def reschedule(self, id: str, **time: Unpack[NewTime]) -> None:
        """Give an event another time when the transaction commits. Raises `InvalidInput`."""
        run(self._connection, self._reschedule(id, time))


class AsyncOutbox(_OutboxCalls):
    """For a connection of asyncpg or psycopg 3, or a connection or session of SQLAlchemy, that awaits."""

    async def schedule(self, payload: Any = None, **event: Unpack[EventFields]) -> str:
        """Schedule an event when the transaction commits; returns its id. Raises `InvalidInput`."""
        return str(await run_async(self._connection, self._schedule(payload, event)))

    async def cancel(self, id: str) -> None:
        """Cancel an event when the transaction commits. An event that has ended by then stays as it is."""
        await run_async(self._connection, self._cancel(id))

    async def reschedule(self, id: str, **time: Unpack[NewTime]) -> None:
        """Give an event another time when the transaction commits. Raises `InvalidInput`."""
        await run_async(self._connection, self._reschedule(id, time))


def _checked(id: str) -> str:
    if not id:
        raise InvalidInput("expected a string of length >= 1", "id")
    check_name(id, "id")
    return id
