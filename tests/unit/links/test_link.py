"""The link: every request, every answer and every error comes through as it was."""

from __future__ import annotations

import asyncio
import inspect
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import everbell.errors
from everbell.channels.queue import Lease
from everbell.core.access import AccessKey
from everbell.core.allotment import Allotment
from everbell.core.amendment import Amendment
from everbell.core.batch_item import BatchItem, ItemDone
from everbell.core.cluster import Drain, Placement, Policy, Value
from everbell.core.cluster.view import view_of
from everbell.core.collector_report import CollectorReport
from everbell.core.event import Event, Record, Repeat
from everbell.core.health import Health
from everbell.core.kill import Kill, KillCount, PutKilled
from everbell.core.occurrence import occurrence_of
from everbell.core.pause import Pause, Put
from everbell.core.process_report import ProcessReport
from everbell.core.queue_view import QueuesView, QueueView, RecentAttempts, WorkerInfo
from everbell.core.reader_report import ReaderReport
from everbell.core.replicas.copies import Copy, Stamp
from everbell.core.replicas.turns import Busy
from everbell.core.replication import Replication
from everbell.core.request import Ask, Request, requests_of
from everbell.core.retry import Outcome, RetryPolicy
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft
from everbell.core.target_view import TargetsView, TargetView
from everbell.core.why import Why
from everbell.engine.forecast import Forecast
from everbell.engine.history import Gauges, Past, Sample
from everbell.engine.kill_requests import CountKilled, DropKill, ListKills, PutKill
from everbell.engine.replica_requests import (
    AskHolder,
    AskQueues,
    Beacon,
    ChangeCopies,
    CompareCopies,
    ConfirmCopies,
    CountHeld,
    DropCopies,
    FindHeld,
    ForecastHeld,
    HoldCopies,
    LookForCopy,
    NodeBeacon,
    NoteBusy,
)
from everbell.engine.requests import (
    Acknowledge,
    Allot,
    Amend,
    ApplyItems,
    Cancel,
    CancelMatching,
    CountEvents,
    CountTags,
    DropKey,
    DropPause,
    DropTenantPolicy,
    ExtendLeases,
    FailLeases,
    Find,
    FollowKeys,
    FollowPolicies,
    Get,
    GetForecast,
    GetHealth,
    GetLine,
    GetMetrics,
    GiveBack,
    LeaseEvents,
    ListPauses,
    LookAtCluster,
    MakeBackup,
    OrderCluster,
    Played,
    PutKey,
    PutPause,
    PutTenantPolicy,
    Redrive,
    RedriveMatching,
    Replace,
    ReportCollecting,
    ReportProcess,
    ReportReading,
    RevokeKey,
    Ring,
    Schedule,
    TryOut,
    UntilStopping,
)
from everbell.engine.seen import Explained, KeyLine, KeyLines, Seen
from everbell.engine.view_requests import Explain, GetBlockedKeys, GetPast, GetQueues, GetTargets, NoteWorker
from everbell.errors import Conflict, EverbellError, InvalidInput, NotFound, OutcomeUnknown, Overloaded, Stopping
from everbell.http.client_message import HttpFailure
from everbell.links.link_client import LinkClient
from everbell.links.link_server import LinkServer
from everbell.links.wire import CODECS, Answer, PackedAmendment, pack_error, unpack_error
from everbell.stores.port import Counts, Filter
from everbell.stores.rocksdb.row_maker import RocksdbRowMaker

EVENT = Event(
    "order-17", "shop", 3, 17, 5_000, 6_000, "queue:work", b"\x00{}", 1_000, "k", "waiting", 2, repeat=Repeat(1_000, 3)
)
RECORD = Record("order-17", "shop", "delivered", 5_000, 6_000, "queue:work", 1_000, tags=("t",))
DRAFT = Draft(
    5_000, "queue:work", b"{}", "id", "k", headers=(("x-a", "b"),), retry=RetryPolicy(3), repeat=Repeat(1_000)
)
SEEN = Seen.of(EVENT, "waiting", created=True)
ENDED = Seen.of(RECORD, "delivered")
AMENDMENT = Amendment(due_at=7, retry=None, tags=())
FILTER = Filter("shop", "dead", key="k", from_at=1)
LEASE = Lease("1.2.3", 9_000, occurrence_of(EVENT, 2, 9, msgspec.UNSET))

