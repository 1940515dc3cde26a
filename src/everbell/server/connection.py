"""One HTTP/1.1 connection: requests are answered in the order in which they came, and a client can take only so much.

A request passes four stations, each of them bounded:

    bytes not parsed yet ─► waiting (parsed, not begun) ─► pending (with the handler) ─► out (encoded) ─► transport

It moves on while there is room: fewer than `pipelined_max` pending, fewer than `ready_bytes_max` of answers that wait
for one before them, and a transport that takes bytes. Where there is none, everything behind stays where it is, and the
transport is not read. So it is with a request whose handler says `LATER`: it waits until nothing is pending. Input is
parsed in slices, so that a read full of tiny requests cannot become a hundred times its size in objects.

Rules. `_advance` alone moves requests, and is never entered twice: the transport may call back from inside a write,
and the parser must not be fed from inside itself. What one wake-up produced goes out in one write. No timers: the
server calls `check` once a second. A connection that ends on a refusal lingers: it says that it will send no more, and
throws away what comes, since closing with unread input would reset the connection and destroy the answer on its way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from http import HTTPStatus
from typing import cast

import msgspec

from everbell.server.held import HeldBodies
from everbell.server.message import CLOSE, CONTINUE, LATER, Request, Response, encode
from everbell.server.reader import Refused, RequestReader
from everbell.server.service import Service

SLICE_BYTES = 16 * 1024
FLUSH_BYTES = 64 * 1024
LINGER_S = 2.0
RETRY_AFTER = (("retry-after", "1"),)

# The answer, which counts as ready, or the future of it, method, raw path, the `connection` line it is to carry, and
# the size of the body that is held until then.
_Exchange = tuple[Response | asyncio.Future[Response], str, str, bytes, int]


class Connection(asyncio.Protocol):
    """The protocol of one accepted socket."""

    __slots__ = (
        "_advancing",
        "_deaf",
        "_ending",
        "_held",
        "_hung_up",
        "_lingers",
        "_lost",
        "_out",
        "_out_bytes",
        "_passed",
        "_pending",
        "_pipelined_max",
        "_reader",
        "_reading_paused",
        "_ready_bytes",
        "_ready_bytes_max",
        "_refusal",
        "_service",
        "_since_s",
        "_stalled",
        "_time",
        "_transport",
        "_unparsed",
        "_unsent_bytes",
        "_waiting",
        "_waits_for_all",
        "gone",
    )

    _transport: asyncio.Transport
    _reader: RequestReader

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pipelined_max = service.limits.pipelined_max
        self._ready_bytes_max = service.limits.ready_bytes_max
        self._time = service.loop.time
        self._held = service.held
        self._unparsed: bytes | memoryview = b""
        self._waiting: deque[tuple[Request, bytes]] = deque()
        self._waits_for_all = False  # The first of these is begun when nothing is pending.
        self._pending: deque[_Exchange] = deque()
        self._ready_bytes = 0
        self._passed: set[asyncio.Future[Response]] = set()  # Those that went out before they called back.
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._refusal: Response | None = None  # Goes out after all pending answers, then the connection ends.
        self._advancing = False
        self._stalled = False  # The client does not take what it asked for.
        self._reading_paused = False
        self._deaf = False  # Whatever else comes in is thrown away.
        self._ending = False  # Hang up when `out` was written.
        self._lingers = False  # Hang up by saying so, and wait for the client to close.
        self._hung_up = False
        self._lost = False
        self._since_s = 0.0  # When the wait that `check` judges began: idle, stalled or hung up.
        self._unsent_bytes = 0
        self.gone = False  # The client closed its side; see Request.abandoned.

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do everything that asyncio.Transport names, without deriving from it.
        self._transport = cast(asyncio.Transport, transport)
        self._since_s = self._time()
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        service = self._service
        self._reader = RequestReader(service.limits, service.heads, service.held, self, address, self._time, self._take)
        if not self._service.enter(self):
            self._refuse(self._problem(503, "The server has too many connections: try again in a second."))
        elif self._service.draining:
            self._hang_up()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unparsed = bytes(self._unparsed) + data if self._unparsed else data
        self._advance()

    def eof_received(self) -> bool:
        """A client that closes its side may still want its answers; one with none to come is done."""
        self.gone = self._deaf = True
        # TLS knows no half-closed connections: its transport closes, whatever is said here.
        is_half = self._transport.can_write_eof()
        return is_half and bool(self._pending or self._waiting or self._unparsed) and not self._hung_up

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._deaf = self.gone = True
        self._unparsed = b""
        self._let_go()
        self._out.clear()
        self._reader.close()
        self._service.leave(self)

    def _let_go(self) -> None:
        """Nobody waits for answers any more. A body is held for as long as its handler is at work."""
        for request, _ in self._waiting:
            self._held.give_back(len(request.body))
        for answer, _, _, _, body_bytes in self._pending:
            if isinstance(answer, Response) or answer.done():
                self._held.give_back(body_bytes)
            else:
                answer.add_done_callback(partial(_give_back, self._held, body_bytes))
        self._waiting.clear()
        self._pending.clear()

    def pause_writing(self) -> None:
        self._stalled = True
        self._since_s = self._time()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._pace_reading()

    def resume_writing(self) -> None:
        self._stalled = False
        self._since_s = self._time()
        self._advance()

    # What the server calls.

    def check(self, now_s: float) -> None:
        """End the connection if what it waits for took too long."""
        limits = self._service.limits
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._since_s = now_s  # Slow is not stalled.
        self._unsent_bytes = unsent_bytes
        waited_s = now_s - self._since_s
        if self._hung_up or self._stalled:
            if waited_s >= (limits.read_timeout_s if unsent_bytes else LINGER_S):
                self._transport.abort()
        elif self._reader.in_message and not self._deaf:
            if not self._reading_paused and now_s - self._reader.began_s >= limits.read_timeout_s:
                self._refuse(self._problem(408, "The request did not arrive in time: send it again."))
        elif waited_s >= limits.idle_timeout_s and not self._busy():
            self._hang_up()

    def drain(self) -> None:
        """The server stops: close now if idle, else with the last answer."""
        if not self._busy() and not self._reader.in_message and not self._hung_up:
            self._hang_up()

    def abort(self) -> None:
        """Close without waiting for anything."""
        self._transport.abort()

    # Requests on their way.

    @property
    def is_answering(self) -> bool:
        """See Request.is_behind."""
        return bool(self._pending)

    def _busy(self) -> bool:
        return bool(self._pending or self._waiting or self._unparsed or self._refusal)

    def _advance(self) -> None:
        if self._advancing or self._lost:
            return
        self._advancing = True
        while self._has_room():
            if self._waiting:
                self._waits_for_all = False
                self._begin(*self._waiting.popleft())
            elif self._unparsed:
                self._parse_slice()
            else:
                break
        self._advancing = False
        if not self._pending and (self._refusal is not None or self.gone or self._reader.awaits_continue):
            self._conclude()
        if self._out or self._ending:
            self._flush()
        if self._reading_paused or self._unparsed or self._waiting or self._pending:
            self._pace_reading()

    def _has_room(self) -> bool:
        """Whether another request may begin."""
        return (
            not self._stalled
            and len(self._pending) < self._pipelined_max
            and self._ready_bytes < self._ready_bytes_max
            and not (self._waits_for_all and self._pending)
        )

    def _parse_slice(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if len(data) > SLICE_BYTES:
            view = memoryview(data)
            data, self._unparsed = view[:SLICE_BYTES], view[SLICE_BYTES:]
        reader = self._reader
        try:
            reader.feed(data)
        except Refused as refused:
            self._stop_listening()
            self._refusal = self._problem(refused.status, refused.detail)
        if reader.ended:
            self._stop_listening()

    def _take(self, request: Request, connection: bytes) -> None:
        """A request is complete (the reader calls this)."""
        if self._ending or self._hung_up:
            self._held.give_back(len(request.body))
            return
        if not self._waiting and self._has_room():
            self._begin(request, connection)
        else:
            self._waiting.append((request, connection))

    def _begin(self, request: Request, connection: bytes) -> None:
        answer = self._service.answer(request)
        if answer is LATER and self._pending:
            self._waits_for_all = True
            self._waiting.appendleft((request, connection))
            return
        body_bytes = len(request.body)
        if not isinstance(answer, Response):
            if not answer.done():
                self._pending.append((answer, request.method, request.raw_path, connection, body_bytes))
                answer.add_done_callback(self._on_answer)
                return
            answer = self._service.response_of(answer, request.method, request.raw_path)
        self._held.give_back(body_bytes)
        if self._pending:
            self._pending.append((answer, request.method, request.raw_path, connection, 0))
            self._ready_bytes += len(answer.body)
        else:
            self._emit(answer, request.method, request.raw_path, connection)

    def _on_answer(self, future: asyncio.Future[Response]) -> None:
        if future in self._passed:
            self._passed.remove(future)
        elif self._lost:
            # Nobody is left to answer, but a failure still belongs in the log.
            self._service.response_of(future, "", "")
        elif self._pending[0][0] is future:
            self._emit_ready()
            self._passed.remove(future)
            self._advance()
        else:
            self._set_aside(future)

    def _set_aside(self, future: asyncio.Future[Response]) -> None:
        """An answer is ready, but not its turn: from now on it counts."""
        place, exchange = next(found for found in enumerate(self._pending) if found[1][0] is future)
        _, method, raw_path, connection, body_bytes = exchange
        answer = self._service.response_of(future, method, raw_path)
        self._pending[place] = (answer, method, raw_path, connection, 0)
        self._ready_bytes += len(answer.body)
        self._held.give_back(body_bytes)

    def _emit_ready(self) -> None:
        """Send what is ready, up to the first answer that is not."""
        pending = self._pending
        while pending:
            answer, method, raw_path, connection, body_bytes = pending[0]
            if isinstance(answer, Response):
                self._ready_bytes -= len(answer.body)
            elif answer.done():
                self._passed.add(answer)
                answer = self._service.response_of(answer, method, raw_path)
            else:
                return
            pending.popleft()
            self._held.give_back(body_bytes)
            self._emit(answer, method, raw_path, connection)

    def _emit(self, response: Response, method: str, raw_path: str, connection: bytes) -> None:
        if self._service.draining and not self._pending and not self._waiting:
            connection = CLOSE
        try:
            data = encode(response, method == "HEAD", connection)
        except Exception as error:
            response = self._service.failed(method, raw_path, error)
            data = encode(response, method == "HEAD", connection)
        self._out.append(data)
        self._out_bytes += len(data)
        self._since_s = self._time()
        if connection is CLOSE:
            self._ending = True
            self._stop_listening()
        elif self._out_bytes >= FLUSH_BYTES:
            self._flush()

    def _conclude(self) -> None:
        """Nothing is pending: send what had to wait for that."""
        if self._waiting:
            return
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            self._lingers = True
            self._emit(refusal, "", "", CLOSE)
        elif self.gone and not self._unparsed:
            self._ending = True
        elif self._reader.awaits_continue:
            self._reader.awaits_continue = False
            self._out.append(CONTINUE)

    # The transport's two directions.

    def _flush(self) -> None:
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            # uvloop raises where asyncio ignores a write after close.
            if not self._transport.is_closing() and not self._hung_up:
                self._transport.write(data)
        if self._ending and not self._hung_up:
            self._hang_up()

    def _pace_reading(self) -> None:
        full = not self._deaf and bool(self._waiting or self._unparsed or not self._has_room())
        if full is self._reading_paused or self._transport.is_closing():
            return
        self._reading_paused = full
        if full:
            self._transport.pause_reading()
        else:
            self._reader.began_s = self._time()  # What was not read meanwhile is not the client's delay.
            self._transport.resume_reading()

    def _stop_listening(self) -> None:
        self._deaf = True
        self._unparsed = b""
        self._reader.drop()

    def _problem(self, status: int, detail: str) -> Response:
        problem = self._service.problem(status, detail)
        if status != HTTPStatus.SERVICE_UNAVAILABLE:
            return problem
        return msgspec.structs.replace(problem, headers=problem.headers + RETRY_AFTER)

    def _refuse(self, refusal: Response) -> None:
        self._stop_listening()
        self._refusal = refusal
        self._advance()

    def _hang_up(self) -> None:
        self._stop_listening()
        self._hung_up = True
        self._since_s = self._time()
        if self._transport.is_closing():
            return
        if self._lingers and not self.gone and self._transport.can_write_eof():
            self._pace_reading()
            self._transport.write_eof()
        else:
            self._transport.close()


def _give_back(held: HeldBodies, body_bytes: int, _: object) -> None:
    held.give_back(body_bytes)
