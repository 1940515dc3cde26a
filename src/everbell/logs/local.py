"""The log of a cluster on one machine: files beside RocksDB, and no server.

Only one process has it open, so leases are kept in its memory and end with it. Entries that were not trimmed are in
memory too, so reads cost nothing.

One thread writes the files, one write at a time; a write becomes visible in memory once it is durable. A cancelled
caller does not stop its write, because files and memory must stay in step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from errno import EDQUOT, ENOSPC
from pathlib import Path

from everbell.errors import LogBroken, LogUnavailable, LogUnusable
from everbell.logs.local_file import LocalFile
from everbell.logs.memory import MemoryLog, SharedLog
from everbell.logs.port import LogEntry, Snapshot, check_size

FOLDER = "cluster"
"""The name of the log's folder in the directory of the store."""


class LocalLog(MemoryLog):
    """The log in a directory; see the port. After `LogBroken` the process has to end."""

    def __init__(self, directory: Path) -> None:
        """Open the log in the directory of a store, or make it. Raises `LogUnusable` or `LogCorrupt`."""
        try:
            self._file = LocalFile(directory.expanduser() / FOLDER)
        except OSError as error:
            raise LogUnusable(f"{directory / FOLDER} cannot be used for the log: {error.strerror}") from error
        shared = SharedLog()
        shared.entries = self._file.entries
        shared.trimmed = self._file.trimmed
        shared.snapshot = self._file.snapshot
        super().__init__(shared)
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "everbell-log")
        self._broken: str | None = None
        self._closed = False

    async def append(self, data: bytes) -> int:
        check_size(data)
        return await asyncio.shield(self._append(data))

    async def _append(self, data: bytes) -> int:
        async with self._turn:
            await self._write(self._file.append, LogEntry(self._shared.last_index + 1, data))
            return await super().append(data)

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        await asyncio.shield(self._save(snapshot, keep))

    async def _save(self, snapshot: Snapshot, keep: int) -> None:
        shared = self._shared
        async with self._turn:
            if shared.snapshot is not None and shared.snapshot.index >= snapshot.index:
                return
            await self._write(self._file.save, snapshot)
            trimmed = max(snapshot.index - keep, shared.trimmed)
            await self._write(self._file.trim, trimmed, shared.entries[trimmed - shared.trimmed :])
            await super().save(snapshot, keep)

    async def close(self) -> None:
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