COPY = Copy(EVENT, RECORD, Replication(5, 1_000, "all"), 2, Stamp(5, "a"), Stamp(7, "b"), "b")
CLUSTER = view_of(Value(index=3, cluster="secret", partitions=(Placement(),) * 2), "n1/x", "n1", 5, 900, {})
KEY = AccessKey("n4wy6ylcmfrgg33", bytes(32), "shop", ("read", "work"), 1_000, "mailers", revoked_at=2_000)

CONFLICT = Conflict("taken")
KILL = Kill("shop", "tag", "nightly", 5, "nobody", "why")
PAUSE = Pause("shop", "key", "k", 5, "nobody", "why", 7)
PLACES = Allotment(1, 2, (2,), "rocksdb")
PREPARED, _ = RocksdbRowMaker().make("shop", SimpleBatch([5, 7], ["queue:q"] * 2, [b"{}", b"1"]), PLACES, bytes(18), 3)
EXAMPLES: list[tuple[Request[Any], Any]] = [
    (Schedule("shop", [DRAFT, DRAFT, DRAFT]), ["a", SEEN, CONFLICT]),
    (Schedule("shop", PREPARED), []),
    (
        ApplyItems("shop", [BatchItem("put", "a", DRAFT), BatchItem("cancel", "b"), BatchItem("create", None, DRAFT)]),
        [ItemDone("a", "replaced"), ItemDone("b", "unknown"), CONFLICT],
    ),
    (Allot(64), Allotment(17, 64, (0, 3), "memory")),
    (Get("shop", "order-17"), ENDED),
    (Find(FILTER, "cursor", 10), ([SEEN, ENDED], "next")),
    (NoteWorker("shop", "mail", WorkerInfo("w1", "host", "1.0", ("mail",))), None),
    (Explain("shop", "order-17"), Explained(SEEN, Why("dead", "It is dead.", reason="no"))),
    (GetQueues("shop"), QueuesView((QueueView("mail", 3, 1, RecentAttempts(1), ()),), ("n2",))),
    (GetTargets("shop"), TargetsView((TargetView("queue:mail", 3, 1, RecentAttempts(1)),))),
    (GetPast("shop", "hours"), Past(10_000, [Sample(0, (1, 2), Gauges(1, 2))], Gauges())),
    (CountEvents(), {"shop": Counts(pending=3, dead=1)}),
    (Replace("shop", "order-17", DRAFT, 3), SEEN),
    (Amend("shop", "order-17", AMENDMENT, None), SEEN),
    (Cancel("shop", "order-17", 2), ENDED),
    (CancelMatching(FILTER), 7),
    (Ring("shop", "order-17"), SEEN),
    (Redrive("shop", "order-17", 5), SEEN),
    (RedriveMatching(FILTER, 2.5), 7),
    (GetLine("shop", "order-17"), KeyLine(SEEN, 3, True)),
    (GetBlockedKeys("shop", 5), KeyLines((("k", KeyLine(SEEN, 3, True)),), True, ("n2",))),
    (GetForecast(None, 60_000, 3), Forecast(60_000, 60_000, [1, 0, 2], 1, 5, None)),
    (TryOut("shop", "order-17"), Outcome("failed", "HTTP 503", 503, 1_000)),
    (LeaseEvents("shop", "work", 10, 20_000, None), [LEASE]),
    (Acknowledge("shop", "work", ["1.2.3"]), []),
    (FailLeases("shop", "work", {"1.2.3": Outcome("failed", "no")}), ["1.2.3"]),
    (GiveBack("shop", "work", ["1.2.3"]), ["1.2.3"]),
    (ExtendLeases("shop", "work", ["1.2.3"], 30_000), []),
    (MakeBackup(), "somewhere"),
    (GetMetrics(), "up 1\n"),
    (GetHealth(), Health("broken", "fsync")),
    (LookAtCluster(), CLUSTER),
    (OrderCluster(Drain("n1")), CLUSTER),
    (FollowKeys(3), (4, (KEY,))),
    (PutKey(KEY), None),
    (RevokeKey(KEY.id, 3_000), KEY),
    (DropKey(KEY.id), None),
    (FollowPolicies(3), (4, {"shop": Policy(7, b"{}")})),
    (PutTenantPolicy("shop", b"{}", 7), 8),
    (DropTenantPolicy("shop", None), None),
    (ListPauses(), [PAUSE]),
    (Played(7), True),
    (PutPause(PAUSE), Put(PAUSE, True, ("n2",))),
    (DropPause("shop", "key", "k"), PAUSE),
    (ListKills(), [KILL]),
    (PutKill(KILL), PutKilled(KILL, True, ("n2",))),
    (DropKill("shop", "tag", "nightly"), KILL),
    (CountKilled("shop"), {KILL.place: KillCount(3, True)}),
    (UntilStopping(), None),
    (HoldCopies([COPY], True), ["held", "full", COPY]),
    (DropCopies([COPY]), None),
    (NoteBusy([Busy("shop", "x", 1, 2, 7)]), None),
    (Beacon("a", 1, 2, True, False, [("shop", "http://a")]), None),
    (NodeBeacon("a", 1, 2, True, False, [("shop", "http://a")], 3, [("b", 500)]), None),
    (CompareCopies([("shop", "x")], [COPY.order]), [0, ~1]),
    (ConfirmCopies([("shop", "x")], [COPY.order], 2), [0]),
    (ChangeCopies([COPY], 2), [True]),
    (AskHolder(b"\x00"), b"\x01"),
    (AskQueues(b"\x00"), b"\x01"),
    (LookForCopy("shop", "x"), SEEN),
    (FindHeld(FILTER, None, 10, ["a"]), ([SEEN, ENDED], "next")),
    (CountHeld(["a"]), {"shop": Counts(pending=3)}),
    (ForecastHeld(None, 60_000, 3, ["a"]), Forecast(60_000, 60_000, [1, 0, 2], 1, 5, None)),
    (ReportReading(1, ReaderReport(3, 4, 2, 1, {"orders": 7}, "away", True)), None),
    (CountTags({"call": 2}), None),
    (ReportProcess(1, ProcessReport(3, 4, 5)), None),
    (ReportCollecting(1, CollectorReport(3, 4, 2, 1, True, 7, 9, "away", True)), None),
]
"""A request of every kind, and an answer."""

