from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from everbell.errors import LogBroken, LogUnavailable, LogUnusable
from everbell.logs.local import FOLDER, LocalLog
from everbell.logs.port import LogEntry, Snapshot
from everbell.stores.rocksdb.store import RocksdbStore


def test_the_log_lies_beside_a_store_whichever_was_first(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        log = LocalLog(directory)
        store = RocksdbStore(str(directory), partitions=4)
        await log.append(b"x")
        await store.close()
        await log.close()
        # Both are found again, and neither takes the other for something foreign.
        store = RocksdbStore(str(directory), partitions=4)
        log = LocalLog(directory)
        assert list(await log.read(0, 9)) == [LogEntry(1, b"x")]
        await log.close()
        await store.close()

    asyncio.run(scenario(tmp_path / "new"))


def test_a_cancelled_caller_leaves_files_and_memory_in_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, syncing, go_on = os.fsync, threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        syncing.set()
        assert go_on.wait(30)
        real(fd)

    async def scenario() -> None:
        log = LocalLog(tmp_path)
        monkeypatch.setattr(os, "fsync", slow)
        caller = asyncio.create_task(log.append(b"one"))
        await asyncio.to_thread(syncing.wait, 30)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()
        assert await log.append(b"two") == 2
        assert list(await log.read(0, 9)) == [LogEntry(1, b"one"), LogEntry(2, b"two")]
        await log.close()
        again = LocalLog(tmp_path)
        assert list(await again.read(0, 9)) == [LogEntry(1, b"one"), LogEntry(2, b"two")]
        await again.close()

    asyncio.run(scenario())


def test_a_full_disk_passes_and_a_failed_sync_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, place: int) -> int:
        raise OSError(28, "No space left on device")

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    async def scenario() -> None:
        log = LocalLog(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(LogUnavailable, match="make room"):
                await log.append(b"x")
            with pytest.raises(LogUnavailable, match="make room"):
                await log.save(Snapshot(0, b"x"), 0)
        assert await log.append(b"y") == 1
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(LogBroken, match="start again"):
                await log.append(b"z")
        with pytest.raises(LogBroken):
            await log.append(b"z")
        await log.close()
        with pytest.raises(LogUnavailable):
            await log.append(b"z")

    asyncio.run(scenario())


def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = LocalLog(tmp_path)
        await log.renew("a/1", 60_000)
        await log.close()
        again = LocalLog(tmp_path)
        await again.ended("a/1")
        assert not await again.lives("a/1")
        await again.close()

    asyncio.run(scenario())


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    with pytest.raises(LogUnusable, match=FOLDER):
        LocalLog(tmp_path)
