"""The contract of the log port, one rule a test, over every log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from everbell.errors import TooLarge, Trimmed
from everbell.logs.port import ENTRY_BYTES_MAX, LogEntry, Snapshot
from tests.conformance.logs import PLACES, Place, play, read_all

LONG_MS = 60_000
SHORT_MS = 700
"""A lease that ends within a test, but is long enough for a busy machine."""
PATIENCE_S = 30
ME, OTHER = "node-a/1", "node-b/7"


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return PLACES[request.param](tmp_path)


def run(place: Place, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario, and close all handles."""

    async def main() -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scenario()
        finally:
            await place.close()

    asyncio.run(main())


# Entries


def test_a_new_log_is_empty(place: Place) -> None:
    async def scenario() -> None:
        log = await place.open()
        assert list(await log.read(0, 10)) == []
        assert await log.load() is None
        assert not await log.lives(ME)
        await log.ended(ME)
        await log.release(ME)
        await log.wait(0, 0.001)

    run(place, scenario)


def test_entries_are_numbered_from_one_and_read_back_unchanged(place: Place) -> None:
    commands = [b"", b"join", bytes(range(256)), Random(1).randbytes(ENTRY_BYTES_MAX)]

    async def scenario() -> None:
        log = await place.open()
        assert [await log.append(command) for command in commands] == [1, 2, 3, 4]
        expected = [LogEntry(index, command) for index, command in enumerate(commands, 1)]
        for limit in (1, 2, 4, 5):
            assert await read_all(log, 0, limit) == expected
        assert list(await log.read(1, 2)) == expected[1:3]
        assert list(await log.read(4, 10)) == []

    run(place, scenario)


def test_a_long_log_is_read_in_pages(place: Place) -> None:
    commands = [str(number).encode() for number in range(100)]

    async def scenario() -> None:
        log = await place.open()
        await asyncio.gather(*map(log.append, commands))
        entries = await read_all(log)
        assert sorted(entry.data for entry in entries) == sorted(commands)
        assert list(await log.read(10, 70)) == entries[10:80]

    run(place, scenario)


def test_a_command_that_is_too_large_is_refused(place: Place) -> None:
    async def scenario() -> None:
        log = await place.open()
        with pytest.raises(TooLarge):
            await log.append(bytes(ENTRY_BYTES_MAX + 1))
        assert await log.append(b"next") == 1

    run(place, scenario)


def test_appended_entries_survive_reopening(place: Place) -> None:
    async def scenario() -> None:
        log = await place.open()
        await log.append(b"one")
        await log.append(b"two")
        await log.save(Snapshot(1, b"state"), keep=1)
        await place.close()
        log = await place.open()
        assert await read_all(log) == [LogEntry(1, b"one"), LogEntry(2, b"two")]
        assert await log.load() == Snapshot(1, b"state")
        assert await log.append(b"three") == 3

    run(place, scenario)


def test_a_log_on_a_server_gives_the_time_of_the_server(place: Place) -> None:
    async def scenario() -> None:
        log = await place.open()
        before = time.time_ns() // 1_000_000
        there = await log.now()
        # Both clocks are of the same machine, but are read at different moments.
        assert there is None or before - 1_000 <= there <= time.time_ns() // 1_000_000 + 1_000

    run(place, scenario)


def test_a_log_can_be_closed_twice(place: Place) -> None:
    async def scenario() -> None:
        log = await place.open()
        await log.close()
        await log.close()

    run(place, scenario)


# Many handles


def test_all_handles_see_one_order(place: Place) -> None:
    async def scenario() -> None:
        handles = [await place.open() for _ in range(3)]

        async def write(number: int) -> list[int]:
            return [await handles[number].append(b"%d:%d" % (number, turn)) for turn in range(8)]

        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(write(number)) for number in range(3)]
            # No reader ever sees a gap: `play` checks each page while the others write.
            readers = [group.create_task(play(handle, 24)) for handle in handles]
        first = readers[0].result()
        assert all(reader.result() == first for reader in readers)
        for number, writer in enumerate(writers):
            assert [first[index - 1] for index in writer.result()] == [b"%d:%d" % (number, turn) for turn in range(8)]

    run(place, scenario)


