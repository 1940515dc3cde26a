"""Leases in the memory of one process, on the time of its event loop: for the log in memory and the local one."""

from __future__ import annotations

import asyncio

from everbell.logs.signal import Signal

_HAIR_S = 0.001


class Leases:
    """Who lives, and until when."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._changed = Signal()

    def renew(self, member: str, ttl_ms: int) -> None:
        """Let it live for a time from now on."""
        self._forget_ended()
        end_s = asyncio.get_running_loop().time() + ttl_ms / 1_000
        is_sooner = end_s < self._ends.get(member, 0.0)
        self._ends[member] = end_s
        if is_sooner:
            self._changed.ring()

    def release(self, member: str) -> None:
        """Let it end."""
        if self._ends.pop(member, None) is not None:
            self._changed.ring()

    def lives(self, member: str) -> bool:
        """Whether it did not end yet."""
        return self._left_s(member) > 0

    async def ended(self, member: str) -> None:
        """Return when it does not live."""
        while (left_s := self._left_s(member)) > 0:
            # A timer may fire a hair early, and then there would be a hair left to wait for, again and again.
            await self._changed.wait(self._changed.ticket(), left_s + _HAIR_S)

    def _left_s(self, member: str) -> float:
        return self._ends.get(member, 0.0) - asyncio.get_running_loop().time()

    def _forget_ended(self) -> None:
        for member in [member for member in self._ends if not self.lives(member)]:
            del self._ends[member]
