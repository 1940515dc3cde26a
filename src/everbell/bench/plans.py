"""The plans for the processes of a benchmark, and their answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from everbell.bench.figures import Lateness

PAYLOAD_BYTES = 300
"""The size in published figures of other schedulers."""


class LoadPlan(Struct, frozen=True):
    """The requests of a load generator: batches of events, single events, or bodies that are no events."""

    host: str
    port: int
    path: str
    to: str
    batch: int
    """Events in a request; 1: one POST per event."""
    connections: int
    due_from: int
    """The first due time; due times are random over the span that follows."""
    due_span_ms: int
    in_order: bool = False
    """Due times are spread evenly, and requests are sent in due order, each prepared request once."""
    prepared: int = 32
    """The number of different requests."""
    as_delivery: bool = False
    """Send bare payloads, as a delivering client would, instead of events."""
    cron: str = ""
    """Events recur by this expression."""
    token: str = ""
    """An access key for every request."""
    payload_bytes: int = PAYLOAD_BYTES
    more_ports: tuple[int, ...] = ()
    """The ports of further nodes; the connections are spread over all of them."""


class AttackPlan(Struct, frozen=True):
    """An attack on a server, repeated for some seconds."""

    name: str
    port: int
    token: str
    seconds: float


class PingPlan(Struct, frozen=True):
    """Pings of a server, with pauses in between."""

    port: int
    pause_s: float


class PacePlan(Struct, frozen=True):
    """Single events at a steady pace, over connections to several nodes."""

    ports: tuple[int, ...]
    path: str
    to: str
    connections: int
    per_s: int
    due_from: int
    due_span_ms: int


class Paced(Struct, frozen=True):
    """How long after its time each of the paced requests was answered, and the requests that failed."""

    took: Lateness
    failed: int
    first_failure: str = ""


class BareHoldersPlan(Struct, frozen=True):
    """The ports of bare holders; without any, be one. With `reads`, a holder reads the events and keeps each."""

    ports: tuple[int, ...] = ()
    batch: int = 0
    reads: bool = False


class Sent(Struct, frozen=True):
    """The result of one round of load."""

    seconds: float
    requests: int
    events: int
    failed: int
    cpu_s: float
    first_failure: str = ""

    @property
    def rate(self) -> float:
        return self.events / self.seconds


class PullPlan(Struct, frozen=True):
    """Pulling workers."""

    host: str
    port: int
    path: str
    workers: int
    batch: int


class ReceiverPlan(Struct, frozen=True):
    """A receiver, which counts events and records their lateness on request."""

    lateness: bool = False


class ReceiverOrder(Struct, frozen=True):
    """Wait until this many events have arrived, by path; then report, and count anew."""

    expect: dict[str, int]
    until_ns: int | None = None
    """Lateness counts only events that arrived up to this time."""


class Counted(Struct, frozen=True):
    """A receiver's report on one path."""

    count: int
    first_ns: int
    last_ns: int
    lateness: Lateness | None


class BareHttpPlan(Struct, frozen=True):
    """Which bare server: our HTTP server with a constant answer, or a protocol of thirty lines."""

    kind: Literal["server", "protocol"]


class TimersPlan(Struct, frozen=True):
    """Wait for a number of milliseconds, each by a timer."""

    milliseconds: int


class RowsPlan(Struct, frozen=True):
    """Batches of rows for a bare store in a directory or at a URL; `finish` deletes each batch after it was written."""

    place: str
    batches: int
    size: int
    finish: bool = False


class KafkaPlan(Struct, frozen=True):
    """Write events for a target into a topic; with a group, copy a topic to another one."""

    brokers: str
    topic: str
    to: str
    events: int
    group: str = ""
    due_at: int = 0


class ProgramPlan(Struct, frozen=True):
    """An engine with an async handler inside a program, on the store of a URL."""

    store: str


class ProgramOrder(Struct, frozen=True):
    """Schedule batches in process, or expect events over HTTP; report when all are finished."""

    batches: int = 0
    size: int = 0
    expect: int = 0


class Finished(Struct, frozen=True):
    """The report of a program when all its events have been delivered and finished."""

    seconds: float
    events: int
    cpu_s: float
    lateness: Lateness | None = None


class OutboxPlan(Struct, frozen=True):
    """An application with connections to a database that has an outbox."""

    url: str
    connections: int


class OutboxOrder(Struct, frozen=True):
    """Transactions with an order alone (`plain`), or with an event, too; or fill the outbox, or drain it."""

    work: Literal["plain", "schedule", "fill", "drain"]
    count: int
    event: str = ""
    per_s: float | None = None
    """The pace; None: as fast as possible."""
