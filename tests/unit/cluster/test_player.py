"""Playing the log: entries, snapshots, trimmed entries and unknown entries."""

from __future__ import annotations

import asyncio
import gc

import pytest

from everbell.cluster.player import Player
from everbell.core.cluster import (
    NOTHING,
    Drain,
    FoundCluster,
    Member,
    PrepareJoin,
    Value,
    decode_value,
    encode_command,
)
from everbell.errors import LogBroken, LogCorrupt, LogError, LogUnavailable, UnknownCommand, UnknownSnapshot
from everbell.logs.memory import MemoryLog, SharedLog
from everbell.logs.port import LogEntry, Snapshot
from everbell.testing import VirtualClock, run_virtual
from tests.value_hash import value_hash

FOUND = encode_command(FoundCluster("c", 4))
JOIN = encode_command(PrepareJoin(Member("n1", "n1/x")))


class Scene:
    """A player, and the steps that it told."""

    def __init__(self, clock: VirtualClock, keep: int = 1_000, log: MemoryLog | None = None) -> None:
        self.shared = SharedLog()
        self.steps: list[tuple[int, int]] = []
        self.halted: list[BaseException] = []
        self.log = log or self.shared.handle()
        self.player = Player(self.log, clock, self._step, self.halted.append, keep)

    def _step(self, before: Value, after: Value) -> None:
        self.steps.append((before.index, after.index))


def test_entries_are_played_in_order_and_told_one_by_one() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.log.append(FOUND)
        await scene.log.append(JOIN)
        await scene.player.catch_up()
        assert scene.steps == [(0, 1), (1, 2)]
        scene.player.start()
        await scene.log.append(encode_command(Drain("n1")))
        assert await scene.player.saw(lambda value: value.index == 3, 5)
        assert scene.player.value.members["n1/x"].draining
        assert list(scene.player.played_at) == [1, 2, 3]
        await scene.player.stop()

    run_virtual(main)


def test_waiting_for_an_entry_times_out() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        scene.player.start()
        before = clock.now()
        assert not await scene.player.saw(lambda value: value.index == 3, 5)
        assert clock.now() - before == 5_000
        await scene.player.stop()

    run_virtual(main)


def test_snapshots_are_saved_and_the_log_is_trimmed() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock, keep=10)
        await scene.log.append(FOUND)
        await scene.log.append(JOIN)
        for _ in range(50):
            await scene.log.append(encode_command(Drain("n1")))
        await scene.player.catch_up()
        snapshot = await scene.log.load()
        assert snapshot is not None
        assert snapshot.index == 52
        assert scene.shared.trimmed == 42

        late = Player(scene.log, clock, lambda before, after: None, scene.halted.append, 10)
        await late.catch_up()
        assert value_hash(late.value) == value_hash(scene.player.value)

    run_virtual(main)


def test_a_node_behind_the_trim_goes_on_from_the_snapshot() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.log.append(FOUND)
        await scene.player.catch_up()
        other = Scene(clock, keep=5, log=scene.log)
        await scene.log.append(JOIN)
        for _ in range(20):
            await scene.log.append(encode_command(Drain("n1")))
        await other.player.catch_up()
        scene.player.start()
        assert await scene.player.saw(lambda value: value.index == 22, 5)
        assert scene.steps[:2] == [(0, 1), (1, 22)]
        assert scene.halted == []
        await scene.player.stop()

    run_virtual(main)


def test_an_unknown_command_halts_the_node() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.log.append(FOUND)
        await scene.log.append(b'{"command": "from-the-future"}')
        await scene.log.append(JOIN)
        scene.player.start()
        await asyncio.sleep(5)
        assert [type(reason) for reason in scene.halted] == [UnknownCommand]
        assert scene.player.value.index == 1
        await scene.player.stop()

    run_virtual(main)


def test_an_unknown_snapshot_halts_a_node_that_fell_behind() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.log.append(FOUND)
        await scene.player.catch_up()
        scene.shared.entries, scene.shared.trimmed = [], 7
        scene.shared.snapshot = Snapshot(7, b'{"from": "the future"}')
        scene.player.start()
        await asyncio.sleep(5)
        assert [type(reason) for reason in scene.halted] == [UnknownSnapshot]
        await scene.player.stop()

    run_virtual(main)


def test_a_node_that_cannot_perform_an_entry_halts() -> None:
    async def main(clock: VirtualClock) -> None:
        halted: list[BaseException] = []

        def step(before: Value, after: Value) -> None:
            raise KeyError("a fault of ours")

        log = SharedLog().handle()
        player = Player(log, clock, step, halted.append, 10)
        await log.append(FOUND)
        player.start()
        await asyncio.sleep(5)
        assert [type(reason) for reason in halted] == [KeyError]
        await player.stop()

    run_virtual(main)


@pytest.mark.parametrize("error", [LogBroken("the disk failed"), LogCorrupt("the snapshot is damaged")])
def test_a_log_that_broke_halts_the_node(error: LogError) -> None:
    class Broken(MemoryLog):
        async def save(self, snapshot: Snapshot, keep: int) -> None:
            raise error

    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock, keep=1, log=Broken(SharedLog()))
        await scene.log.append(FOUND)
        scene.player.start()
        await asyncio.sleep(5)
        assert scene.halted == [error]
        await scene.player.stop()

    run_virtual(main)


def test_a_wait_that_times_out_leaves_nothing_behind() -> None:
    def futures() -> int:
        gc.collect()
        # By their types: some objects of other libraries do work when they are asked for their class.
        return sum(issubclass(type(each), asyncio.Future) for each in gc.get_objects())

    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.player.changed(1)
        before = futures()
        for _ in range(100):
            await scene.player.changed(1)
        assert futures() == before

    run_virtual(main)


def test_a_log_that_is_away_is_waited_for() -> None:
    class Away(MemoryLog):
        left = 5

        async def read(self, after: int, limit: int) -> list[LogEntry]:
            if self.left:
                self.left -= 1
                raise LogUnavailable("away")
            return list(await super().read(after, limit))

    async def main(clock: VirtualClock) -> None:
        shared = SharedLog()
        await shared.handle().append(FOUND)
        scene = Scene(clock, log=Away(shared))
        scene.player.start()
        assert await scene.player.saw(lambda value: value.cluster == "c", 10)
        await scene.player.stop()

    run_virtual(main)


def test_the_snapshot_is_the_value() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock, keep=1)
        await scene.log.append(FOUND)
        await scene.player.catch_up()
        snapshot = await scene.log.load()
        assert snapshot is not None
        assert decode_value(snapshot.data) == scene.player.value != NOTHING

    run_virtual(main)