ERRORS = [kind for kind in vars(everbell.errors).values() if inspect.isclass(kind) and issubclass(kind, EverbellError)]


class Wire(asyncio.Transport):
    """One direction of a connection: bytes arrive at the other end a little later, cut as one likes."""

    def __init__(self, piece: int) -> None:
        super().__init__()
        self.peer: asyncio.Protocol | None = None
        self._piece = piece
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raw = bytes(data)
        loop = asyncio.get_running_loop()
        for start in range(0, len(raw), self._piece):
            loop.call_soon(self._arrive, raw[start : start + self._piece])

    def _arrive(self, piece: bytes) -> None:
        if self.peer is not None and not self._closing:
            self.peer.data_received(piece)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True


def linked(
    ask: Ask,
    test: Callable[[LinkClient, LinkServer], Coroutine[Any, Any, None]],
    piece: int = 65_536,
    *,
    for_peers: bool = False,
) -> None:
    """Run a test with the two ends of a link."""

    async def main() -> None:
        client, server = LinkClient(), LinkServer(ask, for_peers=for_peers)
        to_server, to_client = Wire(piece), Wire(piece)
        to_server.peer, to_client.peer = server, client
        client.connection_made(to_server)
        server.connection_made(to_client)
        await test(client, server)

    asyncio.run(main())


class Answering:
    """Answers every request in the same way, and notes it."""

    def __init__(self, answer: Callable[[Request[Any]], Any]) -> None:
        self.asked: list[Request[Any]] = []
        self._answer = answer

    async def ask(self, request: Request[Any], /) -> Any:
        self.asked.append(request)
        answer = self._answer(request)
        return await answer if isinstance(answer, Awaitable) else answer


def test_there_is_an_example_of_every_request() -> None:
    assert {type(request) for request, _ in EXAMPLES} == set(requests_of(Request))


