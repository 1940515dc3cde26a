"""The link between a gateway and the engine: calls of the engine's ports, packed, over a stream socket.

A frame is a length and a msgpack array. The table `CALLS` types every argument and result, so nothing is decoded into
something that it was not. Scheduling is packed twice: what a gateway takes in during one turn of its loop travels as
one call, and what was made is answered by its id alone, for the gateway still has the rest.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

import everbell.errors
from everbell.channels.queue import Lease
from everbell.core.access import AccessKey
from everbell.core.allotment import Allotment
from everbell.core.cluster import Command, Policy
from everbell.core.cluster.view import ClusterView
from everbell.core.event import Event, Record, Repeat, Status
from everbell.core.health import Health
from everbell.core.pause import Pause, Put, What
from everbell.core.retry import Outcome, Retry
from everbell.core.spec import Draft
from everbell.engine.forecast import Forecast
from everbell.engine.port import KeyLine, Seen
from everbell.errors import EverbellError, InvalidInput, OutcomeUnknown, Overloaded
from everbell.kafka.news import KafkaNews
from everbell.stores.parcel import Parcel
from everbell.stores.port import Counts, Filter

_log = logging.getLogger("everbell.server")

_LENGTH = struct.Struct(">I")
_NOTHING = Raw(b"\xc0")
_encode_into = msgspec.msgpack.Encoder().encode_into


class Ask(Struct, array_like=True, frozen=True):
    """A call as it is read; its number is repeated in the answer."""

    number: int
    method: str
    arguments: Raw


class Answer(Struct, array_like=True, frozen=True):
    """The result, or the error, as (class, message, field or seconds to wait)."""

    number: int
    result: Raw
    error: tuple[str, str, str | int | None] | None = None


class PackedSeen(Struct, array_like=True, frozen=True):
    """`Seen` with its union spelled out."""

    event: Event | None
    record: Record | None
    status: Status
    created: bool

    @classmethod
    def pack(cls, seen: Seen) -> PackedSeen:
        event = seen.event
        if isinstance(event, Event):
            return cls(event, None, seen.status, seen.created)
        return cls(None, event, seen.status, seen.created)

    def unpack(self) -> Seen:
        event = self.event or self.record
        assert event is not None, "one of the two is there"
        return Seen(event, self.status, self.created)


class PackedLine(Struct, array_like=True, frozen=True):
    """`KeyLine`, with what is in it packed."""

    head: PackedSeen | None
    waiting: int
    is_more: bool

    @classmethod
    def pack(cls, line: KeyLine) -> PackedLine:
        return cls(None if line.head is None else PackedSeen.pack(line.head), line.waiting, line.is_more)

    def unpack(self) -> KeyLine:
        return KeyLine(None if self.head is None else self.head.unpack(), self.waiting, self.is_more)


class PackedChange(Struct, array_like=True, frozen=True):
    """What `core.spec.changes_of` may set."""

    due_at: int | None = None
    to: str | None = None
    payload: bytes | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    tags: tuple[str, ...] | None = None
    named: tuple[str, ...] = ()
    """Which fields are set; the ones below may be set to None."""
    content_type: str | None = None
    retry: Retry | None = None
    repeat: Repeat | None = None
    expires_ms: int | None = None
    paused: bool | None = None
    note: str | None = None
    shift_ms: int | None = None
    latest_at: int | None = None

    @classmethod
    def pack(cls, fields: Mapping[str, Any]) -> PackedChange:
        return cls(named=tuple(fields), **fields)

    def unpack(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.named}


class Scheduled(Struct, array_like=True, frozen=True):
    """What became of many drafts: the ids of those that were made, and what happened to the others, by index."""

    ids: list[str | None]
    seen: dict[int, PackedSeen]
    errors: dict[int, tuple[str, str, str | int | None]]


class Call(Struct, frozen=True):
    """The types of a call."""

    arguments: Any
    result: Any


CALLS: dict[str, Call] = {
    "schedule": Call(tuple[str, list[Draft]], Scheduled),
    "allot": Call(tuple[int], Allotment | None),
    "take_in": Call(tuple[Parcel], bool),
    "get": Call(tuple[str, str], PackedSeen),
    "find": Call(tuple[Filter, str | None, int], tuple[list[PackedSeen], str | None]),
    "counts": Call(tuple[()], dict[str, Counts]),
    "replace": Call(tuple[str, str, Draft, int | None], PackedSeen),
    "change": Call(tuple[str, str, PackedChange, int | None], PackedSeen),
    "cancel": Call(tuple[str, str, int | None], PackedSeen),
    "cancel_matching": Call(tuple[Filter], int),
    "ring": Call(tuple[str, str], PackedSeen),
    "redrive": Call(tuple[str, str, int], PackedSeen),
    "redrive_matching": Call(tuple[Filter, float | None], int),
    "line": Call(tuple[str, str], PackedLine),
    "forecast": Call(tuple[str | None, int, int], Forecast),
    "try_out": Call(tuple[str, str], Outcome),
    "lease": Call(tuple[str, str, int, int, int | None], list[Lease]),
    "acknowledge": Call(tuple[str, str, list[str]], list[str]),
    "fail": Call(tuple[str, str, dict[str, Outcome]], list[str]),
    "give_back": Call(tuple[str, str, list[str]], list[str]),
    "extend": Call(tuple[str, str, list[str], int], list[str]),
    "backup": Call(tuple[()], str),
    "metrics": Call(tuple[()], str),
    "health": Call(tuple[()], Health),
    "look": Call(tuple[()], ClusterView),
    "order": Call(tuple[Command], ClusterView),
    "keys": Call(tuple[int], tuple[int, tuple[AccessKey, ...]]),
    "put_key": Call(tuple[AccessKey], None),
    "revoke_key": Call(tuple[str, int], AccessKey),
    "drop_key": Call(tuple[str], None),
    "policies": Call(tuple[int], tuple[int, dict[str, Policy]]),
    "put_policy": Call(tuple[str, bytes, int | None], int),
    "drop_policy": Call(tuple[str, int | None], None),
    "played": Call(tuple[int], bool),
    "pauses": Call(tuple[()], list[Pause]),
    "put_pause": Call(tuple[Pause], Put),
    "drop_pause": Call(tuple[str, What, str], Pause),
    "until_stopping": Call(tuple[()], None),
    "kafka_news": Call(tuple[int, KafkaNews], None),
}

_ARGUMENTS = {name: msgspec.msgpack.Decoder(call.arguments) for name, call in CALLS.items()}
_RESULTS = {name: msgspec.msgpack.Decoder(call.result) for name, call in CALLS.items()}
_ASK = msgspec.msgpack.Decoder(Ask)
_ANSWER = msgspec.msgpack.Decoder(Answer)

Serve = Callable[[str, tuple[Any, ...]], Awaitable[Any]]
"""Carries out a call by name; what it returns is of the type in `CALLS`."""


class _Frames(asyncio.Protocol):
    """Cuts the stream into frames."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """What has come of a frame that is not complete."""
        self._held = 0
        self._wanted = _LENGTH.size
        """How many bytes there are, and how many it takes to go on."""
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are of no common class

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        # A frame may have half a megabyte, and comes in pieces: they are put together once, and read where they are.
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._wanted:
            return
        whole = data if len(self._pieces) == 1 else b"".join(self._pieces)
        view, start, end = memoryview(whole), 0, 0
        while len(whole) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(whole, start)[0]
            if len(whole) < end:
                break
            self.frame(view[start + _LENGTH.size : end])
            start = end
        rest = whole[start:]
        self._pieces, self._held = [rest] if rest else [], len(rest)
        self._wanted = max(end - start, _LENGTH.size)

    def frame(self, frame: memoryview) -> None:
        raise AssertionError("a frame has a reader")

    def send(self, message: Struct | tuple[Any, ...]) -> None:
        if self.transport is not None and not self.transport.is_closing():
            frame = bytearray(_LENGTH.size)
            _encode_into(message, frame, _LENGTH.size)
            _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
            self.transport.write(frame)


class EngineEnd(_Frames):
    """The engine's end: carries out what the gateway asks."""

    def __init__(self, serve: Serve) -> None:
        super().__init__()
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self.linked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the gateway has asked for something, or has gone."""

    def frame(self, frame: memoryview) -> None:
        if not self.linked.done():
            self.linked.set_result(None)
        ask = _ASK.decode(frame)
        task = asyncio.get_running_loop().create_task(self._carry_out(ask.number, ask.method, ask.arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if not self.linked.done():
            self.linked.set_result(None)
        for task in self._tasks:
            task.cancel()

    async def _carry_out(self, number: int, method: str, packed: Raw) -> None:
        try:
            arguments = _ARGUMENTS[method].decode(packed)
            del packed  # Else a call that waits would hold everything that was read together with it.
            self.send((number, await self._serve(method, arguments)))
        except EverbellError as refused:
            self.send(Answer(number, _NOTHING, pack_error(refused)))
        except Exception as error:
            # Whoever asked must not wait for ever; what went wrong inside is for the log.
            _log.exception("a call of a gateway failed: %s", method)
            self.send(Answer(number, _NOTHING, pack_error(EverbellError(f"{method} failed: {error!r}"))))


class GatewayEnd(_Frames):
    """The gateway's end: asks, and waits for answers."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Ask the engine. The future has the result, or raises what the engine raised."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost.done():
            future.set_exception(Overloaded("the engine is gone; nothing of this request is known to be stored"))
            return future
        self._number += 1
        self._asked[self._number] = (method, future)
        self.send((self._number, method, arguments))
        return future

    def frame(self, frame: memoryview) -> None:
        answer = _ANSWER.decode(frame)
        method, future = self._asked.pop(answer.number)
        if future.done():
            return
        if answer.error is not None:
            future.set_exception(unpack_error(answer.error))
            return
        try:
            future.set_result(_RESULTS[method].decode(answer.result))
        except msgspec.MsgspecError:
            future.set_exception(OutcomeUnknown(f"the answer to {method} is of another version: look, or ask again"))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(
                    OutcomeUnknown("who had to do it ended before it answered; with an id of your own, ask again")
                )
        self._asked.clear()


def pack_error(error: EverbellError) -> tuple[str, str, str | int | None]:
    """An error as it travels."""
    name = type(error).__name__ if hasattr(everbell.errors, type(error).__name__) else "EverbellError"
    if isinstance(error, InvalidInput):
        return name, error.reason, error.field
    return name, str(error), error.retry_after_s if isinstance(error, Overloaded) else None


def unpack_error(packed: tuple[str, str, str | int | None]) -> EverbellError:
    """The error at the other end. One that only a newer version knows becomes the root."""
    name, message, extra = packed
    kind: Any = getattr(everbell.errors, name, None)
    if kind is None:
        return EverbellError(message)
    error = kind(message) if extra is None else kind(message, extra)
    assert isinstance(error, EverbellError)
    return error
