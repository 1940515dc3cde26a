"""The log as one node sees it, over a network: answers are late or lost, and entries may appear late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from everbell.errors import LogUnavailable, LogUncertain
from everbell.logs.memory import SharedLog
from everbell.logs.port import LogEntry, Snapshot
from everbell.testing.virtual import START_AT
from tests.simulation.network import Network
from tests.simulation.processes import ProcessLoop, finished

T = TypeVar("T")

LOG = "log"


class LogServer:
    """The one log, and everything that was ever in it."""

    def __init__(self) -> None:
        self.shared = SharedLog()
        self.handle = self.shared.handle()
        self.entries: list[LogEntry] = []
        self.uncertain = 0
        """How often a node could not know whether its command was appended."""

    def append(self, data: bytes) -> int:
        index = finished(self.handle.append(data))
        self.entries.append(LogEntry(index, data))
        return index


class RoughLog:
    """A node's connection to the log."""

    def __init__(self, loop: ProcessLoop, server: LogServer, network: Network, name: str) -> None:
        self._loop = loop
        self._server = server
        self._shared = server.shared
        self._handle = server.handle
        self._network = network
        self._name = name

    async def append(self, data: bytes) -> int:
        return await self._network.call(
            self._name,
            LOG,
            lambda: self._server.append(data),
            lost=_away,
            unheard=self._uncertain,
            late=self._uncertain,
        )

    async def read(self, after: int, limit: int) -> Sequence[LogEntry]:
        return await self._call(lambda: finished(self._handle.read(after, limit)))

    async def wait(self, after: int, timeout_s: float) -> None:
        if self._network.is_lost(LOG, self._name):
            await asyncio.sleep(timeout_s)
        elif self._shared.last_index <= after:
            await self._shared.appended.wait(self._shared.appended.ticket(), timeout_s)
        await asyncio.sleep(self._network.delay_s(LOG, self._name))

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        await self._call(lambda: finished(self._handle.save(snapshot, keep)))

    async def load(self) -> Snapshot | None:
        return await self._call(lambda: finished(self._handle.load()))

    async def renew(self, member: str, ttl_ms: int) -> None:
        await self._call(lambda: finished(self._handle.renew(member, ttl_ms)))

    async def release(self, member: str) -> None:
        await self._call(lambda: finished(self._handle.release(member)))

    async def lives(self, member: str) -> bool:
        return await self._call(lambda: finished(self._handle.lives(member)))

    async def ended(self, member: str) -> None:
        leases = self._shared.leases
        while True:
            ticket = leases._changed.ticket()
            try:
                if not await self.lives(member):
                    return
            except LogUnavailable:
                await asyncio.sleep(0.2)  # Virtual time; a real log retries, too.
                continue
            left_s = leases._ends.get(member, 0.0) - self._loop.true_s
            await leases._changed.wait(ticket, max(left_s, 0.0) + 0.005)

    async def now(self) -> int | None:
        return await self._call(lambda: START_AT + int(self._loop.true_s * 1_000))

    async def close(self) -> None:
        pass

    async def _call(self, serve: Callable[[], T]) -> T:
        return await self._network.call(self._name, LOG, serve, lost=_away, unheard=_away)

    def _uncertain(self) -> LogUncertain:
        self._server.uncertain += 1
        return LogUncertain("the simulated log does not say")


def _away() -> LogUnavailable:
    return LogUnavailable("the simulated log is away")
