"""Keys: one at a time, in order, across retries, dead heads, crowds, restarts and edits by users."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from everbell.core.amendment import Amendment
from everbell.core.event import Event, Repeat
from everbell.core.pause import Pause
from everbell.core.retry import DELIVERED, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.core.time import HOUR_MS, MINUTE_MS
from everbell.engine import agenda
from everbell.engine import ordering as lanes
from everbell.engine.entry import Entry
from everbell.engine.requests import Amend, Cancel, Redrive
from everbell.engine.seen import Seen
from everbell.engine.settings import EngineSettings
from everbell.errors import StoreFull
from everbell.stores.port import Block, Page, Unblock
from tests.unit.engine.stage import FAILED, REFUSED, Stage, play

PARKING = Tenant(on_dead="park", retry=RetryPolicy(2, 1_000, 1_000))
BLOCKING = Tenant(retry=RetryPolicy(2, 1_000, 1_000))


def test_events_of_one_key_go_one_at_a_time_in_order_of_due_time_then_acceptance() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 1
        await stage.schedule("third", 200, key="k")
        await stage.schedule("first", 100, key="k")
        await stage.schedule("second", 100, key="k")
        await stage.pass_ms(10_000)

        assert [(got.name, got.at - stage.start_at) for got in stage.receiver.got] == [
            ("first", 100),
            ("second", 1_100),
            ("third", 2_100),
        ]
        assert stage.receiver.most_open == 1

    play(scene)


def test_a_stuck_key_stops_no_other() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None if delivery.event.key == "stuck" else DELIVERED
        await stage.schedule("stuck-1", key="stuck")
        await stage.schedule("stuck-2", key="stuck")
        await stage.schedule("fine", key="fine")
        await stage.schedule("free")
        await stage.settled()

        assert sorted(stage.receiver.names) == ["fine", "free", "stuck-1"]

    play(scene)


def test_followers_wait_while_the_head_is_tried_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: (
            FAILED if delivery.event.payload == b"head" and delivery.attempt < 3 else DELIVERED
        )
        await stage.schedule("head", key="k")
        await stage.schedule("follower", 10, key="k")
        await stage.schedule("late", 5_000, key="k")
        await stage.pass_ms(MINUTE_MS)

        assert [(got.name, got.at - stage.start_at) for got in stage.receiver.got] == [
            ("head", 0),
            ("head", 2_000),
            ("head", 6_000),
            ("follower", 6_000),
            ("late", 6_000),
        ]
        assert stage.store._heads == {}

    play(scene)


def test_a_dead_head_blocks_its_key_and_nothing_else() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED if delivery.event.payload == b"head" else DELIVERED
        await stage.schedule("head", key="k")
        follower = await stage.schedule("follower", 10, key="k")
        await stage.schedule("other", 20, key="other")
        await stage.pass_ms(HOUR_MS)

        assert stage.receiver.names == ["head", "other"]
        assert await stage.status(follower) == "waiting"

    play(scene, tenants=[BLOCKING])


def test_a_dead_head_that_is_parked_lets_the_next_go() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED if delivery.event.payload == b"head" else DELIVERED
        head = await stage.schedule("head", key="k")
        await stage.schedule("follower", 10, key="k")
        await stage.pass_ms(MINUTE_MS)

        assert stage.receiver.names == ["head", "head", "follower"]
        assert await stage.status(head) == "dead"

    play(scene, tenants=[PARKING])


def test_a_redriven_head_goes_first_and_then_its_key() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        head = await stage.schedule("head", key="k")
        for number in range(3):
            await stage.schedule(f"follower-{number}", 10, key="k")
        await stage.pass_ms(MINUTE_MS)

        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.engine.ask(Redrive("default", head.id))
        await stage.pass_ms(1_000)

        assert stage.receiver.names == ["head", "head", "follower-0", "follower-1", "follower-2"]
        assert stage.store._heads == {}

    play(scene, tenants=[BLOCKING])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_cancelled_head_lets_its_key_go_on(restarts: bool) -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED if delivery.event.payload == b"head" else DELIVERED
        head = await stage.schedule("head", key="k")
        await stage.schedule("follower-1", 10, key="k")
        await stage.schedule("follower-2", 5, key="k")
        await stage.pass_ms(MINUTE_MS)
        if restarts:
            await stage.restart()
            await stage.pass_ms(MINUTE_MS)
        assert stage.receiver.names == ["head"]

        await stage.engine.ask(Cancel("default", head.id))
        await stage.pass_ms(1_000)

        assert stage.receiver.names == ["head", "follower-2", "follower-1"]

    play(scene, tenants=[BLOCKING])


def test_a_retrying_head_that_is_moved_away_lets_its_key_go_on() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED if delivery.attempt == 1 else DELIVERED
        head = await stage.schedule("head", key="k", retry=RetryPolicy(5, HOUR_MS, HOUR_MS))
        await stage.schedule("follower", 10, key="k")
        await stage.pass_ms(MINUTE_MS)
        assert stage.receiver.names == ["head"]

        stage.receiver.answer = lambda delivery: DELIVERED
        later_at = stage.clock.now() + 10 * MINUTE_MS
        await stage.engine.ask(Amend("default", head.id, Amendment(due_at=later_at), None))
        await stage.pass_ms(20 * MINUTE_MS)

        assert [(got.name, got.at) for got in stage.receiver.got[1:]] == [
            ("follower", later_at - 10 * MINUTE_MS),
            ("head", later_at),
        ]

    play(scene)


def test_a_crowded_line_goes_to_the_store_and_comes_back_in_order() -> None:
    async def scene(stage: Stage) -> None:
        # Given a head that takes its time, and many more of its key than a line in memory holds.
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("e0", key="k")
        for number in range(1, 300):
            await stage.schedule(f"e{number}", key="k")
        await stage.pass_ms(1_000)

        # Then they wait in the store, not in memory.
        waiting = await stage.store.waiting(_partition(stage), "default", "k", -1, 1_000)
        assert len(waiting.events) > 200
        assert len(stage.engine.memory.entries) <= lanes.LINE_IN_MEMORY + 1

        # When the head is done, all come in order, and the mark is lifted.
        stage.receiver.answer = lambda delivery: DELIVERED
        stage.receiver.settle("e0")
        await stage.pass_ms(MINUTE_MS)
        assert stage.receiver.names == [f"e{number}" for number in range(300)]
        assert stage.store._heads == {}

    play(scene)


async def _change(stage: Stage, event: Event, amendment: Amendment) -> Seen:
    return await stage.engine.ask(Amend("default", event.id, amendment, None))


def _partition(stage: Stage) -> int:
    return next(entry.event.partition for entry in stage.engine.memory.entries.values())


def test_a_crowded_key_survives_a_restart_in_order() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        for number in range(200):
            await stage.schedule(f"e{number}", number, key="k")
        await stage.pass_ms(1_000)
        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.restart(settings=EngineSettings(drain_s=0.1))
        await stage.pass_ms(MINUTE_MS)

        assert stage.receiver.names == ["e0", *(f"e{number}" for number in range(200))]

    play(scene, settings=EngineSettings(drain_s=0.1))


def test_an_earlier_event_that_is_due_meanwhile_takes_its_place_in_the_line() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("head", key="k")
        await stage.schedule("b", 200, key="k")
        await stage.schedule("a", 100, key="k")
        await stage.pass_ms(1_000)
        stage.receiver.answer = lambda delivery: DELIVERED
        stage.receiver.settle("head")
        await stage.settled()

        assert stage.receiver.names == ["head", "a", "b"]

    play(scene)


def test_the_end_of_a_head_is_stored_before_the_next_starts() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("first", 100, key="k")
        await stage.schedule("second", 100, key="k")
        stage.store.before_apply = lambda: asyncio.sleep(5)
        await stage.pass_ms(60_000)

        assert [got.at - stage.start_at for got in stage.receiver.got] == [100, 5_100]

    play(scene)


def test_the_mark_is_written_together_with_the_failure_and_the_line() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("head", key="k")
        await stage.schedule("follower", key="k")
        await stage.settled()
        stage.store.applied.clear()

        stage.receiver.settle("head", FAILED)
        await stage.settled()

        (group,) = stage.store.applied
        assert [type(change).__name__ for change in group] == ["Block", "Move", "Move"]

    play(scene)


def test_keys_without_trouble_write_no_marks() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(20):
            await stage.schedule(f"e{number}", number, key="k")
        await stage.pass_ms(1_000)

        changes = [change for group in stage.store.applied for change in group]
        assert not any(isinstance(change, Block | Unblock) for change in changes)

    play(scene)


@pytest.mark.parametrize("edit", ["cancel", "move"])
def test_a_head_keeps_its_place_when_the_full_store_refuses_its_edit(edit: str) -> None:
    async def scene(stage: Stage) -> None:
        # Given two of a key that are due, while their target is busy.
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("busy")
        head = await stage.schedule("head", 10, key="k")
        await stage.schedule("follower", 20, key="k")
        await stage.pass_ms(1_000)
        assert stage.receiver.names == ["busy"]

        # When an edit of the first fails.
        stage.store.fault = StoreFull("no room")
        ask = stage.engine.ask
        later = Amendment(due_at=head.due_at + HOUR_MS)
        asked = ask(Cancel("default", head.id)) if edit == "cancel" else _change(stage, head, later)
        with pytest.raises(StoreFull):
            await asked
        stage.store.fault = None

        # Then it is still the first.
        stage.receiver.answer = lambda delivery: DELIVERED
        stage.receiver.settle("busy")
        await stage.pass_ms(1_000)
        assert stage.receiver.names == ["busy", "head", "follower"]

    play(scene, tenants=[Tenant(in_flight=1)])


@pytest.mark.parametrize("changed", [1, 5, 20, 69])
def test_a_waiting_event_keeps_its_place_when_its_tags_are_changed(changed: int) -> None:
    async def scene(stage: Stage) -> None:
        # Given a line that has been to the store and is being worked off from memory.
        stage.receiver.answer = lambda delivery: None
        events = [await stage.schedule(f"e{number}", key="k") for number in range(70)]
        await stage.pass_ms(1_000)
        stage.receiver.settle("e0")
        await stage.settled()
        assert stage.receiver.names == ["e0", "e1"]

        # When something else than the time of one is changed, then it comes when its turn comes.
        if changed > 1:
            await stage.engine.ask(Amend("default", events[changed].id, Amendment(tags=("new",)), None))
        stage.receiver.answer = lambda delivery: DELIVERED
        stage.receiver.settle("e1")
        await stage.pass_ms(1_000)

        assert stage.receiver.names == [f"e{number}" for number in range(70)]
        assert stage.receiver.got[changed].event.tags == (("new",) if changed > 1 else ())

    play(scene)


def test_a_due_event_keeps_its_place_when_its_payload_is_changed() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("busy")
        head = await stage.schedule("head", 10, key="k")
        second = await stage.schedule("second", 20, key="k")
        await stage.schedule("third", 30, key="k")
        await stage.pass_ms(1_000)

        await stage.engine.ask(Amend("default", head.id, Amendment(payload=b"new head"), None))
        await stage.engine.ask(Amend("default", second.id, Amendment(payload=b"new second"), None))
        stage.receiver.answer = lambda delivery: DELIVERED
        stage.receiver.settle("busy")
        await stage.pass_ms(1_000)

        assert stage.receiver.names == ["busy", "new head", "new second", "third"]

    play(scene, tenants=[Tenant(in_flight=1)])


def test_an_event_that_is_being_changed_while_its_line_is_read_keeps_its_place() -> None:
    """It waits in the store; the line comes to memory at the very moment at which a user changes its tags."""

    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED if delivery.event.payload == b"head" else DELIVERED
        await stage.schedule("head", key="k")
        touched = await stage.schedule("touched", 10, key="k")
        for number in range(3):
            await stage.schedule(f"after-{number}", 20, key="k")
        await stage.pass_ms(500)
        stage.receiver.answer = lambda delivery: None if delivery.event.payload == b"head" else DELIVERED
        await stage.pass_ms(20_000)
        stage.receiver.takes_s = 0.001
        changing = asyncio.ensure_future(
            stage.engine.ask(Amend("default", touched.id, Amendment(tags=("touched",)), None))
        )
        stage.receiver.settle("head")
        await changing
        await stage.pass_ms(MINUTE_MS)

        assert stage.receiver.names == ["head", "head", "touched", "after-0", "after-1", "after-2"]

    play(scene)


def test_a_line_found_at_the_start_waits_for_those_that_are_due_and_have_not_rung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head is in memory already, behind others that ring before it."""
    monkeypatch.setattr(lanes, "LINE_IN_MEMORY", 1)
    monkeypatch.setattr(agenda, "SLICE", 1)

    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        for number in range(200):
            await stage.schedule(f"other-{number}")
        await stage.schedule("head", 1, key="k")
        for number in range(3):
            await stage.schedule(f"follower-{number}", 2, key="k")
        await stage.pass_ms(100)
        stage.receiver.answer = lambda delivery: DELIVERED
        stage.receiver.got.clear()
        await stage.restart()
        for _ in range(400):
            stage.engine._lanes.resume_orphaned()
            await asyncio.sleep(0)
        await stage.pass_ms(MINUTE_MS)

        keyed = [got.name for got in stage.receiver.got if got.event.key is not None]
        assert keyed == ["head", "follower-0", "follower-1", "follower-2"]

    play(scene, partitions=1)


