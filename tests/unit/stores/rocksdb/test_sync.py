"""Fsync: on the loop while the disk is fast, in a thread while it is slow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from everbell.stores.rocksdb.sync import QUICK_S, TURNS_MAX, TURNS_MIN, Syncer


class Disk:
    """A disk with virtual time and its syncer. It notes the thread of each fsync."""

    def __init__(self) -> None:
        self.syncer = Syncer(lambda: self.now_s)
        self.takes_s = 0.0
        self.now_s = 0.0
        self.on_loop: list[bool] = []

    def flush(self) -> None:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        self.now_s += self.takes_s

    def sync(self, count: int, takes_s: float) -> list[bool]:
        """For each fsync, whether it ran on the loop."""
        self.takes_s = takes_s
        self.on_loop.clear()

        async def run() -> None:
            for _ in range(count):
                await self.syncer.sync(self.flush)

        asyncio.run(run())
        return list(self.on_loop)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.syncer.thread.shutdown()


def test_the_loop_waits_for_a_fast_disk(disk: Disk) -> None:
    assert disk.sync(100, QUICK_S * 0.9) == [True] * 100


def test_the_loop_hardly_ever_waits_for_a_slow_disk(disk: Disk) -> None:
    on_loop = disk.sync(10_000, 0.02)
    assert on_loop[: TURNS_MIN + 2] == [True, *[False] * TURNS_MIN, True]
    assert sum(on_loop[:2_000]) < 10
    assert 1 <= sum(on_loop[-2 * TURNS_MAX :]) <= 2


def test_one_slightly_slow_fsync_changes_nothing(disk: Disk) -> None:
    assert all(disk.sync(50, QUICK_S / 4) + disk.sync(1, QUICK_S * 2) + disk.sync(50, QUICK_S / 4))


def test_one_very_slow_fsync_moves_to_the_thread(disk: Disk) -> None:
    disk.sync(50, 0.0)
    assert disk.sync(1, 0.1) == [True]
    assert disk.sync(TURNS_MIN + 1, 0.0) == [*[False] * TURNS_MIN, True]


def test_the_loop_waits_again_when_the_disk_becomes_fast(disk: Disk) -> None:
    disk.sync(5_000, 0.02)
    disk.sync(2 * TURNS_MAX, 0.0)
    disk.sync(1, 0.1)
    assert disk.sync(TURNS_MIN + 1, 0.0)[-1]


@pytest.mark.parametrize("before_s", [0.0, 1.0], ids=["on the loop", "in the thread"])
def test_an_error_of_the_fsync_is_raised(disk: Disk, before_s: float) -> None:
    disk.sync(1, before_s)

    def flush() -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        asyncio.run(disk.syncer.sync(flush))
