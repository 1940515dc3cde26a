"""The first node founds the cluster; log and store have to belong together, and clocks have to agree."""

from __future__ import annotations

import pytest

from everbell.cluster.founding import CLOCK_OFF_MS_MAX, find_or_found, token
from everbell.cluster.player import Player
from everbell.core.cluster import FoundCluster, encode_command
from everbell.entropy import SeededEntropy
from everbell.errors import ClusterError, LogUnavailable, StoreUnusable
from everbell.logs.memory import SharedLog
from everbell.stores.memory.store import MemoryStore
from everbell.testing import VirtualClock, run_virtual
from tests.unit.cluster.stage import MoodyLog


async def founded(clock: VirtualClock, log: MoodyLog, store: MemoryStore, seed: int = 1) -> tuple[Player, int]:
    player = Player(log, clock, lambda before, after: None, lambda reason: None, 100)
    return player, await find_or_found(log, clock, player, store, SeededEntropy(seed))


def test_the_first_one_founds_and_the_next_one_finds() -> None:
    async def main(clock: VirtualClock) -> None:
        shared, store = SharedLog(), MemoryStore(8)
        first, ahead = await founded(clock, MoodyLog(shared), store, 1)
        second, _ = await founded(clock, MoodyLog(shared), store, 2)
        assert ahead == 0
        assert first.value.cluster == second.value.cluster != ""
        assert len(second.value.partitions) == 8
        assert shared.last_index == 1

    run_virtual(main)


def test_a_store_that_was_used_before_there_was_a_log_is_taken_along() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStore(8)
        await store.raise_fence({3: 17})
        _, ahead = await founded(clock, MoodyLog(SharedLog()), store)
        assert ahead == 17

    run_virtual(main)


def test_a_store_of_another_cluster_is_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryStore(8)
        await founded(clock, MoodyLog(SharedLog()), store, 1)
        with pytest.raises(StoreUnusable):
            await founded(clock, MoodyLog(SharedLog()), store, 2)

    run_virtual(main)


def test_another_number_of_partitions_is_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        await log.append(encode_command(FoundCluster("c", 16)))
        with pytest.raises(ClusterError, match="16 partitions and the store 8"):
            await founded(clock, log, MemoryStore(8))

    run_virtual(main)


@pytest.mark.parametrize(("off_ms", "way"), [(CLOCK_OFF_MS_MAX + 1, "behind"), (-CLOCK_OFF_MS_MAX - 1, "ahead of")])
def test_a_clock_that_is_minutes_off_is_refused(off_ms: int, way: str) -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        log.clock_at = clock.now() + off_ms
        with pytest.raises(ClusterError, match=f"{way} the clock where the log is kept"):
            await founded(clock, log, MemoryStore(8))
        assert log._shared.last_index == 0, "it founded nothing"

    run_virtual(main)


def test_a_clock_that_is_seconds_off_is_let_in() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        log.clock_at = clock.now() + CLOCK_OFF_MS_MAX
        player, _ = await founded(clock, log, MemoryStore(8))
        assert player.value.cluster

    run_virtual(main)


def test_a_log_that_is_away_is_an_error() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        log.is_away = True
        with pytest.raises(LogUnavailable):
            await founded(clock, log, MemoryStore(8))

    run_virtual(main)


def test_tokens_differ_and_are_long() -> None:
    entropy = SeededEntropy(1)
    tokens = {token(entropy) for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 24
