"""A real engine on virtual time, asked over a link."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar, cast

import pytest

from everbell.core.amendment import Amendment
from everbell.core.event import Event
from everbell.core.health import Health
from everbell.core.reader_report import ReaderReport
from everbell.core.request import Request
from everbell.core.retry import Outcome
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft
from everbell.engine.requests import (
    Acknowledge,
    Amend,
    Cancel,
    CancelMatching,
    CountEvents,
    ExtendLeases,
    FailLeases,
    Find,
    Get,
    GetHealth,
    GetMetrics,
    GiveBack,
    LeaseEvents,
    MakeBackup,
    Redrive,
    RedriveMatching,
    Replace,
    ReportReading,
    Ring,
    Schedule,
    TryOut,
    UntilStopping,
)
from everbell.engine.row_preparer import PREPARED_EVENTS_MIN
from everbell.engine.seen import Seen
from everbell.engine.turn_batch import BATCH_DRAFTS_MAX
from everbell.entropy import SeededEntropy
from everbell.errors import Conflict, NotFound, Stopping, VersionMismatch
from everbell.kafka.readers import Readers
from everbell.links.link_client import LinkClient
from everbell.links.link_server import LinkServer
from everbell.links.remote_engine import STOCK, GatewayEngine, RemoteEngine
from everbell.node.answers import NodeAnswers
from everbell.stores.port import Filter, PreparedRows
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import Stage, play
from tests.unit.links.test_link import Wire

A = TypeVar("A")


class Far:
    """An engine over a link, and the requests that it got."""

    def __init__(self, stage: Stage) -> None:
        self.stopping = asyncio.Event()
        self.readers = Readers()
        self.asked: list[Request[Any]] = []
        nothing = cast(Any, None)
        answers = NodeAnswers(
            stage.engine.ask,
            nothing,
            nothing,
            _no_backup,
            lambda: "up 1\n",
            lambda: Health("ready"),
            self.stopping.wait,
            self.readers,
        )

        def ask(request: Request[A], /) -> Awaitable[A]:
            self.asked.append(request)
            return answers.ask(request)

        self.link, server = LinkClient(), LinkServer(ask)
        to_engine, to_gateway = Wire(65_536), Wire(65_536)
        to_engine.peer, to_gateway.peer = server, self.link
        self.link.connection_made(to_engine)
        server.connection_made(to_gateway)
        self.ask = RemoteEngine(self.link).ask

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Of the requests to schedule: the tenant, and how many events."""
        return [(asked.tenant, len(asked.body)) for asked in self.asked if isinstance(asked, Schedule)]

    @property
    def verbs(self) -> list[str]:
        """The requests about new events in order: allot, drafts or rows."""
        return [_verb(asked) for asked in self.asked]


def _verb(request: Request[Any]) -> str:
    if isinstance(request, Schedule):
        return "rows" if isinstance(request.body, PreparedRows) else "drafts"
    return request.tag


async def _no_backup() -> str:
    return "somewhere"


def test_events_are_scheduled_looked_at_changed_and_cancelled() -> None:
    async def scene(stage: Stage) -> None:
        ask = Far(stage).ask
        (made,) = await schedule_seen(ask, "shop", [stage.draft("e", 60_000, id="order-17", tags=("t",))])
        assert isinstance(made, Seen)
        assert (made.event.id, made.status, made.created) == ("order-17", "scheduled", True)

        seen = await ask(Get("shop", "order-17"))
        assert isinstance(seen.event, Event)
        assert seen.event.payload == b"e"
        changed = await ask(Amend("shop", "order-17", Amendment(tags=(), expires_ms=None), 1))
        assert (changed.event.tags, changed.event.version) == ((), 2)
        replaced = await ask(Replace("shop", "order-17", stage.draft("f", 90_000, id="order-17"), None))
        assert replaced.event.version == 3
        found, cursor = await ask(Find(Filter("shop"), None, 10))
        assert ([item.event.id for item in found], cursor) == (["order-17"], None)
        assert (await ask(CountEvents()))["shop"].pending == 1
        assert (await ask(Ring("shop", "order-17"))).status == "scheduled"
        await stage.settled()
        assert (await ask(Get("shop", "order-17"))).status == "delivered"
        for kind in (Cancel, Redrive, TryOut):
            with pytest.raises(Conflict):
                await ask(kind("shop", "order-17"))
        with pytest.raises(NotFound):
            await ask(Get("shop", "absent"))
        with pytest.raises(VersionMismatch):
            await ask(Replace("shop", "new", stage.draft("n", id="new"), 2))
        assert await ask(CancelMatching(Filter("shop"))) == 0
        assert await ask(RedriveMatching(Filter("shop", "dead"))) == 0

    play(scene)


