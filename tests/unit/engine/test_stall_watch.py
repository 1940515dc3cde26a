"""Due events that could start and do not are noticed; events that are meant to wait are not."""

from __future__ import annotations

import asyncio

import pytest

from everbell.core.pause import Pause
from everbell.core.tenant import BreakerPolicy, Tenant
from everbell.engine.agenda import Agenda
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.loader import Loader
from everbell.engine.stall_watch import StallWatch
from everbell.errors import StoreUnavailable
from everbell.node.metrics import render
from everbell.testing.virtual import VirtualLoop
from tests.unit.engine.stage import FAILED, Stage, play
from tests.unit.node.test_metrics import values


@pytest.mark.parametrize(
    ("part", "method", "said"),
    [
        (Dispatcher, "_pump_slice", "the dispatcher does not start them"),
        (Agenda, "_wake", "do not ring"),
        (Loader, "_next_front", "not read from the store"),
    ],
)
def test_a_part_that_lost_its_wake_up_is_named(
    monkeypatch: pytest.MonkeyPatch, part: type, method: str, said: str
) -> None:
    monkeypatch.setattr(part, method, lambda self: None)

    async def scene(stage: Stage) -> None:
        await stage.schedule("one", 1_000)
        await stage.pass_ms(5_000)
        assert stage.engine.stalls.look() is None, "it may yet start"
        await stage.pass_ms(15_000)
        assert said in str(stage.engine.stalls.look())
        assert values(render(stage.engine))["everbell_stalled"] == 1

    play(scene)


def test_a_stall_that_ends_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        with monkeypatch.context() as stuck:
            stuck.setattr(Dispatcher, "_pump", lambda self: None)
            await stage.schedule("one")
            await stage.pass_ms(20_000)
            assert stage.engine.stalls.reason is not None
        stage.engine.dispatcher._pump()
        assert stage.engine.stalls.look() is None
        assert stage.receiver.names == ["one"]

    play(scene)


def test_events_that_wait_for_something_else_are_no_stall() -> None:
    """A slow target at its cap, a queue without a worker, a pause, a breaker and a rate."""

    async def scene(stage: Stage) -> None:
        for number in range(200):
            await stage.schedule(f"slow{number}")
        await stage.schedule("queue", to="queue:mail")
        pause = Pause("paused", "tenant", "paused", 0, "nobody")
        stage.engine.pauses.follow([pause])
        await stage.schedule("paused", tenant="paused")
        stage.receiver.answer = lambda delivery: FAILED
        for number in range(3):
            await stage.schedule(f"broken{number}", tenant="broken")
            await stage.schedule(f"limited{number}", tenant="limited")
        stage.receiver.answer = lambda delivery: None
        for _ in range(120):
            await stage.pass_ms(1_000)
            assert stage.engine.stalls.look() is None
        assert stage.engine.overdue_ms() > 60_000

    tenants = (Tenant("broken", breaker=BreakerPolicy(1, 3_600_000)), Tenant("limited", rate=0.001))
    play(scene, tenants=tenants)


def test_a_store_that_is_away_is_no_stall() -> None:
    async def scene(stage: Stage) -> None:
        stage.store.fault = StoreUnavailable("restarting")
        stage.receiver.takes_s = 1
        await stage.ask("one")
        await stage.pass_ms(60_000)
        assert stage.engine.stalls.look() is None
        stage.store.fault = None

    play(scene)


def test_a_process_that_was_frozen_gets_a_moment() -> None:
    async def scene(stage: Stage) -> None:
        watch: StallWatch = stage.engine.stalls
        await stage.schedule("one", 500)
        await stage.pass_ms(499)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for _ in range(2):
            # Time goes on while the process stands still, and the watch looks before the agenda's timer fires.
            loop._advance(60)
            assert watch.look() is None

    play(scene)
