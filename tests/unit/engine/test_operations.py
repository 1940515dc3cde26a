"""The requests of users: exact cancels and changes, repeated requests, versions, bulk, trying out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from everbell.core.amendment import Amendment
from everbell.core.event import Event, Record, Repeat
from everbell.core.retry import DELIVERED, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.core.time import HOUR_MS, INSTANT_MAX, MINUTE_MS
from everbell.core.verdict import record_of
from everbell.engine.requests import (
    Amend,
    Cancel,
    CancelMatching,
    CountEvents,
    Find,
    Get,
    Redrive,
    RedriveMatching,
    Replace,
    Ring,
    TryOut,
)
from everbell.engine.seen import Seen
from everbell.errors import Conflict, NotFound, StoreFull, TooLarge, VersionMismatch
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Change, Filter, Finish, Found, Move, Refusal
from tests.unit.engine.stage import FAILED, REFUSED, Stage, play


@pytest.mark.parametrize("before_ms", [0, 1, 500, 10_000])
def test_no_attempt_starts_after_a_cancel_was_acknowledged(before_ms: int) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 20_000)
        await stage.pass_ms(20_000 - before_ms - 3)
        # Given a store that takes three milliseconds, so that some cancels are stored at the moment of the due time.
        stage.store.before_apply = lambda: asyncio.sleep(0.003)

        seen = await stage.engine.ask(Cancel("default", event.id))

        assert seen.status == "cancelled"
        await stage.pass_ms(HOUR_MS)
        assert stage.receiver.got == []
        assert await stage.status(event) == "cancelled"

    play(scene)


def test_a_cancel_that_races_with_the_due_time_is_exact_either_way() -> None:
    async def scene(stage: Stage) -> None:
        events = [await stage.schedule(f"e{number}", 1_000) for number in range(200)]
        stage.receiver.takes_s = 0.01

        async def cancel_at(index: int, event: Event) -> bool:
            await stage.pass_ms(980 + index % 40)
            try:
                await stage.engine.ask(Cancel("default", event.id))
            except Conflict:
                return False
            begun = [got.at for got in stage.receiver.got if got.name == f"e{index}"]
            await stage.pass_ms(HOUR_MS)
            assert begun == [got.at for got in stage.receiver.got if got.name == f"e{index}"]
            return True

        cancelled = await asyncio.gather(*(cancel_at(index, event) for index, event in enumerate(events)))
        for event, was_cancelled in zip(events, cancelled, strict=True):
            assert await stage.status(event) == ("cancelled" if was_cancelled else "delivered")
        assert 0 < sum(cancelled) < 200

    play(scene)


def test_an_event_that_is_cancelled_under_way_is_not_tried_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e", key="k")
        await stage.schedule("next", key="k")
        await stage.settled()
        await stage.engine.ask(Cancel("default", event.id))
        assert await stage.status(event) == "cancelled"
        # The key waits for the attempt that is under way: two of a key never overlap.
        assert stage.receiver.names == ["e"]

        stage.receiver.settle("e", FAILED)
        await stage.pass_ms(MINUTE_MS)

        assert stage.receiver.names == ["e", "next"]
        assert await stage.status(event) == "cancelled"

    play(scene)


def test_the_outcome_counts_when_a_cancel_under_way_could_not_be_stored() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e")
        await stage.settled()
        stage.store.fault = StoreFull("no room")
        stage.store.before_apply = lambda: asyncio.sleep(1)
        cancelling = asyncio.ensure_future(stage.engine.ask(Cancel("default", event.id)))
        await stage.settled()
        stage.receiver.settle("e")
        with pytest.raises(StoreFull):
            await cancelling
        stage.store.fault = stage.store.before_apply = None
        await stage.pass_ms(MINUTE_MS)

        assert stage.receiver.names == ["e"]
        assert await stage.status(event) == "delivered"

    play(scene)


@pytest.mark.parametrize(("move_ms", "due_ms"), [(-5_000, 5_000), (5_000, 15_000), (HOUR_MS, HOUR_MS + 10_000)])
def test_a_moved_event_rings_at_its_new_time_and_only_then(move_ms: int, due_ms: int) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 10_000)
        seen = await stage.engine.ask(Amend("default", event.id, Amendment(due_at=event.due_at + move_ms), None))
        assert seen.event.version == 2
        await stage.pass_ms(2 * HOUR_MS)

        assert [got.at - stage.start_at for got in stage.receiver.got] == [due_ms]

    play(scene)


def test_a_change_at_the_moment_of_dispatch_goes_out_or_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        events = [await stage.schedule(f"e{number}", 1_000) for number in range(100)]

        async def change_at(index: int, event: Event) -> bool:
            await stage.pass_ms(980 + index % 40)
            try:
                await stage.engine.ask(Amend("default", event.id, Amendment(payload=f"new{index}".encode()), None))
            except Conflict:
                return False
            return True

        changed = await asyncio.gather(*(change_at(index, event) for index, event in enumerate(events)))
        await stage.pass_ms(MINUTE_MS)
        expected = {f"new{index}" if was else f"e{index}" for index, was in enumerate(changed)}
        assert sorted(stage.receiver.names) == sorted(expected)
        assert 0 < sum(changed) < 100

    play(scene)


def test_a_change_of_an_event_in_flight_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e")
        await stage.settled()
        assert await stage.status(event) == "delivering"

        with pytest.raises(Conflict):
            await stage.engine.ask(Amend("default", event.id, Amendment(payload=b"new"), None))
        stage.receiver.settle("e")
        await stage.settled()
        assert await stage.status(event) == "delivered"

    play(scene)


def test_a_change_names_the_version_that_it_changes() -> None:
    async def scene(stage: Stage) -> None:
        ask = stage.engine.ask
        event = await stage.schedule("e", HOUR_MS)
        await ask(Amend("default", event.id, Amendment(payload=b"two"), 1))

        for stale in (
            ask(Amend("default", event.id, Amendment(payload=b"three"), 1)),
            ask(Cancel("default", event.id, 1)),
            ask(Replace("default", event.id, stage.draft("four"), 1)),
        ):
            with pytest.raises(VersionMismatch):
                await stale
        assert (await ask(Cancel("default", event.id, 2))).status == "cancelled"

    play(scene)


def test_of_two_changes_of_one_version_one_is_made() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS)
        changes = [
            stage.engine.ask(Amend("default", event.id, Amendment(payload=str(number).encode()), 1))
            for number in range(10)
        ]
        results = await asyncio.gather(*changes, return_exceptions=True)

        assert sum(isinstance(result, Seen) for result in results) == 1
        assert sum(isinstance(result, VersionMismatch) for result in results) == 9

    play(scene)


def test_concurrent_changes_without_a_version_are_all_made_in_turn() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 1_000)
        changes = [
            stage.engine.ask(Amend("default", event.id, Amendment(payload=str(number).encode()), None))
            for number in range(10)
        ]
        await asyncio.gather(*changes)
        await stage.pass_ms(MINUTE_MS)

        assert (await stage.engine.ask(Get("default", event.id))).event.version == 11
        assert len(stage.receiver.got) == 1

    play(scene)


def test_a_repeated_request_finds_the_event_and_another_one_is_told() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 1_000, id="order-17")

        again = await stage.ask("e", 5_000, id="order-17")
        assert again == Seen.of(event, "scheduled", created=False)
        assert isinstance(await stage.ask("other", 1_000, id="order-17"), Conflict)

        # The same after it was delivered: it does not run again.
        await stage.pass_ms(MINUTE_MS)
        late = await stage.ask("e", id="order-17")
        assert isinstance(late, Seen)
        assert (late.status, late.created) == ("delivered", False)
        assert isinstance(await stage.ask("other", id="order-17"), Conflict)
        await stage.pass_ms(MINUTE_MS)
        assert stage.receiver.names == ["e"]

    play(scene)


def test_a_put_creates_or_replaces() -> None:
    async def scene(stage: Stage) -> None:
        ask = stage.engine.ask
        made = await ask(Replace("default", "order-17", stage.draft("one", 5_000, id="order-17"), None))
        assert made.created
        replaced = await ask(Replace("default", "order-17", stage.draft("two", 1_000, id="order-17"), None))
        assert not replaced.created
        assert replaced.event.version == 2
        await stage.pass_ms(MINUTE_MS)
        assert stage.receiver.names == ["two"]

        with pytest.raises(Conflict):
            await ask(Replace("default", "order-17", stage.draft("three", id="order-17"), None))
        with pytest.raises(VersionMismatch):
            await ask(Replace("default", "new", stage.draft("four", id="new"), 3))

    play(scene)


def test_the_key_of_an_event_stays() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS, id="order-17", key="a")
        with pytest.raises(Conflict):
            await stage.engine.ask(Replace("default", event.id, stage.draft("e", id="order-17", key="b"), None))

    play(scene)


def test_the_key_stays_when_another_event_got_the_id_since_it_was_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS, id="order-17", key="a")
        found: list[object] = [replace(event, key="b")]
        get = stage.store.get

        async def changing(tenant: str, event_id: str) -> object:
            return found.pop() if found else await get(tenant, event_id)

        monkeypatch.setattr(stage.store, "get", changing)
        with pytest.raises(Conflict):
            await stage.engine.ask(Replace("default", event.id, stage.draft("e", id="order-17", key="b"), None))

    play(scene)


def test_an_event_that_does_not_exist_is_not_found() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS)
        ask = stage.engine.ask
        for tenant, event_id in (("default", "absent"), ("other", event.id), ("default", "ev_" + "0" * 32)):
            for kind in (Get, Cancel, Ring, Redrive, TryOut):
                with pytest.raises(NotFound):
                    await ask(kind(tenant, event_id))

    play(scene)


def test_an_event_that_has_ended_cannot_be_changed() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e")
        await stage.settled()
        ask = stage.engine.ask
        for kind in (Cancel, Ring, Redrive, TryOut):
            with pytest.raises(Conflict):
                await ask(kind("default", event.id))

    play(scene)


def test_a_dead_event_is_redriven_or_cancelled_but_not_changed() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        event = await stage.schedule("e")
        await stage.settled()

        with pytest.raises(Conflict):
            await stage.engine.ask(Amend("default", event.id, Amendment(due_at=1), None))
        assert (await stage.engine.ask(Redrive("default", event.id))).status == "scheduled"
        await stage.settled()
        assert (await stage.engine.ask(Cancel("default", event.id))).status == "cancelled"

    play(scene)


def test_an_event_rings_now_when_asked_and_comes_again_on_its_grid() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS, repeat=Repeat(HOUR_MS, 2))
        await stage.engine.ask(Ring("default", event.id))
        await stage.pass_ms(3 * HOUR_MS)

        assert [got.at - stage.start_at for got in stage.receiver.got] == [0, 2 * HOUR_MS]

    play(scene)


def test_trying_out_changes_nothing() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", HOUR_MS)
        stage.receiver.answer = lambda delivery: FAILED

        # A trial is not an attempt, so the receiver's answer is all there is.
        outcome = await asyncio.wait_for(stage.engine.ask(TryOut("default", event.id)), 1)

        assert outcome == FAILED
        stored = await stage.store.get("default", event.id)
        assert stored == event
        queued = await stage.schedule("q", HOUR_MS, to="queue:work")
        with pytest.raises(Conflict):
            await stage.engine.ask(TryOut("default", queued.id))

    play(scene)


def test_all_that_match_are_cancelled_or_redriven() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        for number in range(1_200):
            await stage.schedule(f"e{number}", HOUR_MS, tags=("even",) if number % 2 == 0 else ("odd",))
        for number in range(30):
            await stage.schedule(f"dead{number}")
        await stage.settled()

        assert await stage.engine.ask(CancelMatching(Filter("default", tag="even"))) == 600
        assert await stage.engine.ask(CancelMatching(Filter("default", tag="even"))) == 0
        stage.receiver.answer = lambda delivery: DELIVERED
        assert await stage.engine.ask(RedriveMatching(Filter("default", "dead"))) == 30
        await stage.settled()

        tally = (await stage.engine.ask(CountEvents()))["default"]
        assert (tally.pending, tally.cancelled, tally.delivered, tally.dead) == (600, 600, 30, 0)

    play(scene)


def test_an_event_that_dies_again_during_a_bulk_redrive_is_redriven_only_once() -> None:
    async def scene(stage: Stage) -> None:
        # Given more dead events than one page of a search has, a receiver that still refuses, and a store that takes
        # its time, so that events die while others are looked for.
        stage.receiver.answer = lambda delivery: REFUSED
        for number in range(1_200):
            await stage.schedule(f"{number}")
        await stage.pass_ms(1_000)
        assert len(stage.receiver.got) == 1_200
        find = stage.store.find

        async def find_slowly(filter: Filter, cursor: str | None, limit: int) -> Found:
            await asyncio.sleep(0.005)
            return await find(filter, cursor, limit)

        stage.store.find = find_slowly  # type: ignore[method-assign]

        # Then each is tried once more.
        assert await stage.engine.ask(RedriveMatching(Filter("default", "dead"))) == 1_200
        await stage.settled()
        assert len(stage.receiver.got) == 2_400
        assert await stage.engine.ask(RedriveMatching(Filter("default", "dead"))) == 1_200

    play(scene)


def test_a_dead_event_past_its_expiry_stays_whole() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        once = await stage.schedule("once", expires_ms=1_000)
        often = await stage.schedule("often", expires_ms=1_000, repeat=Repeat(HOUR_MS))
        await stage.pass_ms(500)
        await stage.engine.ask(Redrive("default", once.id))
        await stage.pass_ms(5_000)
        stage.receiver.answer = lambda delivery: DELIVERED

        with pytest.raises(Conflict, match="expires"):
            await stage.engine.ask(Redrive("default", once.id))
        assert await stage.engine.ask(RedriveMatching(Filter("default", "dead"))) == 1
        await stage.settled()

        assert [await stage.status(event) for event in (once, often)] == ["dead", "scheduled"]
        assert stage.receiver.names == ["once", "often", "once"], "in time, it was tried again"

    play(scene)


def test_however_slowly_events_are_redriven_they_are_due_within_the_calendar() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        events = [await stage.schedule(f"{number}") for number in range(3)]
        await stage.settled()

        assert await stage.engine.ask(RedriveMatching(Filter("default", "dead"), 5e-324)) == 3
        await stage.engine.ask(Cancel("default", events[1].id))
        await stage.engine.ask(Redrive("default", (await stage.schedule("x")).id, 1 << 62))

        last = (await stage.engine.ask(Get("default", events[2].id))).event
        assert isinstance(last, Event)
        assert stage.clock.now() < last.run_at <= INSTANT_MAX

    play(scene)


def test_tenants_do_not_see_each_other() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("mine", HOUR_MS, tenant="shop", id="same")
        await stage.schedule("yours", HOUR_MS, tenant="bank", id="same")

        assert await stage.engine.ask(CancelMatching(Filter("shop"))) == 1
        found, _ = await stage.engine.ask(Find(Filter("bank"), None, 10))
        assert [seen.event.id for seen in found] == ["same"]
        assert not isinstance(found[0].event, Record)

    play(scene)


def test_a_caller_that_gives_up_leaves_the_change_made() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 2_000, retry=RetryPolicy(3, 1, 1))
        stage.store.before_apply = lambda: asyncio.sleep(1)
        cancelling = asyncio.ensure_future(stage.engine.ask(Cancel("default", event.id)))
        await stage.settled()
        cancelling.cancel()
        await stage.pass_ms(MINUTE_MS)

        assert stage.receiver.got == []
        assert await stage.status(event) == "cancelled"

    play(scene, tenants=[Tenant()])


@pytest.mark.parametrize("ends", ["delivered", "moved"])
def test_a_change_never_overwrites_a_version_that_it_did_not_see(ends: str) -> None:
    """Events that a user changes are held, so nothing else can change them; if something does, the store notices."""

    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 1_000, id="named")
        go_on = stage.hold_writes()
        changing = asyncio.ensure_future(stage.engine.ask(Amend("default", "named", Amendment(tags=("new",)), None)))
        await stage.settled()

        # Given a change behind its back, while its own is on its way to the store.
        if ends == "delivered":
            record = record_of(event, "delivered", stage.clock.now(), 1, ())
            behind: Change = Finish(event, record, stage.clock.now() + HOUR_MS)
        else:
            behind = Move(event, replace(event, run_at=event.run_at + 500, version=2))
        await MemoryStore.apply(stage.store, [behind], stage.engine.epochs)
        go_on.set()

        # Then it starts over with the version that is stored now.
        if ends == "delivered":
            with pytest.raises(Conflict):
                await changing
            assert (await stage.engine.ask(Get("default", "named"))).status == "delivered"
        else:
            seen = await changing
            assert (seen.event.version, seen.event.tags) == (3, ("new",))

    play(scene)


def test_an_event_that_the_store_refuses_for_good_is_too_large_and_not_retried() -> None:
    class Small(MemoryStore):
        async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
            return {index: Refusal(None, "4 MiB at most", is_for_good=True) for index in range(len(changes))}

    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 60_000)
        taken = stage.store.apply
        stage.store.apply = Small(8).apply  # type: ignore[method-assign]
        refused = await stage.ask("large", 60_000)
        assert isinstance(refused, TooLarge)
        with pytest.raises(TooLarge, match="4 MiB"):
            await stage.engine.ask(Amend("default", event.id, Amendment(payload=b"large"), None))
        stage.store.apply = taken  # type: ignore[method-assign]
        await stage.pass_ms(61_000)
        assert stage.receiver.names == ["e"]

    play(scene)
