"""Pauses of tenants, keys, targets and queues, on virtual time: nothing starts, nothing is lost, order is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everbell.core.amendment import Amendment
from everbell.core.pause import Pause, What
from everbell.core.retry import DELIVERED, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.engine.engine import Engine
from everbell.engine.requests import Acknowledge, Amend, Cancel, CancelMatching, Get, GiveBack, LeaseEvents
from everbell.engine.settings import EngineSettings
from everbell.stores.port import Filter
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import FAILED, Stage, SteadyEntropy, play

SHOP, BANK = "https://shop.example", "https://bank.example"
SMALL = EngineSettings(memory_bytes=200_000, page_events=50)


def pause(what: What, name: str = "", *, tenant: str = "default", until_at: int | None = None) -> Pause:
    return Pause(tenant, what, name, 0, "nobody", None, until_at)


async def restart(stage: Stage, *pauses: Pause, settings: EngineSettings | None = None) -> None:
    """As a node starts: the pauses are known before it owns anything."""
    store, receiver = stage.store, stage.receiver
    await stage.engine.stop()
    receiver.closed = False
    receiver.open.clear()
    stage.engine = engine = await Engine.start(
        store, {"https": receiver}, stage.tenants, stage.clock, SteadyEntropy(), settings, epochs={}
    )
    engine.pauses.follow(pauses)
    await engine.take(dict.fromkeys(range(store.partitions), store.epoch + 1))


@pytest.mark.parametrize("paused", [pause("tenant"), pause("target", SHOP)])
def test_paused_events_do_not_start_and_all_resume_in_order(paused: Pause) -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.pauses.follow([paused])
        for number in range(200):
            await stage.schedule(f"{number}", in_ms=number * 10 % 1_000)
        other = await stage.schedule("other", tenant="other")
        await stage.pass_ms(60_000)
        assert stage.receiver.names == ["other"]
        assert await stage.status(other) == "delivered"
        assert stage.engine.overdue_ms() == 0, "what is paused is meant to wait"

        stage.engine.pauses.follow([])
        await stage.pass_ms(10)
        got = [each.event for each in stage.receiver.got[1:]]
        assert len(got) == 200
        assert [event.order for event in got] == sorted(event.order for event in got)
        assert {each.attempt for each in stage.receiver.got} == {1}

    play(scene)


def test_a_delivery_in_flight_ends_and_its_paused_key_goes_no_further() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        events = [await stage.schedule(f"{number}", key="k") for number in range(5)]
        other = await stage.schedule("other", key="l")
        await stage.settled()
        assert stage.receiver.names == ["0", "other"]
        stage.engine.pauses.follow([pause("key", "k")])
        stage.receiver.settle("0")
        stage.receiver.settle("other")
        await stage.schedule("next", key="l")
        await stage.pass_ms(60_000)
        assert stage.receiver.names == ["0", "other", "next"]
        assert await stage.status(events[0]) == await stage.status(other) == "delivered"
        assert len([each for each in stage.engine.memory.entries.values() if each.event.key == "k"]) == 1

        stage.receiver.answer = lambda delivery: DELIVERED
        stage.engine.pauses.follow([])
        await stage.pass_ms(10)
        assert stage.receiver.names[3:] == ["1", "2", "3", "4"]

    play(scene)


def test_a_head_that_waits_for_a_slot_is_held_back_when_its_key_is_paused() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("first")
        await stage.schedule("keyed", key="k")
        await stage.schedule("last", in_ms=1)
        await stage.pass_ms(10)
        stage.engine.pauses.follow([pause("key", "k")])
        stage.receiver.settle("first")
        await stage.settled()
        assert stage.receiver.names == ["first", "last"]
        stage.engine.pauses.follow([])
        stage.receiver.settle("last")
        await stage.settled()
        assert stage.receiver.names == ["first", "last", "keyed"]

    play(scene, tenants=[Tenant(in_flight=1)])


def test_a_head_that_fails_waits_for_its_next_attempt_as_long_as_its_key_is_paused() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("0", key="k")
        await stage.schedule("1", key="k")
        await stage.settled()
        stage.engine.pauses.follow([pause("key", "k")])
        stage.receiver.settle("0", FAILED)
        await stage.pass_ms(3_600_000)
        assert stage.receiver.names == ["0"]
        seen = await stage.engine.ask(Get("default", event.id))
        assert len(seen.event.attempts) == 1

        stage.receiver.answer = lambda delivery: DELIVERED
        stage.engine.pauses.follow([])
        await stage.pass_ms(10)
        assert [(each.name, each.attempt) for each in stage.receiver.got] == [("0", 1), ("0", 2), ("1", 1)]

    play(scene, tenants=[Tenant(retry=RetryPolicy(3, 1_000, 1_000))])


@pytest.mark.parametrize("keyed", [False, True])
def test_a_backlog_of_a_paused_target_leaves_memory_to_the_others(keyed: bool) -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None if delivery.event.to == SHOP else DELIVERED
        drafts = [stage.draft(f"{n}", key=f"k{n % 700}" if keyed else None) for n in range(1_000)]
        await schedule_seen(stage.engine.ask, "default", drafts)
        await stage.settled()
        before = len(stage.receiver.got)
        budget = stage.engine.memory.budget
        assert budget.free_bytes < budget.total_bytes * 0.6

        stage.engine.pauses.follow([pause("target", SHOP)])
        await stage.pass_ms(1_000)
        under_way = sum(each.in_flight for each in stage.engine.memory.entries.values()) * 1_010
        assert budget.free_bytes >= budget.total_bytes * 7 / 8 - under_way
        for number in range(1_000, 3_000, 500):
            drafts = [stage.draft(f"{n}", key=f"k{n}" if keyed else None) for n in range(number, number + 500)]
            await schedule_seen(stage.engine.ask, "default", drafts)
        others = [stage.draft(f"o{n}", to=BANK, key=f"o{n % 10}") for n in range(500)]
        await schedule_seen(stage.engine.ask, "default", others)
        await stage.pass_ms(5_000)
        assert budget.free_bytes >= budget.total_bytes * 7 / 8 - under_way
        names = stage.receiver.names[before:]
        assert len(names) == 500
        assert all(name.startswith("o") for name in names)

        stage.receiver.answer = lambda delivery: DELIVERED
        for name in [delivery.event.payload.decode() for delivery in stage.receiver.open]:
            stage.receiver.settle(name)
        stage.engine.pauses.follow([])
        await stage.pass_ms(60_000)
        assert sorted(stage.receiver.names[before + 500 :] + stage.receiver.names[:before], key=int) == [
            f"{n}" for n in range(3_000)
        ]
        of_key = [each.event.order for each in stage.receiver.got if each.event.key == "k1"]
        assert of_key == sorted(of_key)
        assert budget.free_bytes == budget.total_bytes

    play(scene, settings=SMALL)


def test_paused_events_without_room_in_memory_resume_roughly_in_order() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.pauses.follow([pause("tenant")])
        for start in range(0, 3_000, 500):
            drafts = [stage.draft(f"{n}", in_ms=n) for n in range(start, start + 500)]
            await schedule_seen(stage.engine.ask, "default", drafts)
        await stage.pass_ms(10_000)
        assert not stage.receiver.got
        stage.engine.pauses.follow([])
        await stage.pass_ms(10_000)
        names = [int(name) for name in stage.receiver.names]
        assert sorted(names) == list(range(3_000))
        apart = sum(abs(place - name) for place, name in enumerate(names)) / len(names)
        assert apart < 3_000 * 0.1, apart

    play(scene, settings=SMALL)


def test_resuming_respects_rate_and_cap_and_takes_turns() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 1.0
        stage.engine.pauses.follow([pause("tenant", tenant="shop")])
        for number in range(1_000):
            await stage.schedule(f"{number}", tenant="shop")
        await stage.pass_ms(1_000)
        stage.engine.pauses.follow([])
        theirs = await stage.schedule("theirs", tenant="other")
        await stage.pass_ms(500)
        assert stage.receiver.most_open <= 4 + 1
        await stage.pass_ms(600)
        assert await stage.status(theirs) == "delivered"

    play(scene, tenants=[Tenant("shop", in_flight=4)])


def test_a_pause_outlives_a_restart_and_ends_at_its_time() -> None:
    async def scene(stage: Stage) -> None:
        until_at = stage.clock.now() + 3_600_000
        pauses = [pause("target", SHOP, until_at=until_at), pause("key", "k", until_at=until_at)]
        stage.engine.pauses.follow(pauses)
        for number in range(150):
            await stage.schedule(f"a{number}", in_ms=number)
            await stage.schedule(f"k{number}", in_ms=number, to=BANK, key="k")
        await stage.pass_ms(10_000)
        for _ in range(2):
            await restart(stage, *pauses)
            await stage.pass_ms(10_000)
            assert not stage.receiver.got
        await stage.pass_ms(until_at - stage.clock.now() - 1)
        assert not stage.receiver.got
        await stage.pass_ms(1_000)
        assert [name for name in stage.receiver.names if name[0] == "a"] == [f"a{n}" for n in range(150)]
        assert [name for name in stage.receiver.names if name[0] == "k"] == [f"k{n}" for n in range(150)]
        assert min(each.at for each in stage.receiver.got) == until_at
        assert not stage.engine.pauses.on

    play(scene)


def test_a_pause_ends_at_its_time_when_the_clock_is_set() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.pauses.follow([pause("tenant", until_at=stage.clock.now() + 3_600_000)])
        await stage.schedule("0")
        stage.clock.offset_ms += 3_600_000
        await stage.pass_ms(6_000)
        assert stage.receiver.names == ["0"]

    play(scene)


def test_an_event_that_is_too_old_when_resumed_expires() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.pauses.follow([pause("tenant"), pause("key", "k")])
        short = [await stage.schedule("short", expires_ms=1_000, key=key) for key in (None, "k")]
        long = [await stage.schedule("long", expires_ms=100_000, key=key) for key in (None, "k")]
        await stage.pass_ms(2_000)
        stage.engine.pauses.follow([])
        await stage.settled()
        assert [await stage.status(event) for event in short] == ["expired"] * 2
        assert [await stage.status(event) for event in long] == ["delivered"] * 2
        assert stage.receiver.names == ["long"] * 2

    play(scene)


def test_a_paused_queue_gives_nothing_and_resuming_wakes_the_workers() -> None:
    async def scene(stage: Stage) -> None:
        ask = stage.engine.ask
        for number in range(3):
            await stage.schedule(f"{number}", to="queue:work")
        await stage.settled()
        held = await ask(LeaseEvents("default", "work", 1, 0, None))
        stage.engine.pauses.follow([pause("queue", "work")])
        await stage.schedule("3", to="queue:work")
        await stage.schedule("other", to="queue:other")
        assert await ask(LeaseEvents("default", "work", 10, 10_000, None)) == []
        assert len(await ask(LeaseEvents("default", "other", 10, 1_000, None))) == 1
        assert await ask(Acknowledge("default", "work", [held[0].token])) == [], "what was leased can be finished"

        waiting = asyncio.ensure_future(ask(LeaseEvents("default", "work", 10, 30_000, None)))
        await stage.pass_ms(1_000)
        assert not waiting.done()
        before_at = stage.clock.now()
        stage.engine.pauses.follow([])
        got = await waiting
        assert stage.clock.now() == before_at
        assert [lease.occurrence.payload for lease in got] == [1, 2, 3]

    play(scene)


@pytest.mark.parametrize("what", ["key", "queue"])
def test_a_lease_that_is_given_back_waits(what: Any) -> None:
    async def scene(stage: Stage) -> None:
        ask = stage.engine.ask
        await stage.schedule("0", to="queue:work", key="k")
        await stage.schedule("1", to="queue:work", key="k")
        await stage.settled()
        (held,) = await ask(LeaseEvents("default", "work", 10, 0, None))
        stage.engine.pauses.follow([pause(what, "k" if what == "key" else "work")])
        await ask(GiveBack("default", "work", [held.token]))
        assert await ask(LeaseEvents("default", "work", 10, 5_000, None)) == []
        stage.engine.pauses.follow([])
        (again,) = await ask(LeaseEvents("default", "work", 10, 5_000, None))
        assert (again.occurrence.payload, again.occurrence.attempt) == (0, 1)

    play(scene)


def test_a_paused_key_in_a_queue_lets_the_other_keys_through() -> None:
    async def scene(stage: Stage) -> None:
        ask = stage.engine.ask
        for key in ("k", "l"):
            for number in range(3):
                await stage.schedule(f'"{key}{number}"', to="queue:work", key=key)
        await stage.settled()
        stage.engine.pauses.follow([pause("key", "k")])
        got = []
        while held := await ask(LeaseEvents("default", "work", 10, 100, None)):
            got += [lease.occurrence.payload for lease in held]
            await ask(Acknowledge("default", "work", [lease.token for lease in held]))
        assert got == ["l0", "l1", "l2"]
        stage.engine.pauses.follow([])
        while held := await ask(LeaseEvents("default", "work", 10, 100, None)):
            got += [lease.occurrence.payload for lease in held]
            await ask(Acknowledge("default", "work", [lease.token for lease in held]))
        assert got[3:] == ["k0", "k1", "k2"]

    play(scene)


def test_paused_events_can_be_cancelled_and_moved() -> None:
    async def scene(stage: Stage) -> None:
        ask = stage.engine.ask
        stage.engine.pauses.follow([pause("tenant"), pause("key", "k")])
        events = [await stage.schedule(f"{n}", key="k" if n % 2 else None, tags=("t",)) for n in range(8)]
        await stage.pass_ms(1_000)
        for event in events[:2]:
            await ask(Cancel("default", event.id))
        for event in events[2:4]:
            await ask(Amend("default", event.id, Amendment(due_at=stage.clock.now() + 60_000), None))
        stage.engine.pauses.follow([])
        await stage.pass_ms(1_000)
        assert sorted(stage.receiver.names) == ["4", "5", "6", "7"]
        await stage.pass_ms(60_000)
        assert sorted(stage.receiver.names) == ["2", "3", "4", "5", "6", "7"]

    play(scene)


def test_bulk_cancel_reaches_paused_events() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.pauses.follow([pause("tenant"), pause("key", "k1")])
        drafts = [stage.draft(f"{n}", key=f"k{n % 3}" if n % 2 else None, tags=("t",)) for n in range(600)]
        await schedule_seen(stage.engine.ask, "default", drafts)
        await stage.pass_ms(1_000)
        assert await stage.engine.ask(CancelMatching(Filter("default", tag="t"))) == 600
        stage.engine.pauses.follow([])
        await stage.pass_ms(10_000)
        assert not stage.receiver.got
        assert stage.engine.memory.budget.free_bytes == stage.engine.memory.budget.total_bytes

    play(scene, settings=SMALL)


def test_events_scheduled_during_a_pause_take_no_more_than_their_share() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.pauses.follow([pause("tenant")])
        await stage.schedule("first")
        await stage.pass_ms(1_000)
        await schedule_seen(stage.engine.ask, "default", [stage.draft(f"{number}") for number in range(150)])
        await stage.pass_ms(1_000)

        memory = stage.engine.memory
        assert 0 < sum(flow.held_bytes for flow in memory.flows.all()) <= memory.budget.total_bytes // 8

        stage.engine.pauses.follow([])
        await stage.pass_ms(10_000)
        assert len(stage.receiver.got) == 151

    play(scene, settings=SMALL)


def test_another_pause_takes_from_the_share_of_those_before() -> None:
    async def scene(stage: Stage) -> None:
        hosts = [f"https://host{n}.example" for n in range(10)]
        budget = stage.engine.memory.budget
        for count, host in enumerate(hosts, 1):
            stage.engine.pauses.follow([pause("target", each) for each in hosts[:count]])
            await schedule_seen(stage.engine.ask, "default", [stage.draft(f"{n}", to=host) for n in range(200)])
            await stage.pass_ms(100)
            assert budget.free_bytes >= budget.total_bytes * 7 / 8
        stage.engine.pauses.follow([])
        await stage.pass_ms(5_000)
        assert len(stage.receiver.got) == 2_000

    play(scene, settings=SMALL)


def test_a_paused_target_holds_up_its_keys_from_its_own_event_on_and_not_before() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.pauses.follow([pause("target", SHOP)])
        filler = [stage.draft(f"f{n}", in_ms=n, key=f"f{n}") for n in range(500)]
        await schedule_seen(stage.engine.ask, "default", filler)
        for number, to in enumerate([BANK, BANK, SHOP, BANK, BANK]):
            await stage.schedule(f"{number}", in_ms=1_000 + number, key="k", to=to)
        await stage.pass_ms(10_000)
        assert stage.receiver.names == ["0", "1"]
        stage.engine.pauses.follow([])
        await stage.pass_ms(10_000)
        assert [name for name in stage.receiver.names if name[0] != "f"] == ["0", "1", "2", "3", "4"]

    play(scene, settings=SMALL)
