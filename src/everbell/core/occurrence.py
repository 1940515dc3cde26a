"""The value that handlers and workers receive: one occurrence of an event, on one attempt."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from everbell.core.delivery_form import users_headers
from everbell.core.event import Event


class Occurrence(msgspec.Struct, frozen=True, gc=False):
    """(id, number) is the same on every attempt: use it to tell a duplicate."""

    id: str
    number: int
    attempt: int
    tenant: str
    due_at: int
    epoch: int
    raw: bytes
    """The payload's bytes: JSON, unless `content_type` says otherwise."""
    key: str | None = None
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    traceparent: str | None = None

    @property
    def payload(self) -> Any:
        """The payload: decoded JSON, or the bytes as they came."""
        return payload_of(self.raw) if self.content_type is None else self.raw

    @property
    def due(self) -> datetime:
        """The nominal time."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.due_at)


def payload_of(raw: bytes) -> Any:
    """Decode a JSON payload. A number that is too large for Python becomes infinity."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        # The payload was checked as JSON on the way in, so only a number can be too large for the fast decoder.
        return json.loads(raw, parse_int=_integer)


def _integer(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:  # Python refuses to convert thousands of digits, because that is slow.
        return float(text)


def occurrence_of(event: Event, attempt: int, epoch: int) -> Occurrence:
    """The occurrence of an event for one attempt."""
    return Occurrence(
        event.origin or event.id,
        event.occurrence,
        attempt,
        event.tenant,
        event.due_at,
        epoch,
        event.payload,
        event.key,
        event.content_type,
        users_headers(event.headers) if event.headers else (),
        event.tags,
        event.traceparent,
    )
