"""Waking those who wait for news, without losing news that comes while they look.

Whoever waits takes a ticket first, then looks, and then waits with the ticket: what was rung for after the ticket was
taken does not wait at all.
"""

from __future__ import annotations

import asyncio


class Signal:
    """Something may have happened. Used on one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: list[asyncio.Future[None]] = []

    def ticket(self) -> int:
        """Where the news stand now."""
        return self._count

    def ring(self) -> None:
        """Wake everybody."""
        self._count += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, ticket: int, timeout_s: float) -> None:
        """Return when it was rung since the ticket was taken, or after the time."""
        if self._count != ticket or timeout_s <= 0:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            if not future.done():
                future.cancel()
                self._waiting.remove(future)
