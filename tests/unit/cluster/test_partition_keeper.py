"""The partitions of a node: started, stopped and released as the log says, also when the store or receivers fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from everbell.cluster.partition_keeper import PartitionKeeper
from everbell.cluster.settings import ClusterSettings
from everbell.core.cluster import Ceded, Start, Stop
from everbell.core.ids import partition_of
from everbell.core.spec import Draft
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy
from everbell.testing import VirtualClock, run_virtual
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import MoodyStore
from tests.unit.engine.stage import Receiver

SETTINGS = ClusterSettings(handover_ms=1_000)
QUIET_MS = 2_000
BASE = 100
KEY = next(f"k{number}" for number in range(100) if partition_of("shop", f"k{number}", 4) == 1)


class Scene:
    """A keeper with a real engine, and its releases in order."""

    def __init__(self, clock: VirtualClock, store: MoodyStore, receiver: Receiver, engine: Engine) -> None:
        self.clock = clock
        self.store = store
        self.receiver = receiver
        self.engine = engine
        self.released: list[tuple[int, dict[int, int]]] = []
        self.halted: list[BaseException] = []
        self.keeper = PartitionKeeper(engine, clock, SETTINGS, BASE, self._release, self.halted.append)

    def _release(self, epochs: Mapping[int, int]) -> None:
        self.released.append((self.clock.elapsed_ms(), dict(epochs)))

    async def busy(self) -> None:
        """Partition 1 is ours, and an event of it is being delivered for ever."""
        self.receiver.answer = lambda delivery: None
        self.keeper.want(Start(1, 5, True))
        await asyncio.sleep(0.1)
        await schedule_seen(self.engine.ask, "shop", [Draft(self.clock.now(), "https://x.example", b"e", key=KEY)])
        await asyncio.sleep(0.1)
        assert self.receiver.names == ["e"]


def play(act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        store, receiver = MoodyStore(4), Receiver(clock)
        engine = await Engine.start(
            store, {"https": receiver}, Tenants(Tenant(timeout_ms=QUIET_MS)), clock, SeededEntropy(1), epochs={}
        )
        scene = Scene(clock, store, receiver, engine)
        scene.keeper.start()
        await act(scene)
        await scene.keeper.stop()
        await engine.stop()

    run_virtual(main)


def test_partitions_start_above_the_epochs_of_the_store() -> None:
    async def act(scene: Scene) -> None:
        scene.keeper.want(Start(0, 5, True))
        scene.keeper.want(Start(2, 7, False))
        assert not scene.keeper.is_settled
        await asyncio.sleep(0.1)
        assert scene.engine.epochs == {0: BASE + 5, 2: BASE + 7}
        assert scene.keeper.is_settled

    play(act)


def test_a_store_that_is_away_is_asked_again() -> None:
    async def act(scene: Scene) -> None:
        scene.store.is_away = True
        scene.keeper.want(Start(0, 5, True))
        await asyncio.sleep(5)
        assert scene.engine.epochs == {}
        scene.store.is_away = False
        await asyncio.sleep(1)
        assert scene.engine.epochs == {0: BASE + 5}

    play(act)


def test_a_partition_of_another_owner_keeps_no_other_from_starting() -> None:
    async def act(scene: Scene) -> None:
        await scene.store.raise_fence({1: BASE + 50})
        for number in range(3):
            scene.keeper.want(Start(number, 5, True))
        await asyncio.sleep(1)
        assert set(scene.engine.epochs) == {0, 2}
        assert scene.keeper.is_settled, "the log will name the owner of the other"

    play(act)


@pytest.mark.parametrize("method", ["take", "release"])
def test_an_unexpected_failure_halts_the_node(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fault(*arguments: Any, **options: Any) -> None:
        raise KeyError("a fault of ours")

    async def act(scene: Scene) -> None:
        monkeypatch.setattr(scene.engine, method, fault)
        scene.keeper.want(Start(0, 5, True))
        await asyncio.sleep(1)
        scene.keeper.hand_over([Stop(0, 5)])
        await asyncio.sleep(1)
        assert [type(reason) for reason in scene.halted] == [KeyError]
        monkeypatch.undo()

    play(act)


def test_a_ceded_partition_is_dropped_in_that_epoch_only() -> None:
    async def act(scene: Scene) -> None:
        scene.keeper.want(Start(0, 5, True))
        await asyncio.sleep(0.1)
        scene.keeper.cede(Ceded(0, 4))
        assert set(scene.engine.epochs) == {0}
        scene.keeper.cede(Ceded(0, 5))
        assert scene.engine.epochs == {}
        assert scene.released == []

    play(act)


def test_a_partition_that_is_ceded_while_it_starts_does_not_stay() -> None:
    async def act(scene: Scene) -> None:
        scene.store.is_away = True
        scene.keeper.want(Start(0, 5, True))
        await asyncio.sleep(0.1)
        scene.keeper.cede(Ceded(0, 5))
        scene.store.is_away = False
        await asyncio.sleep(5)
        assert scene.engine.epochs == {}

    play(act)


def test_idle_partitions_are_released_together_and_at_once() -> None:
    async def act(scene: Scene) -> None:
        for number in range(3):
            scene.keeper.want(Start(number, 5, True))
        await asyncio.sleep(0.1)
        now_ms = scene.clock.elapsed_ms()
        scene.keeper.hand_over([Stop(number, 5) for number in range(3)])
        await asyncio.sleep(0.01)
        assert scene.released == [(now_ms, {0: 5, 1: 5, 2: 5})]
        assert scene.engine.epochs == {}

    play(act)


def test_a_slow_receiver_holds_up_its_own_partition_alone() -> None:
    async def act(scene: Scene) -> None:
        await scene.busy()
        scene.keeper.want(Start(0, 5, True))
        await asyncio.sleep(0.1)
        scene.keeper.hand_over([Stop(0, 5), Stop(1, 5)])
        await asyncio.sleep(0.1)
        assert [epochs for _, epochs in scene.released] == [{0: 5}]
        scene.receiver.settle("e")
        await asyncio.sleep(0.1)
        assert [epochs for _, epochs in scene.released] == [{0: 5}, {1: 5}]

    play(act)


def test_attempts_that_do_not_end_are_waited_for_before_the_release() -> None:
    async def act(scene: Scene) -> None:
        await scene.busy()
        now_ms = scene.clock.elapsed_ms()
        scene.keeper.hand_over([Stop(1, 5)])
        await asyncio.sleep(10)
        assert scene.released == [(now_ms + SETTINGS.handover_ms + QUIET_MS, {1: 5})]

    play(act)


def test_a_release_waits_for_the_requests_of_the_owner_before() -> None:
    async def act(scene: Scene) -> None:
        scene.keeper.want(Start(0, 5, False))
        await asyncio.sleep(0.1)
        scene.keeper.hand_over([Stop(0, 5)])
        await asyncio.sleep(10)
        [(at_ms, epochs)] = scene.released
        assert epochs == {0: 5}
        assert at_ms >= QUIET_MS

    play(act)


def test_a_release_of_a_partition_that_never_started_waits_for_the_requests_of_the_last_owner() -> None:
    async def act(scene: Scene) -> None:
        scene.store.is_away = True
        scene.keeper.want(Start(0, 5, False))
        await asyncio.sleep(0.1)
        scene.keeper.hand_over([Stop(0, 5)])
        await asyncio.sleep(10)
        [(at_ms, epochs)] = scene.released
        assert epochs == {0: 5}
        assert at_ms >= QUIET_MS

    play(act)


def test_a_node_that_loses_all_partitions_releases_none_and_starts_later_ones() -> None:
    async def act(scene: Scene) -> None:
        await scene.busy()
        scene.keeper.hand_over([Stop(1, 5)])
        await asyncio.sleep(0.1)
        scene.keeper.lose_everything()
        assert scene.engine.epochs == {}
        scene.keeper.want(Start(1, 9, True))
        await asyncio.sleep(10)
        assert scene.engine.epochs == {1: BASE + 9}
        assert scene.released == []

    play(act)
