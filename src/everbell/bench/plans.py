"""What the processes of a benchmark are told to do, and what they answer."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from everbell.bench.figures import Lateness

PAYLOAD_BYTES = 300
"""As in the figures that others publish."""


class LoadPlan(Struct, frozen=True):
    """What a load generator sends: batches of events, single events, or a body that is no event at all."""

    host: str
    port: int
    path: str
    to: str
    batch: int
    """Events in a request; 1: a POST an event."""
    connections: int
    due_from: int
    """The first due time; dues are random over the span that follows."""
    due_span_ms: int
    in_order: bool = False
    """Dues are spread evenly and sent in due order, each prepared request once."""
    prepared: int = 32
    """How many different requests are built."""
    as_delivery: bool = False
    """Send bare payloads, as a client that delivers would, instead of events."""
    cron: str = ""
    """Events come again by this expression."""
    token: str = ""
    """An access key to show with every request."""
    payload_bytes: int = PAYLOAD_BYTES


class Sent(Struct, frozen=True):
    """What came of one round of load."""

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
    """How workers pull."""

    host: str
    port: int
    path: str
    workers: int
    batch: int


class ReceiverPlan(Struct, frozen=True):
    """What a receiver notes of what it gets: always how many, and how late if that is asked for."""

    lateness: bool = False


class ReceiverOrder(Struct, frozen=True):
    """Wait until so many events have arrived, by path; then report, and start counting anew."""

    expect: dict[str, int]
    until_ns: int | None = None
    """Lateness counts only what arrived up to this time."""


class Counted(Struct, frozen=True):
    """What a receiver reports of one path."""

    count: int
    first_ns: int
    last_ns: int
    lateness: Lateness | None


class BareHttpPlan(Struct, frozen=True):
    """Which bare server: our HTTP server with a constant answer, or a protocol of thirty lines."""

    kind: Literal["server", "protocol"]


class TimersPlan(Struct, frozen=True):
    """Wait for so many milliseconds, each by a timer."""

    milliseconds: int


class StorePlan(Struct, frozen=True):
    """Batches of rows for a bare RocksDB; `finish` deletes each batch again, as delivered events are."""

    directory: str
    batches: int
    size: int
    finish: bool = False


class CopyPlan(Struct, frozen=True):
    """Batches of rows for a bare PostgreSQL; `finish` deletes each batch again."""

    url: str
    batches: int
    size: int
    finish: bool = False


class KafkaPlan(Struct, frozen=True):
    """Write so many events that are for a target into a topic; with a group, pass a topic on to another one."""

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
    """Take in so many batches in process, or wait for so many events in all that come over HTTP; then report."""

    batches: int = 0
    size: int = 0
    expect: int = 0


class Finished(Struct, frozen=True):
    """What a program reports when everything that it took in has been delivered and finished."""

    seconds: float
    events: int
    cpu_s: float
    lateness: Lateness | None = None
