"""Every call about events that a client can make, as functions from arguments to a `Call`.

The first argument is the tenant; the others are the arguments of the client's method of the same name. This module is
the only place where paths, bodies and answers of the HTTP API are known.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec import json as msgspec_json
from msgspec.structs import replace as replaced

from everbell.client.answers import EventView, Page, Scheduled, Trial
from everbell.client.call import Call
from everbell.client.event_json import (
    Duration,
    Instant,
    Repeating,
    Retrying,
    encode_change,
    encode_event,
)
from everbell.client.paths import event_path, events_path, tenant_path
from everbell.client.queries import Choice, selection, with_query
from everbell.core.event import Status
from everbell.core.health import Health
from everbell.core.occurrence import payload_of
from everbell.errors import Conflict

PAGE_EVENTS = 100


def schedule(
    tenant: str,
    payload: Any = None,
    *,
    to: str | None = None,
    at: Instant | None = None,
    in_: Duration | None = None,
    id: str | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    tags: Sequence[str] | None = None,
    retry: Retrying | None = None,
    repeat: Repeating | None = None,
    expires: Duration | None = None,
    content_type: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Scheduled]:
    """Schedule one event, due `at` a time or `in_` a while.

    The payload is anything that JSON can say, or bytes (then `content_type` says of which kind). With an `id` of your
    own, or an `idempotency_key`, scheduling it again is harmless: that is how to be sure after an answer was lost.
    Without either, a lost answer raises `Unreachable`, and whether the event was stored is unknown.
    """
    body = encode_event(locals(), without=("tenant", "idempotency_key"))
    repeatable = id is not None or idempotency_key is not None
    return Call("POST", events_path(tenant), _scheduled, body, once_key=idempotency_key, repeatable=repeatable)


def put(
    tenant: str,
    id: str,
    payload: Any = None,
    *,
    to: str | None = None,
    at: Instant | None = None,
    in_: Duration | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    tags: Sequence[str] | None = None,
    retry: Retrying | None = None,
    repeat: Repeating | None = None,
    expires: Duration | None = None,
    content_type: str | None = None,
    version: int | None = None,
) -> Call[EventView]:
    """Schedule the event, or put this in its place if there is one with this id. Raises `Conflict` when it ended."""
    body = encode_event(locals(), without=("tenant", "id", "version"))
    return Call("PUT", event_path(tenant, id), view_of, body, version=version, repeatable=version is None)


def get(tenant: str, id: str) -> Call[EventView]:
    """The event as it is now, with its attempts. Raises `NotFound`."""
    return Call("GET", event_path(tenant, id), view_of, repeatable=True)


def page(
    tenant: str,
    *,
    status: Status | None = None,
    limit: int = PAGE_EVENTS,
    cursor: str | None = None,
    **chosen: Unpack[Choice],
) -> Call[Page]:
    """Events that match all that is given: their status, key and tag, how their target and id begin, and due times from
    `from_` until `until`.

    Without a status: those that are neither finished nor dead. `limit` is how many are asked for at a time.
    """
    query = selection(status=status, **chosen, limit=limit)
    return _page(events_path(tenant), query, cursor)


def dead(
    tenant: str,
    *,
    limit: int = PAGE_EVENTS,
    cursor: str | None = None,
    **chosen: Unpack[Choice],
) -> Call[Page]:
    """Dead events: those that used up their attempts, or were refused, with the reason and the attempts."""
    query = selection(**chosen, limit=limit)
    return _page(f"{tenant_path(tenant)}/dead", query, cursor)


def change(
    tenant: str,
    id: str,
    *,
    payload: Any = UNSET,
    to: str | UnsetType = UNSET,
    at: Instant | UnsetType = UNSET,
    in_: Duration | UnsetType = UNSET,
    headers: Mapping[str, str] | None | UnsetType = UNSET,
    tags: Sequence[str] | None | UnsetType = UNSET,
    retry: Retrying | None | UnsetType = UNSET,
    repeat: Repeating | None | UnsetType = UNSET,
    expires: Duration | None | UnsetType = UNSET,
    version: int | None = None,
) -> Call[EventView]:
    """Change what is given and leave the rest; None takes an optional part away.

    With `version` it is changed only if nobody changed it since; otherwise that raises `VersionMismatch`.
    """
    body = encode_change(locals(), without=("tenant", "id", "version"))
    return Call("PATCH", event_path(tenant, id), view_of, body, version=version)


def reschedule(
    tenant: str,
    id: str,
    *,
    at: Instant | None = None,
    in_: Duration | None = None,
    by: str | None = None,
    version: int | None = None,
) -> Call[EventView]:
    """Give the event another time: `at` one, `in_` a while from now, or `by` so much later ("2h") or earlier ("-30m").

    Raises `NotFound`, and `Conflict` when it ended or is being delivered.
    """
    body = encode_event({"at": at, "in": in_, "by": by})
    return Call("PATCH", event_path(tenant, id), view_of, body, version=version)


def cancel(tenant: str, id: str, *, version: int | None = None) -> Call[EventView]:
    """Cancel the event: no attempt starts after this. Raises `NotFound`, and `Conflict` when it ended before."""
    doubt = Call("GET", event_path(tenant, id), _cancelled_view, repeatable=True)
    return Call("DELETE", event_path(tenant, id), view_of, version=version, repeatable=True, doubt=doubt)


def deliver(tenant: str, id: str) -> Call[EventView]:
    """Ring it now, whatever its time. Raises `NotFound`, and `Conflict` when it ended or is being delivered."""
    return Call("POST", f"{event_path(tenant, id)}/deliver", view_of)


def try_out(tenant: str, id: str) -> Call[Trial]:
    """Make one attempt that changes nothing about the event, and tell what came of it."""
    return Call("POST", f"{event_path(tenant, id)}/deliver?dry_run=true", _trial)


def back_up(tenant: str) -> Call[str]:
    """Have the server copy its store while it goes on; returns where the copy lies on the server's machine."""
    return Call("POST", "/v1/backups", lambda status, body: msgspec_json.decode(body, type=_Backup).path)


