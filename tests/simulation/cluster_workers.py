"""Workers of a simulated cluster: they pull due events from any node, and some die, are slow, or lose their answers.

An attempt counts from the worker's request, because no observer outside the node knows when the node gave the lease.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TypeVar

from everbell.channels.queue import Lease, partition_in
from everbell.core.request import Request
from everbell.core.retry import Outcome
from everbell.engine.requests import Acknowledge, FailLeases, LeaseEvents
from everbell.errors import EverbellError, Stopping
from everbell.testing.virtual import START_AT
from tests.simulation.network import Network
from tests.simulation.processes import clock_off_ms
from tests.simulation.receivers import Attempt, Receivers
from tests.simulation.rough_node import RoughNode

A = TypeVar("A")

QUEUE = "work"
LEASE_MS = 2_000


class Workers:
    """All workers."""

    def __init__(
        self, network: Network, nodes: dict[str, RoughNode], receivers: Receivers, dice: random.Random, skew_ms: int
    ) -> None:
        self._network = network
        self._nodes = nodes
        self._receivers = receivers
        self._dice = dice
        self._clock_off_ms = clock_off_ms(skew_ms)

    async def run(self, name: str, tenant: str) -> None:
        """Work until the task is cancelled."""
        while True:
            asked_ms = self._receivers.now_ms
            try:
                leases = await self._ask(LeaseEvents(tenant, QUEUE, 3, 1_000, LEASE_MS))
            except EverbellError:
                await asyncio.sleep(self._dice.uniform(0.2, 1.0))
                continue
            for lease in leases:
                with suppress(EverbellError):
                    await self._work(name, tenant, lease, asked_ms)
            await asyncio.sleep(0.01)  # Otherwise a queue that is never empty would stop virtual time.

    async def _work(self, name: str, tenant: str, lease: Lease, asked_ms: int) -> None:
        occurrence = lease.occurrence
        partition = partition_in(lease.token)
        assert partition is not None
        attempt = Attempt(
            occurrence.raw.decode(),
            occurrence.key,
            occurrence.number,
            occurrence.attempt,
            partition,
            occurrence.epoch,
            name,
            asked_ms,
            START_AT + self._receivers.now_ms + self._clock_off_ms,
            pulled=True,
        )
        self._receivers.begin(attempt)
        await asyncio.sleep(self._dice.expovariate(5))
        roll = 1.0 if self._receivers.healed else self._dice.random()
        attempt.accepted = roll > 0.1
        self._receivers.end(attempt)
        if roll < 0.1:
            await self._ask(FailLeases(tenant, QUEUE, {lease.token: Outcome("failed", "not now")}))
        elif roll < 0.15:
            await asyncio.sleep(LEASE_MS / 1_000)  # The worker died, and never answers.
        else:
            lost = await self._ask(Acknowledge(tenant, QUEUE, [lease.token]))
            attempt.heard = not lost

    async def _ask(self, request: Request[A]) -> A:
        ready = [node for node in self._nodes.values() if node.answers]
        if not ready:
            raise Stopping("nobody is there")
        node = self._dice.choice(ready)
        router = node.router
        assert router is not None
        return await self._network.ask("worker", node.title, lambda: node.process, lambda: router.ask(request))
