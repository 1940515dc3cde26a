"""The loader: near before far, oldest first after an outage, past events that have no room, and back for them."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest
from msgspec.structs import replace

from everbell.channels.port import Delivery
from everbell.core.event import Event
from everbell.core.pause import Pause
from everbell.core.retry import DELIVERED, Outcome
from everbell.core.tenant import Tenant
from everbell.core.time import HOUR_MS
from everbell.engine.settings import EngineSettings
from everbell.stores.port import Page, Poison
from tests.unit.engine.stage import Stage, play

SMALL = EngineSettings(memory_bytes=50_000, page_events=16)
ROOMY = EngineSettings(memory_bytes=200_000, page_events=50)
SECOND_MS = 1_000
CROWDED = "https://crowded.example"


def stuck_unless(open_: list[bool]) -> object:
    def answer(delivery: Delivery) -> Outcome | None:
        return DELIVERED if open_ or not delivery.event.to.startswith(CROWDED) else None

    return answer


async def schedule_herd(stage: Stage, count: int, **fields: str) -> None:
    for number in range(count):
        await stage.schedule(f"herd-{number}", 20 * SECOND_MS, to=f"{CROWDED}/{number}", **fields)


def test_the_front_leaves_out_a_herd_without_room_and_finds_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        # Given a herd many times larger than memory, and an event of another tenant at the end of it.
        pages: list[Page] = []
        read = stage.store.page

        async def page(*arguments: object) -> Page:
            pages.append(await read(*arguments))  # type: ignore[arg-type]
            return pages[-1]

        monkeypatch.setattr(stage.store, "page", page)
        open_: list[bool] = []
        stage.receiver.answer = stuck_unless(open_)  # type: ignore[assignment]
        await schedule_herd(stage, 300)
        await stage.schedule("other", 20 * SECOND_MS, tenant="other")

        # When all of them are due, the other is on time, and most of the herd was never read.
        await stage.pass_ms(21 * SECOND_MS)
        assert [got.at for got in stage.receiver.got if got.name == "other"] == [stage.start_at + 20 * SECOND_MS]
        assert sum(page.left_out for page in pages) > 200

        # When the herd is answered, all of it goes out.
        open_.append(True)
        for delivery in list(stage.receiver.open):
            stage.receiver.settle(delivery.event.payload.decode())
        await stage.pass_ms(60 * SECOND_MS)
        assert sorted(stage.receiver.names) == sorted(["other", *(f"herd-{number}" for number in range(300))])
        assert not stage.engine.memory.starved
        assert all(not flow.stems for flow in stage.engine.memory.flows.all())

    play(scene, tenants=[Tenant(in_flight=4)], settings=SMALL, partitions=1)


def test_events_with_a_key_are_never_left_out() -> None:
    async def scene(stage: Stage) -> None:
        # Given a herd without keys, among it one event with a key. The next event of that key goes elsewhere.
        open_: list[bool] = []
        stage.receiver.answer = stuck_unless(open_)  # type: ignore[assignment]
        await schedule_herd(stage, 300)
        await stage.schedule("first", 20 * SECOND_MS, to=CROWDED, key="k")
        await stage.schedule("second", 20 * SECOND_MS + 1, key="k")

        # When the herd holds up the first, the second does not overtake it.
        await stage.pass_ms(30 * SECOND_MS)
        assert "second" not in stage.receiver.names
        open_.append(True)
        for delivery in list(stage.receiver.open):
            stage.receiver.settle(delivery.event.payload.decode())
        await stage.pass_ms(60 * SECOND_MS)
        assert stage.receiver.names[-2:] == ["first", "second"]

    play(scene, tenants=[Tenant(in_flight=4)], settings=SMALL, partitions=1)


def test_an_event_that_a_store_took_for_one_of_the_herd_is_found_on_the_way_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(stage: Stage) -> None:
        # Given a store in which the herd and another tenant have the same hash.
        read = stage.store.page

        async def page(
            partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
        ) -> Page:
            page = await read(partition, after, until_at, limit, without)
            kept = [event for event in page.events if not without or event.tenant != "other"]
            return replace(page, events=kept)

        monkeypatch.setattr(stage.store, "page", page)
        open_: list[bool] = []
        stage.receiver.answer = stuck_unless(open_)  # type: ignore[assignment]
        await schedule_herd(stage, 300)
        await stage.schedule("other", 20 * SECOND_MS, tenant="other")
        await stage.pass_ms(21 * SECOND_MS)
        assert "other" not in stage.receiver.names

        # When the herd gets on, the other is found behind it.
        open_.append(True)
        for delivery in list(stage.receiver.open):
            stage.receiver.settle(delivery.event.payload.decode())
        await stage.pass_ms(60 * SECOND_MS)
        assert len(stage.receiver.names) == 301
        assert "other" in stage.receiver.names

    play(scene, tenants=[Tenant(in_flight=4)], settings=SMALL, partitions=1)


async def leave_a_backlog(stage: Stage, events: int) -> None:
    """Events at random places, one a millisecond, all past due when the engine comes back."""
    numbers = list(range(events))
    Random(1).shuffle(numbers)
    for number in numbers:
        await stage.schedule(f"{number}", HOUR_MS + number)
    await stage.engine.stop()
    await stage.pass_ms(2 * HOUR_MS)


def test_after_an_outage_the_oldest_go_first_though_memory_holds_a_few_only() -> None:
    async def scene(stage: Stage) -> None:
        await leave_a_backlog(stage, 1_000)
        stage.receiver.takes_s = 0.002
        await stage.restart(settings=ROOMY)
        await stage.pass_ms(60_000)

        places = [int(name) for name in stage.receiver.names]
        displaced = [abs(here - there) for here, there in zip(places, range(1_000), strict=True)]
        # Half of the memory is 100 events of the 1,000; they lie in 32 partitions.
        assert sum(displaced) / 1_000 < 60
        assert max(displaced) < 300

    play(scene, tenants=[Tenant(in_flight=8)], partitions=32)


def test_a_far_event_is_not_read_until_it_is_near() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("far", HOUR_MS)
        await stage.schedule("near", 4_000)
        await stage.restart()
        await stage.pass_ms(100)
        assert [entry.event.payload for entry in stage.engine.memory.entries.values()] == [b"near"]

        await stage.pass_ms(2 * HOUR_MS)
        assert [got.at - stage.start_at for got in stage.receiver.got] == [4_000, HOUR_MS]

    play(scene)


def test_a_row_that_cannot_be_read_is_set_aside_and_its_neighbours_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("before", HOUR_MS)
        bad = await stage.schedule("bad", HOUR_MS + 1)
        await stage.schedule("after", HOUR_MS + 2)
        buried: list[Poison] = []
        read_page, bury = stage.store.page, stage.store.bury

        async def page(*arguments: object) -> Page:
            found = await read_page(*arguments)  # type: ignore[arg-type]
            sound = [event for event in found.events if event.sequence != bad.sequence]
            poison = [poison_of(event) for event in found.events if event.sequence == bad.sequence]
            return Page(sound, found.more, found.next_at, poison)

        async def note(poison: Poison) -> None:
            buried.append(poison)
            await bury(poison)

        monkeypatch.setattr(stage.store, "page", page)
        monkeypatch.setattr(stage.store, "bury", note)
        await stage.pass_ms(2 * HOUR_MS)

        assert stage.receiver.names == ["before", "after"]
        assert [poison.sequence for poison in buried] == [bad.sequence]

    play(scene, partitions=1)


def poison_of(event: Event) -> Poison:
    return Poison(event.partition, event.run_at, event.sequence, b"?", "not an event")


def test_an_event_that_a_pause_leaves_behind_during_a_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        # Given two events that went back to the store when their tenant was paused.
        paused = Pause("default", "tenant", "", 0, "nobody", None, None)
        stage.engine.pauses.follow([paused])
        for name in ("first", "second"):
            await stage.schedule(name, 100)
        await stage.pass_ms(200)
        assert stage.engine.memory.entries == {}

        # When the first is back in memory, and a second pause sends it away while the second one is being read.
        read, pages = stage.store.page, 0

        async def page(
            partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
        ) -> Page:
            nonlocal pages
            found = await read(partition, after, until_at, limit, without)
            pages += 1
            if pages == 2:
                assert len(stage.engine.memory.entries) == 1
                stage.engine.pauses.follow([paused])
            return found

        monkeypatch.setattr(stage.store, "page", page)
        stage.engine.pauses.follow([])
        await stage.pass_ms(100)
        assert stage.receiver.names == []
        stage.engine.pauses.follow([])
        await stage.pass_ms(SECOND_MS)

        assert stage.receiver.names == ["first", "second"]

    play(scene, settings=EngineSettings(memory_bytes=4_000, page_events=1), partitions=1)