def test_refused_and_existing_drafts_are_reported_by_place() -> None:
    async def scene(stage: Stage) -> None:
        ask = Far(stage).ask
        await schedule_seen(ask, "shop", [stage.draft("e", 60_000, id="order-17")])
        again, other, fresh = await schedule_seen(
            ask,
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
        requests = [schedule_seen(far.ask, "shop", _drafts(stage, count)) for count in (1, 3, 2)]
        requests.append(schedule_seen(far.ask, "bank", _drafts(stage, 1)))
        results = await asyncio.gather(*requests)

        assert [len(result) for result in results] == [1, 3, 2, 1]
        assert far.sizes == [("shop", 6), ("bank", 1)]
        ids = {seen.event.id for result in results for seen in result if isinstance(seen, Seen)}
        assert len(ids) == 7

    play(scene)


def test_a_large_pack_does_not_wait_for_the_turn_to_end() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        requests = [schedule_seen(far.ask, "shop", _drafts(stage, BATCH_DRAFTS_MAX // 2)) for _ in range(3)]
        await asyncio.gather(*requests)

        assert [size for _, size in far.sizes] == [BATCH_DRAFTS_MAX, BATCH_DRAFTS_MAX // 2]

    play(scene)


def test_drafts_of_one_loop_iteration_travel_together() -> None:
    """The engine stores a pack as one. Of two halves of a batch, the first could fail and the second be stored."""

    async def scene(stage: Stage) -> None:
        far = Far(stage)
        sizes = [BATCH_DRAFTS_MAX - 1, 2, BATCH_DRAFTS_MAX - 2, BATCH_DRAFTS_MAX]
        results = await asyncio.gather(*(schedule_seen(far.ask, "shop", _drafts(stage, size)) for size in sizes))

        assert [size for _, size in far.sizes] == [BATCH_DRAFTS_MAX - 1, BATCH_DRAFTS_MAX, BATCH_DRAFTS_MAX]
        assert [len(result) for result in results] == sizes

    play(scene)


def _drafts(stage: Stage, count: int) -> list[Draft]:
    return [stage.draft("e", 60_000) for _ in range(count)]


def test_an_answer_to_a_caller_that_left_is_harmless() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        left = far.ask(Schedule("shop", _drafts(stage, 2)))
        stayed = far.ask(Schedule("shop", _drafts(stage, 1)))
        assert isinstance(left, asyncio.Future)
        left.cancel()

        assert len(await stayed) == 1
        assert (await far.ask(CountEvents()))["shop"].pending == 3

    play(scene)


def test_workers_lease_over_the_link() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        for number in range(4):
            await stage.schedule(f"e{number}", to="queue:work", tenant="shop")
        await stage.settled()
        one, two, three, four = await far.ask(LeaseEvents("shop", "work", 10, 1_000, None))

        assert await far.ask(Acknowledge("shop", "work", [one.token, "stale"])) == ["stale"]
        assert await far.ask(FailLeases("shop", "work", {two.token: Outcome("refused", "no")})) == []
        assert await far.ask(ExtendLeases("shop", "work", [three.token, one.token], 60_000)) == [one.token]
        assert await far.ask(GiveBack("shop", "work", [four.token])) == []
        tally = (await far.ask(CountEvents()))["shop"]
        assert (tally.delivered, tally.dead, tally.pending) == (1, 1, 2)

    play(scene)


def test_health_metrics_and_backups_come_from_the_engine() -> None:
    async def scene(stage: Stage) -> None:
        link = Far(stage).link

        assert await link.ask(GetMetrics()) == "up 1\n"
        assert await link.ask(GetHealth()) == Health("ready")
        assert await link.ask(MakeBackup()) == "somewhere"

    play(scene)


def test_a_gateway_notices_at_once_that_its_node_stops_and_reports_its_readers() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        stopping = far.link.ask(UntilStopping())
        await far.link.ask(ReportReading(1, ReaderReport(3, lags={"orders": 5})))
        assert (far.readers.records, far.readers.lags) == (3, {"orders": 5})
        assert not stopping.done()
        far.stopping.set()
        await stopping

    play(scene)


def _plain(stage: Stage, count: int) -> SimpleBatch:
    return SimpleBatch(
        [stage.clock.now() + 60_000] * count,
        ["https://shop.example"] * count,
        [b"%d" % number for number in range(count)],
    )


async def _parcelled(stage: Stage, gateway: GatewayEngine, count: int = PREPARED_EVENTS_MIN) -> list[str]:
    ids = await gateway.ask(Schedule("shop", _plain(stage, count)))
    assert [isinstance(event_id, str) for event_id in ids] == [True] * count
    found = [(await stage.engine.ask(Get("shop", str(event_id)))).event for event_id in ids]
    assert [event.payload for event in found if isinstance(event, Event)] == [b"%d" % number for number in range(count)]
    return [str(event_id) for event_id in ids]


def test_a_gateway_asks_for_places_once_and_gives_them_out_itself() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        gateway = GatewayEngine(far.link, stage.clock, SeededEntropy(3))
        await _parcelled(stage, gateway)  # There are no places yet.
        for _ in range(3):
            await _parcelled(stage, gateway)

        assert far.verbs == ["allot", "drafts", "rows", "rows", "rows"]
        assert far.sizes[1:] == [("shop", PREPARED_EVENTS_MIN)] * 3

    play(scene)


def test_a_gateway_asks_for_more_places_before_they_run_out() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        gateway = GatewayEngine(far.link, stage.clock, SeededEntropy(3))
        ids: list[str] = []
        for _ in range(1 + 2 * STOCK // 1_000):
            results = await gateway.ask(Schedule("shop", _plain(stage, 1_000)))
            ids += [result for result in results if isinstance(result, str)]

        assert len(set(ids)) == 1_000 * (1 + 2 * STOCK // 1_000)
        assert far.verbs.count("drafts") == 1
        assert 3 <= far.verbs.count("allot") <= 5

    play(scene)


def test_places_that_are_no_longer_good_are_given_up() -> None:
    async def scene(stage: Stage) -> None:
        far = Far(stage)
        gateway = GatewayEngine(far.link, stage.clock, SeededEntropy(3))
        await _parcelled(stage, gateway)
        stage.engine._intake.slices = {"bank": (0, 1)}
        await _parcelled(stage, gateway)  # Not taken, and sent as drafts.
        await _parcelled(stage, gateway)  # There are none to be had.
        await _parcelled(stage, gateway)  # Nor asked for again so soon.
        stage.engine._intake.slices = {}
        await stage.pass_ms(1_100)
        await _parcelled(stage, gateway)
        await _parcelled(stage, gateway)

        assert far.verbs == [
            *("allot", "drafts"),
            *("rows", "drafts"),
            *("allot", "drafts", "drafts"),
            *("allot", "drafts", "rows"),
        ]

    play(scene)


def test_a_gateway_reports_that_its_engine_stops() -> None:
    async def scene(stage: Stage) -> None:
        gateway = GatewayEngine(Far(stage).link, stage.clock, SeededEntropy(3))
        await _parcelled(stage, gateway)
        await stage.engine.stop()
        results = await gateway.ask(Schedule("shop", _plain(stage, PREPARED_EVENTS_MIN)))

        assert [type(result) for result in results] == [Stopping] * PREPARED_EVENTS_MIN

    play(scene)
