"""Every call about many events, their keys and their future, as functions from arguments to a `Call`; see `calls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

from msgspec import Raw, Struct
from msgspec import json as msgspec_json

from everbell.client.answers import Cancelled, EventView, Forecast, KeyLine, Redriven, Rescheduled
from everbell.client.call import Call
from everbell.client.calls import view_of
from everbell.client.event_json import Duration, Instant, encode_event, encode_json
from everbell.client.paths import events_path, quoted, tenant_path
from everbell.client.queries import Choice, selection, with_query

PAGE_EVENTS_MAX = 1_000
LONG_S = 590.0
"""How long a request may take that goes through all that match."""


def cancel_matching(tenant: str, **chosen: Unpack[Choice]) -> Call[int]:
    """Cancel every event that matches all that is given and is neither finished nor dead; returns how many were."""
    query = selection(**chosen)
    return Call("DELETE", with_query(events_path(tenant), query), _count, repeatable=True, wait_s=LONG_S)


def cancel_page(
    tenant: str,
    *,
    limit: int = PAGE_EVENTS_MAX,
    cursor: str | None = None,
    **chosen: Unpack[Choice],
) -> Call[Cancelled]:
    """The same, for at most `limit` of them; go on with the cursor until there is none."""
    query = selection(**chosen, limit=limit, cursor=cursor)
    return Call("DELETE", with_query(events_path(tenant), query), _cancelled, repeatable=True)


def discard_dead(
    tenant: str,
    *,
    limit: int = PAGE_EVENTS_MAX,
    cursor: str | None = None,
    **chosen: Unpack[Choice],
) -> Call[Cancelled]:
    """Cancel dead events that match all that is given, at most `limit`; go on with the cursor until there is none."""
    query = selection(**chosen, limit=limit, cursor=cursor)
    return Call("DELETE", with_query(f"{tenant_path(tenant)}/dead", query), _cancelled, repeatable=True)


def reschedule_matching(
    tenant: str,
    *,
    at: Instant | None = None,
    in_: Duration | None = None,
    by: str | None = None,
    **chosen: Unpack[Choice],
) -> Call[Rescheduled]:
    """Give every event that matches, up to 100,000, another time: `at` one, `in_` a while, or `by` so much later.

    With `by`, a lost answer raises `Unreachable`: to repeat it would move them again; see `reschedule_many`.
    """
    query = selection(**chosen)
    body = encode_event({"at": at, "in": in_, "by": by})
    path = with_query(events_path(tenant), query)
    return Call("PATCH", path, _rescheduled, body, repeatable=by is None, wait_s=LONG_S)


def reschedule_many(
    tenant: str,
    events: Sequence[tuple[str, int | None]],
    *,
    at: Instant | None = None,
    in_: Duration | None = None,
    by: str | None = None,
) -> Call[Rescheduled]:
    """Give up to 1,000 events another time, each named by its id and the version that it must have, None for any.

    Where every event has a version it is repeated when its answer was lost: what was moved by then is skipped.
    """
    named = [{"id": name} if version is None else {"id": name, "version": version} for name, version in events]
    body = encode_event({"at": at, "in": in_, "by": by, "events": named})
    repeatable = by is None or all(version is not None for _, version in events)
    return Call("PATCH", events_path(tenant), _rescheduled, body, repeatable=repeatable)


def redrive(tenant: str, ids: Sequence[str], *, rate: float | None = None) -> Call[Redriven]:
    """Give these dead events a new set of attempts, at once or at a `rate` a second."""
    return _redrive(tenant, {"ids": list(ids), **selection(rate=rate)})


def redrive_all(
    tenant: str,
    *,
    rate: float | None = None,
    **chosen: Unpack[Choice],
) -> Call[Redriven]:
    """Give every dead event, or every one that matches, a new set of attempts, at once or at a `rate` a second."""
    return _redrive(tenant, {"all": True, **selection(**chosen, rate=rate)})


def look_at_key(tenant: str, key: str) -> Call[KeyLine]:
    """Who is next in a key, and how many wait."""
    return Call("GET", _key_path(tenant, key), _line, repeatable=True)


def drop_head(tenant: str, key: str, *, version: int | None = None) -> Call[EventView]:
    """Cancel the event that the others of a key wait for. Raises `NotFound` when nothing of it is due."""
    return Call("DELETE", f"{_key_path(tenant, key)}/head", view_of, version=version)


def forecast(
    tenant: str, *, per: Literal["minute", "hour"] = "minute", count: int = 60, all_tenants: bool = False
) -> Call[Forecast]:
    """How many events are due in each minute or hour ahead, and what is overdue."""
    path = "/v1/forecast" if all_tenants else f"{tenant_path(tenant)}/forecast"
    return Call("GET", with_query(path, {"per": per, "count": count}), _forecast, repeatable=True, wait_s=60.0)


def _key_path(tenant: str, key: str) -> str:
    return f"{tenant_path(tenant)}/keys/{quoted(key)}"


def _redrive(tenant: str, spec: dict[str, Any]) -> Call[Redriven]:
    path = f"{tenant_path(tenant)}/dead/redrive"
    return Call("POST", path, _redriven, encode_json(spec), wait_s=LONG_S)


class _Count(Struct, frozen=True):
    cancelled: int


class _Line(Struct, frozen=True):
    key: str
    waiting: int
    more: bool = False
    head: Raw = Raw(b"null")


_count_decoder = msgspec_json.Decoder(_Count)
_cancelled_decoder = msgspec_json.Decoder(Cancelled)
_rescheduled_decoder = msgspec_json.Decoder(Rescheduled)
_redriven_decoder = msgspec_json.Decoder(Redriven)
_line_decoder = msgspec_json.Decoder(_Line)
_forecast_decoder = msgspec_json.Decoder(Forecast)


def _count(status: int, body: bytes) -> int:
    return _count_decoder.decode(body).cancelled


def _cancelled(status: int, body: bytes) -> Cancelled:
    return _cancelled_decoder.decode(body)


def _rescheduled(status: int, body: bytes) -> Rescheduled:
    return _rescheduled_decoder.decode(body)


def _redriven(status: int, body: bytes) -> Redriven:
    return _redriven_decoder.decode(body)


def _line(status: int, body: bytes) -> KeyLine:
    line = _line_decoder.decode(body)
    head = None if bytes(line.head) == b"null" else view_of(status, bytes(line.head))
    return KeyLine(line.key, line.waiting, line.more, head)


def _forecast(status: int, body: bytes) -> Forecast:
    return _forecast_decoder.decode(body)
