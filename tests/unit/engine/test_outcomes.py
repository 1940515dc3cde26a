"""Outcomes: stored in groups, and only then does an event move on."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from everbell.core.dead_letter import letter_of
from everbell.core.event import Event, Repeat
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.core.time import HOUR_MS, SECOND_MS
from everbell.engine import ordering as lanes
from everbell.engine import tally
from everbell.engine.marks import NO_HEAD
from everbell.engine.requests import Cancel, Get
from everbell.errors import StoreFull
from everbell.stores.port import Add, Block, Finish, Move
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import FAILED, REFUSED, Stage, play


def test_a_newcomer_in_the_turn_in_which_the_head_fails_does_not_set_the_line_going(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lane is gone from memory when its head has failed. A reader of the store must find its mark from then on,
    even if the writer is reading at that moment and will read again before it writes."""
    monkeypatch.setattr(lanes, "LINE_IN_MEMORY", 1)

    async def scene(stage: Stage) -> None:
        # Given a key with its line in the store, marked as having no head there.
        stage.receiver.answer = lambda delivery: None
        head = await stage.schedule("head", key="k")
        for number in range(3):
            await stage.schedule(f"follower-{number}", number, key="k")
        newcomer = await stage.schedule("newcomer", 1_000, key="k")
        await stage.pass_ms(100)
        assert list(stage.store._heads.values()) == [NO_HEAD]

        # When the head fails and the next event of the key rings, both during one read of the writer.
        async def reading() -> None:
            stage.receiver.settle("head", FAILED)
            stage.engine._ring(stage.engine.memory.entries[newcomer.sequence])

        stage.engine._writer.read(reading)
        await stage.settled()

        # Then the key waits for its head.
        assert list(stage.store._heads.values()) == [head.sequence]
        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.pass_ms(60_000)
        followers = [f"follower-{number}" for number in range(3)]
        assert stage.receiver.names == ["head", "head", *followers, "newcomer"]

    play(scene)


async def under_way(stage: Stage, count: int) -> list[str]:
    """Start `count` attempts, forget the changes that were written so far, and return the names of the events."""
    stage.receiver.answer = lambda delivery: None
    names = [f"e{number}" for number in range(count)]
    for name in names:
        await stage.schedule(name, 10)
    await stage.pass_ms(20)
    stage.store.applied.clear()
    return names


def test_outcomes_of_one_turn_are_stored_together() -> None:
    async def scene(stage: Stage) -> None:
        for name in await under_way(stage, 5):
            stage.receiver.settle(name)
        await stage.settled()

        assert [[type(change) for change in group] for group in stage.store.applied] == [[Finish] * 5]
        assert stage.engine.memory.entries == {}

    play(scene)


def test_outcomes_without_a_waiting_key_are_written_together() -> None:
    async def scene(stage: Stage) -> None:
        for name in await under_way(stage, 3):
            stage.receiver.settle(name)
            await stage.pass_ms(2)
        assert [[type(change) for change in group] for group in stage.store.applied] == [[Finish] * 3]

    play(scene)


def test_an_outcome_is_written_with_the_next_group() -> None:
    async def scene(stage: Stage) -> None:
        first, second, third = await under_way(stage, 3)
        keyed = await stage.schedule("keyed", key="k")
        await stage.pass_ms(20)
        stage.store.applied.clear()

        # New events take it along.
        stage.receiver.settle(first)
        await stage.schedule("new", HOUR_MS)
        assert [{type(change) for change in group} for group in stage.store.applied] == [{Finish, Add}]

        # An outcome for which a key waits takes it along.
        stage.receiver.settle(second)
        stage.receiver.settle("keyed")
        for _ in range(10):
            await asyncio.sleep(0)
        assert await stage.status(keyed) == "delivered"
        assert [type(change) for change in stage.store.applied[-1]] == [Finish, Finish]

        # A release takes it along.
        stage.receiver.settle(third)
        assert await stage.engine.release(range(8), 1.0)
        assert [type(change) for change in stage.store.applied[-1]] == [Finish]

    play(scene)


def test_many_ends_are_stored_at_once() -> None:
    async def scene(stage: Stage) -> None:
        for name in await under_way(stage, 300):
            stage.receiver.settle(name)
        for _ in range(10):
            await asyncio.sleep(0)
        assert sum(map(len, stage.store.applied)) == 300

    play(scene, tenants=[Tenant(in_flight=300)])


