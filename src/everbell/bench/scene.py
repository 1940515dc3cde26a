"""What every measurement is given: how much to do, a stage to do it on, and somebody to tell how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct

from everbell.bench.dialogue import BenchFailed, Partner
from everbell.bench.plans import LoadPlan, Sent
from everbell.bench.scale import Scale
from everbell.clock import SystemClock

BATCH = 1_000
HOUR_MS = 3_600_000
PATIENCE_S = 60.0
"""How long a partner may be silent before a measurement is given up."""
TENANT = "bench"

Progress = Callable[[int], None]


class Scene(Struct, frozen=True):
    """One run of measurements."""

    scale: Scale
    gateways: int | None
    """What was asked for; None leaves the choice to the measurement."""
    postgres: str | None
    """The URL of a database to measure with; None: what needs one is left out."""
    kafka: str | None
    """Brokers to measure with; None: what needs them is left out."""
    cassandra: str | None
    """The URL of a Cassandra to measure with; None: what needs one is left out."""
    progress: Callable[[str, int], Progress]
    """Given what is being done and how many events it takes, returns whom to tell how many are done."""

    @property
    def few_gateways(self) -> int:
        """The number for measurements that do not compare several."""
        return self.gateways or 0


def now_ms() -> int:
    """The wall clock's time."""
    return SystemClock().now()


def rest_until(at: int) -> None:
    """Wait for an instant."""
    rest((at - now_ms()) / 1_000)


def rest(seconds: float) -> None:
    """Leave everything alone for a while."""
    threading.Event().wait(max(seconds, 0.0))


def batches(events: int) -> tuple[int, int]:
    """How many requests of how many events make up about so many, in whole requests."""
    size = min(BATCH, events)
    return max(events // size, 1), size


def load_plan(
    port: int, to: str, size: int, connections: int, *, tenant: str = TENANT, due_from: int, due_span_ms: int = 1
) -> LoadPlan:
    """Batches of events, or single ones, for a server."""
    path = f"/v1/tenants/{tenant}/events" + ("/batch" if size > 1 else "")
    return LoadPlan("127.0.0.1", port, path, to, size, connections, due_from, due_span_ms)


def send(load: Partner, count: int, progress: Progress) -> Sent:
    """Let a load generator that is ready send so many requests. Raises `BenchFailed` when one was refused."""
    load.tell(count)
    sent = Sent(**load.hear(PATIENCE_S, progress))
    if sent.failed:
        raise BenchFailed(f"{sent.failed} of {sent.requests} requests failed: {sent.first_failure}")
    return sent