@pytest.mark.parametrize("piece", [1, 7, 65_536])
@pytest.mark.parametrize(("request_", "answer"), EXAMPLES, ids=lambda value: getattr(value, "tag", ""))
def test_a_request_and_its_answer_come_through_as_they_were(request_: Request[Any], answer: Any, piece: int) -> None:
    node = Answering(lambda request: answer)

    async def test(client: LinkClient, server: LinkServer) -> None:
        got = await client.ask(request_)
        assert _plain(got) == _plain(answer)
        assert node.asked == [request_]

    linked(node.ask, test, piece)


def _plain(answer: Any) -> Any:
    """The answer with errors that can be compared."""
    if not isinstance(answer, list):
        return answer
    return [pack_error(each) if isinstance(each, EverbellError) else each for each in answer]


@pytest.mark.parametrize(("request_", "answer"), EXAMPLES, ids=lambda value: getattr(value, "tag", ""))
def test_another_node_may_ask_requests_for_peers_and_no_others(request_: Request[Any], answer: Any) -> None:
    node = Answering(lambda request: answer)

    async def test(client: LinkClient, server: LinkServer) -> None:
        if request_.for_peers:
            await client.ask(request_)
        else:
            with pytest.raises(Overloaded, match="not for other nodes"):
                await client.ask(request_)
        assert node.asked == [request_] * request_.for_peers

    linked(node.ask, test, for_peers=True)


def test_a_request_of_a_newer_version_is_refused_and_the_link_goes_on() -> None:
    node = Answering(lambda request: "up 1\n")

    async def test(client: LinkClient, server: LinkServer) -> None:
        asked = client.ask(GetMetrics())
        client.send((0, "of_the_future", ("shop",)))
        client._pending[0] = (CODECS["metrics"], refused := asyncio.get_running_loop().create_future())
        with pytest.raises(Overloaded, match="does not know the request of_the_future"):
            await refused
        assert await asked == await client.ask(GetMetrics()) == "up 1\n"

    linked(node.ask, test)


def test_fields_that_are_not_understood_are_refused_and_the_link_goes_on() -> None:
    node = Answering(lambda request: "up 1\n")

    async def test(client: LinkClient, server: LinkServer) -> None:
        client.send((0, "cancel", (7,)))
        client._pending[0] = (CODECS["cancel"], refused := asyncio.get_running_loop().create_future())
        with pytest.raises(EverbellError, match="cancel failed"):
            await refused
        assert await client.ask(GetMetrics()) == "up 1\n"

    linked(node.ask, test)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_comes_through_as_it_was(kind: type[EverbellError]) -> None:
    error = kind("because")

    def fail(request: Request[Any]) -> Any:
        raise error

    async def test(client: LinkClient, server: LinkServer) -> None:
        with pytest.raises(kind) as raised:
            await client.ask(Get("shop", "x"))
        assert type(raised.value) is kind
        assert str(raised.value) == "because"
        assert (raised.value.status, raised.value.slug) == (error.status, error.slug)

    linked(Answering(fail).ask, test)


def test_attributes_of_errors_are_sent() -> None:
    field = unpack_error(pack_error(InvalidInput("is wrong", "at")))
    assert isinstance(field, InvalidInput)
    assert (field.field, field.reason, str(field)) == ("at", "is wrong", "at: is wrong")
    busy = unpack_error(pack_error(Overloaded("later", 7)))
    assert isinstance(busy, Overloaded)
    assert busy.retry_after_s == 7


def test_an_error_of_some_module_of_its_own_becomes_the_root() -> None:
    error = unpack_error(pack_error(HttpFailure("timeout", "too slow")))

    assert type(error) is EverbellError
    assert str(error) == "timeout: too slow"


@pytest.mark.parametrize(
    "amendment",
    [
        Amendment(),
        Amendment(due_at=0),
        Amendment(to="queue:a", payload=b"", content_type=None),
        Amendment(headers=(("a", "b"),), tags=()),
        Amendment(retry=RetryPolicy(3), repeat=Repeat(1_000, 2, 9), expires_ms=1),
        Amendment(retry=None, repeat=None, expires_ms=None),
        Amendment(paused=True, note="holidays"),
        Amendment(paused=False, note=None),
        Amendment(shift_ms=-5, latest_at=7),
    ],
)
def test_a_change_distinguishes_set_fields_from_unset_ones(amendment: Amendment) -> None:
    raw = msgspec.msgpack.encode(PackedAmendment.pack(amendment))

    assert msgspec.msgpack.decode(raw, type=PackedAmendment).unpack() == amendment


