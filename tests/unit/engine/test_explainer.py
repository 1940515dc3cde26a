"""Explanations by the owner of an event: what really holds it up, at the moment of the request."""

from __future__ import annotations

import pytest

from everbell.channels.handler import HandlerChannel
from everbell.core.event import Event
from everbell.core.pause import Pause
from everbell.core.tenant import BreakerPolicy, Tenant, Tenants
from everbell.core.why import Why
from everbell.engine.engine import Engine
from everbell.engine.requests import LeaseEvents
from everbell.engine.settings import EngineSettings
from everbell.engine.view_requests import Explain
from everbell.entropy import SeededEntropy
from everbell.errors import StoreUnavailable
from everbell.stores.memory.store import MemoryStore
from everbell.testing import VirtualClock, run_virtual
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import FAILED, REFUSED, Stage, play


async def why(stage: Stage, event: Event) -> Why:
    explained = await stage.engine.ask(Explain(event.tenant, event.id))
    assert explained.why is not None
    return explained.why


async def code(stage: Stage, event: Event) -> str:
    return (await why(stage, event)).code


def test_the_life_of_an_event_is_explained_step_by_step() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("one", 60_000)
        assert await code(stage, event) == "due-later"
        await stage.pass_ms(60_001)
        assert await code(stage, event) == "delivering"
        stage.receiver.settle("one", FAILED)
        await stage.settled()
        again = await why(stage, event)
        assert (again.code, again.reason, again.attempt) == ("retrying", "not now", 2)
        await stage.pass_ms(20_000)
        stage.receiver.settle("one", REFUSED)
        await stage.settled()
        assert (await why(stage, event)).reason == "never"
        assert await code(stage, event) == "dead"

        done = await stage.schedule("two")
        await stage.pass_ms(10)
        stage.receiver.settle("two")
        await stage.settled()
        explained = await stage.engine.ask(Explain("default", done.id))
        assert (explained.seen.status, explained.why) == ("delivered", None)

    play(scene)


def test_a_pause_is_told_as_soon_as_it_is_made_and_until_it_ends() -> None:
    async def scene(stage: Stage) -> None:
        for what, name, fields in (
            ("tenant", "", {}),
            ("target", "https://shop.example", {}),
            ("key", "k", {"key": "k"}),
            ("queue", "mail", {"to": "queue:mail"}),
        ):
            pause = Pause("default", what, name, stage.clock.now(), "key-1", "why not")  # type: ignore[arg-type]
            stage.engine.pauses.follow([pause])
            event = await stage.schedule(f"{what}-1", **fields)  # type: ignore[arg-type]  # one call for all kinds
            await stage.pass_ms(100)
            told = await why(stage, event)
            assert (told.code, told.what, told.by, told.note) == ("paused", what, "key-1", "why not")
            stage.engine.pauses.follow([])
            explained = await stage.engine.ask(Explain("default", event.id))
            assert explained.why is None or explained.why.code != "paused"
            await stage.pass_ms(100)

    play(scene)


def test_an_event_behind_another_names_it_in_memory_and_in_the_store() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        head = await stage.schedule("head", key="k")
        follower = await stage.schedule("follower", key="k")
        await stage.pass_ms(10)
        told = await why(stage, follower)
        assert (told.code, told.event, told.status) == ("behind", head.id, "delivering")

        stage.receiver.settle("head", FAILED)
        await stage.settled()
        told = await why(stage, follower)
        assert (told.code, told.event, told.status) == ("behind", head.id, "retrying")
        assert await code(stage, head) == "retrying"

        await stage.pass_ms(20_000)
        stage.receiver.settle("head", REFUSED)
        await stage.settled()
        told = await why(stage, follower)
        assert (told.code, told.event, told.status) == ("behind", head.id, "dead")

    play(scene)


def test_queues_tell_whether_workers_call() -> None:
    async def scene(stage: Stage) -> None:
        one, two = [await stage.schedule(name, to="queue:mail") for name in ("one", "two")]
        await stage.pass_ms(10)
        assert await code(stage, one) == "no-worker"
        await stage.engine.ask(LeaseEvents("default", "mail", 1, 0, 600_000))
        assert await code(stage, one) == "delivering"
        assert await code(stage, two) == "awaiting-worker"
        await stage.pass_ms(60_000)
        assert await code(stage, two) == "no-worker"

    play(scene)


def test_caps_rates_and_breakers_are_told() -> None:
    async def capped(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        first, second = await stage.schedule("one"), await stage.schedule("two")
        await stage.pass_ms(10)
        assert (await code(stage, first), await code(stage, second)) == ("delivering", "target-at-cap")

    play(capped, tenants=[Tenant(in_flight=1)])

    async def limited(stage: Stage) -> None:
        await stage.schedule("one")
        second = await stage.schedule("two")
        await stage.pass_ms(10)
        assert await code(stage, second) == "rate-limited"

    play(limited, tenants=[Tenant(rate=0.1)])

    async def broken(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED
        await stage.schedule("one")
        await stage.pass_ms(10)
        event = await stage.schedule("two")
        await stage.pass_ms(10)
        assert await code(stage, event) == "breaker-open"

    play(broken, tenants=[Tenant(breaker=BreakerPolicy(failures=1, pause_ms=3_600_000))])

    async def full(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("one", to="https://a.example")
        await stage.pass_ms(10)
        event = await stage.schedule("two", to="https://b.example")
        await stage.pass_ms(10)
        assert await code(stage, event) == "node-at-cap"

    play(full, settings=EngineSettings(in_flight=1))


def test_an_event_that_waits_on_disk_for_memory_says_so() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        events = [await stage.schedule(f"e{number}") for number in range(12)]
        await stage.pass_ms(100)
        assert await code(stage, events[-1]) == "memory-full"

    play(scene, settings=EngineSettings(memory_bytes=8_000))


def test_a_store_that_is_away_is_told() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        events = [await stage.schedule(name) for name in ("one", "two")]
        await stage.pass_ms(10)
        stage.store.fault = StoreUnavailable("the database restarts")
        await stage.ask("three")
        await stage.pass_ms(10)
        assert await code(stage, events[1]) == "store-away"
        stage.store.fault = None
        await stage.pass_ms(10_000)
        assert await code(stage, events[1]) == "target-at-cap"

    play(scene, tenants=[Tenant(in_flight=1)])


def test_a_partition_that_another_node_owns_is_told() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("one", 60_000)
        stage.engine.drop([event.partition])
        assert await code(stage, event) == "no-owner"

    play(scene)


@pytest.mark.parametrize("registered", [True, False])
def test_a_handler_that_is_not_registered_is_told(registered: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        handlers = HandlerChannel()

        async def fail(event: object) -> None:
            raise ValueError("no")

        if registered:
            handlers.register("mail", fail)
        engine = await Engine.start(MemoryStore(4), {"handler": handlers}, Tenants(), clock, SeededEntropy(7))
        stage = Stage(clock, None, None, engine, Tenants())  # type: ignore[arg-type]  # neither is used
        (seen,) = await schedule_seen(engine.ask, "default", [stage.draft("one", to="handler:mail")], engine.store)
        await stage.pass_ms(100)
        assert not isinstance(seen, Exception)
        explained = await engine.ask(Explain("default", seen.event.id))
        assert explained.why is not None
        assert explained.why.code == ("retrying" if registered else "no-handler")
        await engine.stop()

    run_virtual(main)
