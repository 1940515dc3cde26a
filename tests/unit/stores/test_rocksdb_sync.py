"""Syncing: on the loop while the disk is quick, in a thread while it is not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everbell.stores.rocksdb_sync import QUICK_S, Syncer


class Disk:
    """A disk on virtual time, that notes in which thread it was asked."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.now_s = 0.0
        self.on_loop: list[bool] = []

    def timer(self) -> float:
        return self.now_s

    def flush(self) -> None:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        self.now_s += self.takes_s


def synced(disk: Disk, syncer: Syncer, *takes_s: float) -> list[bool]:
    """Where each of the syncs was done that took so long."""
    disk.on_loop.clear()

    async def run() -> None:
        for disk.takes_s in takes_s:
            await syncer.sync(disk.flush)

    asyncio.run(run())
    return list(disk.on_loop)


def test_a_disk_has_to_show_that_it_is_quick() -> None:
    disk = Disk()
    syncer = Syncer(disk.timer)
    on_loop = synced(disk, syncer, *[QUICK_S / 4] * 40)
    assert on_loop[0] is False
    assert on_loop == sorted(on_loop), "once on the loop, it stays there"
    assert on_loop[-1] is True
    syncer.thread.shutdown()


def test_a_slow_disk_is_waited_for_in_the_thread() -> None:
    disk = Disk()
    syncer = Syncer(disk.timer)
    assert synced(disk, syncer, *[0.05] * 40) == [False] * 40
    syncer.thread.shutdown()


def test_one_slow_sync_sends_the_next_to_the_thread() -> None:
    disk = Disk()
    syncer = Syncer(disk.timer)
    synced(disk, syncer, *[0.0] * 40)
    slow, following = synced(disk, syncer, 0.1, 0.0)
    assert (slow, following) == (True, False)
    assert synced(disk, syncer, *[0.0] * 200)[-1] is True
    syncer.thread.shutdown()


@pytest.mark.parametrize("quick", [True, False])
def test_what_fails_is_raised(quick: bool) -> None:
    syncer = Syncer()
    syncer.expected_s = 0.0 if quick else 1.0

    def flush() -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        asyncio.run(syncer.sync(flush))
    syncer.thread.shutdown()
