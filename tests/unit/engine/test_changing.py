"""Events with a key that are changed at the wrong moment: each keeps its place in its key until the change is over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from everbell.channels.port import Delivery
from everbell.core.amendment import Amendment
from everbell.core.event import Event
from everbell.core.retry import DELIVERED, Outcome
from everbell.core.tenant import Tenant
from everbell.core.time import HOUR_MS, MINUTE_MS
from everbell.engine import agenda
from everbell.engine.requests import Amend, Cancel, GetLine
from everbell.engine.settings import EngineSettings
from everbell.errors import StoreError, StoreFull
from everbell.stores.port import Change, Finish, Move, Refusal
from tests.unit.engine.stage import Stage, play

TINY = EngineSettings(memory_bytes=4_000, page_events=16)
CROWDED = "https://crowded.example"


def touch(stage: Stage, event: Event) -> asyncio.Future[object]:
    """Change the tags of an event, and leave its time alone."""
    return asyncio.ensure_future(stage.engine.ask(Amend("default", event.id, Amendment(tags=("t",)), None)))


def test_an_event_that_becomes_due_while_it_is_changed_keeps_its_place() -> None:
    async def scene(stage: Stage) -> None:
        first = await stage.schedule("first", 100, key="k")
        await stage.schedule("second", 100, key="k")
        await stage.schedule("other", 100, key="another")
        await stage.pass_ms(98)
        go_on = stage.hold_writes()
        changing = touch(stage, first)
        await stage.pass_ms(5)
        assert stage.receiver.names == ["other"]
        go_on.set()
        await changing
        await stage.pass_ms(1_000)

        assert stage.receiver.names == ["other", "first", "second"]

    play(scene)


def test_an_event_that_becomes_due_while_a_cancel_is_refused_keeps_its_place() -> None:
    async def scene(stage: Stage) -> None:
        first = await stage.schedule("first", 100, key="k")
        await stage.schedule("second", 101, key="k")
        await stage.pass_ms(98)

        def full(changes: Sequence[Change]) -> StoreError | None:
            is_cancel = any(isinstance(change, Finish) and change.record.status == "cancelled" for change in changes)
            return StoreFull("no room") if is_cancel else None

        stage.store.fault_of = full
        go_on = stage.hold_writes()
        cancelling = asyncio.ensure_future(stage.engine.ask(Cancel("default", first.id)))
        await stage.pass_ms(5)
        go_on.set()
        with pytest.raises(StoreFull):
            await cancelling
        await stage.pass_ms(1_000)

        assert stage.receiver.names == ["first", "second"]

    play(scene)


def test_a_key_goes_on_without_an_event_that_was_cancelled_or_moved_away() -> None:
    async def scene(stage: Stage) -> None:
        events = [await stage.schedule(name, 100, key="k") for name in ("cancelled", "moved", "stays")]
        await stage.pass_ms(98)
        go_on = stage.hold_writes()
        ask = stage.engine.ask
        asked = [
            asyncio.ensure_future(ask(Cancel("default", events[0].id))),
            asyncio.ensure_future(ask(Amend("default", events[1].id, Amendment(due_at=stage.start_at + 500), None))),
        ]
        await stage.pass_ms(5)
        go_on.set()
        await asyncio.gather(*asked)
        await stage.pass_ms(1_000)

        assert stage.receiver.names == ["stays", "moved"]
        assert not stage.engine._lanes._changing

    play(scene)


def test_a_change_of_a_future_event_delays_nothing() -> None:
    async def scene(stage: Stage) -> None:
        late = await stage.schedule("late", HOUR_MS, key="k")
        await stage.schedule("first", 100, key="k")
        await stage.pass_ms(98)
        go_on = stage.hold_writes()
        changing = touch(stage, late)
        await stage.pass_ms(5)

        assert stage.receiver.names == ["first"]
        go_on.set()
        await changing

    play(scene)


def test_an_earlier_event_of_the_key_need_not_wait_for_the_change_of_a_later_one() -> None:
    async def scene(stage: Stage) -> None:
        first = await stage.schedule("first", 110, key="k")
        second = await stage.schedule("second", 100, key="k")
        await stage.schedule("third", 120, key="k")
        await stage.engine.ask(Amend("default", second.id, Amendment(due_at=stage.start_at + 115), None))
        await stage.pass_ms(108)
        go_on = stage.hold_writes()
        changing = touch(stage, second)
        await stage.pass_ms(20)
        assert stage.receiver.names == ["first"], "its end is not stored, so nothing follows it"
        go_on.set()
        await changing
        await stage.pass_ms(1_000)

        assert stage.receiver.names == ["first", "second", "third"]
        assert await stage.status(first) == "delivered"

    play(scene)


def test_an_event_that_is_not_in_memory_keeps_its_place_while_the_loader_passes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(stage: Stage) -> None:
        # Given two events of a key that found no room in memory, because two others are stuck there.
        def answer(delivery: Delivery) -> Outcome | None:
            return None if delivery.event.payload.startswith(b"stuck") else DELIVERED

        stage.receiver.answer = answer
        for number in range(2):
            await stage.schedule(f"stuck-{number}", to=CROWDED)
        first = await stage.schedule("first", 10, to=CROWDED, key="k")
        await stage.schedule("second", 20, to=CROWDED, key="k")
        await stage.pass_ms(100)
        assert len(stage.engine.memory.entries) == 2
        go_on = hold_moves(stage, monkeypatch)

        # When there is room again, and the loader reads the second while the first is being changed.
        changing = touch(stage, first)
        for number in range(2):
            stage.receiver.settle(f"stuck-{number}")
        await stage.pass_ms(100)
        assert any(entry.event.payload == b"second" for entry in stage.engine.memory.entries.values())

        # Then the second waits for the first.
        go_on.set()
        await changing
        await stage.pass_ms(1_000)
        assert stage.receiver.names == ["stuck-0", "stuck-1", "first", "second"]

    play(scene, tenants=[Tenant()], settings=TINY, partitions=1)


def hold_moves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let no group with a change end until the returned event is set."""
    go_on = asyncio.Event()
    apply = stage.store.apply

    async def held(changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        if any(isinstance(change, Move) for change in changes):
            await go_on.wait()
        return await apply(changes, epochs)

    monkeypatch.setattr(stage.store, "apply", held)
    return go_on


def test_a_line_does_not_pass_a_due_event_that_has_not_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came back to memory late, and other events ring before it."""

    async def scene(stage: Stage) -> None:
        first = await stage.schedule("first", 100, key="k")
        await stage.schedule("second", 101, key="k")
        await stage.pass_ms(98)
        go_on = stage.hold_writes()
        changing = touch(stage, first)
        await stage.pass_ms(5)
        # Given many others that are due, and an agenda that rings one of them in a turn of the loop.
        monkeypatch.setattr(agenda, "SLICE", 1)
        for number in range(5):
            asyncio.ensure_future(stage.ask(f"old-{number}", -1_000))  # noqa: RUF006
        go_on.set()
        await changing
        await stage.pass_ms(1_000)

        names = [name for name in stage.receiver.names if not name.startswith("old")]
        assert names == ["first", "second"]

    play(scene)


def test_a_look_at_a_key_counts_an_event_that_is_being_changed() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        for name in ("head", "first", "second"):
            await stage.schedule(name, key="k", id=name)
        await stage.settled()
        before = await stage.engine.ask(GetLine("default", "k"))
        go_on = stage.hold_writes()
        changing = asyncio.ensure_future(stage.engine.ask(Amend("default", "first", Amendment(tags=("t",)), None)))
        await stage.settled()

        assert await stage.engine.ask(GetLine("default", "k")) == before
        go_on.set()
        await changing

    play(scene)


def test_a_look_at_a_key_returns_the_head_in_memory_when_its_mark_was_lifted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("head", key="k", id="head")
        await stage.settled()

        async def heads(partition: int, keys: object) -> list[int]:
            return [1 << 40]

        monkeypatch.setattr(stage.store, "heads", heads)
        head = (await stage.engine.ask(GetLine("default", "k"))).head

        assert head is not None
        assert head.event.id == "head"

    play(scene)


def test_a_partition_that_leaves_takes_its_changes_with_it() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("first", 100, key="k")
        go_on = stage.hold_writes()
        changing = touch(stage, event)
        await stage.settled()
        lanes = stage.engine._lanes
        assert lanes._changing
        stage.engine.drop([event.partition])

        assert not lanes._changing
        go_on.set()
        await asyncio.gather(changing, return_exceptions=True)
        assert not lanes._changing

    play(scene)


@pytest.mark.parametrize("in_ms", [100, HOUR_MS])
@pytest.mark.parametrize("key", [None, "k"])
def test_an_event_is_put_back_when_its_caller_leaves_after_the_decision(
    in_ms: int, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("first", in_ms, key=key)
        await stage.schedule("second", in_ms + 1, key=key)
        get = stage.store.get
        changing: asyncio.Future[object]

        async def disconnect(tenant: str, event_id: str) -> object:
            found = await get(tenant, event_id)
            # The caller hears of this before it hears of the decision of the edit.
            asyncio.get_running_loop().call_soon(changing.cancel)
            return found

        monkeypatch.setattr(stage.store, "get", disconnect)
        changing = touch(stage, event)
        with pytest.raises(asyncio.CancelledError):
            await changing
        monkeypatch.undo()
        await stage.pass_ms(in_ms + MINUTE_MS)

        assert stage.receiver.names == ["first", "second"]
        assert stage.receiver.got[0].event.tags == (), "the change was not made"

    play(scene)


def test_a_second_change_does_not_wait_for_a_first_one_that_has_just_come_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("first", HOUR_MS, key="k")
        get = stage.store.get
        asked = 0

        async def disconnect_first(tenant: str, event_id: str) -> object:
            nonlocal asked
            asked += 1
            found = await get(tenant, event_id)
            if asked == 2:
                # The first caller puts the event back before the second one hears that it has to wait.
                first.cancel()
            return found

        monkeypatch.setattr(stage.store, "get", disconnect_first)
        first = asyncio.ensure_future(stage.engine.ask(Cancel("default", event.id)))
        second = touch(stage, event)
        await stage.pass_ms(1_000)

        assert first.cancelled()
        assert second.done()

    play(scene)


def test_a_caller_that_goes_during_the_read_changes_nothing_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 100)
        get = stage.store.get

        async def slow(tenant: str, event_id: str) -> object:
            await asyncio.sleep(0.01)
            return await get(tenant, event_id)

        monkeypatch.setattr(stage.store, "get", slow)
        changing = touch(stage, event)
        await stage.pass_ms(5)
        changing.cancel()
        await stage.pass_ms(1_000)

        assert stage.broken == []
        assert stage.receiver.names == ["e"]

    play(scene)


def test_a_change_that_cannot_be_worked_out_concerns_its_caller_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> Event:
        raise TypeError("an unexpected fault")

    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 100)
        monkeypatch.setattr("everbell.engine.operations.amended", fail)
        with pytest.raises(TypeError):
            await stage.engine.ask(Amend("default", event.id, Amendment(tags=("t",)), None))
        await stage.pass_ms(1_000)

        assert stage.broken == []
        assert stage.receiver.names == ["e"]

    play(scene)