def test_many_handles_may_create_a_log_at_once(place: Place) -> None:
    async def scenario() -> None:
        # The local log is opened once by its only process.
        await place.open()
        handles = await asyncio.gather(*[place.open() for _ in range(4)])
        indices = await asyncio.gather(*[handle.append(b"join") for handle in handles])
        assert sorted(indices) == [1, 2, 3, 4]

    run(place, scenario)


def test_a_waiter_is_notified_of_an_entry_by_another_handle(place: Place) -> None:
    async def scenario() -> None:
        reader, writer = await place.open(), await place.open()
        for index in range(1, 4):
            told = asyncio.create_task(reader.wait(index - 1, 10 * PATIENCE_S))
            await asyncio.sleep(0)
            assert await writer.append(b"news") == index
            await told
        assert len(await read_all(reader)) == 3

    run(place, scenario)


def test_a_waiter_that_is_behind_does_not_wait(place: Place) -> None:
    async def scenario() -> None:
        log = await place.open()
        await log.append(b"one")
        await log.append(b"two")
        await log.wait(0, 10 * PATIENCE_S)
        await log.wait(1, 10 * PATIENCE_S)
        await log.wait(2, 0.001)
        late = await place.open()
        await late.wait(1, 10 * PATIENCE_S)

    run(place, scenario)


# Snapshots and trimming


def test_an_older_snapshot_never_replaces_a_newer_one(place: Place) -> None:
    async def scenario() -> None:
        one, other = await place.open(), await place.open()
        for _ in range(6):
            await one.append(b"x")
        await one.save(Snapshot(4, b"newer"), keep=10)
        await other.save(Snapshot(3, b"older"), keep=0)
        await other.save(Snapshot(4, b"as new"), keep=0)
        assert await other.load() == await one.load() == Snapshot(4, b"newer")
        assert len(await read_all(other)) == 6, "a snapshot that is not saved does not trim"
        await other.save(Snapshot(5, b"newest"), keep=10)
        assert await one.load() == Snapshot(5, b"newest")

    run(place, scenario)


def test_snapshots_saved_at_once_leave_the_newest(place: Place) -> None:
    async def scenario() -> None:
        handles = [await place.open() for _ in range(3)]
        for _ in range(9):
            await handles[0].append(b"x")
        await asyncio.gather(*[handles[index % 3].save(Snapshot(index, b"%d" % index), 2) for index in range(1, 10)])
        assert await handles[0].load() == Snapshot(9, b"9")
        assert await read_all(handles[1], 7) == [LogEntry(8, b"x"), LogEntry(9, b"x")]

    run(place, scenario)


def test_entries_up_to_the_snapshot_are_trimmed_except_the_last_ones(place: Place) -> None:
    async def scenario() -> None:
        log, other = await place.open(), await place.open()
        for number in range(1, 9):
            await log.append(b"%d" % number)
        await log.save(Snapshot(6, b"state"), keep=2)
        for after in (0, 3):
            for handle in (log, other):
                with pytest.raises(Trimmed) as caught:
                    await handle.read(after, 10)
                assert f"after {after} " in str(caught.value)
        assert [entry.index for entry in await other.read(4, 10)] == [5, 6, 7, 8]
        assert await log.append(b"9") == 9
        await log.save(Snapshot(9, b"state"), keep=0)
        with pytest.raises(Trimmed):
            await other.read(8, 10)
        assert list(await other.read(9, 10)) == []
        assert await other.append(b"10") == 10
        assert list(await log.read(9, 10)) == [LogEntry(10, b"10")]

    run(place, scenario)


def test_a_node_behind_the_trim_starts_from_the_snapshot(place: Place) -> None:
    async def scenario() -> None:
        log, late = await place.open(), await place.open()
        commands = [b"%d" % number for number in range(1, 31)]
        for index, command in enumerate(commands, 1):
            await log.append(command)
            if index % 10 == 0:
                await log.save(Snapshot(index, b" ".join(commands[:index])), keep=4)
        assert await play(late, 30) == commands
        await place.close()
        assert await play(await place.open(), 30) == commands

    run(place, scenario)


def test_a_snapshot_may_be_large(place: Place) -> None:
    large, larger = Random(1).randbytes(3 << 20), Random(2).randbytes(4 << 20)

    async def scenario() -> None:
        log, other = await place.open(), await place.open()
        for _ in range(3):
            await log.append(b"x")
        await log.save(Snapshot(1, large), keep=0)
        assert await other.load() == Snapshot(1, large)
        await log.save(Snapshot(2, larger), keep=0)
        assert await other.load() == Snapshot(2, larger)
        await log.save(Snapshot(3, b""), keep=0)
        assert await other.load() == Snapshot(3, b"")

    run(place, scenario)


