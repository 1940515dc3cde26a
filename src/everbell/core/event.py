"""The event, its states, and the record kept of a finished event.

An event is a frozen value; a change makes a new one. `TRANSITIONS` lists every state change that can happen. The
place of an event in a store follows from its fields alone (`state`, `partition`, `run_at`, …).

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

from everbell.core.retry import Result, RetryPolicy
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

_SECOND_DIGEST = 1 << 32  # Marks digests of the second generation; digests of the first are smaller.

Mark = tuple[str, int]
"""An outbox, and the number of the last of its rows that changed an event."""

ATTEMPTS_KEPT = 20
"""The number of attempts kept in full: the first and the latest. `attempt_count` counts all of them."""


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One try at delivering an occurrence."""

    number: int
    started_at: int
    duration_ms: int
    result: Result
    reason: str | None = None
    code: int | None = None


class Repeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The recurrence rule of an event; see `core.recurrence`. The order of fields is a stored format, as in `Event`."""

    every_ms: int
    """The interval, on the grid of the first due time; 0 if `cron` is given."""
    count: int | None = None
    until_at: int | None = None
    cron: str | None = None
    tz: str = "UTC"
    gap: Gap = "skip"
    repeated: Repeated | None = None
    """None: once for an expression that names hours, twice for any other."""
    jitter_ms: int = 0
    misfire: Misfire = "all"
    catch_up_ms: int | None = None
    """How late an occurrence may begin. None: without a limit, or with misfire `skip` by `GRACE_MS`."""
    overlap: Overlap = "wait"


class Course(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counts of a recurring event's occurrences by result, and its pause."""

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
        """Occurrences that should have rung and did not."""
        return self.expired + self.late + self.paused

    @property
    def skipped(self) -> int:
        """Occurrences that the rules left out."""
        return self.overlapped + self.gaps


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A scheduled event. The order of fields is the format of stored rows: add at the end, with a default."""

    id: str
    tenant: str
    partition: int
    sequence: int
    """The order of acceptance over all partitions of a store."""
    due_at: int
    """The nominal time of this occurrence; with `sequence`, the event's place in its key's order."""
    run_at: int
    """No attempt starts earlier: the due time, or the time of the next retry. For a dead event, the time of death."""
    to: str
    payload: bytes
    created_at: int
    key: str | None = None
    state: State = "scheduled"
    version: int = 1
    """Counts changes by users; attempts do not count."""
    occurrence: int = 1
    attempt_count: int = 0
    attempts: tuple[Attempt, ...] = ()
    content_type: str | None = None
    """None: the payload is JSON, kept as it came."""
    headers: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    retry: RetryPolicy | None = None
    repeat: Repeat | None = None
    expires_ms: int | None = None
    """How long after its due time an occurrence is still worth delivering."""
    traceparent: str | None = None
    reason: str | None = None
    """Why the event is dead."""
    course: Course | None = None
    """Set once a recurring event has something to report."""
    origin: str | None = None
    """For an occurrence of a recurring event that runs as an event of its own: the id of the recurring event."""
    marks: tuple[Mark, ...] = ()
    """The last change that each outbox made; see `core.amendment`."""
    produced_at: int | None = None
    """When the producer wrote the Kafka record that the event came in."""

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
    """The record of a finished event or occurrence: everything but the payload and the headers."""

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
    """A checksum of the request. It tells a repeated request from another event with the same id."""
    course: Course | None = None
    origin: str | None = None
    produced_at: int | None = None


def position(at: int, sequence: int) -> int:
    """(time, sequence) as one integer, ordered like the pair; a sequence has 56 bits."""
    return at << 56 | sequence


def position_at(position: int) -> int:
    """The time in a position."""
    return position >> 56


def status_of(event: Event) -> Status:
    """The status that users see of an unfinished event that is not in flight."""
    if event.state == "scheduled":
        if is_paused(event):
            return "paused"
        if event.attempt_count:
            return "retrying"
    return event.state


def is_paused(event: Event) -> bool:
    """Whether the event waits until a user resumes it."""
    return event.course is not None and event.course.paused_at is not None and event.run_at == INSTANT_MAX


def digest_of(event: Event) -> int:
    """A checksum of the user's request, apart from the time.

    Stored records contain it, so its input may only change together with the generation: a new field in `Retry` or
    `Repeat` would turn repeated requests into conflicts.
    """
    asked = (*_first_asked(event), event.retry, event.repeat, event.expires_ms)
    return _SECOND_DIGEST | crc32(msgspec.msgpack.encode(asked))


def is_repeated(existing: Event | Record, asked: Event) -> bool:
    """Whether a request repeats the one that created `existing`, rather than asking for another event with that id."""
    if isinstance(existing, Event):
        return digest_of(existing) == digest_of(asked)
    if existing.digest >= _SECOND_DIGEST:
        return existing.digest == digest_of(asked)
    return existing.digest == crc32(msgspec.msgpack.encode(_first_asked(asked)))


def _first_asked(event: Event) -> tuple[object, ...]:
    """The fields that the first generation of digests covered."""
    return event.to, event.payload, event.key, event.content_type, event.headers, event.tags


def with_attempt(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """The attempts plus one. Beyond `ATTEMPTS_KEPT`, the oldest are dropped except the first, which says when the
    occurrence began.
    """
    if len(attempts) < ATTEMPTS_KEPT:
        return (*attempts, attempt)
    return (attempts[0], *attempts[-(ATTEMPTS_KEPT - 2) :], attempt)
