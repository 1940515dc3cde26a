"""Recurring events in a running engine: outages, overlaps, pauses, clocks."""

from __future__ import annotations

import pytest

from everbell.core.amendment import Amendment
from everbell.core.event import Course, Event, Misfire, Repeat, is_paused
from everbell.core.recurrence import ring_at
from everbell.core.retry import DELIVERED, RetryPolicy
from everbell.core.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from everbell.engine.requests import Amend, Cancel, Find, Get
from everbell.errors import Conflict
from everbell.stores.port import Filter
from tests.unit.engine.stage import FAILED, Stage, play

SKIPPING = Repeat(HOUR_MS, misfire="skip")


async def course_of(stage: Stage, event: Event) -> Course | None:
    found = await stage.store.get(event.tenant, event.id)
    assert found is not None
    return found.course


def numbers(stage: Stage) -> list[int]:
    return [got.event.occurrence for got in stage.receiver.got]


def times(stage: Stage) -> list[int]:
    return [got.at - stage.start_at for got in stage.receiver.got]


async def outage(stage: Stage, duration_ms: int) -> None:
    """Nothing runs for a while."""
    await stage.engine.stop()
    await stage.pass_ms(duration_ms)
    await stage.restart()
    await stage.settled()


@pytest.mark.parametrize(
    ("misfire", "rung", "missed"),
    [("all", [1, 2, 3, 4, 5], 0), ("latest", [1, 4, 5], 2), ("skip", [1, 5], 3)],
)
@pytest.mark.parametrize("repeat", [Repeat(HOUR_MS), Repeat(0, cron="0 * * * *")])
@pytest.mark.parametrize("key", [None, "k"])
def test_an_outage(repeat: Repeat, misfire: Misfire, rung: list[int], missed: int, key: str | None) -> None:
    async def scene(stage: Stage) -> None:
        policy = Repeat(repeat.every_ms, cron=repeat.cron, misfire=misfire)
        event = await stage.schedule("e", HOUR_MS, repeat=policy, key=key)
        await stage.pass_ms(HOUR_MS + MINUTE_MS)
        await outage(stage, 3 * HOUR_MS)
        await stage.pass_ms(HOUR_MS)

        assert numbers(stage) == rung
        assert all(got.at >= got.event.due_at for got in stage.receiver.got)
        assert await course_of(stage, event) == Course(fired=len(rung), late=missed)
        assert stage.engine.meter.missed == {"late": missed, "paused": 0, "expired": 0}
        records, _ = await stage.engine.ask(Find(Filter("default", "expired"), None, 10))
        assert len(records) == (1 if missed else 0)
        for seen in records:
            assert seen.event.reason is not None
            assert seen.event.reason.startswith(f"missed: it could not begin in time, nor could the {missed - 1} after")
            assert seen.event.occurrence == 2

    play(scene)


def test_the_last_one_may_be_missed() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS, repeat=Repeat(HOUR_MS, 2, misfire="skip"), id="e")
        await stage.pass_ms(HOUR_MS + MINUTE_MS)
        await outage(stage, DAY_MS - 2 * HOUR_MS)

        assert numbers(stage) == [1]
        seen = await stage.engine.ask(Get("default", event.id))
        assert (seen.status, seen.event.course) == ("expired", Course(fired=1, late=1))

    play(scene)


def test_a_window_bounds_the_occurrences_that_are_caught_up() -> None:
    async def scene(stage: Stage) -> None:
        repeat = Repeat(HOUR_MS, catch_up_ms=2 * HOUR_MS)
        event = await stage.schedule("e", HOUR_MS, repeat=repeat)
        await outage(stage, 10 * HOUR_MS + MINUTE_MS)

        assert numbers(stage) == [9, 10]
        assert await course_of(stage, event) == Course(fired=2, late=8)

    play(scene)


def test_an_occurrence_that_is_a_little_late_is_not_missed() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS, repeat=SKIPPING)
        await outage(stage, HOUR_MS + 900)

        assert numbers(stage) == [1]
        assert await course_of(stage, event) == Course(fired=1)

    play(scene)


def test_a_slow_receiver_and_overlap() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 2.5
        event = await stage.schedule("e", SECOND_MS, repeat=Repeat(SECOND_MS, 8, overlap="skip"), id="e")
        await stage.pass_ms(MINUTE_MS)

        assert numbers(stage) == [1, 4, 7]
        assert times(stage) == [1_000, 4_000, 7_000]
        assert await course_of(stage, event) == Course(fired=3, overlapped=5)

    play(scene)