# Leases


def test_all_handles_see_a_lease_until_it_is_released(place: Place) -> None:
    async def scenario() -> None:
        holder, watcher = await place.open(), await place.open()
        await holder.renew(ME, LONG_MS)
        await holder.renew(OTHER, LONG_MS)
        assert await watcher.lives(ME)
        told = asyncio.create_task(watcher.ended(ME))
        untold = asyncio.create_task(watcher.ended(OTHER))
        await asyncio.sleep(0)
        await holder.release(ME)
        await told
        assert not await watcher.lives(ME)
        assert not await holder.lives(ME)
        assert await watcher.lives(OTHER)
        assert not untold.done()
        untold.cancel()

    run(place, scenario)


def test_any_handle_may_release_a_lease(place: Place) -> None:
    async def scenario() -> None:
        holder, other = await place.open(), await place.open()
        await holder.renew(ME, LONG_MS)
        await other.release(ME)
        assert not await holder.lives(ME)
        await holder.renew(ME, LONG_MS)
        assert await other.lives(ME)

    run(place, scenario)


def test_a_lease_without_renewal_ends_and_not_before_its_time(place: Place) -> None:
    async def scenario() -> None:
        holder, watcher = await place.open(), await place.open()
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        await holder.renew(ME, SHORT_MS)
        await watcher.ended(ME)
        # Another machine's clock may run a little faster than ours.
        assert loop.time() - before_s > SHORT_MS / 1_000 * 0.99
        assert not await watcher.lives(ME)

    run(place, scenario)


def test_a_renewal_lengthens_a_lease(place: Place) -> None:
    async def scenario() -> None:
        holder, watcher = await place.open(), await place.open()
        await holder.renew(ME, SHORT_MS)
        await holder.renew(ME, LONG_MS)
        await holder.renew(OTHER, SHORT_MS)
        told = asyncio.create_task(watcher.ended(ME))
        await watcher.ended(OTHER)
        assert await watcher.lives(ME)
        assert not told.done()
        told.cancel()
        await holder.renew(ME, SHORT_MS)
        await watcher.ended(ME)

    run(place, scenario)


def test_a_lease_that_ended_begins_again_when_it_is_renewed(place: Place) -> None:
    async def scenario() -> None:
        holder, watcher = await place.open(), await place.open()
        await holder.renew(ME, SHORT_MS)
        await watcher.ended(ME)
        await holder.renew(ME, LONG_MS)
        assert await watcher.lives(ME)

    run(place, scenario)


def test_a_member_may_have_any_name_and_another_incarnation_is_another_member(place: Place) -> None:
    async def scenario() -> None:
        log = await place.open()
        names = ["nöde ☎/1", "nöde ☎/2", "../%2F/3", ".", "a/1", "a/11"]
        for name in names[::2]:
            await log.renew(name, LONG_MS)
        assert [await log.lives(name) for name in names] == [True, False, True, False, True, False]

    run(place, scenario)


def test_leases_do_not_depend_on_the_clocks_of_nodes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real_s = time.time

    def skew(hours: int) -> None:
        monkeypatch.setattr(time, "time", lambda: real_s() + hours * 3_600)
        monkeypatch.setattr(time, "time_ns", lambda: int((real_s() + hours * 3_600) * 1e9))

    async def scenario() -> None:
        holder, watcher = await place.open(), await place.open()
        for holders, watchers in ((-5, 5), (5, -5)):
            skew(hours=holders)
            await holder.renew(ME, LONG_MS)
            await holder.renew(OTHER, SHORT_MS)
            skew(hours=watchers)
            assert await watcher.lives(ME)
            await watcher.ended(OTHER)
            assert await watcher.lives(ME)
            assert not await watcher.lives(OTHER)

    run(place, scenario)


def test_a_wait_can_be_cancelled_and_the_log_goes_on(place: Place) -> None:
    async def scenario() -> None:
        log = await place.open()
        await log.renew(ME, LONG_MS)
        tasks = [asyncio.create_task(log.wait(0, LONG_MS)), asyncio.create_task(log.ended(ME))]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert await log.append(b"x") == 1
        assert await log.lives(ME)

    run(place, scenario)
