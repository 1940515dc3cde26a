"""The value that handlers and workers receive: one occurrence of an event, on one attempt."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic

import msgspec
from msgspec import UNSET, UnsetType

from everbell.core.delivery_form import users_headers
from everbell.core.event import Event

if TYPE_CHECKING:
    # Only type checkers know the default before Python 3.13: `Occurrence` alone has a payload of any type.
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class Occurrence(msgspec.Struct, Generic[T], frozen=True, gc=False):
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
    attempts_max: int | UnsetType | None = UNSET
    """How many attempts the retry policy allows; None: any number; UNSET: an older server did not tell."""

    @property
    def payload(self) -> T:
        """The payload: decoded JSON, or the bytes as they came; in a typed task, a value of the task's type."""
        decoded: Any = payload_of(self.raw) if self.content_type is None else self.raw
        return decoded  # type: ignore[no-any-return] # Without a task, T is Any.

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt makes the event dead, as far as it is known."""
        return isinstance(self.attempts_max, int) and self.attempt >= self.attempts_max

    @property
    def deadline(self) -> datetime | None:
        """When the time limit of the task ends; None where the task has no time limit."""
        return None

    @property
    def due(self) -> datetime:
        """The nominal time."""
        return datetime_of(self.due_at)


def datetime_of(at: int) -> datetime:
    """An instant as an aware datetime."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)


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


def occurrence_of(event: Event, attempt: int, epoch: int, attempts_max: int | UnsetType | None) -> Occurrence:
    """The occurrence of an event for one attempt, of which its retry policy allows `attempts_max`."""
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
        attempts_max,
    )
