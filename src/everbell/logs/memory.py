"""The log in memory, for tests and simulations: one `SharedLog`, and a handle for each node.

It uses the time of the running event loop, so it works on virtual time, and has no threads, tasks or failures. A
simulation wraps handles; all state is in the `SharedLog`.
"""

from __future__ import annotations

from collections.abc import Sequence

from everbell.errors import Trimmed
from everbell.logs.leases import MemoryLeases
from everbell.logs.port import LogEntry, Snapshot, check_size
from everbell.logs.signal import Signal


class SharedLog:
    """The state that all handles of one log in memory share."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        """The entries after `trimmed`."""
        self.trimmed = 0
        self.snapshot: Snapshot | None = None
        self.leases = MemoryLeases()
        self.appended = Signal()

    @property
    def last_index(self) -> int:
        return self.trimmed + len(self.entries)

    def handle(self) -> MemoryLog:
        return MemoryLog(self)


class MemoryLog:
    """A handle of a log in memory; see the port."""

    def __init__(self, shared: SharedLog) -> None:
        self._shared = shared

    async def append(self, data: bytes) -> int:
        check_size(data)
        shared = self._shared
        index = shared.last_index + 1
        shared.entries.append(LogEntry(index, data))
        shared.appended.ring()
        return index

    async def read(self, after: int, limit: int) -> Sequence[LogEntry]:
        start = after - self._shared.trimmed
        if start < 0:
            raise Trimmed.at(after)
        return self._shared.entries[start : start + limit]

    async def wait(self, after: int, timeout_s: float) -> None:
        if self._shared.last_index <= after:
            await self._shared.appended.wait(self._shared.appended.ticket(), timeout_s)

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        shared = self._shared
        if shared.snapshot is not None and shared.snapshot.index >= snapshot.index:
            return
        shared.snapshot = snapshot
        surplus = snapshot.index - keep - shared.trimmed
        if surplus > 0:
            del shared.entries[:surplus]
            shared.trimmed += surplus

    async def load(self) -> Snapshot | None:
        return self._shared.snapshot

    async def renew(self, member: str, ttl_ms: int) -> None:
        self._shared.leases.renew(member, ttl_ms)

    async def release(self, member: str) -> None:
        self._shared.leases.release(member)

    async def lives(self, member: str) -> bool:
        return self._shared.leases.lives(member)

    async def ended(self, member: str) -> None:
        await self._shared.leases.ended(member)

    async def now(self) -> int | None:
        return None

    async def close(self) -> None:
        """Leases live on for their time, as after the death of a process."""
