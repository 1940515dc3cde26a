"""When the workers of each queue called last, and how long due events have waited without such a call.

Every call of a worker counts: a worker that is busy with long handlers leases nothing, but it extends its leases.
"""

from __future__ import annotations

from everbell.clock import Clock

# Callers may invent names of queues, so only the latest are remembered.
QUEUES_MAX = 10_000


class QueueContacts:
    """The calls of workers, by queue: a pair of tenant and name. All times are on the clock of elapsed time."""

    def __init__(self, clock: Clock) -> None:
        self._elapsed_ms = clock.elapsed_ms
        self._called_ms: dict[tuple[str, str], int] = {}
        self._waiting_since_ms: dict[tuple[str, str], int] = {}

    def note(self, queue: tuple[str, str]) -> None:
        """A worker of the queue calls."""
        self._called_ms.pop(queue, None)
        self._called_ms[queue] = self._elapsed_ms()
        if len(self._called_ms) > QUEUES_MAX:
            del self._called_ms[next(iter(self._called_ms))]

    def begin_wait(self, queue: tuple[str, str]) -> None:
        """The queue has an event that waits for a worker, and had none before."""
        self._waiting_since_ms[queue] = self._elapsed_ms()

    def end_wait(self, queue: tuple[str, str]) -> None:
        """No event of the queue waits for a worker any more."""
        self._waiting_since_ms.pop(queue, None)

    def silent_ms(self, queue: tuple[str, str]) -> int | None:
        """The time since the last call of a worker. None: no call since this node started."""
        called_ms = self._called_ms.get(queue)
        return None if called_ms is None else self._elapsed_ms() - called_ms

    def ignored_ms(self, queue: tuple[str, str]) -> int:
        """How long events of the queue have been waiting while no worker called. 0: none waits."""
        since_ms = self._waiting_since_ms.get(queue)
        if since_ms is None:
            return 0
        return self._elapsed_ms() - max(since_ms, self._called_ms.get(queue, since_ms))

    def known(self, tenant: str) -> set[str]:
        """The names of the tenant's queues that workers called for, or that have waiting events."""
        return {name for owner, name in (*self._called_ms, *self._waiting_since_ms) if owner == tenant}
