"""The queues of a tenant and their workers, as users see them, and how the views of several nodes become one.

Times are text in one format, so that the order of texts is the order of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from everbell.core.pause import PauseInForce

WORKER_TEXT_MAX = 128
WORKER_QUEUES_MAX = 100

WorkerText = Annotated[str, Meta(min_length=1, max_length=WORKER_TEXT_MAX)]


class WorkerInfo(Struct, frozen=True, omit_defaults=True):
    """What a worker tells about itself. Unknown fields are ignored, because a worker may be newer than the server."""

    name: WorkerText
    host: WorkerText | None = None
    version: WorkerText | None = None
    queues: Annotated[tuple[WorkerText, ...], Meta(max_length=WORKER_QUEUES_MAX)] = ()
    """All queues that it has handlers for."""


class WorkerView(Struct, frozen=True, omit_defaults=True):
    """A worker that told its name when it called."""

    name: str
    last_contact: str
    host: str | None = None
    version: str | None = None
    """The version of the worker's library."""
    queues: tuple[str, ...] = ()
    """All queues that it has handlers for."""


class RecentAttempts(Struct, frozen=True, omit_defaults=True):
    """Attempts that ended in about the last minute, and how long they took."""

    delivered: int = 0
    failed: int = 0
    p50_ms: int | None = None
    p90_ms: int | None = None
    p99_ms: int | None = None


class QueueView(Struct, frozen=True, omit_defaults=True):
    """A queue as it is now."""

    name: str
    waiting: int
    """The number of due events in memory that wait for a worker."""
    in_flight: int
    """The number of events that workers hold leases of."""
    last_minute: RecentAttempts
    workers: tuple[WorkerView, ...]
    """Those that called in the last minutes and told their names."""
    more: bool = False
    """Whether further due events are in the store only."""
    oldest_wait_ms: int | None = None
    """How long the oldest waiting event has been due."""
    last_contact: str | None = None
    """The last call of any worker, since the nodes started."""
    stalled: bool = False
    """Whether events are due, and no worker has called for a minute."""
    paused: PauseInForce | None = None


class QueuesView(Struct, frozen=True, omit_defaults=True):
    """The queues of a tenant, by name."""

    queues: tuple[QueueView, ...]
    unheard: tuple[str, ...] = ()
    """The nodes that did not answer, so that figures may be too low."""


def merged_queues(views: Sequence[QueuesView], unheard: Sequence[str]) -> QueuesView:
    """The queues of all nodes as one list."""
    queues: dict[str, QueueView] = {}
    for view in views:
        for queue in view.queues:
            known = queues.get(queue.name)
            queues[queue.name] = queue if known is None else _merged(known, queue)
    return QueuesView(tuple(queues[name] for name in sorted(queues)), tuple(unheard))


def _merged(one: QueueView, other: QueueView) -> QueueView:
    return QueueView(
        one.name,
        one.waiting + other.waiting,
        one.in_flight + other.in_flight,
        merged_attempts(one.last_minute, other.last_minute),
        _latest_of_each((*one.workers, *other.workers)),
        one.more or other.more,
        longest(one.oldest_wait_ms, other.oldest_wait_ms),
        max(filter(None, (one.last_contact, other.last_contact)), default=None),
        one.stalled or other.stalled,
        one.paused or other.paused,
    )


def merged_attempts(one: RecentAttempts, other: RecentAttempts) -> RecentAttempts:
    """The attempts of two nodes. The slower node's percentiles count, because the whole cannot be known from parts."""
    return RecentAttempts(
        one.delivered + other.delivered,
        one.failed + other.failed,
        longest(one.p50_ms, other.p50_ms),
        longest(one.p90_ms, other.p90_ms),
        longest(one.p99_ms, other.p99_ms),
    )


def longest(one: int | None, other: int | None) -> int | None:
    """The longer of two durations, if there is one."""
    return max((each for each in (one, other) if each is not None), default=None)


def _latest_of_each(workers: Iterable[WorkerView]) -> tuple[WorkerView, ...]:
    """The workers by name. One that called several nodes is listed once, with its last call."""
    latest: dict[tuple[str, str | None], WorkerView] = {}
    for worker in workers:
        known = latest.get((worker.name, worker.host))
        if known is None or known.last_contact < worker.last_contact:
            latest[worker.name, worker.host] = worker
    return tuple(sorted(latest.values(), key=lambda worker: (worker.name, worker.host or "")))
