"""Dead letters: when an event dies, its payload goes to the target that the tenant names for that.

A dead letter is an event of its own, due at once. It has no key, because the dead event may block that key, and no
recurrence. Its headers name the dead event and the reason. Users cannot set headers of these names, so the headers
identify a dead letter: one that dies makes no other.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from everbell.core.event import Event

ID_HEADER = "everbell-dead-id"
_REASON_LENGTH_MAX = 500
_NOT_FOR_HEADERS = re.compile(r"[^\x20-\x7e]", re.ASCII)
_SAFE = "!#$&'()*+,/:;=?@[]"


def is_letter(event: Event) -> bool:
    """Whether the event is a dead letter."""
    return any(name == ID_HEADER for name, _ in event.headers)


def letter_of(dead: Event, to: str, event_id: str, sequence: int, now: int) -> Event:
    """The dead letter of an event that has just died. `event_id` was made for `now` and the same partition."""
    told = (
        (ID_HEADER, quote(dead.name, safe=_SAFE)),
        ("everbell-dead-to", _plain(dead.to)),
        ("everbell-dead-attempts", str(dead.attempt_count)),
        ("everbell-dead-reason", _plain(dead.reason or "")[:_REASON_LENGTH_MAX]),
    )
    return Event(
        event_id,
        dead.tenant,
        dead.partition,
        sequence,
        now,
        now,
        to,
        dead.payload,
        now,
        content_type=dead.content_type,
        headers=(*dead.headers, *told),
        tags=dead.tags,
        traceparent=dead.traceparent,
    )


def _plain(text: str) -> str:
    return _NOT_FOR_HEADERS.sub("?", text).strip()
