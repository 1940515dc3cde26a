"""Events as lines that can be scheduled again, here or on another server; see `calls`.

A line has what a user wrote, with the payload as it came. Ids made by Everbell cannot be asked for, so those events get
an id that is made from the old one: to import the same lines twice makes nothing twice. What is finished has no payload
any more: it is told as it is, for programs that want to know what happened.
"""

from __future__ import annotations

from typing import Any, Unpack

from msgspec import Raw, Struct
from msgspec import json as msgspec_json

from everbell.client.answers import Exported
from everbell.client.call import Call
from everbell.client.paths import events_path
from everbell.client.queries import Choice, selection, with_query
from everbell.core.event import Status
from everbell.core.ids import is_made

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


def export_page(
    tenant: str,
    *,
    status: Status | None = None,
    limit: int = PAGE_EVENTS_MAX,
    cursor: str | None = None,
    **chosen: Unpack[Choice],
) -> Call[Exported]:
    """One page of events as JSON lines that `schedule_batches` and `everbell schedule` take.

    Without a status: what is neither finished nor dead, except what is paused, which would ring again.
    """
    query = selection(status=status, **chosen)
    path = with_query(events_path(tenant), {**query, "limit": limit, **selection(cursor=cursor)})

    def parse(_: int, body: bytes) -> Exported:
        page = _page_decoder.decode(body)
        if status in _ENDS:
            return Exported([bytes(event) for event in page.events], 0, page.cursor)
        events = [_event_decoder.decode(event) for event in page.events]
        lines = [_line(event) for event in events if status is not None or bytes(event["status"]) != b'"paused"']
        return Exported(lines, len(events) - len(lines), page.cursor)

    return Call("GET", path, parse, repeatable=True)


class _Page(Struct, frozen=True):
    events: list[Raw]
    cursor: str | None = None


_page_decoder = msgspec_json.Decoder(_Page)
_event_decoder = msgspec_json.Decoder(dict[str, Raw])


def _line(event: dict[str, Raw]) -> bytes:
    event_id = msgspec_json.decode(event["id"], type=str)
    line: dict[str, Any] = {"id": ID_PREFIX + event_id if is_made(event_id) else event_id}
    line |= {name: event[name] for name in _AS_IT_IS if name in event}
    if "repeat" in event:
        line["repeat"] = _rest(msgspec_json.decode(event["repeat"]), int(bytes(event["occurrence"])))
    return msgspec_json.encode(line)


def _rest(repeat: dict[str, Any], occurrence: int) -> dict[str, Any]:
    """How it goes on from this occurrence."""
    if "count" in repeat:
        repeat["count"] = max(repeat["count"] - occurrence + 1, 1)
    return repeat
