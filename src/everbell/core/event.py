"""The event, the states it goes through, and what remains of it in the end.

An event is a frozen value; a change makes a new one. `TRANSITIONS` is the whole life of an event: what is not in the
table cannot happen. Where an event is kept follows from its fields alone (`state`, `partition`, `run_at`, …), so a
store never has to be told.

    scheduled ──► delivered | cancelled | expired          (ends, kept as a `Record` for the tenant's retention)
        │  ▲ ▲
        │  │ └── waiting      behind a blocked or crowded key; it enters in the key's order
        ▼  │
        dead                  gave up, kept whole with every attempt: redriven (back to scheduled) or cancelled
"""

from __future__ import annotations

from typing import Literal
from zlib import crc32

import msgspec

from everbell.core.retry import Result, Retry

State = Literal["scheduled", "waiting", "dead"]
End = Literal["delivered", "cancelled", "expired"]
Status = Literal["scheduled", "waiting", "retrying", "delivering", "dead", "delivered", "cancelled", "expired"]

TRANSITIONS: frozenset[tuple[State, State | End]] = frozenset(
    {
        ("scheduled", "scheduled"),  # a retry, a new time, a new payload, the next occurrence
        ("scheduled", "waiting"),
        ("scheduled", "dead"),
        ("scheduled", "delivered"),
        ("scheduled", "cancelled"),
        ("scheduled", "expired"),
        ("waiting", "scheduled"),  # a new time, a retry, the next occurrence
        ("waiting", "waiting"),
        ("waiting", "dead"),
        ("waiting", "delivered"),
        ("waiting", "cancelled"),
        ("waiting", "expired"),
        ("dead", "scheduled"),  # redriven
        ("dead", "cancelled"),
    }
)

ATTEMPTS_KEPT = 20
"""How many of the latest attempts are kept in full; the count goes on."""


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One try at delivering an occurrence."""

    number: int
    started_at: int
    duration_ms: int
    result: Result
    reason: str | None = None
    code: int | None = None


class Repeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an event comes again: every `every_ms` on the grid of its first due time, `count` times or until an
    instant."""

    every_ms: int
    count: int | None = None
    until_at: int | None = None


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a user scheduled. The order of the fields is the format of stored rows: add at the end, with a default."""

    id: str
    tenant: str
    partition: int
    sequence: int
    """The order of acceptance, over all partitions of a store."""
    due_at: int
    """The nominal time of this occurrence; with `sequence`, the event's place in its key's order."""
    run_at: int
    """Not before this: the due time, later the time of the next attempt, for a dead event when it died."""
    to: str
    payload: bytes
    created_at: int
    key: str | None = None
    state: State = "scheduled"
    version: int = 1
    """Counts the changes that users make; attempts do not count."""
    occurrence: int = 1
    attempt_count: int = 0
    attempts: tuple[Attempt, ...] = ()
    content_type: str | None = None
    """None: the payload is JSON, kept as it came."""
    headers: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    retry: Retry | None = None
    repeat: Repeat | None = None
    expires_ms: int | None = None
    """How long after its due time an occurrence is still worth delivering."""
    traceparent: str | None = None
    reason: str | None = None
    """Why it is dead."""

    @property
    def position(self) -> int:
        """The place in the order of ringing."""
        return position(self.run_at, self.sequence)

    @property
    def order(self) -> int:
        """The place in the order of the key: due time, then acceptance."""
        return position(self.due_at, self.sequence)

    @property
    def name(self) -> str:
        """The name of this occurrence, the same on every attempt."""
        return self.id if self.repeat is None else f"{self.id}:{self.occurrence}"


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is kept of a finished event, or of a finished occurrence: everything but the payload and the headers."""

    id: str
    tenant: str
    status: End
    due_at: int
    finished_at: int
    to: str
    created_at: int
    key: str | None = None
    version: int = 1
    occurrence: int = 1
    attempt_count: int = 0
    attempts: tuple[Attempt, ...] = ()
    tags: tuple[str, ...] = ()
    reason: str | None = None
    digest: int = 0
    """A checksum of what was asked for, to tell a repeated request from another event with the same id."""


def position(at: int, sequence: int) -> int:
    """(time, sequence) as one integer, ordered like the pair; a sequence has 56 bits."""
    return at << 56 | sequence


def position_at(position: int) -> int:
    """The time in a position."""
    return position >> 56


def status_of(event: Event) -> Status:
    """The status that a user sees of an unfinished event that is not under way."""
    if event.state == "scheduled" and event.attempt_count:
        return "retrying"
    return event.state


def digest_of(event: Event) -> int:
    """A checksum of what the user asked for, apart from the time."""
    asked = (event.to, event.payload, event.key, event.content_type, event.headers, event.tags)
    return crc32(msgspec.msgpack.encode(asked))


def with_attempt(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """The attempts with one more, the oldest dropped beyond `ATTEMPTS_KEPT`."""
    return (*attempts[-(ATTEMPTS_KEPT - 1) :], attempt)


def next_due(event: Event) -> int | None:
    """The due time of the next occurrence, on the grid of the first one; None when this was the last."""
    repeat = event.repeat
    if repeat is None or (repeat.count is not None and event.occurrence >= repeat.count):
        return None
    due_at = event.due_at + repeat.every_ms
    return due_at if repeat.until_at is None or due_at <= repeat.until_at else None
