"""A server of leases in memory, for workers on virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from everbell.channels.queue import Lease
from everbell.client.answers import Settled
from everbell.client.event_json import DurationLike
from everbell.client.queue_calls import Failure
from everbell.core.occurrence import Occurrence
from everbell.core.queue_view import WorkerInfo
from everbell.errors import EverbellError


class FakeLeases:
    """Hands out the given leases, and keeps the reported outcomes. `down` makes every call raise."""

    def __init__(self) -> None:
        self.ready: dict[str, deque[Lease]] = {}
        self.held: set[str] = set()
        self.limits: list[int] = []
        self.acked: list[str] = []
        self.ack_calls = 0
        self.failed: list[Failure] = []
        self.extended: list[tuple[float, tuple[str, ...]]] = []
        self.down: EverbellError | None = None
        self.lease_calls = 0
        self.workers: list[WorkerInfo | None] = []
        """What the worker told about itself, by call."""
        self._arrived = asyncio.Event()
        self._told = asyncio.Event()

    def put(self, queue: str, *names: str) -> None:
        """Events become due; the token of each is its name."""
        for name in names:
            occurrence = Occurrence(name, 1, 1, "default", 0, 1, b'{"n": 1}')
            self.ready.setdefault(queue, deque()).append(Lease(name, 0, occurrence))
        self._arrived.set()

    def break_down(self, error: EverbellError) -> None:
        """Every call raises this from now on, those that wait included."""
        self.down = error
        self._arrived.set()

    async def told(self, count: int) -> None:
        """Wait until this many outcomes were reported."""
        while len(self.acked) + len(self.failed) < count:
            self._told.clear()
            await self._told.wait()

    async def lease(
        self, queue: str, *, limit: int, wait: DurationLike, lease: DurationLike | None, worker: WorkerInfo | None
    ) -> list[Lease]:
        self.lease_calls += 1
        self.workers.append(worker)
        self._check()
        assert isinstance(wait, float)
        end_s = asyncio.get_running_loop().time() + wait
        while not self.ready.get(queue):
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), end_s - asyncio.get_running_loop().time())
            except TimeoutError:
                return []
            self._check()
        ready = self.ready[queue]
        leases = [ready.popleft() for _ in range(min(limit, len(ready)))]
        self.limits.append(limit)
        self.held.update(lease.token for lease in leases)
        return leases

    async def ack(self, queue: str, leases: Sequence[str]) -> Settled:
        self._check()
        self.ack_calls += 1
        await asyncio.sleep(0.001)  # The time of a round trip, in which others end.
        self.acked.extend(leases)
        return self._settle(leases)

    async def fail(self, queue: str, failures: Sequence[Failure]) -> Settled:
        self._check()
        self.failed.extend(failures)
        return self._settle([failure.lease for failure in failures])

    async def extend(
        self, queue: str, leases: Sequence[str], *, lease: DurationLike, worker: WorkerInfo | None
    ) -> Settled:
        self._check()
        self.workers.append(worker)
        self.extended.append((asyncio.get_running_loop().time(), tuple(leases)))
        lost = [token for token in leases if token not in self.held]
        return Settled(len(leases) - len(lost), lost)

    def _settle(self, tokens: Sequence[str]) -> Settled:
        lost = [token for token in tokens if token not in self.held]
        self.held.difference_update(tokens)
        self._told.set()
        return Settled(len(tokens) - len(lost), lost)

    def _check(self) -> None:
        if self.down is not None:
            raise self.down
