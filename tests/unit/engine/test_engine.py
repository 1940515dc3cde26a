"""The engine as a whole, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from everbell.channels.port import Delivery
from everbell.core.event import Record, Repeat
from everbell.core.retry import DELIVERED, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.core.time import DAY_MS, HOUR_MS, MINUTE_MS
from everbell.engine.requests import Cancel, CountEvents, Get, LeaseEvents, Redrive
from everbell.engine.seen import Seen
from everbell.engine.settings import EngineSettings
from everbell.errors import OutcomeUnknown, Stopping, StoreBroken, StoreFull
from tests.unit.engine.stage import FAILED, REFUSED, Stage, play

WEEK_MS = 7 * DAY_MS


def test_a_week_of_scheduling() -> None:
    async def scene(stage: Stage) -> None:
        # Given thousands of events over a week, some of them recurring, some with a key, some in the past.
        dice = random.Random(7)
        due: dict[str, int] = {}
        for number in range(3_000):
            in_ms = dice.randrange(-HOUR_MS, WEEK_MS)
            event = await stage.schedule(f"one-{number}", in_ms, key=f"k{number % 50}" if number % 3 == 0 else None)
            due[f"one-{number}"] = event.due_at
        for number in range(20):
            await stage.schedule(f"hourly-{number}", dice.randrange(HOUR_MS), repeat=Repeat(HOUR_MS, 100))

        # When the week passes.
        await stage.pass_ms(WEEK_MS + HOUR_MS)

        # Then each came once, none early, and those in the future to the millisecond.
        counts = Counter(stage.receiver.names)
        assert all(counts[name] == 1 for name in due)
        assert all(counts[f"hourly-{number}"] == 100 for number in range(20))
        for got in stage.receiver.got:
            assert got.at == max(got.event.due_at, got.event.created_at)
        tally = (await stage.engine.ask(CountEvents()))["default"]
        assert (tally.pending, tally.dead, tally.delivered) == (0, 0, 5_000)
        assert stage.engine.memory.entries == {}

    play(scene, settings=EngineSettings(lookahead_ms=MINUTE_MS))


def test_an_event_due_now_or_in_the_past_goes_out_at_once() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("past", -DAY_MS)
        await stage.schedule("now", 0)
        await stage.settled()

        assert stage.receiver.names == ["past", "now"]
        assert {got.at for got in stage.receiver.got} == {stage.start_at}

    play(scene)


@pytest.mark.parametrize("lead_ms", [10, 900, 2_500, 10_000, 2 * HOUR_MS])
def test_never_early_when_the_clock_is_set_back(lead_ms: int) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("alarm", lead_ms)
        await stage.pass_ms(lead_ms // 2)

        # When an administrator sets the clock an hour back, just before it is due.
        stage.clock.offset_ms -= HOUR_MS
        await stage.pass_ms(lead_ms - lead_ms // 2 + 1_000)
        assert stage.receiver.got == []

        # Then it waits for its time on the new clock.
        await stage.pass_ms(HOUR_MS)
        (got,) = stage.receiver.got
        assert got.at == event.due_at

    play(scene)


@pytest.mark.parametrize("lead_ms", [HOUR_MS, 2 * HOUR_MS])
def test_a_clock_set_forward_is_noticed_within_a_second(lead_ms: int) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("alarm", lead_ms)
        await stage.pass_ms(10_000)

        stage.clock.offset_ms += lead_ms
        await stage.pass_ms(2_000)

        (got,) = stage.receiver.got
        assert event.due_at <= got.at <= event.due_at + 12_000

    play(scene)


def test_nothing_is_early_while_the_clock_wanders() -> None:
    async def scene(stage: Stage) -> None:
        dice = random.Random(3)
        for number in range(300):
            await stage.schedule(f"e{number}", dice.randrange(20 * MINUTE_MS))
        for _ in range(60):
            stage.clock.offset_ms += dice.randrange(-30_000, 30_000)
            await stage.pass_ms(dice.randrange(60_000))
        await stage.pass_ms(HOUR_MS)

        assert len(stage.receiver.got) == 300
        assert all(got.at >= got.event.due_at for got in stage.receiver.got)

    play(scene)


def test_events_far_ahead_cost_no_memory() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(1_000):
            await stage.schedule(f"e{number}", HOUR_MS + number)

        assert stage.engine.memory.entries == {}

    play(scene)


def test_an_event_survives_a_restart() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("soon", 1_000)
        await stage.schedule("later", HOUR_MS)
        first = stage.engine.epochs[0]
        await stage.restart()
        await stage.pass_ms(HOUR_MS + 1)

        assert stage.receiver.names == ["soon", "later"]
        assert stage.engine.epochs[0] > first

    play(scene)


@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_retries_come_at_exactly_the_times_that_policy_and_jitter_give(jitter: float) -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED
        event = await stage.schedule("e", 100, retry=RetryPolicy(5, 1_000, 3_000))
        await stage.pass_ms(MINUTE_MS)

        pauses = [int(full * (1 - jitter / 2)) for full in (1_000, 2_000, 3_000, 3_000)]
        expected = [stage.start_at + 100 + sum(pauses[:n]) for n in range(5)]
        assert [(got.attempt, got.at) for got in stage.receiver.got] == list(enumerate(expected, start=1))
        seen = await stage.engine.ask(Get("default", event.id))
        assert seen.status == "dead"
        assert [attempt.number for attempt in seen.event.attempts] == [1, 2, 3, 4, 5]

    play(scene, jitter=jitter)


def test_an_event_that_is_refused_is_dead_and_can_be_redriven() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        event = await stage.schedule("e")
        await stage.settled()
        assert await stage.status(event) == "dead"

        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.engine.ask(Redrive("default", event.id))
        await stage.settled()

        assert await stage.status(event) == "delivered"
        assert [got.attempt for got in stage.receiver.got] == [1, 1]

    play(scene)


def test_an_event_past_its_expiry_expires_without_an_attempt() -> None:
    async def scene(stage: Stage) -> None:
        # Given a target that takes one at a time, and takes long.
        stage.receiver.takes_s = 60
        await stage.schedule("first")
        event = await stage.schedule("second", 100, expires_ms=1_000)
        exact = await stage.schedule("third", 59_000, expires_ms=1_000)

        await stage.pass_ms(2 * MINUTE_MS + 1)
        await stage.settled()

        # Then the event that waited too long is expired; one on its last millisecond is still delivered.
        assert stage.receiver.names == ["first", "third"]
        assert await stage.status(event) == "expired"
        assert await stage.status(exact) == "delivered"

    play(scene, tenants=[Tenant(in_flight=1, timeout_ms=2 * MINUTE_MS)])


def test_a_retry_that_would_come_too_late_expires() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED
        event = await stage.schedule("e", expires_ms=2_500, retry=RetryPolicy(9, 1_000, 1_000))
        await stage.pass_ms(MINUTE_MS)

        assert [got.at - stage.start_at for got in stage.receiver.got] == [0, 1_000, 2_000]
        assert await stage.status(event) == "expired"

    play(scene)


def test_occurrences_come_on_the_grid_even_when_attempts_fail() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: DELIVERED if delivery.attempt == 2 else FAILED
        event = await stage.schedule("tick", 1_000, repeat=Repeat(10_000, 3))
        await stage.pass_ms(MINUTE_MS)

        assert [(got.event.occurrence, got.attempt, got.at - stage.start_at) for got in stage.receiver.got] == [
            (1, 1, 1_000),
            (1, 2, 3_000),
            (2, 1, 11_000),
            (2, 2, 13_000),
            (3, 1, 21_000),
            (3, 2, 23_000),
        ]
        assert await stage.status(event) == "delivered"

    play(scene)


def test_occurrences_missed_while_nothing_ran_are_made_up_for_in_order() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("tick", 1_000, repeat=Repeat(10_000, 5), key="k")
        await stage.engine.stop()
        await stage.pass_ms(35_000)
        await stage.restart()
        await stage.pass_ms(MINUTE_MS)

        assert [got.event.occurrence for got in stage.receiver.got] == [1, 2, 3, 4, 5]
        assert [got.at - stage.start_at for got in stage.receiver.got] == [35_000, 35_000, 35_000, 35_000, 41_000]

    play(scene)


def test_a_saturated_target_leaves_the_others_alone() -> None:
    async def scene(stage: Stage) -> None:
        # Given a target that never answers, with ten times more events than fit into memory.
        stage.receiver.answer = lambda delivery: None if "stuck" in delivery.event.to else DELIVERED
        for number in range(500):
            await stage.schedule(f"stuck-{number}", 10, to="https://stuck.example")
        await stage.pass_ms(1_000)

        # When others are scheduled, then they are on time, and memory stays within its budget.
        for number in range(20):
            await stage.schedule(f"fine-{number}", 100)
        await stage.pass_ms(1_000)

        fine = [got for got in stage.receiver.got if got.name.startswith("fine")]
        assert [got.at for got in fine] == [stage.start_at + 1_100] * 20
        assert stage.engine.memory.budget.free_bytes >= 0
        assert len(stage.engine.memory.entries) <= 50
        assert sum(name.startswith("stuck") for name in stage.receiver.names) == 4

        # When it answers again, everything that was left in the store goes out, in order.
        stage.receiver.answer = lambda delivery: DELIVERED
        for name in [delivery.event.payload.decode() for delivery in list(stage.receiver.open)]:
            stage.receiver.settle(name)
        await stage.pass_ms(60_000)
        stuck = [name for name in stage.receiver.names if name.startswith("stuck")]
        assert stuck == [f"stuck-{number}" for number in range(500)]
        assert not stage.engine.memory.starved

    play(
        scene, tenants=[Tenant(in_flight=4)], settings=EngineSettings(memory_bytes=50_000, page_events=7), partitions=1
    )


def test_memory_is_given_back_to_the_last_byte() -> None:
    async def scene(stage: Stage) -> None:
        answers = [DELIVERED, FAILED, REFUSED]
        dice = random.Random(1)
        stage.receiver.answer = lambda delivery: dice.choice(answers)
        stage.receiver.takes_s = 0.01
        for number in range(300):
            event = await stage.schedule(f"e{number}", dice.randrange(5_000), key=dice.choice((None, "a", "b")))
            if number % 10 == 0:
                await stage.engine.ask(Cancel("default", event.id))
        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.pass_ms(HOUR_MS)

        budget = stage.engine.memory.budget
        assert budget.free_bytes == budget.total_bytes
        assert stage.engine.dispatcher.in_flight == 0
        assert all(not flow.held_bytes and not flow.in_flight for flow in stage.engine.memory.flows.all())

    play(scene, tenants=[Tenant(on_dead="park")], settings=EngineSettings(memory_bytes=20_000, page_events=5))


def test_a_full_store_refuses_and_recovers() -> None:
    async def scene(stage: Stage) -> None:
        before = await stage.schedule("before", 1_000)

        # Given a full disk.
        stage.store.fault = StoreFull("no room")
        assert isinstance(await stage.ask("during", 1_500), StoreFull)
        await stage.pass_ms(5_000)
        # Then the event that was stored before is still delivered, once.
        assert stage.receiver.names == ["before"]

        # When there is room again, the outcome is stored and new events are taken.
        stage.store.fault = None
        await stage.pass_ms(500)
        after = await stage.schedule("after", 10)
        await stage.pass_ms(1_000)
        assert stage.receiver.names == ["before", "after"]
        assert [await stage.status(event) for event in (before, after)] == ["delivered", "delivered"]
        assert stage.broken == []

    play(scene)


def test_an_edit_that_a_full_store_refuses_leaves_the_event_as_it_was() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 1_000)
        stage.store.fault = StoreFull("no room")
        with pytest.raises(StoreFull):
            await stage.engine.ask(Cancel("default", event.id))
        stage.store.fault = None
        await stage.pass_ms(2_000)

        assert [got.at for got in stage.receiver.got] == [event.due_at]

    play(scene)


def test_a_broken_store_ends_the_engine_and_nothing_is_promised_after() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        for number in range(4):
            await stage.schedule(f"e{number}", 100)
        await stage.schedule("later", 2_000)
        await stage.pass_ms(200)
        assert stage.receiver.names == ["e0", "e1"]

        # When a write fails so that the engine cannot know which changes are durable.
        stage.store.fault = StoreBroken("fsync failed")
        asking = asyncio.ensure_future(stage.ask("in the middle"))
        await stage.settled()

        # Then the request learns that its outcome is unknown, later ones are refused, and no new attempt starts.
        assert isinstance(asking.result(), StoreBroken)
        assert [str(error) for error in stage.broken] == ["fsync failed"]
        assert stage.engine.broken is stage.broken[0]
        with pytest.raises(Stopping):
            await stage.ask("after")
        stage.receiver.settle("e0")
        stage.receiver.settle("e1")
        await stage.pass_ms(10_000)
        assert stage.receiver.names == ["e0", "e1"]

    play(scene, tenants=[Tenant(in_flight=2)])


def test_a_stop_waits_for_deliveries_in_flight_and_starts_none() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 3
        under_way = await stage.schedule("under way")
        await stage.schedule("next", 1_000)
        await stage.settled()

        drained = await stage.engine.stop()

        assert drained
        assert stage.clock.now() == stage.start_at + 3_000
        assert stage.receiver.names == ["under way"]
        assert stage.store.closed
        record = await stage.store.get("default", under_way.id)
        assert isinstance(record, Record)
        assert record.status == "delivered"
        with pytest.raises(Stopping):
            await stage.ask("too late")

    play(scene)


def test_a_stop_gives_up_after_its_deadline_and_the_event_comes_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("stuck")
        await stage.settled()

        assert not await stage.engine.stop()
        assert stage.clock.now() == stage.start_at + 2_000

        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.restart()
        await stage.pass_ms(1_000)
        assert [got.attempt for got in stage.receiver.got] == [1, 1]
        assert await stage.status(event) == "delivered"

    play(scene, settings=EngineSettings(drain_s=2.0))


def test_records_are_forgotten_after_the_tenants_retention() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e")
        await stage.pass_ms(1_000)
        assert isinstance((await stage.engine.ask(Get("default", event.id))).event, Record)

        await stage.pass_ms(4 * HOUR_MS)

        assert await stage.store.get("default", event.id) is None

    play(scene, tenants=[Tenant(retention_ms=2 * HOUR_MS)])


def test_a_target_without_a_channel_is_no_silent_loss() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", to="handler:absent")
        await stage.settled()

        seen = await stage.engine.ask(Get("default", event.id))
        assert seen == Seen.of(seen.event, "dead")
        assert seen.event.reason == "nothing here delivers to handler: targets"

    play(scene)


@pytest.mark.parametrize("idle_s", [0.1, 5, 60, 3_600, 7 * 86_400])
def test_an_event_rings_on_time_however_long_nothing_happened_before(idle_s: float) -> None:
    async def scene(stage: Stage) -> None:
        await stage.pass_ms(int(idle_s * 1_000))

        asked_at = stage.clock.now()
        for name, in_ms in (("now", 0), ("near", 100), ("soon", 2_900), ("beyond the window", 20_000)):
            await stage.schedule(name, in_ms)
        await stage.pass_ms(30_000)

        assert [got.at - asked_at for got in stage.receiver.got] == [0, 100, 2_900, 20_000]

    play(scene)


def test_an_exception_in_a_channel_fails_the_attempt_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Stage) -> None:
        start, faults = stage.receiver.start, [RuntimeError("a bug with a secret in its text")]

        def raises_once(deliveries: Sequence[Delivery]) -> None:
            if faults:
                raise faults.pop()
            start(deliveries)

        stage.receiver.start = raises_once  # type: ignore[method-assign]
        event = await stage.schedule("one", 0, retry=RetryPolicy(2, 100, 100))
        await stage.pass_ms(1_000)

        record = await stage.engine.ask(Get("default", event.id))
        assert record.status == "delivered"
        assert [attempt.result for attempt in record.event.attempts] == ["failed", "delivered"]
        assert "RuntimeError" in str(record.event.attempts[0].reason)
        assert "secret" not in str(record.event.attempts[0].reason), "tenants read it"
        assert "a bug with a secret" in caplog.text
        assert stage.engine.broken is None

    play(scene)


def test_an_attempt_that_no_channel_reports_is_given_up_and_retried() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None if delivery.attempt == 1 else DELIVERED
        event = await stage.schedule("one", 0, key="k")
        await stage.schedule("two", 1, key="k")
        await stage.pass_ms(2 * MINUTE_MS)

        assert stage.receiver.names == ["one", "one", "two"]
        assert await stage.status(event) == "delivered"
        # A report that comes after that changes nothing.
        stage.receiver.settle("one")
        assert stage.engine.broken is None

    play(scene)


def test_an_exception_in_the_agenda_ends_the_engine_and_answers_all_callers() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("one", 100)
        waiting = asyncio.ensure_future(stage.engine.ask(LeaseEvents("default", "jobs", 1, 60_000, None)))
        await stage.pass_ms(1)
        stage.engine._agenda._ring = lambda entry: 1 / 0  # type: ignore[assignment]
        await stage.pass_ms(200)

        assert isinstance(stage.engine.broken, ZeroDivisionError)
        assert stage.broken == [stage.engine.broken]
        with pytest.raises(OutcomeUnknown):
            await waiting
        with pytest.raises(Stopping):
            await stage.engine.ask(CountEvents())

    play(scene)