class _Backup(Struct, frozen=True):
    path: str


def metrics(tenant: str) -> Call[str]:
    """The asked node's numbers, in the text format of Prometheus."""
    return Call("GET", "/metrics", lambda status, body: body.decode(), repeatable=True)


def health(tenant: str) -> Call[Health]:
    """The state of the server and of its parts, whatever it is."""
    return Call("GET", "/readyz", _health, also=(503,))


def _page(path: str, query: Mapping[str, Any], cursor: str | None) -> Call[Page]:
    def parse(status: int, body: bytes) -> Page:
        answer = _page_decoder.decode(body)
        rest = None if answer.cursor is None else _page(path, query, answer.cursor)
        return Page([_with_payload(event) for event in answer.events], answer.cursor, rest)

    full = query if cursor is None else {**query, "cursor": cursor}
    return Call("GET", with_query(path, full), parse, repeatable=True)


class _Event(EventView, frozen=True, kw_only=True):
    # Decoded one by one, so that a payload with an odd number does not hide the others of its page.
    payload: Raw = Raw(b"null")
    payload_base64: str | None = None


class _Page(Struct, frozen=True):
    events: list[_Event]
    cursor: str | None = None


class _Trial(Struct, frozen=True):
    outcome: Trial


_page_decoder = msgspec_json.Decoder(_Page)
_event_decoder = msgspec_json.Decoder(_Event)
_scheduled_decoder = msgspec_json.Decoder(Scheduled)
_trial_decoder = msgspec_json.Decoder(_Trial)
_health_decoder = msgspec_json.Decoder(Health)


def _scheduled(status: int, body: bytes) -> Scheduled:
    return _scheduled_decoder.decode(body)


def view_of(status: int, body: bytes) -> EventView:
    """The event in an answer."""
    return _with_payload(_event_decoder.decode(body))


def _with_payload(event: _Event) -> EventView:
    base64 = event.payload_base64
    return replaced(event, payload=payload_of(bytes(event.payload)) if base64 is None else b64decode(base64))


def _cancelled_view(status: int, body: bytes) -> EventView:
    event = view_of(status, body)
    if event.status != "cancelled":
        raise Conflict(f"the event is already {event.status}")
    return event


def _trial(status: int, body: bytes) -> Trial:
    return _trial_decoder.decode(body).outcome


def _health(status: int, body: bytes) -> Health:
    return _health_decoder.decode(body)
