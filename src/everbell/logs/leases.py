"""Leases in the memory of one process, on its loop's time, and the wait for the end of a lease on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from everbell.errors import LogError
from everbell.logs.signal import Signal

_TIMER_SLACK_S = 0.001
_RETRY_S = 0.5


class MemoryLeases:
    """The ends of leases by member."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._changed = Signal()

    def renew(self, member: str, ttl_ms: int) -> None:
        self._forget_ended()
        end_s = asyncio.get_running_loop().time() + ttl_ms / 1_000
        is_sooner = end_s < self._ends.get(member, 0.0)
        self._ends[member] = end_s
        if is_sooner:
            self._changed.ring()

    def release(self, member: str) -> None:
        if self._ends.pop(member, None) is not None:
            self._changed.ring()

    def lives(self, member: str) -> bool:
        return self._left_s(member) > 0

    async def ended(self, member: str) -> None:
        while (left_s := self._left_s(member)) > 0:
            # A timer may fire slightly early. Without the slack this loop would then spin.
            await self._changed.wait(self._changed.ticket(), left_s + _TIMER_SLACK_S)

    def _left_s(self, member: str) -> float:
        return self._ends.get(member, 0.0) - asyncio.get_running_loop().time()

    def _forget_ended(self) -> None:
        for member in [member for member in self._ends if not self.lives(member)]:
            del self._ends[member]


async def until_ended(left_s: Callable[[], Awaitable[float]], news: Signal, look_s: float) -> None:
    """Ask a server how much of a lease is left, after `news` and every `look_s`, until it has ended.

    While the server is away, nothing is known and the wait goes on.
    """
    left = 1.0
    while left > 0:
        ticket = news.ticket()
        try:
            left = await left_s()
        except LogError:
            await asyncio.sleep(_RETRY_S)
        else:
            await news.wait(ticket, min(left, look_s))
