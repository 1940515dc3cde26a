"""What the processes of a benchmark are told to do."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

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


class BareHttpPlan(Struct, frozen=True):
    """Which bare server: our HTTP server with a constant answer, or a protocol of thirty lines."""

    kind: Literal["server", "protocol"]


class LibraryPlan(Struct, frozen=True):
    """An engine with an async handler inside a program."""

    directory: str
    lateness: bool = False
