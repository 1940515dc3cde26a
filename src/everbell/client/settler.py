"""Tells the server what became of leased events: in batches, in order, and again until it was heard.

While one request is under way, whatever else ends is gathered for the next one, so a busy worker sends few large
requests and an idle one sends at once. What the server refuses for good, and what fails a few times in a way that
nobody foresaw, is dropped with a word in the log: the lease runs out, and the event comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from everbell.channels.queue import LEASE_EVENTS_MAX, Lease
from everbell.client.answers import Settled
from everbell.client.call import Backoff
from everbell.client.event_json import Duration
from everbell.client.queue_calls import Failure
from everbell.errors import EverbellError

T = TypeVar("T")

SURPRISES_MAX = 5
"""How often telling may fail in a way that nobody foresaw. It must not hold up all later outcomes for ever."""

log = logging.getLogger("everbell.worker")


class LeasingClient(Protocol):
    """What a worker needs of a client; `AsyncClient` has it."""

    async def lease(self, queue: str, *, limit: int, wait: Duration, lease: Duration | None) -> list[Lease]:
        """See `everbell.client.queue_calls`."""
        ...

    async def ack(self, queue: str, leases: Sequence[str]) -> Settled:
        """See `everbell.client.queue_calls`."""
        ...

    async def extend(self, queue: str, leases: Sequence[str], *, lease: Duration) -> Settled:
        """See `everbell.client.queue_calls`."""
        ...

    async def fail(self, queue: str, failures: Sequence[Failure]) -> Settled:
        """See `everbell.client.queue_calls`."""
        ...


def is_final(error: EverbellError) -> bool:
    """Whether trying again will not help: the request itself is at fault, or we may not make it."""
    return 400 <= error.status < 500 and error.status not in (408, 425, 429)


class Settler:
    """The outcomes of one queue, on their way to the server."""

    def __init__(self, client: LeasingClient, queue: str, backoff: Backoff) -> None:
        self._client = client
        self._queue = queue
        self._backoff = backoff
        self._acks: list[str] = []
        self._failures: list[Failure] = []
        self._task: asyncio.Task[None] | None = None

    def ack(self, token: str) -> None:
        """The event is done."""
        self._acks.append(token)
        self._send_soon()

    def fail(self, failure: Failure) -> None:
        """The event was not handled."""
        self._failures.append(failure)
        self._send_soon()

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the server knows everything; False when that took too long, and was given up."""
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
            # In the same step as the last look: whatever ends after this must find that nobody is sending.
            self._task = None

    async def _insist(self, tell: Callable[[str, Sequence[T]], Awaitable[Settled]], items: list[T]) -> None:
        tries = surprises = 0
        while True:
            try:
                settled = await tell(self._queue, items)
            except EverbellError as error:
                tries += 1
                if is_final(error):
                    log.error("queue %s: %d outcomes were not taken: %s", self._queue, len(items), error)
                    return
                log.warning("queue %s: %d outcomes wait to be told: %s", self._queue, len(items), error)
                await asyncio.sleep(self._backoff(tries))
            except Exception:
                tries += 1
                surprises += 1
                if surprises == SURPRISES_MAX:
                    log.exception(
                        "queue %s: %d outcomes cannot be told; their events come again", self._queue, len(items)
                    )
                    return
                log.warning("queue %s: %d outcomes wait to be told", self._queue, len(items), exc_info=True)
                await asyncio.sleep(self._backoff(tries))
            else:
                # After a first try whose answer was lost, our own leases are named too; nothing is wrong then.
                if settled.lost and tries == 0:
                    log.warning(
                        "queue %s: %d leases ran out before their outcome was told; their events come again",
                        self._queue,
                        len(settled.lost),
                    )
                return