def test_a_slow_receiver_and_patience() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 2.5
        await stage.schedule("e", SECOND_MS, repeat=Repeat(SECOND_MS, 4))
        await stage.pass_ms(MINUTE_MS)

        assert numbers(stage) == [1, 2, 3, 4]
        assert times(stage) == [1_000, 3_500, 6_000, 8_500]

    play(scene)


def test_a_slow_receiver_that_wants_only_the_latest() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 2.5
        event = await stage.schedule("e", SECOND_MS, repeat=Repeat(SECOND_MS, 8, misfire="latest"), id="e")
        await stage.pass_ms(MINUTE_MS)

        assert numbers(stage) == [1, 3, 6, 8]
        assert await course_of(stage, event) == Course(fired=4, late=4)

    play(scene)


def test_a_slow_receiver_that_takes_them_all_at_once() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 2.5
        repeat = Repeat(SECOND_MS, 5, overlap="allow", jitter_ms=100)
        event = await stage.schedule("e", SECOND_MS, repeat=repeat, id="e")
        await stage.pass_ms(MINUTE_MS)

        assert numbers(stage) == [1, 2, 3, 4, 5]
        assert times(stage) == [ring_at(repeat, "e", number, number * SECOND_MS) for number in range(1, 6)]
        assert stage.receiver.most_open == 3
        assert {got.event.name for got in stage.receiver.got} == {f"e:{number}" for number in range(1, 6)}
        assert len({got.event.id for got in stage.receiver.got}) == 5
        assert await course_of(stage, event) == Course(fired=5)

    play(scene)


def test_an_occurrence_that_took_many_attempts_was_under_way_all_the_time() -> None:
    async def scene(stage: Stage) -> None:
        # Given an occurrence that is delivered with its 46th attempt, a second after the other.
        stage.receiver.answer = lambda delivery: DELIVERED if delivery.attempt > 45 else FAILED
        event = await stage.schedule(
            "e", 0, repeat=Repeat(10 * SECOND_MS, overlap="skip"), retry=RetryPolicy(100, SECOND_MS, SECOND_MS)
        )
        await stage.pass_ms(49 * SECOND_MS)

        # Then those that came due meanwhile are left out, though the first attempts are long forgotten.
        assert await course_of(stage, event) == Course(fired=1, overlapped=4)

    play(scene)


def test_one_that_fails_holds_up_no_other_where_they_overlap() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED if delivery.event.occurrence == 1 else DELIVERED
        await stage.schedule("e", 0, repeat=Repeat(SECOND_MS, 3, overlap="allow"))
        await stage.pass_ms(10 * SECOND_MS)

        assert [number for number in numbers(stage) if number > 1] == [2, 3]
        assert [got.attempt for got in stage.receiver.got if got.event.occurrence == 1] == [1, 2, 3]

    play(scene)


@pytest.mark.parametrize(
    ("misfire", "rung", "missed"),
    [("all", [1, 2, 3, 4, 5], 0), ("latest", [1, 4, 5], 2), ("skip", [1, 5], 3)],
)
def test_an_outage_where_occurrences_overlap(misfire: Misfire, rung: list[int], missed: int) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS, repeat=Repeat(HOUR_MS, misfire=misfire, overlap="allow"))
        await stage.pass_ms(HOUR_MS + MINUTE_MS)
        await outage(stage, 3 * HOUR_MS)
        await stage.pass_ms(HOUR_MS)

        assert sorted(numbers(stage)) == rung
        assert await course_of(stage, event) == Course(fired=len(rung), late=missed)

    play(scene)


def test_to_cancel_the_event_leaves_those_that_went_their_own_way() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e", 0, repeat=Repeat(SECOND_MS, overlap="allow"))
        await stage.pass_ms(1_500)
        await stage.engine.ask(Cancel("default", event.id))
        await stage.pass_ms(20 * SECOND_MS)

        assert numbers(stage) == [1, 2]
        assert {await stage.status(got.event) for got in stage.receiver.got} == {"delivering"}
        await stage.engine.ask(Cancel("default", stage.receiver.got[0].event.id))

    play(scene)


def test_retries_of_one_occurrence_are_no_reason_to_miss_it() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED if delivery.attempt < 3 else DELIVERED
        event = await stage.schedule("e", SECOND_MS, repeat=Repeat(2 * SECOND_MS, misfire="skip"))
        await stage.pass_ms(8 * SECOND_MS)

        assert [got.attempt for got in stage.receiver.got] == [1, 2, 3]
        assert await course_of(stage, event) == Course(fired=1, late=3)

    play(scene)


