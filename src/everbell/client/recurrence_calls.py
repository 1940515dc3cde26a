"""Every call about recurring events, as functions from arguments to a `Call`; see `calls`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec import json as msgspec_json

from everbell.client.answers import EventView
from everbell.client.call import Call
from everbell.client.calls import view_of
from everbell.client.event_json import Duration, Instant, Repeating, encode_event, encode_json, instant_text
from everbell.client.paths import event_path

PREVIEW_TIMES = 10


class Upcoming(Struct, frozen=True):
    """One time at which an event is due."""

    number: int
    at: datetime
    local: str | None = None
    """What the clocks show then in the zone of a cron expression, with the offset."""
    rings_at: datetime | None = None
    """With jitter."""


class Preview(Struct, frozen=True):
    """The next times of a recurring event, and whether others follow."""

    occurrences: Sequence[Upcoming]
    more: bool = False


class Refused(Struct, frozen=True):
    """Why one time of a range was not scheduled."""

    index: int
    status: int
    title: str = ""
    detail: str | None = None


class Backfilled(Struct, frozen=True):
    """What became of the times of a range: how many are scheduled now, how many an earlier request scheduled."""

    scheduled: int
    existing: int
    ids: Sequence[str | None]
    errors: Sequence[Refused] = ()


def preview(
    tenant: str,
    repeat: Repeating,
    *,
    at: Instant | None = None,
    in_: Duration | None = None,
    count: int = PREVIEW_TIMES,
) -> Call[Preview]:
    """When a recurrence would ring that is not scheduled: the first `count` times, up to 1,000."""
    body = encode_event({"repeat": repeat, "at": at, "in": in_, "count": count})
    return Call("POST", "/v1/preview", _preview, body, repeatable=True)


def preview_event(tenant: str, id: str, *, count: int = PREVIEW_TIMES) -> Call[Preview]:
    """When an event will ring: the next `count` times, up to 1,000. Raises `NotFound`, and `Conflict` when it ended."""
    return Call("GET", f"{event_path(tenant, id)}/preview?count={count}", _preview, repeatable=True)


def pause(tenant: str, id: str, *, note: str | None = None, version: int | None = None) -> Call[EventView]:
    """Let a recurring event ring no more until it is resumed.

    Raises `NotFound`, and `Conflict` when it does not repeat, ended, or is being delivered at this moment.
    """
    body = encode_json({"paused": True, "note": note})
    return Call("PATCH", event_path(tenant, id), view_of, body, version=version)


def resume(tenant: str, id: str, *, note: str | None = None, version: int | None = None) -> Call[EventView]:
    """End a pause; what passed meanwhile rings as far as `misfire` says. Raises `Conflict` when it is not paused."""
    body = encode_json({"paused": False, "note": note})
    return Call("PATCH", event_path(tenant, id), view_of, body, version=version)


def backfill(tenant: str, id: str, *, from_: Instant, until: Instant) -> Call[Backfilled]:
    """Schedule the times of a past range of a recurring event as single events; to ask again is harmless."""
    body = encode_json({"from": instant_text(from_, "from"), "until": instant_text(until, "until")})
    return Call("POST", f"{event_path(tenant, id)}/backfill", _backfilled, body, repeatable=True)


_preview_decoder = msgspec_json.Decoder(Preview)
_backfilled_decoder = msgspec_json.Decoder(Backfilled)


def _preview(status: int, body: bytes) -> Preview:
    return _preview_decoder.decode(body)


def _backfilled(status: int, body: bytes) -> Backfilled:
    return _backfilled_decoder.decode(body)
