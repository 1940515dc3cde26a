"""Leases that are watched: a watcher hears of each end once, and of none after it stopped watching."""

from __future__ import annotations

import asyncio

from everbell.cluster.lease_watches import LeaseWatches, dead_among
from everbell.logs.memory import SharedLog
from everbell.testing import VirtualClock, run_virtual
from tests.unit.cluster.stage import MoodyLog


def test_ends_are_reported_while_they_are_watched() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        ended: list[str] = []
        watches = LeaseWatches(log, ended.append)
        for name in ("a", "b", "c"):
            await log.renew(name, 1_000)
            watches.add(name)
        watches.drop("b")
        watches.drop("stranger")
        await asyncio.sleep(0.5)
        await log.renew("c", 5_000)
        await asyncio.sleep(1)
        assert ended == ["a"]
        watches.clear()
        await asyncio.sleep(10)
        assert ended == ["a"]
        await watches.stop()

    run_virtual(main)


def test_nodes_count_as_alive_while_the_log_is_away() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        await log.renew("a", 1_000)
        assert await dead_among(log, ("a", "b")) == ["b"]
        log.is_away = True
        assert await dead_among(log, ("a", "b")) == []

    run_virtual(main)
