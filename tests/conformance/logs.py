"""The logs under test. A `Place` is one log, new and empty, which can be opened many times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from everbell.errors import Trimmed
from everbell.logs.memory import SharedLog
from everbell.logs.port import Log, LogEntry
from everbell.logs.url import open_log
from tests.services import shared


class Place(Protocol):
    """One log."""

    async def open(self) -> Log:
        """Open one more handle."""
        ...

    async def close(self) -> None:
        """Close all handles. The log itself stays, and can be opened again."""
        ...


class MemoryPlace:
    """A log in memory."""

    def __init__(self) -> None:
        self._log = SharedLog()

    async def open(self) -> Log:
        return self._log.handle()

    async def close(self) -> None:
        return None


class UrlPlace:
    """A log that all processes with its URL share."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._handles: list[Log] = []

    async def open(self) -> Log:
        self._handles.append(await open_log(self._url))
        return self._handles[-1]

    async def close(self) -> None:
        while self._handles:
            await self._handles.pop().close()


class LocalPlace(UrlPlace):
    """The local log: a process opens it once, and all its tasks share that handle."""

    async def open(self) -> Log:
        return self._handles[0] if self._handles else await super().open()


PLACES: dict[str, Callable[[Path], Place]] = {
    "memory": lambda path: MemoryPlace(),
    "local": lambda path: LocalPlace(f"rocksdb:{path}"),
    "postgres": lambda path: UrlPlace(shared.postgres().fresh_schema()),
    "cassandra": lambda path: UrlPlace(shared.cassandra().fresh_store()),
    "zookeeper": lambda path: UrlPlace(shared.zookeeper().fresh_path()),
}


async def read_all(log: Log, after: int = 0, limit: int = 100) -> list[LogEntry]:
    """All entries after an index, read page by page."""
    entries: list[LogEntry] = []
    while page := await log.read(after + len(entries), limit):
        assert len(page) <= limit
        entries.extend(page)
    return entries


async def play(log: Log, until: int) -> list[bytes]:
    """Follow the log up to an index as a node does, from the snapshot if entries are trimmed."""
    played: list[bytes] = []
    after = 0
    while after < until:
        try:
            page = await log.read(after, 3)
        except Trimmed:
            snapshot = await log.load()
            assert snapshot is not None
            assert snapshot.index > after
            after, played = snapshot.index, snapshot.data.split()
            continue
        assert [entry.index for entry in page] == list(range(after + 1, after + 1 + len(page)))
        played += [entry.data for entry in page]
        after += len(page)
        if not page:
            await log.wait(after, 30)
    return played
