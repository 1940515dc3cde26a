"""Events as lines that can be scheduled again, here or on another server.

A line has the fields that the user wrote, with the payload as it came. A request cannot ask for an id that Everbell
made, so such an event gets an id derived from the old one: importing the same lines twice schedules nothing twice. A
finished event has no payload any more. Its line is the event as it is, for programs that process the history.
"""

from __future__ import annotations

from typing import Any, Unpack

from msgspec import Raw, Struct
from msgspec import json as msgspec_json

from everbell.client.answers import Exported
from everbell.client.call import Call
from everbell.client.operation import Calls, operation
from everbell.client.paths import events_path
from everbell.client.queries import Choice, selection, with_query
from everbell.core.event import Status
from everbell.core.ids import is_made
from everbell.errors import Conflict

PAGE_EVENTS_MAX = 1_000
ID_PREFIX = "export:"

_ENDS = ("delivered", "cancelled", "expired")
_AS_IT_IS = (
    "to",
    "at",
    "key",
    "headers",
    "tags",
    "retry",
    "expires",
    "payload",
    "payload_base64",
    "content_type",
    "traceparent",
)


class ExportCalls(Calls):
    """Operations that export events."""

    @operation
    def export_page(
        self,
        *,
        status: Status | None = None,
        limit: int = PAGE_EVENTS_MAX,
        cursor: str | None = None,
        **chosen: Unpack[Choice],
    ) -> Call[Exported]:
        """One page of events as JSON lines that `schedule_batches` and `everbell schedule` take.

        Without a status, the events that are neither finished, dead nor paused; a paused event would be delivered.
        """
        query = selection(status=status, **chosen)
        path = with_query(events_path(self.tenant), {**query, "limit": limit, **selection(cursor=cursor)})

        def parse(_: int, body: bytes) -> Exported:
            page = _page_decoder.decode(body)
            if status in _ENDS:
                return Exported([bytes(event) for event in page.events], 0, page.cursor)
            events = [_event_decoder.decode(event) for event in page.events]
            lines = [_line(event) for event in events if status is not None or bytes(event["status"]) != b'"paused"']
            return Exported(lines, len(events) - len(lines), page.cursor)

        return Call("GET", path, parse, repeatable=True)


class _RawLines(Struct, frozen=True):
    events: list[Raw]
    cursor: str | None = None


_page_decoder = msgspec_json.Decoder(_RawLines)
_event_decoder = msgspec_json.Decoder(dict[str, Raw])


def _line(event: dict[str, Raw]) -> bytes:
    event_id = msgspec_json.decode(event["id"], type=str)
    if "payload" not in event and "payload_base64" not in event:
        # Without this, an import would schedule events without their payloads.
        raise Conflict("the tenant's policy hides payloads, so its events cannot be exported")
    line: dict[str, Any] = {"id": ID_PREFIX + event_id if is_made(event_id) else event_id}
    line |= {name: event[name] for name in _AS_IT_IS if name in event}
    if "repeat" in event:
        line["repeat"] = _rest(msgspec_json.decode(event["repeat"]), int(bytes(event["occurrence"])))
    return msgspec_json.encode(line)


def _rest(repeat: dict[str, Any], occurrence: int) -> dict[str, Any]:
    """The recurrence from this occurrence on."""
    if "count" in repeat:
        repeat["count"] = max(repeat["count"] - occurrence + 1, 1)
    return repeat