def test_answers_find_their_questions_in_any_order() -> None:
    async def serve(request: Request[Any]) -> Any:
        assert isinstance(request, Get)
        for _ in range(10 - int(request.id)):
            await asyncio.sleep(0)
        return Seen.of(msgspec.structs.replace(RECORD, id=request.id), "delivered")

    async def test(client: LinkClient, server: LinkServer) -> None:
        answers = await asyncio.gather(*(client.ask(Get("shop", str(number))) for number in range(10)))
        assert [answer.event.id for answer in answers] == [str(number) for number in range(10)]

    linked(Answering(serve).ask, test)


def test_a_link_that_breaks_leaves_no_caller_waiting() -> None:
    started = asyncio.Event()
    cancelled: list[str] = []

    async def serve(request: Request[Any]) -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(request.tag)

    async def test(client: LinkClient, server: LinkServer) -> None:
        asked = client.ask(Get("shop", "x"))
        await started.wait()
        assert server.linked.done()
        client.connection_lost(None)
        server.connection_lost(None)

        with pytest.raises(OutcomeUnknown, match="ended before"):
            await asked
        with pytest.raises(Overloaded, match="gone"):
            await client.ask(Get("shop", "x"))
        await asyncio.sleep(0)
        assert cancelled == ["get"]

    linked(Answering(serve).ask, test)


def test_an_answer_without_a_caller_is_dropped() -> None:
    async def test(client: LinkClient, server: LinkServer) -> None:
        client.ask(GetMetrics()).cancel()
        assert await client.ask(GetMetrics()) == "up 1\n"

    linked(Answering(lambda request: "up 1\n").ask, test)


@pytest.mark.parametrize("answer", [Answer(1, Raw(b"\xa2up")), Answer(1, Raw(b"\xc0"), ("OfTheFuture", "no", 7))])
def test_an_unreadable_answer_leaves_no_caller_waiting(answer: Answer) -> None:
    async def test(client: LinkClient, server: LinkServer) -> None:
        asked = client.ask(CountEvents())
        client.frame(memoryview(msgspec.msgpack.encode(answer)))
        with pytest.raises(EverbellError):
            await asyncio.wait_for(asked, 5)

    linked(Answering(lambda request: asyncio.Event().wait()).ask, test)


def test_an_answer_that_cannot_be_encoded_is_a_failure() -> None:
    async def test(client: LinkClient, server: LinkServer) -> None:
        with pytest.raises(EverbellError, match="counts failed"):
            await asyncio.wait_for(client.ask(CountEvents()), 5)

    linked(Answering(lambda request: 1 << 70).ask, test)


def test_errors_that_are_expected_have_classes_of_their_own() -> None:
    assert {NotFound, Stopping} <= set(ERRORS)


def test_a_waiting_request_keeps_no_other_bytes_of_its_read(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = asyncio.Event()

    async def serve(request: Request[Any], /) -> Any:
        if isinstance(request, CountEvents):
            await waits.wait()
        return {} if isinstance(request, CountEvents) else []

    async def test(client: LinkClient, server: LinkServer) -> None:
        large = SimpleBatch([5] * 1_000, ["queue:q"] * 1_000, [b"x" * 4_000] * 1_000)
        places = Allotment(1, 1_000, (2,), "rocksdb")
        rows, _ = RocksdbRowMaker().make("shop", large, places, bytes(9_000), 3)
        frames: list[bytes] = []
        monkeypatch.setattr(client.transport, "write", frames.append)
        asked, stored = client.ask(CountEvents()), client.ask(Schedule("shop", rows))
        tracemalloc.start()
        server.data_received(b"".join(frames))
        assert await stored == []
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_bytes < 1_000_000
        waits.set()
        assert await asked == {}

    linked(serve, test)
