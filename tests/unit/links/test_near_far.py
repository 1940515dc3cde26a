"""The engine's ports at both ends of a link, over a real engine on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everbell.core.event import Event
from everbell.core.health import Health
from everbell.core.plain import Plain
from everbell.core.retry import Outcome
from everbell.core.spec import Draft
from everbell.engine.parceller import PARCEL_EVENTS_MIN
from everbell.engine.port import Seen
from everbell.entropy import SeededEntropy
from everbell.errors import Conflict, NotFound, Stopping, VersionMismatch
from everbell.kafka.news import KafkaNews, Readers
from everbell.links.far import PACK_DRAFTS, FarLeases, FarOperations
from everbell.links.far_parcels import STOCK, GatewayOperations
from everbell.links.link import EngineEnd, GatewayEnd
from everbell.links.near import Near
from everbell.stores.port import Filter
from tests.unit.engine.stage import Stage, play
from tests.unit.links.test_link import Wire


class Far:
    """A gateway's ports, and what it has asked for."""

    def __init__(self, stage: Stage) -> None:
        self.stopping = asyncio.Event()
        self.readers = Readers()
        near = Near(
            stage.engine.operations,
            stage.engine.leases,
            _no_backup,
            lambda: "up 1\n",
            lambda: Health("ready"),
            stopping=self.stopping.wait,
            news=self.readers,
        )
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.link, engine = GatewayEnd(), EngineEnd(self._serve(near))
        to_engine, to_gateway = Wire(65_536), Wire(65_536)
        to_engine.peer, to_gateway.peer = engine, self.link
        self.link.connection_made(to_engine)
        engine.connection_made(to_gateway)
        self.operations = FarOperations(self.link)
        self.leases = FarLeases(self.link)

    def _serve(self, near: Near) -> Callable[[str, tuple[Any, ...]], Coroutine[Any, Any, Any]]:
        async def serve(method: str, arguments: tuple[Any, ...]) -> Any:
            self.calls.append((method, arguments))
            return await near.serve(method, arguments)

        return serve


async def _no_backup() -> str:
    return "somewhere"


def test_events_are_scheduled_looked_at_changed_and_cancelled() -> None:
    async def scene(stage: Stage) -> None:
        operations = Far(stage).operations
        (made,) = await operations.schedule("shop", [stage.draft("e", 60_000, id="order-17", tags=("t",))])
        assert isinstance(made, Seen)
        assert (made.event.id, made.status, made.created) == ("order-17", "scheduled", True)

        seen = await operations.get("shop", "order-17")
        assert isinstance(seen.event, Event)
        assert seen.event.payload == b"e"
        changed = await operations.change("shop", "order-17", {"tags": (), "expires_ms": None}, 1)
        assert (changed.event.tags, changed.event.version) == ((), 2)
        replaced = await operations.replace("shop", "order-17", stage.draft("f", 90_000, id="order-17"), None)
        assert replaced.event.version == 3
        found, cursor = await operations.find(Filter("shop"), None, 10)
        assert ([item.event.id for item in found], cursor) == (["order-17"], None)
        assert (await operations.counts())["shop"].pending == 1
        assert (await operations.ring("shop", "order-17")).status == "scheduled"
        await stage.settled()
        assert (await operations.get("shop", "order-17")).status == "delivered"
        for asked in (operations.cancel, operations.redrive, operations.try_out):
            with pytest.raises(Conflict):
                await asked("shop", "order-17")
        with pytest.raises(NotFound):
            await operations.get("shop", "absent")
        with pytest.raises(VersionMismatch):
            await operations.replace("shop", "new", stage.draft("n", id="new"), 2)
        assert await operations.cancel_matching(Filter("shop")) == 0
        assert await operations.redrive_matching(Filter("shop", "dead")) == 0

    play(scene)


def test_what_was_refused_or_known_is_told_by_its_place() -> None:
    async def scene(stage: Stage) -> None:
        operations = Far(stage).operations
        await operations.schedule("shop", [stage.draft("e", 60_000, id="order-17")])
        again, other, fresh = await operations.schedule(
            "shop",
            [
                stage.draft("e", 60_000, id="order-17"),
                stage.draft("other", 60_000, id="order-17"),
                stage.draft("new", 60_000),
            ],
        )

        assert isinstance(again, Seen)
        assert not again.created
        assert isinstance(other, Conflict)
        assert isinstance(fresh, Seen)
        assert fresh.event.id.startswith("ev_")

    play(scene)


def test_requests_of_one_turn_travel_together_and_are_answered_apart() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        requests = [far.operations.schedule("shop", _drafts(stage, count)) for count in (1, 3, 2)]
        requests.append(far.operations.schedule("bank", _drafts(stage, 1)))
        results = await asyncio.gather(*requests)

        assert [len(result) for result in results] == [1, 3, 2, 1]
        assert [(arguments[0], len(arguments[1])) for _, arguments in far.calls] == [("shop", 6), ("bank", 1)]
        ids = {seen.event.id for result in results for seen in result if isinstance(seen, Seen)}
        assert len(ids) == 7

    play(scene)


