"""Workers and the engine: an acknowledgement is durable, a lost worker loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from everbell.core.retry import Outcome, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.core.time import MINUTE_MS
from everbell.engine.requests import Acknowledge, Cancel, ExtendLeases, FailLeases, Get, GiveBack, LeaseEvents
from everbell.engine.settings import EngineSettings
from everbell.engine.write_queue import WriteQueue
from everbell.errors import EverbellError, Stopping
from tests.unit.engine.stage import Stage, play

WORK = ("default", "work")
TENANT = Tenant(retry=RetryPolicy(3, 1_000, 1_000), lease_ms=5_000)


def test_an_acknowledgement_is_answered_when_it_is_durable() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", to="queue:work")
        (lease,) = await stage.engine.ask(LeaseEvents(*WORK, 1, 1_000, None))
        assert await stage.status(event) == "delivering"
        stage.store.before_apply = lambda: asyncio.sleep(3)

        began_at = stage.clock.now()
        assert await stage.engine.ask(Acknowledge(*WORK, [lease.token])) == []

        assert stage.clock.now() >= began_at + 3_000
        assert await stage.status(event) == "delivered"

    play(scene, tenants=[TENANT])


def test_outcomes_that_cannot_be_submitted_end_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("e", to="queue:work")
        (lease,) = await stage.engine.ask(LeaseEvents(*WORK, 1, 1_000, None))

        def fault(*arguments: object, **options: object) -> None:
            raise KeyError("a fault of ours")

        monkeypatch.setattr(WriteQueue, "submit", fault)
        with pytest.raises((KeyError, EverbellError)):
            await stage.engine.ask(Acknowledge(*WORK, [lease.token]))
        assert [type(error) for error in stage.broken] == [KeyError], "the outcome would be missing until a restart"

    play(scene, tenants=[TENANT])


def test_a_failure_comes_again_by_the_policy_until_it_is_dead() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", to="queue:work")
        times = []
        for attempt in (1, 2, 3):
            (lease,) = await stage.engine.ask(LeaseEvents(*WORK, 1, MINUTE_MS, None))
            times.append(stage.clock.now() - stage.start_at)
            assert lease.occurrence.attempt == attempt
            await stage.engine.ask(FailLeases(*WORK, {lease.token: Outcome("failed", "no")}))

        assert times == [0, 1_000, 2_000]
        assert await stage.status(event) == "dead"

    play(scene, tenants=[TENANT])


def test_a_lost_worker_costs_an_attempt_and_its_token_is_stale() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", to="queue:work")
        (stale,) = await stage.engine.ask(LeaseEvents(*WORK, 1, 0, None)) or await stage.engine.ask(
            LeaseEvents(*WORK, 1, 1_000, None)
        )
        (lease,) = await stage.engine.ask(LeaseEvents(*WORK, 1, MINUTE_MS, None))

        assert lease.occurrence.attempt == 2
        assert 6_000 <= stage.clock.now() - stage.start_at <= 6_200
        assert await stage.engine.ask(Acknowledge(*WORK, [stale.token])) == [stale.token]
        assert await stage.status(event) == "delivering"
        assert await stage.engine.ask(Acknowledge(*WORK, [lease.token])) == []
        seen = await stage.engine.ask(Get("default", event.id))
        assert [attempt.result for attempt in seen.event.attempts] == ["lost", "delivered"]

    play(scene, tenants=[TENANT])


def test_an_event_that_is_given_back_is_offered_at_once_as_the_same_attempt() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("e", to="queue:work")
        (lease,) = await stage.engine.ask(LeaseEvents(*WORK, 1, 1_000, None))
        assert await stage.engine.ask(GiveBack(*WORK, [lease.token])) == []
        (again,) = await stage.engine.ask(LeaseEvents(*WORK, 1, 1_000, None))

        assert stage.clock.now() == stage.start_at
        assert again.occurrence.attempt == 1
        assert again.token != lease.token

    play(scene, tenants=[TENANT], settings=EngineSettings(drain_s=0.1))


def test_a_cancelled_event_is_not_leased_any_more() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", to="queue:work")
        await stage.settled()
        await stage.engine.ask(Cancel("default", event.id))

        assert await stage.engine.ask(LeaseEvents(*WORK, 1, 10_000, None)) == []

    play(scene)


def test_the_keys_of_a_queue_go_one_at_a_time() -> None:
    async def scene(stage: Stage) -> None:
        for name in ("a", "b"):
            await stage.schedule(name, to="queue:work", key="k")
        await stage.settled()
        (first,) = await stage.engine.ask(LeaseEvents(*WORK, 10, 0, None))
        assert await stage.engine.ask(LeaseEvents(*WORK, 10, 100, None)) == []
        await stage.engine.ask(Acknowledge(*WORK, [first.token]))
        (second,) = await stage.engine.ask(LeaseEvents(*WORK, 10, 1_000, None))

        assert (first.occurrence.raw, second.occurrence.raw) == (b"a", b"b")
        await stage.engine.ask(Acknowledge(*WORK, [second.token]))

    play(scene)


def test_an_extended_lease_is_kept() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", to="queue:work")
        (lease,) = await stage.engine.ask(LeaseEvents(*WORK, 1, 1_000, None))
        for _ in range(5):
            await stage.pass_ms(4_000)
            assert await stage.engine.ask(ExtendLeases(*WORK, [lease.token], 5_000)) == []
        await stage.engine.ask(Acknowledge(*WORK, [lease.token]))

        assert await stage.status(event) == "delivered"

    play(scene, tenants=[TENANT])


def test_events_of_a_queue_survive_a_restart_with_their_leases_gone() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("e", to="queue:work")
        (lease,) = await stage.engine.ask(LeaseEvents(*WORK, 1, 1_000, None))
        waiting = asyncio.ensure_future(stage.engine.ask(LeaseEvents(*WORK, 1, MINUTE_MS, None)))
        await stage.settled()
        await stage.restart()

        with pytest.raises(Stopping):
            await waiting
        assert await stage.engine.ask(Acknowledge(*WORK, [lease.token])) == [lease.token]
        (again,) = await stage.engine.ask(LeaseEvents(*WORK, 1, 1_000, None))
        assert again.occurrence.id == lease.occurrence.id
        assert again.occurrence.epoch > lease.occurrence.epoch

    play(scene, settings=EngineSettings(drain_s=0.1))
