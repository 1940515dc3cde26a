"""Simple events go as prepared rows if the engine gives places, else as drafts; clients see no difference."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from everbell.core.ids import place_in
from everbell.core.simple_batch import SimpleBatch
from everbell.core.tenant import Limits, Tenant
from everbell.engine.requests import Allot, Schedule
from everbell.engine.row_preparer import PREPARED_EVENTS_MAX, PREPARED_EVENTS_MIN
from everbell.engine.seen import DraftResult
from everbell.errors import NotOwner, Stopping, StoreBroken, StoreFull, Throttled
from everbell.stores.memory.row_maker import MemoryRowMaker
from everbell.stores.port import Add, PreparedRows
from tests.unit.engine.stage import Stage, play

MANY = 2 * PREPARED_EVENTS_MIN


def plain(stage: Stage, count: int, in_ms: int = 60_000) -> SimpleBatch:
    """A batch of `count` events, each a millisecond after the last, named by their number."""
    due_at = stage.clock.now() + in_ms
    names = [b"e%d" % number for number in range(count)]
    return SimpleBatch([due_at + number for number in range(count)], ["https://shop.example"] * count, names)


async def scheduled(stage: Stage, events: SimpleBatch) -> list[str]:
    """The ids of events that have to be accepted."""
    results = await stage.engine.ask(Schedule("default", events))
    ids = [result for result in results if isinstance(result, str)]
    assert len(ids) == len(results)
    return ids


def kinds(stage: Stage) -> set[type]:
    return {type(change) for group in stage.store.applied for change in group}


@pytest.mark.parametrize("in_ms", [-500, 0, 100, 60_000])
@pytest.mark.parametrize("count", [1, MANY])
def test_each_is_delivered_once_and_not_early(count: int, in_ms: int) -> None:
    async def scene(stage: Stage) -> None:
        events = plain(stage, count, in_ms)
        ids = await scheduled(stage, plain(stage, count, in_ms))
        assert kinds(stage) == {PreparedRows if count == MANY else Add}
        assert in_ms < 60_000 or not stage.engine.memory.entries, "what is far ahead costs no memory"
        await stage.pass_ms(max(in_ms, 0) + 2_000)

        got = {item.event.id: item for item in stage.receiver.got}
        assert sorted(got) == sorted(ids)
        assert len(stage.receiver.got) == count
        for event_id, due_at, name in zip(ids, events.dues, events.payloads, strict=True):
            assert got[event_id].name == name.decode()
            assert got[event_id].at >= due_at

    play(scene)


def test_a_parcel_may_be_near_in_one_partition_and_far_in_another() -> None:
    async def scene(stage: Stage) -> None:
        events = plain(stage, 200)
        events.dues[:70] = [stage.clock.now() + 100] * 70
        await scheduled(stage, events)
        await stage.pass_ms(1_000)
        assert sorted(stage.receiver.names) == sorted(f"e{number}" for number in range(70))
        await stage.pass_ms(120_000)
        assert len(stage.receiver.names) == 200

    play(scene)


def test_more_events_than_a_parcel_holds_come_in_several_and_are_answered_in_order() -> None:
    async def scene(stage: Stage) -> None:
        dues = plain(stage, 2 * PREPARED_EVENTS_MAX + MANY).dues
        ids = await scheduled(stage, plain(stage, len(dues)))

        sizes = sorted(rows.count for group in prepared_in(stage) for rows in group)
        assert sizes == [MANY, PREPARED_EVENTS_MAX, PREPARED_EVENTS_MAX]
        places = [place_in(event_id) for event_id in ids]
        assert [place and place[0] for place in places] == dues
        assert len({place and place[1] for place in places}) == len(ids)

    play(scene)


@pytest.mark.parametrize("count", [MANY, PREPARED_EVENTS_MAX + MANY])
def test_a_request_that_waits_for_the_store_holds_no_payload_twice(count: int) -> None:
    async def scene(stage: Stage) -> None:
        go_on = stage.hold_writes()
        events = plain(stage, count)
        task = asyncio.ensure_future(stage.engine.ask(Schedule("default", events)))
        await stage.pass_ms(1)
        assert not events.payloads
        go_on.set()
        assert len(await task) == count

    play(scene)


def test_quotas_count_each_event() -> None:
    async def scene(stage: Stage) -> None:
        results = await stage.engine.ask(Schedule("default", plain(stage, MANY)))

        assert [isinstance(result, str) for result in results] == [True] * 40 + [False] * (MANY - 40)
        assert isinstance(results[-1], Throttled)
        assert kinds(stage) == {Add}

    play(scene, tenants=[Tenant(limits=Limits(pending=40))])


def test_tenants_with_a_slice_stay_in_it() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine._intake.slices = {"default": (2, 3)}
        ids = await scheduled(stage, plain(stage, 3 * MANY))

        assert {place[2] for place in map(place_in, ids) if place is not None} <= {2, 3, 4}

    play(scene)


async def made_beforehand(stage: Stage) -> PreparedRows:
    """A parcel on its way, with places that were given out before the next step of the test."""
    allotment = await stage.engine.ask(Allot(MANY))
    assert allotment is not None
    return MemoryRowMaker().make("default", plain(stage, MANY), allotment, bytes(9 * MANY), 0)[0]


def test_a_parcel_for_a_partition_that_was_lost_is_not_taken() -> None:
    async def scene(stage: Stage) -> None:
        rows = await made_beforehand(stage)
        await stage.engine.release([rows.runs[0].partition], 1.0)

        with pytest.raises(NotOwner, match="nothing of this request was stored"):
            await stage.engine.ask(Schedule("default", rows))
        assert not stage.store.applied
        await scheduled(stage, plain(stage, MANY))

    play(scene)


def test_a_parcel_that_the_store_refuses_by_its_fence_is_not_taken() -> None:
    async def scene(stage: Stage) -> None:
        rows = await made_beforehand(stage)
        await stage.store.raise_fence({rows.runs[-1].partition: stage.store.epoch + 1})

        with pytest.raises(NotOwner, match="nothing of this request was stored"):
            await stage.engine.ask(Schedule("default", rows))
        assert (await stage.store.counts()).get("default") is None

    play(scene)


def test_every_event_that_cannot_be_stored_gets_its_own_error() -> None:
    async def scene(stage: Stage) -> None:
        stage.store.fault = StoreFull("no room")
        results = await stage.engine.ask(Schedule("default", plain(stage, MANY)))
        assert [type(result) for result in results] == [StoreFull] * MANY

        stage.store.fault = StoreBroken("no more")
        await stage.pass_ms(5_000)
        results = await stage.engine.ask(Schedule("default", plain(stage, MANY)))
        assert [type(result) for result in results] == [StoreBroken] * MANY

    play(scene)


def test_of_parts_that_are_refused_the_others_are_told() -> None:
    async def scene(stage: Stage) -> None:
        ask = stage.engine.ask
        go_on = stage.hold_writes()
        task = asyncio.ensure_future(ask(Schedule("default", plain(stage, PREPARED_EVENTS_MAX))))
        await stage.pass_ms(1)

        async def stopping(request: Schedule) -> Sequence[DraftResult]:
            if isinstance(request.body, PreparedRows):
                return await stage.engine.ask(request)
            raise Stopping("stopping")

        stage.engine._operations._row_preparer._send = stopping
        few = PREPARED_EVENTS_MIN - 1
        both = asyncio.ensure_future(ask(Schedule("default", plain(stage, PREPARED_EVENTS_MAX + few))))
        await stage.pass_ms(1)
        go_on.set()
        results = await both
        assert [isinstance(result, str) for result in results] == [True] * PREPARED_EVENTS_MAX + [False] * few
        assert isinstance(results[-1], Stopping)
        await task

    play(scene)


def test_a_parcel_counts_by_its_events() -> None:
    async def scene(stage: Stage) -> None:
        go_on = stage.hold_writes()
        tasks = [
            asyncio.ensure_future(stage.engine.ask(Schedule("default", plain(stage, PREPARED_EVENTS_MAX))))
            for _ in range(3)
        ]
        await stage.pass_ms(1)
        assert stage.engine._writer._queue.size == 2 * PREPARED_EVENTS_MAX
        go_on.set()
        await asyncio.gather(*tasks)
        assert [[rows.count for rows in group] for group in prepared_in(stage)] == [[PREPARED_EVENTS_MAX]] * 3

    play(scene)


def prepared_in(stage: Stage) -> list[list[PreparedRows]]:
    """The prepared rows of each write."""
    return [[change for change in group if isinstance(change, PreparedRows)] for group in stage.store.applied]
