"""The link between a gateway and its engine: every call and every error comes through as it was."""

from __future__ import annotations

import asyncio
import inspect
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import everbell.errors
from everbell.channels.http_message import HttpFailure
from everbell.channels.queue import Lease
from everbell.core.access import AccessKey
from everbell.core.allotment import Allotment
from everbell.core.cluster import Drain, Partition, Policy, Value
from everbell.core.cluster.view import view_of
from everbell.core.event import Event, Record, Repeat
from everbell.core.health import Health
from everbell.core.occurrence import occurrence_of
from everbell.core.pause import Pause, Put
from everbell.core.plain import Plain
from everbell.core.retry import Outcome, Retry
from everbell.core.spec import Draft
from everbell.engine.forecast import Forecast
from everbell.engine.port import Seen
from everbell.errors import EverbellError, InvalidInput, NotFound, OutcomeUnknown, Overloaded, Stopping
from everbell.kafka.news import KafkaNews
from everbell.links.link import (
    CALLS,
    Answer,
    EngineEnd,
    GatewayEnd,
    PackedChange,
    PackedLine,
    PackedSeen,
    Scheduled,
    Serve,
    pack_error,
    unpack_error,
)
from everbell.stores.parcel import parcel_of
from everbell.stores.port import Counts, Filter

EVENT = Event(
    "order-17", "shop", 3, 17, 5_000, 6_000, "queue:work", b"\x00{}", 1_000, "k", "waiting", 2, repeat=Repeat(1_000, 3)
)
RECORD = Record("order-17", "shop", "delivered", 5_000, 6_000, "queue:work", 1_000, tags=("t",))
DRAFT = Draft(5_000, "queue:work", b"{}", "id", "k", headers=(("x-a", "b"),), retry=Retry(3), repeat=Repeat(1_000))
SEEN = PackedSeen.pack(Seen(EVENT, "waiting", created=True))
ENDED = PackedSeen.pack(Seen(RECORD, "delivered"))
CHANGE = PackedChange.pack({"due_at": 7, "retry": None, "tags": ()})
FILTER = Filter("shop", "dead", key="k", from_at=1)
LEASE = Lease("1.2.3", 9_000, occurrence_of(EVENT, 2, 9))

CLUSTER = view_of(Value(index=3, cluster="secret", partitions=(Partition(),) * 2), "n1/x", "n1", 5, 900, {})
KEY = AccessKey("n4wy6ylcmfrgg33", bytes(32), "shop", ("read", "work"), 1_000, "mailers", revoked_at=2_000)

