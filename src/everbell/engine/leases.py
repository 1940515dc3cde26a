"""The requests of workers about queues. An acknowledgement is answered when it is durable, like every other request."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from everbell.channels.queue import Lease, QueueChannel
from everbell.core.request import Handler
from everbell.core.retry import Outcome
from everbell.engine.requests import Acknowledge, ExtendLeases, FailLeases, GiveBack, LeaseEvents
from everbell.engine.writer import StoreWriter


class Leases:
    """Answers the requests of `engine.requests` that are about queues."""

    def __init__(self, queues: QueueChannel, writer: StoreWriter, flush: Callable[[], None]) -> None:
        self._queues = queues
        self._writer = writer
        self._flush = flush  # Submits the collected outcomes.

    def handlers(self) -> tuple[Handler, ...]:
        """The requests about queues."""
        return (
            LeaseEvents.by(self._lease),
            Acknowledge.by(self._acknowledge),
            FailLeases.by(self._fail),
            GiveBack.by(self._give_back),
            ExtendLeases.by(self._extend),
        )

    async def _lease(self, request: LeaseEvents) -> list[Lease]:
        return await self._queues.lease(request.tenant, request.queue, request.limit, request.wait_ms, request.lease_ms)

    async def _acknowledge(self, request: Acknowledge) -> list[str]:
        return await self._settle(request.tenant, request.queue, dict.fromkeys(request.tokens))

    async def _fail(self, request: FailLeases) -> list[str]:
        return await self._settle(request.tenant, request.queue, request.failures)

    async def _give_back(self, request: GiveBack) -> list[str]:
        return self._queues.give_back(request.tenant, request.queue, request.tokens)

    async def _extend(self, request: ExtendLeases) -> list[str]:
        return self._queues.extend(request.tenant, request.queue, request.tokens, request.lease_ms)

    async def _settle(self, tenant: str, queue: str, outcomes: Mapping[str, Outcome | None]) -> list[str]:
        lost = self._queues.settle(tenant, queue, outcomes)
        self._flush()
        await self._writer.caught_up()
        return lost