def test_a_large_pack_does_not_wait_for_the_turn_to_end() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        requests = [far.operations.schedule("shop", _drafts(stage, PACK_DRAFTS // 2)) for _ in range(3)]
        await asyncio.gather(*requests)

        assert [len(arguments[1]) for _, arguments in far.calls] == [PACK_DRAFTS, PACK_DRAFTS // 2]

    play(scene)


def test_what_is_asked_for_together_is_in_one_pack() -> None:
    """The engine stores a pack as one. Of two halves of a batch, the first could fail and the second be stored."""

    async def scene(stage: Stage) -> None:
        far = Far(stage)
        sizes = [PACK_DRAFTS - 1, 2, PACK_DRAFTS - 2, PACK_DRAFTS]
        results = await asyncio.gather(*(far.operations.schedule("shop", _drafts(stage, size)) for size in sizes))

        assert [len(arguments[1]) for _, arguments in far.calls] == [PACK_DRAFTS - 1, PACK_DRAFTS, PACK_DRAFTS]
        assert [len(result) for result in results] == sizes

    play(scene)


def _drafts(stage: Stage, count: int) -> list[Draft]:
    return [stage.draft("e", 60_000) for _ in range(count)]


def test_an_answer_for_somebody_who_left_harms_nobody() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        left = far.operations.schedule_ids("shop", _drafts(stage, 2))
        stayed = far.operations.schedule_ids("shop", _drafts(stage, 1))
        left.cancel()

        assert len(await stayed) == 1
        assert (await far.operations.counts())["shop"].pending == 3

    play(scene)


def test_workers_lease_over_the_link() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        for number in range(4):
            await stage.schedule(f"e{number}", to="queue:work", tenant="shop")
        await stage.settled()
        one, two, three, four = await far.leases.lease("shop", "work", 10, 1_000, None)

        assert await far.leases.acknowledge("shop", "work", [one.token, "stale"]) == ["stale"]
        assert await far.leases.fail("shop", "work", {two.token: Outcome("refused", "no")}) == []
        assert await far.leases.extend("shop", "work", [three.token, one.token], 60_000) == [one.token]
        assert await far.leases.give_back("shop", "work", [four.token]) == []
        tally = (await far.operations.counts())["shop"]
        assert (tally.delivered, tally.dead, tally.pending) == (1, 1, 2)

    play(scene)


def test_health_metrics_and_backups_come_from_the_engine() -> None:
    async def scene(stage: Stage) -> None:
        link = Far(stage).link

        assert await link.call("metrics") == "up 1\n"
        assert await link.call("health") == Health("ready")
        assert await link.call("backup") == "somewhere"

    play(scene)


def test_a_gateway_hears_at_once_that_its_node_stops_and_tells_what_it_read() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        stopping = far.link.call("until_stopping")
        await far.link.call("kafka_news", 1, KafkaNews(3, lags={"orders": 5}))
        assert (far.readers.records, far.readers.lags) == (3, {"orders": 5})
        assert not stopping.done()
        far.stopping.set()
        await stopping

    play(scene)


def _plain(stage: Stage, count: int) -> Plain:
    return Plain(
        [stage.clock.now() + 60_000] * count,
        ["https://shop.example"] * count,
        [b"%d" % number for number in range(count)],
    )


async def _parcelled(stage: Stage, gateway: GatewayOperations, count: int = PARCEL_EVENTS_MIN) -> list[str]:
    ids = await gateway.schedule_plain("shop", _plain(stage, count))
    assert [isinstance(event_id, str) for event_id in ids] == [True] * count
    found = [(await stage.engine.operations.get("shop", str(event_id))).event for event_id in ids]
    assert [event.payload for event in found if isinstance(event, Event)] == [b"%d" % number for number in range(count)]
    return [str(event_id) for event_id in ids]


def test_a_gateway_asks_for_places_once_and_gives_them_out_itself() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        gateway = GatewayOperations(far.link, stage.clock, SeededEntropy(3))
        await _parcelled(stage, gateway)  # There are no places yet.
        for _ in range(3):
            await _parcelled(stage, gateway)

        assert [method for method, _ in far.calls] == ["allot", "schedule", "take_in", "take_in", "take_in"]
        assert [len(arguments[0]) for method, arguments in far.calls if method == "take_in"] == [PARCEL_EVENTS_MIN] * 3

    play(scene)


def test_a_gateway_asks_for_more_places_before_they_run_out() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        gateway = GatewayOperations(far.link, stage.clock, SeededEntropy(3))
        ids: list[str] = []
        for _ in range(1 + 2 * STOCK // 1_000):
            results = await gateway.schedule_plain("shop", _plain(stage, 1_000))
            ids += [result for result in results if isinstance(result, str)]

        assert len(set(ids)) == 1_000 * (1 + 2 * STOCK // 1_000)
        assert [method for method, _ in far.calls].count("schedule") == 1
        assert 3 <= [method for method, _ in far.calls].count("allot") <= 5

    play(scene)


def test_places_that_are_no_longer_good_are_given_up() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        gateway = GatewayOperations(far.link, stage.clock, SeededEntropy(3))
        await _parcelled(stage, gateway)
        stage.engine._intake.slices = {"bank": (0, 1)}
        await _parcelled(stage, gateway)  # Not taken, and sent as drafts.
        await _parcelled(stage, gateway)  # There are none to be had.
        await _parcelled(stage, gateway)  # Nor asked for again so soon.
        stage.engine._intake.slices = {}
        await stage.pass_ms(1_100)
        await _parcelled(stage, gateway)
        await _parcelled(stage, gateway)

        assert [method for method, _ in far.calls] == [
            *("allot", "schedule"),
            *("take_in", "schedule"),
            *("allot", "schedule", "schedule"),
            *("allot", "schedule", "take_in"),
        ]

    play(scene)


def test_a_gateway_whose_engine_stops_tells_so() -> None:
    async def scene(stage: Stage) -> None:
        gateway = GatewayOperations(Far(stage).link, stage.clock, SeededEntropy(3))
        await _parcelled(stage, gateway)
        await stage.engine.stop()
        results = await gateway.schedule_plain("shop", _plain(stage, PARCEL_EVENTS_MIN))

        assert [type(result) for result in results] == [Stopping] * PARCEL_EVENTS_MIN

    play(scene)
