"""Reports the outcomes of leased events to the server: in batches, in order, with retries.

While one request is in flight, further outcomes are gathered for the next one, so a busy worker sends few large
requests and an idle one sends at once. Outcomes that the server refuses, or that fail several times with an unexpected
error, are dropped with a line in the log: the lease runs out, and the event is leased again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from everbell.channels.queue import LEASE_EVENTS_MAX, Lease
from everbell.client.answers import Settled
from everbell.client.call import RetryPause
from everbell.client.event_json import DurationLike
from everbell.client.queue_calls import Failure
from everbell.core.queue_view import WorkerInfo
from everbell.errors import EverbellError

T = TypeVar("T")

SURPRISES_MAX = 5
"""How many unexpected errors are retried. They must not hold up later outcomes for ever."""

log = logging.getLogger("everbell.worker")


class LeasingClient(Protocol):
    """The part of `AsyncClient` that a worker uses; see `queue_calls`."""

    async def lease(
        self, queue: str, *, limit: int, wait: DurationLike, lease: DurationLike | None, worker: WorkerInfo | None
    ) -> list[Lease]: ...

    async def ack(self, queue: str, leases: Sequence[str]) -> Settled: ...

    async def extend(
        self, queue: str, leases: Sequence[str], *, lease: DurationLike, worker: WorkerInfo | None
    ) -> Settled: ...

    async def fail(self, queue: str, failures: Sequence[Failure]) -> Settled: ...


def is_final(error: EverbellError) -> bool:
    """Whether a retry cannot help: the request itself is wrong, or the worker has no access."""
    return 400 <= error.status < 500 and error.status not in (408, 425, 429)


class Settler:
    """Reports the outcomes of one queue."""

    def __init__(self, client: LeasingClient, queue: str, backoff: RetryPause) -> None:
        self._client = client
        self._queue = queue
        self._backoff = backoff
        self._acks: list[str] = []
        self._failures: list[Failure] = []
        self._task: asyncio.Task[None] | None = None

    def ack(self, token: str) -> None:
        self._acks.append(token)
        self._send_soon()

    def fail(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._send_soon()

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all outcomes are reported; False when that took too long, and was given up."""
        task = self._task
        if task is None:
            return True
        await asyncio.wait((task,), timeout=timeout_s)
        if task.done():
            return True
        task.cancel()
        await asyncio.wait((task,))
        return False

    def _send_soon(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._acks or self._failures:
                acks, self._acks = self._acks[:LEASE_EVENTS_MAX], self._acks[LEASE_EVENTS_MAX:]
                if acks:
                    await self._insist(self._client.ack, acks)
                failures, self._failures = self._failures[:LEASE_EVENTS_MAX], self._failures[LEASE_EVENTS_MAX:]
                if failures:
                    await self._insist(self._client.fail, failures)
        finally:
            # In the same step as the last check: an outcome that is added after this must start a new task.
            self._task = None

    async def _insist(self, tell: Callable[[str, Sequence[T]], Awaitable[Settled]], items: list[T]) -> None:
        queue, count, tries, surprises = self._queue, len(items), 0, 0
        while True:
            try:
                settled = await tell(queue, items)
            except EverbellError as error:
                if is_final(error):
                    log.error("queue %s: the server refused %d outcomes: %s", queue, count, error)
                    return
                log.warning("queue %s: %d outcomes are not reported yet: %s", queue, count, error)
            except Exception:
                surprises += 1
                if surprises == SURPRISES_MAX:
                    log.exception("queue %s: %d outcomes cannot be reported; the events are leased again", queue, count)
                    return
                log.warning("queue %s: %d outcomes are not reported yet", queue, count, exc_info=True)
            else:
                # A retry after a lost answer finds leases lost that the first attempt settled. Nothing is wrong then.
                if settled.lost and tries == 0:
                    lost = len(settled.lost)
                    log.warning("queue %s: %d leases expired before their outcome was reported", queue, lost)
                return
            tries += 1
            await asyncio.sleep(self._backoff(tries))
