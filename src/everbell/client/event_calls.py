"""The calls on events, as methods of both clients; see `operation`.

Only the modules of calls know the paths, bodies and answers of the HTTP API.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec import json as msgspec_json
from msgspec.structs import replace as replaced

from everbell.client.answers import EventPage, EventView, Scheduled, TrialOutcome
from everbell.client.call import Call, decoded
from everbell.client.event_json import (
    DurationLike,
    InstantLike,
    Repeating,
    Replicating,
    Retrying,
    encode_change,
    encode_event,
)
from everbell.client.operation import Calls, operation, walk
from everbell.client.paths import event_path, events_path, tenant_path
from everbell.client.queries import Choice, selection, with_query
from everbell.core.delivery_form import Form
from everbell.core.event import Status
from everbell.core.health import Health
from everbell.core.occurrence import payload_of
from everbell.core.replication import Durability
from everbell.errors import Conflict

PAGE_EVENTS = 100
_CREATED = 201


class EventCalls(Calls):
    """Operations on one event, and searches."""

    @operation
    def schedule(
        self,
        payload: Any = None,
        *,
        to: str | None = None,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        id: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Sequence[str] | None = None,
        retry: Retrying | None = None,
        repeat: Repeating | None = None,
        expires: DurationLike | None = None,
        content_type: str | None = None,
        delivery: Form | None = None,
        durability: Durability | None = None,
        replicas: Replicating | None = None,
        idempotency_key: str | None = None,
    ) -> Call[Scheduled]:
        """Schedule one event, due `at` a time or `in_` a duration.

        The payload is any JSON value, or bytes with their `content_type`. With an `id` of your own, or an
        `idempotency_key`, a retry schedules nothing twice, so a lost answer leads to one. Without either, a lost answer
        raises `Unreachable`, and it is unknown whether the event was stored.
        """
        body = encode_event(locals(), without=("self", "idempotency_key"))
        path, repeatable = events_path(self.tenant), id is not None or idempotency_key is not None
        return Call("POST", path, _scheduled, body, idempotency_key=idempotency_key, repeatable=repeatable)

    @operation
    def put(
        self,
        id: str,
        payload: Any = None,
        *,
        to: str | None = None,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Sequence[str] | None = None,
        retry: Retrying | None = None,
        repeat: Repeating | None = None,
        expires: DurationLike | None = None,
        content_type: str | None = None,
        delivery: Form | None = None,
        durability: Durability | None = None,
        replicas: Replicating | None = None,
        version: int | None = None,
    ) -> Call[EventView]:
        """Create the event, or replace the one with this id. Raises `Conflict` when it has ended."""
        body = encode_event(locals(), without=("self", "id", "version"))
        return Call("PUT", event_path(self.tenant, id), view_of, body, version=version, repeatable=version is None)

    @operation
    def get(self, id: str) -> Call[EventView]:
        """The event as it is now, with its attempts. Raises `NotFound`."""
        return Call("GET", event_path(self.tenant, id), view_of, repeatable=True)

    def _search(
        self,
        *,
        status: Status | None = None,
        limit: int = PAGE_EVENTS,
        cursor: str | None = None,
        **chosen: Unpack[Choice],
    ) -> Call[EventPage]:
        """Events that match all arguments: status, key, tag, the beginnings of target and id, and due times.

        Without a status, the events that are neither finished nor dead. `limit` is the size of a page.
        """
        query = selection(status=status, **chosen, limit=limit)
        return _page(events_path(self.tenant), query, cursor)

    page = operation(_search)
    list = walk(_search)

    @walk
    def dead(
        self,
        *,
        limit: int = PAGE_EVENTS,
        cursor: str | None = None,
        **chosen: Unpack[Choice],
    ) -> Call[EventPage]:
        """Dead events: those that used up their attempts, or were refused, with the reason and the attempts."""
        query = selection(**chosen, limit=limit)
        return _page(f"{tenant_path(self.tenant)}/dead", query, cursor)

    @operation
    def change(
        self,
        id: str,
        *,
        payload: Any = UNSET,
        to: str | UnsetType = UNSET,
        at: InstantLike | UnsetType = UNSET,
        in_: DurationLike | UnsetType = UNSET,
        headers: Mapping[str, str] | None | UnsetType = UNSET,
        tags: Sequence[str] | None | UnsetType = UNSET,
        retry: Retrying | None | UnsetType = UNSET,
        repeat: Repeating | None | UnsetType = UNSET,
        expires: DurationLike | None | UnsetType = UNSET,
        version: int | None = None,
    ) -> Call[EventView]:
        """Change the given fields and leave the rest; None removes an optional one.

        With `version`, the event must still have that version, else this raises `VersionMismatch`.
        """
        body = encode_change(locals(), without=("self", "id", "version"))
        return Call("PATCH", event_path(self.tenant, id), view_of, body, version=version)

    @operation
    def reschedule(
        self,
        id: str,
        *,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        by: str | None = None,
        version: int | None = None,
    ) -> Call[EventView]:
        """Reschedule the event: `at` a time, `in_` a duration, or `by` a duration later ("2h") or earlier ("-30m").

        Raises `NotFound`, and `Conflict` when it has ended or is being delivered.
        """
        body = encode_event({"at": at, "in": in_, "by": by})
        return Call("PATCH", event_path(self.tenant, id), view_of, body, version=version)

    @operation
    def snooze(self, id: str, *, by: DurationLike, version: int | None = None) -> Call[EventView]:
        """Move the due time of the event later, `by` a duration. Raises the same errors as `reschedule`."""
        body = encode_event({"by": by})
        return Call("POST", f"{event_path(self.tenant, id)}/snooze", view_of, body, version=version)

    @operation
    def cancel(self, id: str, *, version: int | None = None) -> Call[EventView]:
        """Cancel the event: no attempt starts after this. Raises `NotFound`, and `Conflict` when it has ended."""
        doubt = Call("GET", event_path(self.tenant, id), _cancelled_view, repeatable=True)
        return Call("DELETE", event_path(self.tenant, id), view_of, version=version, repeatable=True, doubt=doubt)

    @operation
    def deliver(self, id: str) -> Call[EventView]:
        """Deliver it now. Raises `NotFound`, and `Conflict` when it has ended or is being delivered."""
        return Call("POST", f"{event_path(self.tenant, id)}/deliver", view_of)

    @operation
    def try_out(self, id: str) -> Call[TrialOutcome]:
        """Make one attempt that does not change the event, and return its outcome."""
        path = f"{event_path(self.tenant, id)}/deliver?dry_run=true"
        return Call("POST", path, lambda status, body: _trial(status, body).outcome)

    @operation
    def back_up(self) -> Call[str]:
        """Copy the server's store while it is in use, and return the path of the copy on the server's machine."""
        return Call("POST", "/v1/backups", lambda status, body: _backup(status, body).path)

    @operation
    def metrics(self) -> Call[str]:
        """The metrics of the asked node, in the text format of Prometheus."""
        return Call("GET", "/metrics", lambda status, body: body.decode(), repeatable=True)

    @operation
    def health(self) -> Call[Health]:
        """The state of the server and of its parts, also when it is not ready."""
        return Call("GET", "/readyz", _health, also=(503,))


class _Backup(Struct, frozen=True):
    path: str


def _page(path: str, query: Mapping[str, Any], cursor: str | None) -> Call[EventPage]:
    def parse(status: int, body: bytes) -> EventPage:
        answer = _page_decoder.decode(body)
        rest = None if answer.cursor is None else _page(path, query, answer.cursor)
        return EventPage([_with_payload(event) for event in answer.events], answer.cursor, rest)

    full = query if cursor is None else {**query, "cursor": cursor}
    return Call("GET", with_query(path, full), parse, repeatable=True)


class _RawEvent(EventView, frozen=True, kw_only=True):
    # Payloads are decoded one by one, so that an unreadable number in one does not hide the rest of the page.
    payload: Raw = Raw(b"null")
    payload_base64: str | None = None


class _RawEventPage(Struct, frozen=True):
    events: list[_RawEvent]
    cursor: str | None = None


class _TrialAnswer(Struct, frozen=True):
    outcome: TrialOutcome


_page_decoder = msgspec_json.Decoder(_RawEventPage)
_event_decoder = msgspec_json.Decoder(_RawEvent)
_read_scheduled = decoded(Scheduled)
_health = decoded(Health)
_backup = decoded(_Backup)
_trial = decoded(_TrialAnswer)


def _scheduled(status: int, body: bytes) -> Scheduled:
    return replaced(_read_scheduled(status, body), created=status == _CREATED)


def view_of(status: int, body: bytes) -> EventView:
    return _with_payload(_event_decoder.decode(body))


def _with_payload(event: _RawEvent) -> EventView:
    base64 = event.payload_base64
    return replaced(event, payload=payload_of(bytes(event.payload)) if base64 is None else b64decode(base64))


def _cancelled_view(status: int, body: bytes) -> EventView:
    event = view_of(status, body)
    if event.status != "cancelled":
        raise Conflict(f"the event is already {event.status}")
    return event