def test_jitter_moves_the_ringing_and_not_the_grid() -> None:
    async def scene(stage: Stage) -> None:
        repeat = Repeat(HOUR_MS, 3, jitter_ms=10 * MINUTE_MS)
        event = await stage.schedule("e", HOUR_MS, repeat=repeat)
        assert event.run_at > event.due_at
        await stage.pass_ms(5 * HOUR_MS)

        for got in stage.receiver.got:
            nominal_at = stage.start_at + got.event.occurrence * HOUR_MS
            assert got.event.due_at == nominal_at
            assert got.at == ring_at(repeat, event.id, got.event.occurrence, nominal_at)
        assert numbers(stage) == [1, 2, 3]

    play(scene)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_pause_and_its_end(key: str | None) -> None:
    async def scene(stage: Stage) -> None:
        ask = stage.engine.ask
        event = await stage.schedule("e", HOUR_MS, repeat=SKIPPING, key=key)
        await stage.pass_ms(HOUR_MS + MINUTE_MS)
        paused = await ask(Amend("default", event.id, Amendment(paused=True, note="holidays"), None))
        assert paused.status == "paused"
        found, _ = await ask(Find(Filter("default", "paused"), None, 10))
        assert [seen.event.id for seen in found] == [event.id]
        await stage.restart()
        await stage.pass_ms(5 * HOUR_MS)
        assert numbers(stage) == [1]

        resumed = await stage.engine.ask(Amend("default", event.id, Amendment(paused=False, note=None), None))
        assert resumed.status == "scheduled"
        await stage.pass_ms(HOUR_MS)
        assert numbers(stage) == [1, 7]
        assert await course_of(stage, event) == Course(fired=2, paused=5)
        assert stage.engine.meter.missed["paused"] == 5

    play(scene)


def test_a_paused_event_holds_up_no_event_of_its_key() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED if delivery.event.payload == b"head" else DELIVERED
        head = await stage.schedule("head", 0, key="k", repeat=Repeat(HOUR_MS))
        await stage.schedule("next", 1, key="k")
        await stage.pass_ms(100)
        assert stage.receiver.names == ["head"]

        await stage.engine.ask(Amend("default", head.id, Amendment(paused=True), None))
        await stage.settled()
        await stage.pass_ms(10)
        assert stage.receiver.names == ["head", "next"]
        await stage.pass_ms(DAY_MS)
        assert stage.receiver.names == ["head", "next"]

    play(scene)


def test_one_that_waits_in_its_line_can_be_paused() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None if delivery.event.payload == b"head" else DELIVERED
        await stage.schedule("head", 0, key="k")
        event = await stage.schedule("e", 1, key="k", repeat=Repeat(HOUR_MS))
        await stage.pass_ms(10)
        seen = await stage.engine.ask(Amend("default", event.id, Amendment(paused=True), None))
        assert isinstance(seen.event, Event)
        assert is_paused(seen.event)
        stage.receiver.settle("head")
        await stage.pass_ms(DAY_MS)
        assert stage.receiver.names == ["head"]

    play(scene)


def test_an_event_in_flight_cannot_be_paused() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e", 0, repeat=Repeat(HOUR_MS))
        await stage.pass_ms(10)
        with pytest.raises(Conflict, match="being delivered"):
            await stage.engine.ask(Amend("default", event.id, Amendment(paused=True), None))
        stage.receiver.settle("e")
        await stage.settled()
        await stage.engine.ask(Amend("default", event.id, Amendment(paused=True), None))

    play(scene)


def test_clocks_that_change() -> None:
    async def scene(stage: Stage) -> None:
        # In 2026 the clocks of Berlin go forward on March 29, 87 days after the start.
        await outage(stage, 86 * DAY_MS + HOUR_MS)
        repeat = Repeat(0, cron="30 2 * * *", tz="Europe/Berlin")
        event = await stage.schedule("e", 30 * MINUTE_MS, repeat=repeat)
        await stage.pass_ms(31 * MINUTE_MS)
        await outage(stage, DAY_MS + 22 * HOUR_MS)
        await stage.pass_ms(2 * HOUR_MS)

        assert times(stage) == [86 * DAY_MS + 90 * MINUTE_MS, 88 * DAY_MS + 30 * MINUTE_MS]
        assert await course_of(stage, event) == Course(fired=2, gaps=1)

    play(scene)