def test_an_event_leaves_memory_only_when_its_outcome_is_stored() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e")
        await stage.settled()
        blocked = stage.hold_writes()
        stage.receiver.settle("e")
        await stage.settled()
        assert event.sequence in stage.engine.memory.entries

        blocked.set()
        await stage.settled()
        assert stage.engine.memory.entries == {}
        assert await stage.status(event) == "delivered"

    play(scene)


def test_a_failure_without_a_key_writes_no_mark() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED
        await stage.schedule("e")
        await stage.settled()

        (change,) = stage.store.applied[-1]
        assert isinstance(change, Move)
        assert change.after.attempt_count == 1

    play(scene)


@pytest.mark.parametrize("outcome", [FAILED, Outcome("timeout", "no answer")])
def test_a_head_that_gives_up_and_is_parked_leaves_its_mark_without_a_head(outcome: Outcome) -> None:
    """The mark stays for the line behind it, until that is empty; its end and the mark are one write."""
    parking = Tenant(on_dead="park", retry=RetryPolicy(2, 1_000, 1_000))

    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: outcome if delivery.event.payload == b"head" else DELIVERED
        await stage.schedule("head", key="k")
        await stage.schedule("follower", 10, key="k")
        await stage.pass_ms(60_000)

        marks = [
            (change.head, [type(other) for other in group])
            for group in stage.store.applied
            for change in group
            if isinstance(change, Block)
        ]
        assert marks[-1] == (NO_HEAD, [Move, Block])
        assert stage.receiver.names == ["head", "head", "follower"]
        assert stage.store._heads == {}

    play(scene, tenants=[parking])


def test_the_next_occurrence_that_is_due_already_takes_its_place_before_the_key_goes_on() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 1
        await stage.schedule("tick", key="k", repeat=Repeat(100, 3))
        await stage.schedule("later", 150, key="k")
        await stage.pass_ms(10_000)

        assert stage.receiver.names == ["tick", "tick", "later", "tick"]

    play(scene)


def test_the_outcome_of_a_delivery_from_a_lost_partition_is_ignored() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e", key="k")
        await stage.settled()
        stage.engine.drop([event.partition])
        written = len(stage.store.applied)
        stage.receiver.settle("e")
        await stage.settled()

        assert len(stage.store.applied) == written
        assert stage.engine.meter.tallies.total()[tally.DELIVERED] == 0

    play(scene)


def test_many_that_were_delivered_together_end_each_by_its_own_rules() -> None:
    async def scene(stage: Stage) -> None:
        # Given attempts under way: plain ones, one of a key with a follower, one that comes again, one on its second
        # attempt, one that was cancelled meanwhile.
        stage.receiver.answer = lambda delivery: FAILED if delivery.event.payload == b"second" else None
        plain = [await stage.schedule(f"plain-{number}", 10) for number in range(3)]
        second = await stage.schedule("second", retry=RetryPolicy(backoff_ms=2_000))
        await stage.pass_ms(20)
        stage.receiver.answer = lambda delivery: None
        head = await stage.schedule("head", key="k")
        await stage.schedule("follower", key="k")
        again = await stage.schedule("again", repeat=Repeat(60_000, 2))
        gone = await stage.schedule("gone")
        await stage.pass_ms(3_000)
        await stage.engine.ask(Cancel("default", gone.id))
        stage.store.applied.clear()

        # When all of them are settled in one call.
        deliveries = list(stage.receiver.open)
        stage.receiver.open.clear()
        deliveries[0].desk.settle_all(deliveries, Outcome("delivered", None, 204))
        await stage.settled()

        # Then one group stores their ends, each with its attempts, and the key and the repetition go on.
        assert len(stage.store.applied) == 1
        assert [await stage.status(event) for event in (*plain, second, head)] == ["delivered"] * 5
        assert await stage.status(again) == "scheduled"
        assert await stage.status(gone) == "cancelled"
        assert stage.receiver.names[-1] == "follower"
        record = (await stage.engine.ask(Get("default", second.id))).event
        assert [(attempt.number, attempt.result, attempt.code) for attempt in record.attempts] == [
            (1, "failed", 503),
            (2, "delivered", 204),
        ]
        assert stage.engine.meter.tallies.total()[tally.DELIVERED] == 6
        assert [entry.event.payload for entry in stage.engine.memory.entries.values()] == [b"follower"]

    play(scene)


