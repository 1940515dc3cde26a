"""The leases that this node watches, according to the ring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from everbell.errors import LogError
from everbell.logs.port import Log


class LeaseWatches:
    """Calls `on_ended` for each watched lease that ends."""

    def __init__(self, log: Log, on_ended: Callable[[str], None]) -> None:
        self._log = log
        self._on_ended = on_ended
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, incarnation: str) -> None:
        """Watch a lease."""
        self._tasks[incarnation] = asyncio.get_running_loop().create_task(self._watch(incarnation))

    def drop(self, incarnation: str) -> None:
        """Stop watching a lease."""
        task = self._tasks.pop(incarnation, None)
        if task is not None:
            task.cancel()

    def clear(self) -> None:
        """Stop watching all leases."""
        for incarnation in list(self._tasks):
            self.drop(incarnation)

    async def stop(self) -> None:
        """Stop watching all leases, and wait until the tasks have ended."""
        tasks = list(self._tasks.values())
        self.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, incarnation: str) -> None:
        await self._log.ended(incarnation)
        self._on_ended(incarnation)


async def dead_among(log: Log, incarnations: Iterable[str]) -> list[str]:
    """The incarnations without a lease. One that the log gives no answer about counts as alive."""
    dead = []
    for incarnation in incarnations:
        with suppress(LogError):
            if not await log.lives(incarnation):
                dead.append(incarnation)
    return dead
