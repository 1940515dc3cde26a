"""Batches that create, replace and cancel: in order per id, in few writes, with the exactness of single requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from everbell.core.amendment import Amendment
from everbell.core.batch_item import BatchItem, ItemDone, ItemResult
from everbell.core.event import Event
from everbell.core.retry import DELIVERED
from everbell.core.tenant import Tenant
from everbell.core.time import HOUR_MS, MINUTE_MS
from everbell.engine.requests import Amend, ApplyItems, Cancel, Get, Replace, Schedule
from everbell.errors import BeingDelivered, Conflict, InvalidInput, NotFound, StoreUnavailable
from tests.unit.engine.stage import REFUSED, Stage, play


def put(stage: Stage, name: str, event_id: str, in_ms: int = HOUR_MS, key: str | None = None) -> BatchItem:
    return BatchItem("put", event_id, stage.draft(name, in_ms, id=event_id, key=key))


def create(stage: Stage, name: str, event_id: str | None, in_ms: int = HOUR_MS, key: str | None = None) -> BatchItem:
    return BatchItem("create", event_id, stage.draft(name, in_ms, id=event_id, key=key))


def cancel(event_id: str) -> BatchItem:
    return BatchItem("cancel", event_id)


async def applied(stage: Stage, *items: BatchItem) -> Sequence[ItemResult]:
    return await stage.engine.ask(ApplyItems("default", items))


def told(results: Sequence[ItemResult]) -> list[str]:
    return [result.status if isinstance(result, ItemDone) else type(result).__name__ for result in results]


def test_each_item_has_its_status() -> None:
    async def scene(stage: Stage) -> None:
        old = await stage.schedule("old", HOUR_MS, id="old")
        made = await stage.schedule("made", HOUR_MS)

        results = await applied(
            stage,
            put(stage, "new", "new"),
            put(stage, "other", "old"),
            cancel(made.id),
            cancel("nothing"),
            create(stage, "nameless", None),
            create(stage, "different", "old"),
        )

        assert told(results) == ["created", "replaced", "cancelled", "unknown", "created", "Conflict"]
        assert (await stage.engine.ask(Get("default", old.id))).event.version == 2
        assert await stage.status(made) == "cancelled"
        await stage.pass_ms(2 * HOUR_MS)
        assert sorted(stage.receiver.names) == ["nameless", "new", "other"]

    play(scene)


def test_items_of_one_id_take_effect_in_order_and_in_one_change() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("old", HOUR_MS, id="a")
        # The first of them is due now: an attempt between the two would be an attempt of a replaced event.
        results = await applied(stage, put(stage, "now", "a", 0), put(stage, "later", "a", HOUR_MS))
        assert told(results) == ["replaced", "replaced"]
        await stage.pass_ms(MINUTE_MS)
        assert stage.receiver.names == []

        results = await applied(stage, put(stage, "last", "a"), cancel("a"), put(stage, "too late", "a"), cancel("a"))
        assert told(results) == ["replaced", "cancelled", "Conflict", "cancelled"]
        results = await applied(stage, cancel("b"), put(stage, "b", "b"), put(stage, "b2", "b"), cancel("b"))
        assert told(results) == ["unknown", "created", "replaced", "cancelled"]
        await stage.pass_ms(2 * HOUR_MS)
        assert stage.receiver.names == []

    play(scene)


def test_a_large_batch_takes_few_writes() -> None:
    async def scene(stage: Stage) -> None:
        await applied(stage, *(put(stage, f"{number}", f"e{number}") for number in range(5_000)))
        count = 0

        async def counted() -> None:
            nonlocal count
            count += 1

        stage.store.before_apply = counted
        results = await applied(stage, *(put(stage, "again", f"e{number}") for number in range(5_000)))
        assert told(results) == ["replaced"] * 5_000
        assert count <= 10
        results = await applied(stage, *(cancel(f"e{number}") for number in range(5_000)))
        assert told(results) == ["cancelled"] * 5_000
        assert count <= 20

    play(scene)


def test_no_attempt_starts_after_a_cancel_of_a_batch_was_acknowledged() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 0.01
        for number in range(200):
            await stage.schedule(f"e{number}", 1_000, id=f"e{number}")

        async def cancel_some(index: int) -> None:
            await stage.pass_ms(985 + 2 * index)
            results = await applied(stage, *(cancel(f"e{number}") for number in range(index * 10, index * 10 + 10)))
            ended = [result.id for result in results if isinstance(result, ItemDone)]
            begun = [name for name in stage.receiver.names if name in ended]
            await stage.pass_ms(HOUR_MS)
            assert begun == [name for name in stage.receiver.names if name in ended]

        await asyncio.gather(*map(cancel_some, range(20)))
        statuses = [(await stage.engine.ask(Get("default", f"e{number}"))).status for number in range(200)]
        assert set(statuses) == {"cancelled", "delivered"}

    play(scene)


def test_an_event_in_flight_can_be_cancelled_and_not_replaced() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("a", 0, id="a")
        await stage.settled()

        results = await applied(stage, put(stage, "other", "a"), put(stage, "third", "a"))
        assert told(results) == ["BeingDelivered", "BeingDelivered"]
        assert isinstance(results[0], BeingDelivered)
        assert told(await applied(stage, cancel("a"))) == ["cancelled"]

    play(scene)


def test_dead_events_and_other_keys_are_conflicts() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        dead = await stage.schedule("a", 0, id="a")
        await stage.schedule("b", HOUR_MS, id="b", key="k")
        await stage.settled()
        assert await stage.status(dead) == "dead"

        results = await applied(stage, put(stage, "x", "a"), put(stage, "x", "b", key="other"), put(stage, "x", "b"))
        assert told(results) == ["Conflict"] * 3
        assert told(await applied(stage, cancel("a"))) == ["cancelled"]

    play(scene)


def test_a_tenant_that_reuses_ids_begins_anew_over_ended_and_dead_events() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED if delivery.event.id == "dead" else DELIVERED
        for name in ("done", "dead"):
            await stage.schedule(name, 0, id=name)
        await stage.schedule("gone", HOUR_MS, id="gone")
        assert told(await applied(stage, cancel("gone"))) == ["cancelled"]
        await stage.settled()
        stage.receiver.answer = lambda delivery: DELIVERED

        again = [put(stage, f"{name} again", name) for name in ("done", "dead", "gone")]
        assert told(await applied(stage, *again)) == ["created", "replaced", "created"]
        # A cancel, and then a put, of an event that has ended.
        await stage.pass_ms(2 * HOUR_MS)
        assert stage.receiver.names[:2] == ["done", "dead"]
        assert sorted(stage.receiver.names[2:]) == ["dead again", "done again", "gone again"]
        later = put(stage, "third", "done")
        assert told(await applied(stage, cancel("done"), later, put(stage, "fourth", "done"))) == [
            "Conflict",
            "created",
            "replaced",
        ]
        single = Replace("default", "gone", stage.draft("alone", HOUR_MS, id="gone"), None)
        assert (await stage.engine.ask(single)).created
        await stage.pass_ms(2 * HOUR_MS)
        assert stage.receiver.names[5:] == ["fourth", "alone"]

    play(scene, tenants=[Tenant(reuse_ids=True)])


def test_a_put_that_repeats_the_request_of_a_delivered_event_delivers_nothing() -> None:
    async def scene(stage: Stage) -> None:
        same = put(stage, "once", "a", MINUTE_MS)
        assert told(await applied(stage, same)) == ["created"]
        await stage.pass_ms(HOUR_MS)
        assert told(await applied(stage, same, same)) == ["replaced", "replaced"]
        assert same.draft is not None
        assert (await stage.engine.ask(Replace("default", "a", same.draft, None))).status == "delivered"
        await stage.pass_ms(HOUR_MS)
        assert stage.receiver.names == ["once"]

    play(scene, tenants=[Tenant(reuse_ids=True)])


def test_a_blocked_key_goes_on_when_a_batch_cancels_its_head() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        await stage.schedule("first", 0, id="first", key="k")
        await stage.settled()
        await stage.schedule("second", 0, id="second", key="k")
        await stage.pass_ms(MINUTE_MS)
        assert stage.receiver.names == ["first"]
        stage.receiver.answer = lambda delivery: DELIVERED

        assert told(await applied(stage, cancel("first"), cancel("nothing"))) == ["cancelled", "unknown"]
        await stage.settled()
        assert stage.receiver.names == ["first", "second"]

    play(scene)


def test_a_repeated_create_is_no_error_and_a_made_id_cannot_be_put() -> None:
    async def scene(stage: Stage) -> None:
        same = create(stage, "a", "a")
        assert told(await applied(stage, same, same, put(stage, "b", "b"))) == ["created", "created", "created"]
        made = await stage.schedule("made", HOUR_MS)
        unknown = made.id[:-4] + "zzzz"
        results = await applied(
            stage,
            BatchItem("put", made.id, stage.draft("again", HOUR_MS)),
            BatchItem("put", unknown, stage.draft("x", HOUR_MS)),
        )
        assert told(results) == ["replaced", "InvalidInput"]
        assert isinstance(results[1], InvalidInput)

    play(scene)


def test_after_a_failure_later_items_of_the_same_id_fail_too() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("a", HOUR_MS, id="a")
        stage.store.fault = StoreUnavailable("away")
        items = [put(stage, "first", "a"), *(put(stage, "x", f"x{number}") for number in range(2_000))]
        results = await applied(stage, *items, put(stage, "second", "a"))
        assert told([results[0], results[-1]]) == ["StoreUnavailable"] * 2
        stage.store.fault = None
        await stage.pass_ms(MINUTE_MS)
        assert (await stage.engine.ask(Get("default", "a"))).event.version == 1

        assert told(await applied(stage, put(stage, "first", "a"), put(stage, "second", "a"))) == ["replaced"] * 2
        await stage.pass_ms(2 * HOUR_MS)
        assert stage.receiver.names.count("second") == 1
        assert "first" not in stage.receiver.names

    play(scene)


def test_a_batch_waits_for_a_change_that_is_being_stored() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("a", HOUR_MS, id="a")
        stage.store.before_apply = lambda: asyncio.sleep(0.01)
        amending = asyncio.ensure_future(stage.engine.ask(Amend("default", "a", Amendment(tags=("t",)), None)))
        results = await applied(stage, put(stage, "b", "a"), cancel("unknown"))
        await amending
        assert told(results) == ["replaced", "unknown"]
        assert (await stage.engine.ask(Get("default", "a"))).event.version == 3

    play(scene)


def test_a_cancelled_caller_leaves_every_event_in_its_place() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(100):
            await stage.schedule(f"e{number}", 1_000, id=f"e{number}")
        for turns in range(12):
            items = [put(stage, "x", f"e{number}", 999) for number in range(100)]
            asking = asyncio.ensure_future(applied(stage, *items))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
        await stage.pass_ms(HOUR_MS)
        assert len(stage.receiver.names) == 100

    play(scene)


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_does_what_single_requests_do(seed: int) -> None:
    """The same items, applied one by one with single requests to other ids, end in the same states."""
    chance = random.Random(seed)

    async def scene(stage: Stage) -> None:
        items: list[BatchItem] = []
        for number in range(chance.randrange(1, 60)):
            name, key = f"{chance.randrange(6)}", chance.choice([None, "k"])
            kind = chance.choice([put, create, cancel])
            items.append(cancel(name) if kind is cancel else kind(stage, f"p{number}", name, HOUR_MS + number, key))  # type: ignore[operator]
        results: list[str] = []
        start = 0
        while start < len(items):
            size = chance.randrange(1, 30)
            results += told(await applied(stage, *items[start : start + size]))
            start += size
        singly = [await single(stage, item) for item in items]
        assert results == singly
        for number in range(6):
            assert await state(stage, f"{number}") == await state(stage, f"single-{number}")

    play(scene)


async def single(stage: Stage, item: BatchItem) -> str:
    """Apply one item with a single request, to an event of another id."""
    assert item.id is not None
    name = f"single-{item.id}"
    try:
        if item.draft is None:
            await stage.engine.ask(Cancel("default", name))
            return "cancelled"
        draft = replace(item.draft, id=name)
        if item.mode == "put":
            return "created" if (await stage.engine.ask(Replace("default", name, draft, None))).created else "replaced"
        [result] = await stage.engine.ask(Schedule("default", [draft]))
        return "Conflict" if isinstance(result, Conflict) else "created"
    except NotFound:
        return "unknown"
    except Conflict:
        ended = (await stage.engine.ask(Get("default", name))).status == "cancelled"
        return "cancelled" if ended and item.draft is None else "Conflict"


async def state(stage: Stage, name: str) -> object:
    try:
        seen = await stage.engine.ask(Get("default", name))
    except NotFound:
        return None
    event = seen.event
    return seen.status, event.due_at, event.key, event.payload if isinstance(event, Event) else None
