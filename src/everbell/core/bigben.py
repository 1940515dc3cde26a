"""BigBen, another scheduler: its names of tenants, its times, and the JSON that its receivers get.

A tenant of BigBen has any text as its name. Here it is the tenant `bb.` and that text, in which `_2F` stands for a
slash: an underscore and two hexadecimal digits for each byte that a tenant's name cannot have. So every name can be
turned back, and no tenant of BigBen is one that was made for another purpose.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from everbell.core.event import Event
from everbell.core.tenant import is_tenant_name
from everbell.core.time import parse_instant
from everbell.errors import InvalidInput

PREFIX = "bb."

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-")
_ESCAPED = re.compile(rb"_([0-9A-F]{2})")
_ZONE_NAME = re.compile(r"\[[^\]]*\]$")
_NO_SECONDS = re.compile(r"(T\d\d:\d\d)(?=Z|[+-]|$)", re.ASCII)

_encode = msgspec.json.encode


class EventError(Struct, frozen=True):
    """Why an event was rejected, or failed."""

    code: int
    message: str


class EventResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """An event as BigBen shows it: in answers, and to its receiver."""

    id: str | None = None
    event_time: str | None = None
    tenant: str | None = None
    mode: str = "UPSERT"
    payload: str | None = None
    delivery_option: str | None = "FULL_EVENT"
    event_id: str | None = None
    triggered_at: str | None = None
    event_status: str | None = None
    error: EventError | None = None


def native_tenant(name: str) -> str:
    """The tenant that has the events of a tenant of BigBen. Raises `InvalidInput`."""
    try:
        text = name.encode()
    except UnicodeEncodeError:
        raise InvalidInput("the tenant is no text") from None
    native = PREFIX + "".join(chr(byte) if byte in _PLAIN else f"_{byte:02X}" for byte in text)
    if not text or not is_tenant_name(native):
        raise InvalidInput(
            "a tenant has at most 61 characters here; each one that is no letter or digit counts as more"
        )
    return native


def bigben_tenant(native: str) -> str | None:
    """The tenant of BigBen with that name; None for a tenant that is none."""
    if not native.startswith(PREFIX):
        return None
    escaped = native.removeprefix(PREFIX).encode()
    try:
        return _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), escaped).decode()
    except UnicodeDecodeError:
        return None


def parse_event_time(text: str) -> int:
    """Parse a time as Java writes it: perhaps without seconds, perhaps with the name of the zone. Raises
    `InvalidInput`.
    """
    return parse_instant(_NO_SECONDS.sub(r"\1:00", _ZONE_NAME.sub("", text.strip())), "eventTime")


def event_time(at: int) -> str:
    """A time as Java writes it: seconds and their fraction are left out where they are zero."""
    moment = datetime.fromtimestamp(at // 1_000, UTC)
    text = f"{moment:%Y-%m-%dT%H:%M}"
    if at % 60_000:
        text += f":{moment:%S}"
    return f"{text}.{at % 1_000:03}Z" if at % 1_000 else f"{text}Z"


def payload_of(event: Event) -> str | None:
    """The payload; None if the event came without one."""
    if event.content_type is None and event.payload == b"null":
        return None
    return event.payload.decode("utf-8", "replace")


def full_event(event: Event, now: int) -> bytes:
    """The JSON that the receiver of an event gets."""
    # BigBen gives no id to an event that was late already when it came.
    was_late = event.repeat is None and event.due_at <= event.created_at
    return _encode(
        EventResponse(
            id=event.key or event.id,
            event_time=event_time(event.due_at),
            tenant=bigben_tenant(event.tenant) or event.tenant,
            payload=payload_of(event),
            event_id=None if was_late else event.name,
            triggered_at=event_time(now),
            event_status="TRIGGERED",
        )
    )
