"""Circuit breakers, on virtual time: a dead target is probed, its events wait and burn no attempts."""

from __future__ import annotations

import logging

import pytest

from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.tenant import BreakerPolicy, Tenant
from everbell.engine.breaker import Breaker
from everbell.engine.requests import Acknowledge, FailLeases, LeaseEvents
from tests.unit.engine.stage import FAILED, REFUSED, Stage, play

SHAKY = Tenant("shop", retry=RetryPolicy(50, 1_000, 1_000), breaker=BreakerPolicy(3, 10_000), in_flight=1)


@pytest.mark.parametrize("kind", ["failed", "timeout", "lost"])
def test_failures_in_a_row_open_it_and_signs_of_life_close_it(kind: str) -> None:
    breaker, failure = Breaker(BreakerPolicy(2, 1)), Outcome(kind)  # type: ignore[arg-type]
    assert [breaker.record(outcome) for outcome in (failure, REFUSED, failure, DELIVERED, failure)] == [False] * 5
    assert breaker.record(failure)
    states = [breaker.state]
    assert not breaker.record(failure), "what was under way changes nothing"
    for outcome in (failure, REFUSED):
        breaker.probe()
        assert breaker.record(outcome)
        states.append(breaker.state)
    assert states == ["open", "open", "closed"]


def test_a_dead_target_is_probed_and_events_burn_no_attempts(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED
        events = [await stage.schedule(f"{number}", tenant="shop") for number in range(20)]
        await stage.pass_ms(500)
        assert len(stage.receiver.got) == 3
        await stage.pass_ms(60_000)
        assert len(stage.receiver.got) == 9, "one probe in ten seconds"

        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.pass_ms(10_000)
        assert [await stage.status(event) for event in events] == ["delivered"] * 20
        assert max(got.attempt for got in stage.receiver.got) <= 3

    with caplog.at_level(logging.WARNING):
        play(scene, tenants=[SHAKY])
    changes = [record.getMessage() for record in caplog.records if record.name == "everbell.engine"]
    assert len(changes) == 2, changes
    assert "3 attempts at https://shop.example:443 failed in a row" in changes[0]
    assert "works again" in changes[1]


def test_other_targets_and_tenants_go_on() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED if "shop.example" in delivery.event.to else DELIVERED
        for number in range(5):
            await stage.schedule(f"{number}", tenant="shop")
        await stage.pass_ms(100)
        fine = await stage.schedule("fine", tenant="shop", to="https://bank.example")
        await stage.settled()
        assert await stage.status(fine) == "delivered"
        stage.receiver.answer = lambda delivery: DELIVERED
        theirs = await stage.schedule("theirs", tenant="other")
        await stage.settled()
        assert await stage.status(theirs) == "delivered"

    play(scene, tenants=[SHAKY])


def test_keys_keep_their_order() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED
        for number in range(4):
            await stage.schedule(f"{number}", tenant="shop", key="k")
        await stage.pass_ms(40_000)
        assert set(stage.receiver.names) == {"0"}
        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.pass_ms(20_000)
        assert stage.receiver.names[-4:] == ["0", "1", "2", "3"]

    play(scene, tenants=[SHAKY])


def test_workers_of_a_queue_that_fail_get_one_event_at_a_time() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(10):
            await stage.schedule(f"{number}", tenant="shop", to="queue:work")
        await stage.settled()
        ask = stage.engine.ask

        async def fail(limit: int) -> int:
            held = await ask(LeaseEvents("shop", "work", limit, 0, None))
            await ask(FailLeases("shop", "work", {lease.token: FAILED for lease in held}))
            return len(held)

        assert await fail(3) == 3
        assert await fail(10) == 0, "the breaker is open"
        await stage.pass_ms(10_001)
        assert await fail(10) == 1, "a probe"
        assert await fail(10) == 0
        await stage.pass_ms(10_001)
        (probe,) = await ask(LeaseEvents("shop", "work", 10, 0, None))
        await ask(Acknowledge("shop", "work", [probe.token]))
        await stage.settled()
        assert len(await ask(LeaseEvents("shop", "work", 10, 0, None))) == 9

    play(scene, tenants=[SHAKY])
