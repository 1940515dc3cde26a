"""Playing the log: the player reads entries, applies them to the cluster value, and reports each change.

If the next entry was trimmed, the node loads the snapshot. An entry that the node does not understand halts it: a
node that skipped it would have a different value from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from everbell.clock import Clock
from everbell.cluster.supervised_task import OnHalt, begin
from everbell.core.cluster import NOTHING, Value, apply, decode_command, decode_value, encode_value
from everbell.core.cluster.value import TRANSITIONS_MAX
from everbell.errors import LogBroken, LogCorrupt, LogError, Trimmed
from everbell.logs.port import Log, Snapshot

_READ = 500
_POLL_S = 1.0
_AWAY_S = 0.2

Step = Callable[[Value, Value], None]
"""Called with the value before and after an entry, or before and after a snapshot."""


class Player:
    """Keeps `value` up to date with the log."""

    def __init__(self, log: Log, clock: Clock, on_step: Step, on_halt: OnHalt, keep: int) -> None:
        self.value = NOTHING
        self.seen_at_s = 0.0
        """When the player last saw the end of the log, on the loop's clock."""
        self.played_at: dict[int, int] = {}
        """When this node played the latest entries, by index: the log itself has no times."""
        self._log = log
        self._clock = clock
        self._on_step = on_step
        self._on_halt = on_halt
        self._keep = keep
        self._saved = 0
        self._task: asyncio.Task[None] | None = None
        self._change: asyncio.Future[None] | None = None
        """Resolved when the next log entry has been played."""

    async def catch_up(self) -> None:
        """Play all entries that are in the log now. Raises `LogError` and `ClusterError`."""
        snapshot = await self._log.load()
        if snapshot is not None and snapshot.index > self.value.index:
            self._saved = snapshot.index
            self._become(decode_value(snapshot.data))
        while await self._play_some():
            pass

    def start(self) -> None:
        """Follow the log from now on."""
        self._task = begin(self._run(), "everbell-player", self._on_halt)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def changed(self, timeout_s: float) -> None:
        """Wait until the value has changed, or the time has passed."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._change], timeout=timeout_s)

    async def saw(self, is_so: Callable[[Value], bool], timeout_s: float) -> bool:
        """Wait until the value meets a condition; False when the time has passed first."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while not is_so(self.value):
            if loop.time() >= until_s:
                return False
            await self.changed(until_s - loop.time())
        return True

    async def _run(self) -> None:
        while True:
            try:
                await self._go_on()
            except (LogBroken, LogCorrupt):
                raise  # Waiting does not repair the log.
            except LogError:
                await asyncio.sleep(_AWAY_S)

    async def _go_on(self) -> None:
        try:
            if not await self._play_some():
                await self._log.wait(self.value.index, _POLL_S)
        except Trimmed:
            await self.catch_up()

    async def _play_some(self) -> bool:
        entries = await self._log.read(self.value.index, _READ)
        for entry in entries:
            self._become(apply(self.value, entry.index, decode_command(entry.data)))
        self.seen_at_s = asyncio.get_running_loop().time()
        if self.value.index - self._saved >= self._keep:
            # Every node saves snapshots, because there is no coordinator; the log keeps the newest one.
            self._saved = self.value.index
            await self._log.save(Snapshot(self.value.index, encode_value(self.value)), self._keep)
        return bool(entries)

    def _become(self, value: Value) -> None:
        before, self.value = self.value, value
        self.played_at[value.index] = self._clock.now()
        while len(self.played_at) > TRANSITIONS_MAX:
            del self.played_at[next(iter(self.played_at))]
        self._on_step(before, value)
        if self._change is not None:
            self._change.set_result(None)
            self._change = None
