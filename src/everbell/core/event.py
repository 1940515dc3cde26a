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
from everbell.core.time import INSTANT_MAX
from everbell.core.timetable import Gap, Repeated

State = Literal["scheduled", "waiting", "dead"]
End = Literal["delivered", "cancelled", "expired"]
Status = Literal[
    "scheduled", "waiting", "retrying", "delivering", "paused", "dead", "delivered", "cancelled", "expired"
]
Misfire = Literal["all", "latest", "skip"]
Overlap = Literal["wait", "skip", "allow"]

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

_SECOND_DIGEST = 1 << 32
"""Marks digests of the second generation; those of the first are less."""

ATTEMPTS_KEPT = 20
"""How many attempts are kept in full, the first and the latest; the count goes on."""


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One try at delivering an occurrence."""

    number: int
    started_at: int
    duration_ms: int
    result: Result
    reason: str | None = None
    code: int | None = None


class Repeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an event comes again; `core.recurrence` says what that means. Rows are as those of `Event`."""

    every_ms: int
    """On the grid of the first due time; 0 where `cron` says when."""
    count: int | None = None
    until_at: int | None = None
    cron: str | None = None
    tz: str = "UTC"
    gap: Gap = "skip"
    repeated: Repeated | None = None
    """None: once for an expression that names hours, twice for one that does not."""
    jitter_ms: int = 0
    misfire: Misfire = "all"
    catch_up_ms: int | None = None
    """How late an occurrence may begin; None: however late, or, where late ones are skipped, hardly at all."""
    overlap: Overlap = "wait"


class Course(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the occurrences of a recurring event have fared, and whether it is paused."""

    fired: int = 0
    expired: int = 0
    late: int = 0
    paused: int = 0
    overlapped: int = 0
    gaps: int = 0
    paused_at: int | None = None
    note: str | None = None

    @property
    def missed(self) -> int:
        """Those that should have rung and did not."""
        return self.expired + self.late + self.paused

    @property
    def skipped(self) -> int:
        """Those that were not to ring."""
        return self.overlapped + self.gaps


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
    course: Course | None = None
    """Of a recurring event, once there is something to tell."""
    origin: str | None = None
    """The id of the recurring event of which this is an occurrence that goes its own way."""

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
        if self.repeat is None and self.origin is None:
            return self.id
        return f"{self.origin or self.id}:{self.occurrence}"


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
    course: Course | None = None
    origin: str | None = None


def position(at: int, sequence: int) -> int:
    """(time, sequence) as one integer, ordered like the pair; a sequence has 56 bits."""
    return at << 56 | sequence


def position_at(position: int) -> int:
    """The time in a position."""
    return position >> 56


def status_of(event: Event) -> Status:
    """The status that a user sees of an unfinished event that is not under way."""
    if event.state == "scheduled":
        if is_paused(event):
            return "paused"
        if event.attempt_count:
            return "retrying"
    return event.state


def is_paused(event: Event) -> bool:
    """Whether the event rings only once it is resumed."""
    return event.course is not None and event.course.paused_at is not None and event.run_at == INSTANT_MAX


def digest_of(event: Event) -> int:
    """A checksum of what the user asked for, apart from the time.

    Records keep it, so what goes into it cannot change without another generation: a field that is added to `Retry` or
    `Repeat` would turn repeated requests into conflicts.
    """
    asked = (*_first_asked(event), event.retry, event.repeat, event.expires_ms)
    return _SECOND_DIGEST | crc32(msgspec.msgpack.encode(asked))


def is_repeated(existing: Event | Record, asked: Event) -> bool:
    """Whether a request asks for the event that has its id already, and not for another one."""
    if isinstance(existing, Event):
        return digest_of(existing) == digest_of(asked)
    if existing.digest >= _SECOND_DIGEST:
        return existing.digest == digest_of(asked)
    return existing.digest == crc32(msgspec.msgpack.encode(_first_asked(asked)))


def _first_asked(event: Event) -> tuple[object, ...]:
    """All that the first generation of digests knew."""
    return event.to, event.payload, event.key, event.content_type, event.headers, event.tags


def with_attempt(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """The attempts with one more; beyond `ATTEMPTS_KEPT` the oldest are dropped, but for the first, which says when the
    occurrence began."""
    if len(attempts) < ATTEMPTS_KEPT:
        return (*attempts, attempt)
    return (attempts[0], *attempts[-(ATTEMPTS_KEPT - 2) :], attempt)