def test_outcomes_that_arrive_together_are_stored_in_groups_of_limited_size() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await schedule_seen(stage.engine.ask, "default", [stage.draft(f"e{number}") for number in range(2_500)])
        await stage.pass_ms(10)
        stage.store.applied.clear()
        deliveries = list(stage.receiver.open)
        stage.receiver.open.clear()
        deliveries[0].desk.settle_all(deliveries, DELIVERED)
        await stage.settled()

        assert sorted(map(len, stage.store.applied)) == [500, 1_000, 1_000]
        assert stage.engine.memory.entries == {}
        assert stage.engine.memory.budget.free_bytes == stage.engine.memory.budget.total_bytes

    play(scene, tenants=[Tenant(in_flight=4_000)])


@pytest.mark.parametrize("on_dead", ["block", "park"])
@pytest.mark.parametrize("key", [None, "k"])
def test_the_death_of_an_event_and_its_letter_are_one_write(key: str | None, on_dead: Literal["block", "park"]) -> None:
    letters = "https://letters.example/"

    async def scene(stage: Stage) -> None:
        # Given a receiver that refuses all that does not go to the target of dead letters.
        stage.receiver.answer = lambda delivery: DELIVERED if delivery.event.to == letters else REFUSED
        event = await stage.schedule("e", 1_000, key=key, tags=("t",))
        stage.store.applied.clear()
        await stage.pass_ms(10_000)

        # Then the letter was stored with the death, and rang.
        deaths = [unit for unit in stage.store.applied if any(isinstance(change, Move) for change in unit)]
        assert [[change.event.to for change in unit if isinstance(change, Add)] for unit in deaths] == [[letters]]
        assert await stage.status(event) == "dead"
        first, letter = [got.event for got in stage.receiver.got]
        assert (first.id, letter.to, letter.payload, letter.key) == (event.id, letters, b"e", None)
        assert letter.tags == ("t",)
        assert dict(letter.headers) == {
            "everbell-dead-id": event.id,
            "everbell-dead-to": event.to,
            "everbell-dead-attempts": "1",
            "everbell-dead-reason": "never",
        }
        assert await stage.status(letter) == "delivered"

    play(scene, tenants=(Tenant(on_dead=on_dead, dead_letter_to=letters),))


@pytest.mark.parametrize("repeat", [None, Repeat(SECOND_MS, 5, overlap="allow")], ids=["letter", "occurrence"])
def test_without_room_for_new_events_all_that_follows_from_old_ones_is_stored(repeat: Repeat | None) -> None:
    letters = "https://letters.example/"

    async def scene(stage: Stage) -> None:
        # Given a store that takes no more events from users, as RocksDB does when a disk is nearly full.
        stage.receiver.answer = lambda delivery: REFUSED if delivery.event.payload == b"bad" else DELIVERED
        await stage.schedule("bad" if repeat is None else "often", SECOND_MS, repeat=repeat)
        good = [await stage.schedule(f"e{number}", 2 * SECOND_MS + number) for number in range(5)]
        stage.store.fault_of = lambda changes: (
            StoreFull("no room") if any(isinstance(change, Add) and not change.follows for change in changes) else None
        )
        await stage.pass_ms(10 * SECOND_MS)

        # Then the letter, or each occurrence that goes its own way, rang, and everything else did.
        assert [await stage.status(event) for event in good] == ["delivered"] * 5
        others = [got.event for got in stage.receiver.got if not got.name.startswith("e")]
        assert len(others) == (2 if repeat is None else 5)
        assert isinstance(await stage.ask("new"), StoreFull)

    play(scene, tenants=(Tenant(dead_letter_to=letters),))


def test_a_letter_that_dies_makes_no_other() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        await stage.schedule("e", 1_000)
        await stage.pass_ms(60_000)
        assert len(stage.receiver.got) == 2
        assert stage.engine.meter.tallies.total()[tally.DEAD] == 2

    play(scene, tenants=(Tenant(dead_letter_to="https://letters.example/"),))


def test_characters_that_a_header_cannot_carry_are_replaced_in_a_letter() -> None:
    event = Event(
        "bestellung-\xfc",
        "shop",
        0,
        1,
        5,
        5,
        "https://x.example/",
        b"{}",
        1,
        reason="gr\xfc\xdfe\r\nx: y",
        headers=(("x-team", "a"),),
    )
    told = dict(letter_of(event, "queue:letters", "ev_1", 2, 9).headers)
    assert told["x-team"] == "a"
    assert told["everbell-dead-id"] == "bestellung-%C3%BC"
    assert told["everbell-dead-reason"] == "gr??e??x: y"
