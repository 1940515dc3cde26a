"""The log in memory, for tests and simulations: one `SharedLog`, and a handle for each node.

Time is that of the running event loop, so it works on virtual time; there are no threads and no tasks. Nothing fails
by itself. A simulation wraps handles, which have no state but what they share.
"""

from __future__ import annotations

from collections.abc import Sequence

from everbell.errors import Trimmed
from everbell.logs.leases import Leases
from everbell.logs.port import Entry, Snapshot, check_size
from everbell.logs.signal import Signal


class SharedLog:
    """What all handles of one log in memory have in common."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """Those after `trimmed`."""
        self.trimmed = 0
        self.snapshot: Snapshot | None = None
        self.leases = Leases()
        self.appended = Signal()

    @property
    def last_index(self) -> int:
        return self.trimmed + len(self.entries)

    def handle(self) -> MemoryLog:
        """The log, for one node."""
        return MemoryLog(self)


class MemoryLog:
    """See the port."""

    def __init__(self, shared: SharedLog) -> None:
        self._shared = shared

    async def append(self, data: bytes) -> int:
        """See the port."""
        check_size(data)
        shared = self._shared
        index = shared.last_index + 1
        shared.entries.append(Entry(index, data))
        shared.appended.ring()
        return index

    async def read(self, after: int, limit: int) -> Sequence[Entry]:
        """See the port."""
        start = after - self._shared.trimmed
        if start < 0:
            raise Trimmed.at(after)
        return self._shared.entries[start : start + limit]

    async def wait(self, after: int, timeout_s: float) -> None:
        """See the port."""
        if self._shared.last_index <= after:
            await self._shared.appended.wait(self._shared.appended.ticket(), timeout_s)

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        """See the port."""
        shared = self._shared
        if shared.snapshot is not None and shared.snapshot.index >= snapshot.index:
            return
        shared.snapshot = snapshot
        surplus = snapshot.index - keep - shared.trimmed
        if surplus > 0:
            del shared.entries[:surplus]
            shared.trimmed += surplus

    async def load(self) -> Snapshot | None:
        """See the port."""
        return self._shared.snapshot

    async def renew(self, member: str, ttl_ms: int) -> None:
        """See the port."""
        self._shared.leases.renew(member, ttl_ms)

    async def release(self, member: str) -> None:
        """See the port."""
        self._shared.leases.release(member)

    async def lives(self, member: str) -> bool:
        """See the port."""
        return self._shared.leases.lives(member)

    async def ended(self, member: str) -> None:
        """See the port."""
        await self._shared.leases.ended(member)

    async def now(self) -> int | None:
        """See the port."""
        return None

    async def close(self) -> None:
        """See the port. Its leases live on for their time, as those of a killed process do."""