PAUSE = Pause("shop", "key", "k", 5, "nobody", "why", 7)
PARCEL, _ = parcel_of("shop", Plain([5, 7], ["queue:q"] * 2, [b"{}", b"1"]), Allotment(1, 2, (2,)), bytes(18), 3)
EXAMPLES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "schedule": (("shop", [DRAFT, DRAFT]), Scheduled(["a", None], {1: SEEN}, {1: ("Conflict", "taken", None)})),
    "allot": ((64,), Allotment(17, 64, (0, 3))),
    "take_in": ((PARCEL,), True),
    "get": (("shop", "order-17"), ENDED),
    "find": ((FILTER, "cursor", 10), ([SEEN, ENDED], "next")),
    "counts": ((), {"shop": Counts(pending=3, dead=1)}),
    "replace": (("shop", "order-17", DRAFT, 3), SEEN),
    "change": (("shop", "order-17", CHANGE, None), SEEN),
    "cancel": (("shop", "order-17", 2), ENDED),
    "cancel_matching": ((FILTER,), 7),
    "ring": (("shop", "order-17"), SEEN),
    "redrive": (("shop", "order-17", 5), SEEN),
    "redrive_matching": ((FILTER, 2.5), 7),
    "line": (("shop", "order-17"), PackedLine(SEEN, 3, True)),
    "forecast": ((None, 60_000, 3), Forecast(60_000, 60_000, [1, 0, 2], 1, 5, None)),
    "try_out": (("shop", "order-17"), Outcome("failed", "HTTP 503", 503, 1_000)),
    "lease": (("shop", "work", 10, 20_000, None), [LEASE]),
    "acknowledge": (("shop", "work", ["1.2.3"]), []),
    "fail": (("shop", "work", {"1.2.3": Outcome("failed", "no")}), ["1.2.3"]),
    "give_back": (("shop", "work", ["1.2.3"]), ["1.2.3"]),
    "extend": (("shop", "work", ["1.2.3"], 30_000), []),
    "backup": ((), "somewhere"),
    "metrics": ((), "up 1\n"),
    "health": ((), Health("broken", "fsync")),
    "look": ((), CLUSTER),
    "order": ((Drain("n1"),), CLUSTER),
    "keys": ((3,), (4, (KEY,))),
    "put_key": ((KEY,), None),
    "revoke_key": ((KEY.id, 3_000), KEY),
    "drop_key": ((KEY.id,), None),
    "policies": ((3,), (4, {"shop": Policy(7, b"{}")})),
    "put_policy": (("shop", b"{}", 7), 8),
    "drop_policy": (("shop", None), None),
    "pauses": ((), [PAUSE]),
    "played": ((7,), True),
    "put_pause": ((PAUSE,), Put(PAUSE, True, ("n2",))),
    "drop_pause": (("shop", "key", "k"), PAUSE),
    "until_stopping": ((), None),
    "kafka_news": ((1, KafkaNews(3, 4, 2, 1, {"orders": 7}, "away", True)), None),
}

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
    serve: Serve, test: Callable[[GatewayEnd, EngineEnd], Coroutine[Any, Any, None]], piece: int = 65_536
) -> None:
    """Run a test with the two ends of a link."""

    async def main() -> None:
        gateway, engine = GatewayEnd(), EngineEnd(serve)
        to_engine, to_gateway = Wire(piece), Wire(piece)
        to_engine.peer, to_gateway.peer = engine, gateway
        gateway.connection_made(to_engine)
        engine.connection_made(to_gateway)
        await test(gateway, engine)

    asyncio.run(main())


def test_there_is_an_example_of_every_call() -> None:
    assert EXAMPLES.keys() == CALLS.keys()


@pytest.mark.parametrize("piece", [1, 7, 65_536])
@pytest.mark.parametrize("method", CALLS)
def test_a_call_comes_through_as_it_was(method: str, piece: int) -> None:
    arguments, result = EXAMPLES[method]
    got: list[tuple[str, tuple[Any, ...]]] = []

    async def serve(name: str, given: tuple[Any, ...]) -> Any:
        got.append((name, given))
        return result

    async def test(gateway: GatewayEnd, engine: EngineEnd) -> None:
        assert await gateway.call(method, *arguments) == result
        assert got == [(method, arguments)]

    linked(serve, test, piece)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_comes_through_as_it_was(kind: type[EverbellError]) -> None:
    error = kind("because")

    async def serve(name: str, given: tuple[Any, ...]) -> Any:
        raise error

    async def test(gateway: GatewayEnd, engine: EngineEnd) -> None:
        with pytest.raises(kind) as raised:
            await gateway.call("get", "shop", "x")
        assert type(raised.value) is kind
        assert str(raised.value) == "because"
        assert (raised.value.status, raised.value.slug) == (error.status, error.slug)

    linked(serve, test)


def test_what_errors_carry_comes_along() -> None:
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
    "fields",
    [
        {},
        {"due_at": 0},
        {"to": "queue:a", "payload": b"", "content_type": None},
        {"headers": (("a", "b"),), "tags": ()},
        {"retry": Retry(3), "repeat": Repeat(1_000, 2, 9), "expires_ms": 1},
        {"retry": None, "repeat": None, "expires_ms": None},
        {"paused": True, "note": "holidays"},
        {"paused": False, "note": None},
    ],
)
def test_a_change_tells_what_is_set_from_what_is_left_alone(fields: dict[str, Any]) -> None:
    raw = msgspec.msgpack.encode(PackedChange.pack(fields))

    assert msgspec.msgpack.decode(raw, type=PackedChange).unpack() == fields


