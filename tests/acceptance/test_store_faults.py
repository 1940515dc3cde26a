"""The embedded store under faults that only a real process, disk or kernel can cause."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from everbell.core.event import Event
from everbell.core.ids import place_in
from everbell.errors import StoreFull
from everbell.stores.port import Add, Counts, Filter
from everbell.stores.rocksdb.store import RocksdbStore
from tests.conformance.stores import PARTITIONS, UNOWNED, event, find_all, finish

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

WRITER = """
import asyncio, sys
from everbell.stores.port import Add, Finish
from everbell.stores.rocksdb.store import RocksdbStore
from tests.conformance.stores import UNOWNED, event, finish

async def main():
    store = RocksdbStore(sys.argv[1], partitions=4)
    sequence = store._last_sequence
    while True:
        added = [event(sequence + n, payload=b"x" * 2_000) for n in range(1, 8)]
        await store.apply([Add(each) for each in added], UNOWNED)
        await store.apply([finish(added[0])], UNOWNED)
        sequence += 7
        print(sequence, flush=True)

asyncio.run(main())
"""


def writer(path: Path, *wrapper: str) -> subprocess.Popen[str]:
    """A process that stores events and prints its progress."""
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", WRITER, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def check_all_there(path: Path, acknowledged: int, rounds: int) -> None:
    """All events up to the acknowledged sequence are stored once and counted; each acknowledged round ended one."""
    store = RocksdbStore(str(path))
    last = store._last_sequence
    assert last >= acknowledged
    live = await find_all(store, Filter("shop"), 1_000)
    ended = await find_all(store, Filter("shop", "delivered"), 1_000)
    stored = sorted(sequence_in(found.id) for found in [*live, *ended])
    assert stored == list(range(1, last + 1))
    assert await store.counts() == {"shop": Counts(pending=len(live), delivered=len(ended))}
    assert len(ended) >= rounds
    await store.close()


def sequence_in(event_id: str) -> int:
    """The sequence in a generated id."""
    place = place_in(event_id)
    assert place is not None
    return place[1]


def test_a_kill_loses_no_acknowledged_event(tmp_path: Path) -> None:
    path = tmp_path / "store"
    total = acknowledged = 0
    for rounds in (1, 5, 40, 150):
        process = writer(path)
        assert process.stdout is not None
        for _ in range(rounds):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        total += rounds
        asyncio.run(check_all_there(path, acknowledged, total))


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_failed_fsync_ends_the_writer_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fault = ["strace", "-f", "-o", str(tmp_path / "trace"), "-e", "trace=fdatasync"]
    process = writer(path, *fault, "-e", "inject=fdatasync:error=EIO:when=40")
    out, err = process.communicate()
    if "ptrace" in err:
        pytest.skip(f"processes cannot be traced here: {err.splitlines()[0]}")
    assert "StoreBroken" in err
    acknowledged = [int(line) for line in out.split()]
    asyncio.run(check_all_there(path, acknowledged[-1], len(acknowledged)))


def test_a_store_on_a_full_disk_refuses_writes_and_recovers(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(30 * MIB))

    async def scenario() -> None:
        store = RocksdbStore(str(small_disk / "store"), partitions=PARTITIONS, reserve_bytes=0)
        stored: list[Event] = []
        with suppress(StoreFull):
            while len(stored) < 100_000:
                batch = [event(len(stored) + n, payload=Random(n).randbytes(1_000)) for n in range(1, 101)]
                await store.apply([Add(each) for each in batch], UNOWNED)
                stored.extend(batch)
        assert 1_000 < len(stored) < 100_000, "the disk did not get full"
        # The disk is full: no write succeeds, all events can be read, and no part of a refused write is visible.
        refused = [event(len(stored) + n, payload=Random(n).randbytes(1_000)) for n in range(1, 1_001)]
        for _ in range(3):
            with pytest.raises(StoreFull):
                await store.apply([Add(each) for each in refused], UNOWNED)
        assert await store.get("shop", stored[0].id) == stored[0]
        assert await store.get("shop", refused[0].id) is None
        assert await store.counts() == {"shop": Counts(pending=len(stored))}
        ballast.unlink()
        # There is space again: the store continues without a restart.
        assert await store.apply([finish(stored[0]), Add(refused[0])], UNOWNED) == {}
        assert await store.get("shop", refused[0].id) == refused[0]
        assert await store.get("shop", refused[1].id) is None
        await store.close()
        again = RocksdbStore(str(small_disk / "store"))
        assert await again.counts() == {"shop": Counts(pending=len(stored), delivered=1)}
        found = await find_all(again, Filter("shop"), 1_000)
        assert {each.id for each in found} == {each.id for each in [*stored[1:], refused[0]]}
        await again.close()

    asyncio.run(scenario())


def test_a_disk_that_is_too_full_to_create_a_store_is_reported(small_disk: Path) -> None:
    with suppress(OSError), (small_disk / "ballast").open("wb") as ballast:
        while True:
            ballast.write(bytes(MIB))
            ballast.flush()
    with pytest.raises(StoreFull):
        RocksdbStore(str(small_disk / "store"))
