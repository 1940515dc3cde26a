"""The workers that told their names when they called this node."""

from __future__ import annotations

from everbell.clock import Clock
from everbell.core.queue_view import WorkerInfo, WorkerView
from everbell.core.time import MINUTE_MS, format_instant

# Callers may invent names, so only the latest are remembered.
WORKERS_MAX = 1_000
KEPT_MS = 10 * MINUTE_MS
"""How long a worker is listed after its last call."""


class Workers:
    """The latest call of each worker for each queue."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str, str, str | None], tuple[WorkerInfo, int]] = {}

    def note(self, tenant: str, queue: str, worker: WorkerInfo) -> None:
        """A worker calls for a queue."""
        place = (tenant, queue, worker.name, worker.host)
        self._seen.pop(place, None)
        self._seen[place] = (worker, self._clock.now())
        if len(self._seen) > WORKERS_MAX:
            del self._seen[next(iter(self._seen))]

    def of(self, tenant: str) -> dict[str, list[WorkerView]]:
        """The workers of a tenant that called in the last minutes, by queue."""
        since_at = self._clock.now() - KEPT_MS
        found: dict[str, list[WorkerView]] = {}
        for (owner, queue, _, _), (worker, called_at) in self._seen.items():
            if owner == tenant and called_at >= since_at:
                view = WorkerView(worker.name, format_instant(called_at), worker.host, worker.version, worker.queues)
                found.setdefault(queue, []).append(view)
        return found