def test_answers_find_their_questions_in_any_order() -> None:
    async def serve(name: str, given: tuple[Any, ...]) -> Any:
        for _ in range(10 - int(given[1])):
            await asyncio.sleep(0)
        return PackedSeen(None, msgspec.structs.replace(RECORD, id=given[1]), "delivered", False)

    async def test(gateway: GatewayEnd, engine: EngineEnd) -> None:
        answers = await asyncio.gather(*(gateway.call("get", "shop", str(number)) for number in range(10)))
        assert [answer.record.id for answer in answers] == [str(number) for number in range(10)]

    linked(serve, test)


def test_a_link_that_breaks_leaves_nobody_waiting() -> None:
    started = asyncio.Event()
    cancelled: list[str] = []

    async def serve(name: str, given: tuple[Any, ...]) -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(name)

    async def test(gateway: GatewayEnd, engine: EngineEnd) -> None:
        asked = gateway.call("get", "shop", "x")
        await started.wait()
        assert engine.linked.done()
        gateway.connection_lost(None)
        engine.connection_lost(None)

        with pytest.raises(OutcomeUnknown, match="ended before"):
            await asked
        with pytest.raises(Overloaded, match="gone"):
            await gateway.call("get", "shop", "x")
        await asyncio.sleep(0)
        assert cancelled == ["get"]

    linked(serve, test)


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    async def serve(name: str, given: tuple[Any, ...]) -> Any:
        return "up 1\n"

    async def test(gateway: GatewayEnd, engine: EngineEnd) -> None:
        gateway.call("metrics").cancel()
        assert await gateway.call("metrics") == "up 1\n"

    linked(serve, test)


@pytest.mark.parametrize("answer", [Answer(1, Raw(b"\xa2up")), Answer(1, Raw(b"\xc0"), ("OfTheFuture", "no", 7))])
def test_an_answer_that_is_not_understood_leaves_nobody_waiting(answer: Answer) -> None:
    async def serve(name: str, given: tuple[Any, ...]) -> Any:
        await asyncio.Event().wait()

    async def test(gateway: GatewayEnd, engine: EngineEnd) -> None:
        asked = gateway.call("counts")
        gateway.frame(memoryview(msgspec.msgpack.encode(answer)))
        with pytest.raises(EverbellError):
            await asyncio.wait_for(asked, 5)

    linked(serve, test)


def test_what_cannot_be_sent_back_is_told_as_a_failure() -> None:
    async def serve(name: str, given: tuple[Any, ...]) -> Any:
        return 1 << 70

    async def test(gateway: GatewayEnd, engine: EngineEnd) -> None:
        with pytest.raises(EverbellError, match="counts failed"):
            await asyncio.wait_for(gateway.call("counts"), 5)

    linked(serve, test)


def test_errors_that_are_expected_have_classes_of_their_own() -> None:
    assert {NotFound, Stopping} <= set(ERRORS)


def test_a_call_that_waits_holds_nothing_of_what_was_read_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = asyncio.Event()

    async def serve(name: str, given: tuple[Any, ...]) -> Any:
        if name == "counts":
            await waits.wait()
        return {} if name == "counts" else True

    async def test(gateway: GatewayEnd, engine: EngineEnd) -> None:
        large = Plain([5] * 1_000, ["queue:q"] * 1_000, [b"x" * 4_000] * 1_000)
        parcel, _ = parcel_of("shop", large, Allotment(1, 1_000, (2,)), bytes(9_000), 3)
        frames: list[bytes] = []
        monkeypatch.setattr(gateway.transport, "write", frames.append)
        asked, taken = gateway.call("counts"), gateway.call("take_in", parcel)
        tracemalloc.start()
        engine.data_received(b"".join(frames))
        assert await taken
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_bytes < 1_000_000
        waits.set()
        assert await asked == {}

    linked(serve, test)
