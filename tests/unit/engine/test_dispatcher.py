"""The choice of the next event to start: fair between tenants and targets, capped for each and over all."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from everbell.channels.handler import HandlerChannel
from everbell.core.event import Event, Repeat
from everbell.core.occurrence import Occurrence
from everbell.core.retry import DELIVERED
from everbell.core.spec import Draft
from everbell.core.tenant import Tenant, Tenants
from everbell.core.verdict import OccurrenceEnded, SentOff, instead
from everbell.engine import dispatcher
from everbell.engine.engine import Engine
from everbell.engine.requests import Schedule
from everbell.engine.settings import EngineSettings
from everbell.entropy import SeededEntropy
from everbell.stores.memory.store import MemoryStore
from everbell.testing import VirtualClock, run_virtual
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import Stage, play


def test_a_target_gets_no_more_than_the_tenants_cap() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 1
        for number in range(20):
            await stage.schedule(f"e{number}", 100)
        await stage.pass_ms(30_000)

        assert stage.receiver.most_open == 3
        assert stage.receiver.names == [f"e{number}" for number in range(20)]

    play(scene, tenants=[Tenant(in_flight=3)])


def test_all_targets_together_get_no_more_than_the_engines_cap() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 1
        for number in range(40):
            to, tenant = f"https://host{number % 10}.example", f"tenant{number % 4}"
            await stage.schedule(f"e{number}", 100, to=to, tenant=tenant)
        await stage.pass_ms(30_000)

        assert stage.receiver.most_open == 5
        assert len(stage.receiver.got) == 40

    play(scene, settings=EngineSettings(in_flight=5))


def test_a_small_tenant_has_its_turn_beside_a_large_one() -> None:
    async def scene(stage: Stage) -> None:
        # Given a thousand events of one tenant before two of another, all due at once.
        stage.receiver.takes_s = 0.1
        for number in range(1_000):
            await stage.schedule(f"large-{number}", 1_000, tenant="large")
        for number in range(2):
            await stage.schedule(f"small-{number}", 1_000, tenant="small")
        await stage.pass_ms(60_000)

        small = [got.at - stage.start_at for got in stage.receiver.got if got.name.startswith("small")]
        # Then the small one waits for the first free slots at most, and not for its turn behind a thousand.
        assert max(small) <= 1_100

    play(scene, tenants=[Tenant("large", in_flight=1_000)], settings=EngineSettings(in_flight=100))


def test_flows_of_one_tenant_take_turns() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        for number in range(300):
            await stage.schedule(f"e{number}", 1_000, to=f"https://host{number % 3}.example")
        await stage.pass_ms(2_000)

        # Then all three hosts have some of the slots.
        started = Counter(got.event.to for got in stage.receiver.got)
        assert sum(started.values()) == 160
        assert min(started.values()) >= 20

        stage.receiver.answer = lambda delivery: DELIVERED
        for delivery in list(stage.receiver.open):
            stage.receiver.settle(delivery.event.payload.decode())
        await stage.pass_ms(10_000)
        assert len(stage.receiver.got) == 300

    # One tenant may have four fifths of the slots.
    play(scene, settings=EngineSettings(in_flight=200))


def test_a_handler_that_does_not_wait_gets_the_next_events_in_the_same_turn() -> None:
    async def main(clock: VirtualClock) -> None:
        turns, when = 0, []

        def turn() -> None:
            nonlocal turns
            turns += 1

        async def handle(occurrence: Occurrence) -> None:
            asyncio.get_running_loop().call_soon(turn)
            when.append(turns)

        channel = HandlerChannel()
        channel.register("mail", handle)
        store, tenants = MemoryStore(), Tenants(Tenant(in_flight=20))
        engine = await Engine.start(store, {"handler": channel}, tenants, clock, SeededEntropy(0))
        drafts = [Draft(clock.now() + 1_000, "handler:mail", b"{}")] * 100
        await schedule_seen(engine.ask, "default", drafts)
        await asyncio.sleep(2)

        assert when == [0] * 100, "twenty at a time, but none had to wait for the loop"
        await engine.stop()

    run_virtual(main)


def test_recurring_events_with_years_of_missed_occurrences_leave_turns_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given 200 recurring events that began in 1970 and are due together
    evaluated: list[int] = []
    turn = 0

    def counted(event: Event, now: int) -> OccurrenceEnded | SentOff | None:
        evaluated.append(turn)
        return instead(event, now)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def scene(stage: Stage) -> None:
        repeat = Repeat(0, cron="*/7 3 * * MON", tz="Europe/Berlin", misfire="skip", count=1_000_000)
        drafts = [Draft(1_000_000, f"https://host{number % 2}.example", b"{}", repeat=repeat) for number in range(200)]
        counter = asyncio.ensure_future(count_turns())
        await stage.engine.ask(Schedule("default", drafts))
        for _ in range(200):
            await asyncio.sleep(0)
        counter.cancel()

        # Then each is evaluated once, and few in one turn of the loop.
        assert len(evaluated) == 200
        assert max(Counter(evaluated).values()) <= 8

    monkeypatch.setattr(dispatcher, "instead", counted)
    play(scene)
