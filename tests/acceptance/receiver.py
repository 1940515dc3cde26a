"""An independent receiver of deliveries: raw asyncio on loopback, in a thread of its own, without code of Everbell.

It records every delivery, and answers as the path demands:

    /ok, /ok/ANY          200                      /status/N        answers N; ?after=S adds Retry-After
    /slow/MS              200 after a while        /fail/K/N        answers N up to attempt K, then 200
    /gate/NAME            200 once it is open      /sick/NAME       500 until the gate is open
    /flaky                now and then 503, a lost answer or a pause
        /redirect             302 to /ok               /batch/ID,ID     single results: 503 for those ids
    /drip                 a byte now and then, for ever
        /close                accepts, then hangs up   /garbage         answers bytes that are not HTTP
    /huge                 200 with 4 MiB
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from tests.acceptance.machine import now_ms, until

_DRIP_S = 0.05
HUGE_BYTES = 4 << 20


@dataclass
class Received:
    """One event of one delivery."""

    path: str
    headers: dict[str, str]
    body: bytes
    id: str
    occurrence: int
    attempt: int
    epoch: int
    due: str
    began_at: int
    ended_at: int = 0
    """0 while the delivery is in flight."""
    status: int = 0
    """The status of the answer; 0 if the sender got no valid answer."""
    answer_lost: bool = False
    """The sender had closed the connection before the answer."""
    order: int = 0
    """The position among all deliveries, by their beginning."""
    request: int = 0
    """The same number for all events of one POST."""
    data: object = field(default=None)
    """The payload of an event in a batch."""
    sender: str = ""
    """The address of the sender."""

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300


class Receiver:
    """The listening thread, and the deliveries that it has received."""

    def __init__(self, seed: int = 0, host: str = "127.0.0.1") -> None:
        self.received: list[Received] = []
        self.host = host
        self.dice = random.Random(seed)
        self.port = 0
        self.loop = asyncio.new_event_loop()
        self.requests = 0
        self.counts: Counter[str] = Counter()
        """The number of events for each path: tests that often scan all received events would slow the receiver down.
        """
        self._gates: dict[str, asyncio.Event] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def url(self, path: str, host: str = "") -> str:
        """The URL of a path. Each 127.x.y.z is a separate target."""
        return f"http://{host or self.host}:{self.port}{path}"

    def of(self, event_id: str) -> list[Received]:
        """All deliveries of one event."""
        return [received for received in list(self.received) if received.id == event_id]

    def on(self, path: str) -> list[Received]:
        """All deliveries to one path."""
        return [received for received in list(self.received) if received.path == path]

    def until_ended(self, count: int, path: str) -> list[Received]:
        """Wait until `count` deliveries to a path were answered."""

        def ended() -> list[Received]:
            return [received for received in self.on(path) if received.ended_at]

        until(lambda: len(ended()) >= count, lambda: f"{count} deliveries to {path}, only {len(ended())}")
        return ended()

    def open_gate(self, name: str) -> None:
        """Answer all deliveries that wait at a gate, and all later ones at once."""
        self.loop.call_soon_threadsafe(self.gate(name).set)

    def gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def go_down(self) -> None:
        """Close all connections, and refuse new ones."""
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(30)

    def come_up(self) -> None:
        """Listen again, at the same address."""
        asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result(30)

    async def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", self.port))
        self.port = listener.getsockname()[1]
        self._server = await self.loop.create_server(lambda: _Connection(self), sock=listener, backlog=2_048)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.hang_up()

    def connected(self, connection: _Connection, here: bool) -> None:
        (self._connections.add if here else self._connections.discard)(connection)

    def __enter__(self) -> Receiver:
        self._thread.start()
        self.come_up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.go_down()

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # A connection that was being accepted while the others were hung up is known only now.
            await asyncio.sleep(0)
            await self._close()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()


class _Connection(asyncio.Protocol):
    """Reads requests, one after the other."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._buffer = b""
        self._busy = False
        self._transport: asyncio.Transport | None = None
        self._sender = ""
        self._task: asyncio.Task[None] | None = None
        self._pending: list[Received] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._sender = str((transport.get_extra_info("peername") or ("",))[0])
        self._receiver.connected(self, True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connected(self, False)
        if self._task is not None:
            self._task.cancel()
        for received in self._pending:
            received.ended_at = now_ms()
            received.answer_lost = True
        self._pending = []

    def hang_up(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._read()

    def _read(self) -> None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("ascii").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        body, self._buffer = rest[:length], rest[length:]
        self._busy = True
        self._serve(first.split(" ")[1], headers, body)

    def _serve(self, target: str, headers: dict[str, str], body: bytes) -> None:
        receiver = self._receiver
        url = urlsplit(target)
        receiver.requests += 1
        events = list(_events_in(url.path, headers, body))
        for event in events:
            event.request = receiver.requests
            event.sender = self._sender
            event.order = len(receiver.received)
            receiver.received.append(event)
            receiver.counts[event.path] += 1
        self._pending = events
        if url.path == "/ok" or url.path.startswith("/ok/"):
            self._answer(200)
            return
        action, *arguments = url.path.strip("/").split("/")
        act = _ACTIONS[action](self, arguments, parse_qs(url.query))
        self._task = receiver.loop.create_task(act)

    async def _status(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        after = query.get("after")
        self._answer(int(arguments[0]), f"retry-after: {after[0]}\r\n" if after else "", b"as you wish")

    async def _slow(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        await asyncio.sleep(int(arguments[0]) / 1_000)
        self._answer(200)

    async def _fail(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        self._answer(int(arguments[1]) if self._pending[0].attempt <= int(arguments[0]) else 200)

    async def _gate(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        await self._receiver.gate(arguments[0]).wait()
        self._answer(200)

    async def _sick(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        self._answer(200 if self._receiver.gate(arguments[0]).is_set() else 500)

    async def _redirect(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        self._answer(302, f"location: {self._receiver.url('/ok')}\r\n")

    async def _close(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        self._end(0)
        self.hang_up()

    async def _garbage(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        self._end(0)
        self._write(b"\x00\xffthis is not HTTP\r\n\r\n")

    async def _huge(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        self._answer(200, body=b"x" * HUGE_BYTES)

    async def _flaky(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        roll = self._receiver.dice.random()
        if roll < 0.05:
            self._answer(503)
        elif roll < 0.07:
            self._end(0)
            self.hang_up()
        else:
            await asyncio.sleep(0.02 if roll < 0.3 else 0)  # No test waits for this: some receivers are slow.
            self._answer(200)

    async def _drip(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        self._write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while True:
            self._write(b".")
            await asyncio.sleep(_DRIP_S)

    async def _batch(self, arguments: list[str], query: dict[str, list[str]]) -> None:
        not_now = arguments[0].split(",")
        results = []
        for event in self._pending:
            # The first attempt gets 503, the next 200.
            status = 503 if event.id in not_now and event.attempt == 1 else 200
            event.status = status
            results.append({"id": event.id, "status": status})
        self._answer(200, body=json.dumps({"results": results}).encode(), keep=True)

    def _answer(self, status: int, headers: str = "", body: bytes = b"", *, keep: bool = False) -> None:
        self._end(status, keep=keep)
        head = f"HTTP/1.1 {status} Said\r\n{headers}content-length: {len(body)}\r\n\r\n"
        self._write(head.encode() + body)
        self._busy = False
        if self._buffer:
            self._read()

    def _end(self, status: int, *, keep: bool = False) -> None:
        """Recorded before the answer is sent, so that deliveries that follow from it have a later beginning."""
        for received in self._pending:
            received.ended_at = now_ms()
            received.status = received.status if keep else status
        self._pending = []

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


_ACTIONS: dict[str, Callable[[_Connection, list[str], dict[str, list[str]]], Coroutine[object, object, None]]] = {
    "status": _Connection._status,
    "slow": _Connection._slow,
    "fail": _Connection._fail,
    "gate": _Connection._gate,
    "sick": _Connection._sick,
    "redirect": _Connection._redirect,
    "flaky": _Connection._flaky,
    "drip": _Connection._drip,
    "close": _Connection._close,
    "garbage": _Connection._garbage,
    "huge": _Connection._huge,
    "batch": _Connection._batch,
}


def _events_in(path: str, headers: dict[str, str], body: bytes) -> list[Received]:
    now = now_ms()
    if not headers.get("content-type", "").startswith("application/cloudevents-batch+json"):
        occurrence, attempt, epoch = (
            int(headers.get(f"everbell-{name}", "0")) for name in ("occurrence", "attempt", "epoch")
        )
        due = headers.get("everbell-due", "")
        return [Received(path, headers, body, headers.get("ce-id", ""), occurrence, attempt, epoch, due, now)]
    return [
        Received(
            path,
            headers,
            body,
            event["id"],
            event["everbelloccurrence"],
            event["everbellattempt"],
            event["everbellepoch"],
            event["time"],
            now,
            data=event["data"],
        )
        for event in json.loads(body)
    ]
