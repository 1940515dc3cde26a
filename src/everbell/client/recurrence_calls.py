"""The calls on recurring events, as methods of both clients; see `operation`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from everbell.client.answers import EventView
from everbell.client.call import Call, decoded
from everbell.client.event_calls import view_of
from everbell.client.event_json import DurationLike, InstantLike, Repeating, encode_event, encode_json, instant_text
from everbell.client.operation import Calls, operation
from everbell.client.paths import event_path

PREVIEW_TIMES = 10


class Upcoming(Struct, frozen=True):
    """One time at which an event is due."""

    number: int
    at: datetime
    local: str | None = None
    """The local time in the zone of a cron expression, with the offset."""
    rings_at: datetime | None = None
    """With jitter."""


class Preview(Struct, frozen=True):
    """The next times of a recurring event, and whether others follow."""

    occurrences: Sequence[Upcoming]
    more: bool = False


class RejectedTime(Struct, frozen=True):
    """The reason why one time of a range was not scheduled."""

    index: int
    status: int
    title: str = ""
    detail: str | None = None


class Backfilled(Struct, frozen=True):
    """The outcome of a backfill: how many times were scheduled now, and how many by an earlier request."""

    scheduled: int
    existing: int
    ids: Sequence[str | None]
    errors: Sequence[RejectedTime] = ()


class RecurrenceCalls(Calls):
    """Operations on recurring events."""

    @operation
    def preview(
        self,
        repeat: Repeating,
        *,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        count: int = PREVIEW_TIMES,
    ) -> Call[Preview]:
        """The first `count` times of a recurrence that is not scheduled, up to 1,000."""
        body = encode_event({"repeat": repeat, "at": at, "in": in_, "count": count})
        return Call("POST", "/v1/preview", _preview, body, repeatable=True)

    @operation
    def preview_event(self, id: str, *, count: int = PREVIEW_TIMES) -> Call[Preview]:
        """The next `count` times of an event, up to 1,000. Raises `NotFound`, and `Conflict` when it has ended."""
        return Call("GET", f"{event_path(self.tenant, id)}/preview?count={count}", _preview, repeatable=True)

    @operation
    def pause(self, id: str, *, note: str | None = None, version: int | None = None) -> Call[EventView]:
        """Pause a recurring event until it is resumed.

        Raises `NotFound`, and `Conflict` when it does not repeat, has ended, or is being delivered.
        """
        body = encode_json({"paused": True, "note": note})
        return Call("PATCH", event_path(self.tenant, id), view_of, body, version=version)

    @operation
    def resume(self, id: str, *, note: str | None = None, version: int | None = None) -> Call[EventView]:
        """End a pause. `misfire` decides about missed occurrences. Raises `Conflict` when it is not paused."""
        body = encode_json({"paused": False, "note": note})
        return Call("PATCH", event_path(self.tenant, id), view_of, body, version=version)

    @operation
    def backfill(self, id: str, *, from_: InstantLike, until: InstantLike) -> Call[Backfilled]:
        """Schedule the times of a past range as single events. A repeated call schedules nothing twice."""
        body = encode_json({"from": instant_text(from_, "from"), "until": instant_text(until, "until")})
        return Call("POST", f"{event_path(self.tenant, id)}/backfill", _backfilled, body, repeatable=True)


_preview = decoded(Preview)
_backfilled = decoded(Backfilled)
