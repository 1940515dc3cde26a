"""The lease of a node: renewed in time, or lost by its own clock before another node may act."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everbell.cluster.heartbeat import Heartbeat
from everbell.cluster.settings import ClusterSettings
from everbell.errors import LogUnavailable
from everbell.logs.memory import MemoryLog, SharedLog
from everbell.testing import VirtualClock, run_virtual

SETTINGS = ClusterSettings(lease_ms=1_000)
ME = "n1/x"


class AwayLog(MemoryLog):
    """A log that can be away, or slow."""

    def __init__(self, shared: SharedLog) -> None:
        super().__init__(shared)
        self.is_away = False
        self.delay_s = 0.0

    async def renew(self, member: str, ttl_ms: int) -> None:
        if self.is_away:
            raise LogUnavailable("away")
        await asyncio.sleep(self.delay_s)
        await super().renew(member, ttl_ms)


class Scene:
    """A heartbeat, and its reports."""

    def __init__(self, clock: VirtualClock) -> None:
        self.shared = SharedLog()
        self.log = AwayLog(self.shared)
        self.untils: list[int] = []
        self.lost_at: list[int] = []
        self.clock = clock
        self.heartbeat = Heartbeat(self.log, clock, SETTINGS, ME, self.untils.append, self._lost)

    def _lost(self) -> None:
        self.lost_at.append(self.clock.elapsed_ms())


def on_stage(act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.heartbeat.start()
        await act(scene)
        scene.heartbeat.stop()

    run_virtual(main)


def test_a_lease_is_renewed_long_before_it_ends() -> None:
    async def act(scene: Scene) -> None:
        await asyncio.sleep(60)
        assert scene.lost_at == []
        assert await scene.log.lives(ME)
        assert len(scene.untils) > 200

    on_stage(act)


def test_the_deadline_is_counted_from_before_the_renewal_was_sent() -> None:
    async def act(scene: Scene) -> None:
        scene.log.delay_s = 0.3
        before_ms = scene.clock.elapsed_ms()
        await asyncio.sleep(0.55)
        assert scene.untils[-1] == before_ms + 200 + 1_000 - SETTINGS.margin_ms

    on_stage(act)


def test_a_node_that_cannot_renew_stops_before_its_lease_ends_for_others() -> None:
    async def act(scene: Scene) -> None:
        await asyncio.sleep(1.01)
        scene.log.is_away = True
        until_ms = scene.heartbeat.until_ms
        await scene.log.ended(ME)
        assert [until_ms] == scene.lost_at
        assert scene.clock.elapsed_ms() >= until_ms + SETTINGS.margin_ms

    on_stage(act)


def test_a_short_absence_of_the_log_is_no_loss() -> None:
    async def act(scene: Scene) -> None:
        scene.log.is_away = True
        await asyncio.sleep(0.5)
        scene.log.is_away = False
        await asyncio.sleep(5)
        assert scene.lost_at == []

    on_stage(act)


def test_an_answer_that_comes_after_the_deadline_is_too_late() -> None:
    async def act(scene: Scene) -> None:
        scene.log.delay_s = 0.95
        await asyncio.sleep(10)
        assert len(scene.lost_at) == 1
        assert scene.heartbeat.is_lost

    on_stage(act)


def test_a_lost_lease_is_reported_once_and_never_renewed() -> None:
    async def act(scene: Scene) -> None:
        scene.log.is_away = True
        await asyncio.sleep(2)
        scene.log.is_away = False
        await asyncio.sleep(10)
        scene.heartbeat.check()
        assert len(scene.lost_at) == 1
        assert not await scene.log.lives(ME)

    on_stage(act)


def test_a_log_that_is_away_at_the_start_is_an_error() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        scene.log.is_away = True
        with pytest.raises(LogUnavailable):
            await scene.heartbeat.start()

    run_virtual(main)