def test_a_line_without_a_head_goes_on_after_a_restart_though_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "LINE_IN_MEMORY", 1)

    async def scene(stage: Stage) -> None:
        # Given a head with an outcome that was the last change to be stored.
        stage.receiver.answer = lambda delivery: DELIVERED if delivery.event.payload == b"head" else None
        stage.receiver.takes_s = 0.1
        await stage.schedule("head", key="k")
        for number in range(4):
            await stage.schedule(f"follower-{number}", number, key="k")
        await stage.pass_ms(200)
        assert stage.receiver.names == ["head", "follower-0"]
        assert {event.state for event in stage.store._shelves.events.values()} == {"waiting"}

        stage.receiver.got.clear()
        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.restart()
        await stage.pass_ms(MINUTE_MS)

        assert stage.receiver.names == [f"follower-{number}" for number in range(4)]

    play(scene)


def test_a_line_that_gives_way_is_sent_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is too long for memory, too, but the engine may not move events that went back to the store."""
    monkeypatch.setattr(lanes, "LINE_IN_MEMORY", 1)

    async def scene(stage: Stage) -> None:
        # Given three in line while the store is asked for the head of the key, since the key may have a mark.
        stage.engine._lanes.marks.expect("default", "k")
        for number in range(3):
            await stage.schedule(f"e{number}", 10, key="k")
        memory, ask = stage.engine.memory, stage.store.heads

        # When it turns out meanwhile that an earlier one had to stay in the store.
        async def heads(partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
            def yield_to_skipped(entry: Entry) -> bool:
                memory.forget(entry)
                return True

            monkeypatch.setattr(memory, "is_behind_skipped", lambda event: True)
            monkeypatch.setattr(memory, "yield_to_skipped", yield_to_skipped)
            return await ask(partition, keys)

        monkeypatch.setattr(stage.store, "heads", heads)
        stage.store.applied.clear()
        await stage.pass_ms(1_000)

        assert memory.entries == {}, "all three went back"
        assert stage.store.applied == []
        assert stage.receiver.names == []

    play(scene)


def test_a_line_does_not_pass_the_next_occurrence_that_the_loader_has_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a restart the line of a key is in the store, while the loader reads on through events that are long due."""
    settings = EngineSettings(page_events=1)

    async def scene(stage: Stage) -> None:
        # Given a failed head of a paused key, a recurring event in line behind it, and one that is due in between.
        stage.receiver.answer = lambda delivery: FAILED
        await stage.schedule("head", key="k")
        stage.engine.pauses.follow(
            [
                Pause("default", "key", "k", 0, "nobody", None, None),
                Pause("default", "target", "https://paused.example", 0, "nobody", None, None),
            ]
        )
        await stage.schedule("again", 2_000, key="k", repeat=Repeat(100, 3))
        await stage.schedule("between", 2_150, key="k")
        for number in range(9):
            await stage.schedule(f"other-{number}", 1_100 + 100 * number, to="https://paused.example")
        await stage.pass_ms(3_000)
        stage.receiver.answer = lambda delivery: DELIVERED
        read = stage.store.page

        # When the next owner has a store that takes its time.
        async def page(
            partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
        ) -> Page:
            await asyncio.sleep(0.05)
            return await read(partition, after, until_at, limit, without)

        monkeypatch.setattr(stage.store, "page", page)
        await stage.restart(settings=settings)
        await stage.pass_ms(10_000)

        # Then each occurrence comes in its place.
        names = [(got.name, got.event.occurrence) for got in stage.receiver.got if got.name in ("again", "between")]
        assert names == [("again", 1), ("again", 2), ("between", 1), ("again", 3)]

    play(scene, tenants=[Tenant(retry=RetryPolicy(9, 1_000, 1_000))], settings=settings, partitions=1)
