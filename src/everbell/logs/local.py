"""The log of a cluster of one machine: files beside RocksDB, and no server.

One process has it open, so everybody else is dead by definition: leases are kept in its memory and end with it. The
entries that were not trimmed are in memory too, so reading costs nothing.

What is written goes through one thread, in turn, and is put into memory when it is durable. A caller that is
cancelled leaves what it began to finish by itself, for files and memory must stay in step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EDQUOT, ENOSPC
from pathlib import Path

from everbell.errors import LogBroken, LogUnavailable, LogUnusable
from everbell.logs.local_file import LocalFile
from everbell.logs.memory import SharedLog
from everbell.logs.port import Entry, Snapshot, check_size

FOLDER = "cluster"
"""The name of the log's folder in the directory of the store."""


class LocalLog:
    """See the port."""

    def __init__(self, directory: Path) -> None:
        """Open the log in the directory of a store, or make it. Raises `LogUnusable` or `LogCorrupt`."""
        try:
            self._file = LocalFile(directory.expanduser() / FOLDER)
        except OSError as error:
            raise LogUnusable(f"{directory / FOLDER} cannot be used for the log: {error.strerror}") from error
        self._shared = SharedLog()
        self._shared.entries = self._file.entries
        self._shared.trimmed = self._file.trimmed
        self._shared.snapshot = self._file.snapshot
        self._memory = self._shared.handle()
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "everbell-log")
        self._broken: str | None = None
        self._closed = False

    async def append(self, data: bytes) -> int:
        """See the port. Raises `LogBroken` when a sync fails: then the process has to end."""
        check_size(data)
        return await asyncio.shield(self._append(data))

    async def _append(self, data: bytes) -> int:
        async with self._turn:
            await self._write(self._file.append, Entry(self._shared.last_index + 1, data))
            return await self._memory.append(data)

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        """See the port."""
        await asyncio.shield(self._save(snapshot, keep))

    async def _save(self, snapshot: Snapshot, keep: int) -> None:
        shared = self._shared
        async with self._turn:
            if shared.snapshot is not None and shared.snapshot.index >= snapshot.index:
                return
            await self._write(self._file.save, snapshot)
            trimmed = max(snapshot.index - keep, shared.trimmed)
            await self._write(self._file.trim, trimmed, shared.entries[trimmed - shared.trimmed :])
            await self._memory.save(snapshot, keep)

    async def read(self, after: int, limit: int) -> Sequence[Entry]:
        """See the port."""
        return await self._memory.read(after, limit)

    async def wait(self, after: int, timeout_s: float) -> None:
        """See the port."""
        await self._memory.wait(after, timeout_s)

    async def load(self) -> Snapshot | None:
        """See the port."""
        return await self._memory.load()

    async def renew(self, member: str, ttl_ms: int) -> None:
        """See the port."""
        await self._memory.renew(member, ttl_ms)

    async def release(self, member: str) -> None:
        """See the port."""
        await self._memory.release(member)

    async def lives(self, member: str) -> bool:
        """See the port."""
        return await self._memory.lives(member)

    async def ended(self, member: str) -> None:
        """See the port."""
        await self._memory.ended(member)

    async def now(self) -> int | None:
        """See the port."""
        return None

    async def close(self) -> None:
        """See the port."""
        async with self._turn:
            if not self._closed:
                self._closed = True
                self._thread.shutdown()
                self._file.close()

    async def _write(self, write: Callable[..., None], *arguments: object) -> None:
        if self._closed:
            raise LogUnavailable("the log is closed: this process is stopping")
        if self._broken is not None:
            raise LogBroken(self._broken)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, write, *arguments)
        except LogBroken as broken:
            self._broken = str(broken)
            raise
        except OSError as error:
            if error.errno in (ENOSPC, EDQUOT):
                raise LogUnavailable("the disk of the log is full: make room; the log is as it was") from error
            self._broken = f"writing the log failed ({error.strerror}): end the process and start again"
            raise LogBroken(self._broken) from error
