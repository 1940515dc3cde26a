"""Leases that are watched: whoever watches hears of each end, once, and of none that it stopped watching."""

from __future__ import annotations

import asyncio

from everbell.cluster.watches import Watches, dead_among
from everbell.logs.memory import SharedLog
from everbell.testing import VirtualClock, run_virtual
from tests.unit.cluster.stage import MoodyLog


def test_ends_are_told_unless_nobody_watches_any_more() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        ended: list[str] = []
        watches = Watches(log, ended.append)
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


def test_whom_the_log_says_nothing_about_counts_as_alive() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        await log.renew("a", 1_000)
        assert await dead_among(log, ("a", "b")) == ["b"]
        log.is_away = True
        assert await dead_among(log, ("a", "b")) == []

    run_virtual(main)
