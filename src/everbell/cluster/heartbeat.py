"""The lease of this node: renewed in time, or lost.

The deadline counts from the moment before a renewal was sent, on a monotonic clock, less a margin. So a node that was
stopped, cut off or slow knows by its own clock that it must not act any more, before another node may act.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from everbell.clock import Clock
from everbell.cluster.settings import ClusterSettings
from everbell.errors import LogError
from everbell.logs.port import Log


class Heartbeat:
    """Renews one lease until it is stopped or lost. A lost lease is never renewed."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        settings: ClusterSettings,
        incarnation: str,
        on_renewed: Callable[[int], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.incarnation = incarnation
        self.until_ms = 0
        """Until when this node may act, on the monotonic clock."""
        self.is_lost = False
        self._log = log
        self._clock = clock
        self._settings = settings
        self._on_renewed = on_renewed
        self._on_lost = on_lost
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Take the lease, and keep renewing it. Raises `LogError`."""
        await self._renew()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-heartbeat")
        self._look()

    def stop(self) -> None:
        """Stop renewing; the lease ends by itself."""
        if self._task is not None:
            self._task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()

    def check(self) -> None:
        """Check the clock: the deadline may have passed while the process was stopped."""
        if not self.is_lost and self._clock.elapsed_ms() >= self.until_ms:
            self.is_lost = True
            self.stop()
            self._on_lost()

    async def _run(self) -> None:
        pause_s = self._settings.renew_ms / 1_000
        while True:
            await asyncio.sleep(pause_s)
            with suppress(LogError, TimeoutError):
                async with asyncio.timeout(self._settings.lease_ms / 1_000):
                    await self._renew()

    async def _renew(self) -> None:
        before_ms = self._clock.elapsed_ms()
        await self._log.renew(self.incarnation, self._settings.lease_ms)
        self._renewed(before_ms)

    def _renewed(self, before_ms: int) -> None:
        """A renewal that was sent at `before_ms` was answered.

        An answer after the deadline does not count: other nodes may know already that the lease ended.
        """
        if self.until_ms:
            self.check()
        if not self.is_lost:
            self.until_ms = before_ms + self._settings.lease_ms - self._settings.margin_ms
            self._on_renewed(self.until_ms)

    def _look(self) -> None:
        """Check at the deadline, which has usually moved by then."""
        self.check()
        if not self.is_lost:
            left_s = (self.until_ms - self._clock.elapsed_ms()) / 1_000
            self._alarm = asyncio.get_running_loop().call_later(max(left_s, 0.001), self._look)


async def is_renewed(log: Log, incarnation: str, lease_ms: int) -> bool:
    """Wait until a lease has ended, or has lasted for so long that its owner must have renewed it.

    While the log is unreachable the answer is unknown, so this keeps waiting.
    """
    while True:
        with suppress(LogError, TimeoutError):
            async with asyncio.timeout(2 * lease_ms / 1_000 + 1):
                await log.ended(incarnation)
                return False
        with suppress(LogError):
            if await log.lives(incarnation):
                return True
