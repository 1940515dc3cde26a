"""What a worker may ask of a queue. An acknowledgement is answered when it is durable, like everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from everbell.channels.queue import Lease, QueueChannel
from everbell.core.retry import Outcome
from everbell.engine.scribe import Scribe


class Leases:
    """Leasing, acknowledging, extending and failing, in batches.

    Each answer lists the tokens that were not held any more.
    """

    def __init__(self, queues: QueueChannel, scribe: Scribe, flush: Callable[[], None]) -> None:
        self._queues = queues
        self._scribe = scribe
        self._flush = flush
        """Submits the outcomes that have been collected."""

    async def lease(self, tenant: str, queue: str, limit: int, wait_ms: int, lease_ms: int | None) -> list[Lease]:
        """Up to `limit` due events, waiting up to `wait_ms` for the first. Raises `Stopping`."""
        return await self._queues.lease(tenant, queue, limit, wait_ms, lease_ms)

    async def acknowledge(self, tenant: str, queue: str, tokens: Sequence[str]) -> list[str]:
        """The events are done."""
        return await self._settle(tenant, queue, dict.fromkeys(tokens))

    async def fail(self, tenant: str, queue: str, failures: Mapping[str, Outcome]) -> list[str]:
        """The attempts failed: the events are tried again, or are dead, by their policy."""
        return await self._settle(tenant, queue, failures)

    async def give_back(self, tenant: str, queue: str, tokens: Sequence[str]) -> list[str]:
        """The events were not attempted: somebody else may have them at once, and no attempt is counted."""
        return self._queues.give_back(tenant, queue, tokens)

    async def extend(self, tenant: str, queue: str, tokens: Sequence[str], lease_ms: int) -> list[str]:
        """Hold the events for `lease_ms` more, from now."""
        return self._queues.extend(tenant, queue, tokens, lease_ms)

    async def _settle(self, tenant: str, queue: str, outcomes: Mapping[str, Outcome | None]) -> list[str]:
        lost = self._queues.settle(tenant, queue, outcomes)
        self._flush()
        await self._scribe.caught_up()
        return lost
