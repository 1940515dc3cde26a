"""A notification that cannot be missed between a check and the wait after it.

A waiter takes a ticket, checks its condition, and then waits with the ticket. If the signal was rung after the
ticket was taken, the wait returns at once.
"""

from __future__ import annotations

import asyncio


class Signal:
    """A notification for one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: list[asyncio.Future[None]] = []

    def ticket(self) -> int:
        """The present count of rings."""
        return self._count

    def ring(self) -> None:
        self._count += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, ticket: int, timeout_s: float) -> None:
        """Return when the signal was rung since the ticket was taken, or after the time-out."""
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
