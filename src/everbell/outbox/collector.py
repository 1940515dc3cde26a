"""A collector of one outbox: it connects, waits for the lock, and collects.

One session at a time has the lock on an outbox. The collectors of other nodes stand by, and one of them continues when
that session ends. The server itself ends the session of a process that is frozen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from everbell.clock import Clock
from everbell.core.collector_report import CollectorReport
from everbell.core.kafka_targets import KafkaTargets
from everbell.core.request import Ask
from everbell.core.tenant import Tenants
from everbell.edge.drafting import Edge
from everbell.http.address_guard import Guard
from everbell.outbox import statements
from everbell.outbox.collecting import FINISH_S, Collecting, CollectorProgress
from everbell.outbox.connection import CONNECT_S, OutboxConnection
from everbell.outbox.failures import trouble_of
from everbell.outbox.hand_over import HandOver
from everbell.outbox.row import RowReader
from everbell.outbox.settings import OutboxAddress
from everbell.stores.postgres.failures import PostgresFailure

_log = logging.getLogger("everbell.outbox")

_BEAT_S = 1.0
_STAND_BY_S = 0.5
_RETRY_S, _RETRY_S_MAX = 0.1, 2.0

SendCollected = Callable[[CollectorReport], Awaitable[None]]


class Collector:
    """Collects one outbox until it is stopped."""

    def __init__(self, address: OutboxAddress, take: HandOver, clock: Clock, send: SendCollected) -> None:
        self._address = address
        self._take = take
        self._clock = clock
        self._send = send
        self._progress = CollectorProgress()
        self._connection: OutboxConnection | None = None
        self._collecting: Collecting | None = None
        self._trouble: str | None = None
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._beat())]

    async def stop(self) -> None:
        """Finish the batch that the engine is storing, give the lock to another collector, and report the end."""
        self._stopping.set()
        if self._connection is not None:
            self._connection.woken.set()
        if self._tasks:
            running, beating = self._tasks
            _, late = await asyncio.wait({running}, timeout=FINISH_S + CONNECT_S)
            for task in (beating, *late):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._send(self.report())
        await self._send(CollectorReport(is_over=True))

    def report(self) -> CollectorReport:
        """The counts since the last call, and the present health."""
        holds = None if self._collecting is None else self._collecting.holds.trouble
        return self._progress.report(self._trouble or holds, is_collecting=self._collecting is not None)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            await self._send(self.report())
            if self._connection is not None:
                with suppress(*PostgresFailure):  # The next statement of the collector fails, too.
                    await self._connection.stay()

    async def _run(self) -> None:
        pause_s = _RETRY_S
        while not self._stopping.is_set():
            try:
                await self._collect()
                pause_s = _RETRY_S
            except PostgresFailure as failed:
                self._complain(trouble_of(failed, self._address.name))
            except Exception as broken:
                _log.exception("collecting the outbox %s failed", self._address.name)
                self._complain(f"the outbox {self._address.name} cannot be collected: {broken!r}")
            await self._wait(pause_s)
            pause_s = min(pause_s * 2, _RETRY_S_MAX)

    async def _collect(self) -> None:
        """One session."""
        self._connection = connection = await OutboxConnection.open(self._address)
        try:
            while not await connection.value(statements.LOCK):
                self._recover()
                if await self._wait(_STAND_BY_S):
                    return
            self._recover()
            _log.info("collecting the outbox %s", self._address.name)
            self._collecting = Collecting(
                self._address, connection, self._take, self._clock, self._progress, self._stopping
            )
            await self._collecting.run()
        finally:
            self._connection = self._collecting = None
            connection.end()

    def _complain(self, trouble: str) -> None:
        if self._trouble is None:  # The same error comes again while it lasts.
            _log.warning("%s; trying again", trouble)
        self._trouble = trouble

    def _recover(self) -> None:
        if self._trouble is not None:
            _log.info("the outbox %s can be used again", self._address.name)
            self._trouble = None

    async def _wait(self, seconds: float) -> bool:
        """Whether the collector was stopped meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()


def open_collector(
    address: OutboxAddress,
    ask: Ask,
    tenants: Tenants,
    clock: Clock,
    kafka: KafkaTargets,
    send: SendCollected,
    guard: Guard | None = None,
) -> Collector:
    """A collector for an outbox. `kafka` says which topics can be targets."""
    edge = Edge(tenants, clock, allows_handlers=False, kafka=kafka, guard=guard)
    return Collector(address, HandOver(ask, RowReader(address, edge, clock)), clock, send)
