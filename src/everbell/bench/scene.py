"""The input of every measurement: its scale, the services that it may use, and a progress callback."""

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
TENANT = "bench"

OnProgress = Callable[[int], None]


class Scene(Struct, frozen=True):
    """One run of measurements."""

    scale: Scale
    gateways: int | None
    """The requested number; None leaves the choice to the measurement."""
    postgres: str | None
    """The URL of a PostgreSQL database; None skips the measurements that need one."""
    kafka: str | None
    """Kafka brokers; None skips the measurements that need them."""
    cassandra: str | None
    """The URL of a Cassandra cluster; None skips the measurements that need one."""
    progress: Callable[[str, int], OnProgress]
    """Takes a description and the number of events; returns a callback for the number of events done."""

    @property
    def few_gateways(self) -> int:
        """The number of gateways for measurements that do not compare several."""
        return self.gateways or 0


def now_ms() -> int:
    return SystemClock().now()


def rest_until(at: int) -> None:
    rest((at - now_ms()) / 1_000)


def rest(seconds: float) -> None:
    threading.Event().wait(max(seconds, 0.0))


def batches(events: int) -> tuple[int, int]:
    """The number and size of requests for about `events` events, in whole requests."""
    size = min(BATCH, events)
    return max(events // size, 1), size


def load_plan(
    port: int, to: str, size: int, connections: int, *, tenant: str = TENANT, due_from: int, due_span_ms: int = 1
) -> LoadPlan:
    """Batches of events, or single ones, for a server."""
    path = f"/v1/tenants/{tenant}/events" + ("/batch" if size > 1 else "")
    return LoadPlan("127.0.0.1", port, path, to, size, connections, due_from, due_span_ms)


def send(load: Partner, count: int, progress: OnProgress) -> Sent:
    """Let a load generator that is ready send `count` requests. Raises `BenchFailed` if one was refused."""
    load.tell(count)
    sent = Sent(**load.hear(progress))
    if sent.failed:
        raise BenchFailed(f"{sent.failed} of {sent.requests} requests failed: {sent.first_failure}")
    return sent
