"""One HTTP/1.1 connection: it answers requests in the order of their arrival, and bounds the memory of a client.

A request passes four stations, each of them bounded:

    bytes not parsed yet ─► waiting (parsed, not begun) ─► pending (with the handler) ─► out (encoded) ─► transport

A request moves on while there is room: fewer than `pipelined_max` requests are pending, fewer than `ready_bytes_max`
bytes of answers wait for an earlier answer, and the transport accepts bytes. Without room, everything behind stays in
its station and the connection stops reading from the transport. If a handler returns `LATER`, its request waits until
nothing is pending. The parser is fed in slices, so that one read full of tiny requests cannot become a hundred times
its size in objects. The life of the connection is a `ConnectionPhase`, which only ever advances.

Rules. Only `_advance` moves requests, and it is never entered twice: the transport may call back from inside a write,
and the parser must not be fed from inside itself. All output of one wake-up goes out in one write. A connection has no
timer of its own: the server calls `check` once a second. A connection that ends with a refusal lingers: it closes its
sending side and discards further input, because closing a socket with unread input would reset the connection and
destroy the refusal on its way to the client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import cast

from everbell.http.body_budget import BodyClaim
from everbell.http.connection_phase import ENDING, FINISHING, HUNG_UP, LISTENING, LOST, ConnectionPhase
from everbell.http.message import CLOSE, CONTINUE, LATER, HttpRequest, HttpResponse, encode
from everbell.http.request_reader import Refused, RequestReader
from everbell.http.service import Service

SLICE_BYTES = 16 * 1024
FLUSH_BYTES = 64 * 1024
LINGER_S = 2.0

# The answer (counted as ready) or its future; method; raw path; the `connection` header line of the answer; and the
# request body's claim on the body budget, which ends when the answer is ready.
_Exchange = tuple[HttpResponse | asyncio.Future[HttpResponse], str, str, bytes, BodyClaim | None]


class ServerConnection(asyncio.Protocol):
    """The protocol of one accepted socket."""

    __slots__ = (
        "_advancing",
        "_largest_bytes",
        "_lingers",
        "_out",
        "_out_bytes",
        "_passed",
        "_pending",
        "_phase",
        "_pipelined_max",
        "_reader",
        "_reading_paused",
        "_ready_bytes",
        "_ready_bytes_max",
        "_refusal",
        "_service",
        "_stalled",
        "_time",
        "_transport",
        "_unparsed",
        "_unsent_bytes",
        "_waiting",
        "_waits_for_all",
        "gone",
        "waits_since_s",
    )

    _transport: asyncio.Transport
    _reader: RequestReader

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pipelined_max = service.limits.pipelined_max
        self._ready_bytes_max = service.limits.ready_bytes_max
        self._time = service.loop.time
        self._phase = LISTENING
        self._unparsed: bytes | memoryview = b""
        self._waiting: deque[tuple[HttpRequest, bytes]] = deque()
        self._waits_for_all = False  # The first waiting request begins only when nothing is pending.
        self._pending: deque[_Exchange] = deque()
        # Futures with an answer that was sent before their callback ran.
        self._passed: set[asyncio.Future[HttpResponse]] = set()
        self._out: list[bytes] = []
        self._out_bytes = self._ready_bytes = 0
        self._refusal: HttpResponse | None = None  # Goes out after all pending answers, then the connection ends.
        self._lingers = False  # The last answer is a refusal: the connection lingers when it hangs up.
        self._advancing = self._reading_paused = False
        self._stalled = False  # The client does not read the answers that it asked for.
        self.waits_since_s = 0.0  # When the wait began that `check` judges: idle, stalled or hung up.
        self._unsent_bytes = self._largest_bytes = 0
        self.gone = False  # The client closed its side; see `HttpRequest.abandoned`.

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do everything that asyncio.Transport names, without deriving from it.
        self._transport = cast(asyncio.Transport, transport)
        self.waits_since_s = self._time()
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        service = self._service
        self._reader = RequestReader(
            service.limits, service.heads, service.budget, self, address, self._time, self._take, service.screen
        )
        if not self._service.enter(self):
            self._refuse(self._service.refusal(503, "The server has too many connections: try again in a second."))
        elif self._service.draining:
            self._hang_up()

    def data_received(self, data: bytes) -> None:
        if self._phase >= FINISHING:
            return
        self._unparsed = bytes(self._unparsed) + data if self._unparsed else data
        self._advance()

    def eof_received(self) -> bool:
        """A client that closes its side may still want its pending answers; otherwise the connection can close."""
        self.gone = True
        self._enter(FINISHING)
        # TLS has no half-closed connections: its transport closes, even if this method returns True.
        is_half = self._transport.can_write_eof()
        return is_half and self._phase < HUNG_UP and bool(self._pending or self._waiting or self._unparsed)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._enter(LOST)
        self._unparsed = b""
        self._let_go()
        self._out.clear()
        self._reader.close()
        self._service.unsent.note(self, 0)
        self._service.leave(self)

    def _let_go(self) -> None:
        """Drop all answers. A body stays in the budget until its handler is done."""
        for request, _ in self._waiting:
            _give_back(request.claim)
        for answer, _, _, _, claim in self._pending:
            if isinstance(answer, HttpResponse) or answer.done():
                _give_back(claim)
            else:
                answer.add_done_callback(partial(_give_back, claim))
        self._waiting.clear()
        self._pending.clear()

    def pause_writing(self) -> None:
        self._stalled = True
        self.waits_since_s = self._time()
        self._note_unsent()
        self._pace_reading()

    def resume_writing(self) -> None:
        self._stalled = False
        self.waits_since_s = self._time()
        self._note_unsent()
        self._advance()

    def check(self, now_s: float) -> None:
        """End the connection if its current wait has taken too long."""
        limits = self._service.limits
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self.waits_since_s = now_s  # The client reads slowly, but it reads.
        self._note_unsent()
        waited_s = now_s - self.waits_since_s
        if self._phase is HUNG_UP or self._stalled:
            if waited_s >= (limits.read_timeout_s if unsent_bytes else LINGER_S):
                self._transport.abort()
        elif self._reader.in_message and self._phase is LISTENING:
            if not self._reading_paused and now_s - self._reader.began_s >= limits.read_timeout_s:
                self._refuse(self._service.refusal(408, "The request did not arrive in time: send it again."))
        elif waited_s >= limits.idle_timeout_s and not self._busy():
            self._hang_up()

    def drain(self) -> None:
        """The server stops: close now if idle, else with the last answer."""
        if not self._busy() and not self._reader.in_message and self._phase < HUNG_UP:
            self._hang_up()

    def abort(self) -> None:
        """Close without waiting for anything."""
        self._transport.abort()

    # Requests on their way.

    @property
    def is_answering(self) -> bool:
        """See `HttpRequest.is_behind`."""
        return bool(self._pending)

    def _busy(self) -> bool:
        return bool(self._pending or self._waiting or self._unparsed or self._refusal)

    def _advance(self) -> None:
        if self._advancing or self._phase is LOST:
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
        if self._out or self._phase is ENDING:
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
            self._refusal = refused.response or self._service.refusal(refused.status, refused.detail)
        if reader.ended:
            self._stop_listening()

    def _take(self, request: HttpRequest, connection: bytes) -> None:
        """A request is complete (the reader calls this)."""
        if self._phase >= ENDING:
            _give_back(request.claim)
            return
        if not self._waiting and self._has_room():
            self._begin(request, connection)
        else:
            self._waiting.append((request, connection))

    def _begin(self, request: HttpRequest, connection: bytes) -> None:
        answer = self._service.answer(request)
        if answer is LATER and self._pending:
            self._waits_for_all = True
            self._waiting.appendleft((request, connection))
            return
        if not isinstance(answer, HttpResponse):
            if not answer.done():
                self._pending.append((answer, request.method, request.raw_path, connection, request.claim))
                answer.add_done_callback(self._on_answer)
                return
            answer = self._service.response_of(answer, request.method, request.raw_path)
        _give_back(request.claim)
        if self._pending:
            self._pending.append((answer, request.method, request.raw_path, connection, None))
            self._ready_bytes += len(answer.body)
        else:
            self._emit(answer, request.method, request.raw_path, connection)

    def _on_answer(self, future: asyncio.Future[HttpResponse]) -> None:
        if future in self._passed:
            self._passed.remove(future)
        elif self._phase is LOST:
            # The client is gone, but a failed handler still belongs in the log.
            self._service.response_of(future, "", "")
        elif self._pending[0][0] is future:
            self._emit_ready()
            self._passed.remove(future)
            self._advance()
        else:
            self._set_aside(future)

    def _set_aside(self, future: asyncio.Future[HttpResponse]) -> None:
        """An answer is ready before its turn: from now on it counts as ready bytes."""
        place, exchange = next(found for found in enumerate(self._pending) if found[1][0] is future)
        _, method, raw_path, connection, claim = exchange
        answer = self._service.response_of(future, method, raw_path)
        self._pending[place] = (answer, method, raw_path, connection, None)
        self._ready_bytes += len(answer.body)
        _give_back(claim)

    def _emit_ready(self) -> None:
        """Send the answers that are ready, up to the first that is not."""
        pending = self._pending
        while pending:
            answer, method, raw_path, connection, claim = pending[0]
            if isinstance(answer, HttpResponse):
                self._ready_bytes -= len(answer.body)
            elif answer.done():
                self._passed.add(answer)
                answer = self._service.response_of(answer, method, raw_path)
            else:
                return
            pending.popleft()
            _give_back(claim)
            self._emit(answer, method, raw_path, connection)

    def _emit(self, response: HttpResponse, method: str, raw_path: str, connection: bytes) -> None:
        if self._service.draining and not self._pending and not self._waiting:
            connection = CLOSE
        try:
            data = encode(response, method == "HEAD", connection)
        except Exception as error:
            response = self._service.failed(method, raw_path, error)
            data = encode(response, method == "HEAD", connection)
        self._out.append(data)
        self._out_bytes += len(data)
        self.waits_since_s = self._time()
        if connection is CLOSE:
            self._stop_listening(ENDING)
        elif self._out_bytes >= FLUSH_BYTES:
            self._flush()

    def _conclude(self) -> None:
        """Nothing is pending: send a refusal or `100 Continue`, or end after the client closed its side."""
        if self._waiting:
            return
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            self._lingers = True
            self._emit(refusal, "", "", CLOSE)
        elif self.gone and not self._unparsed:
            self._enter(ENDING)
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
            if not self._transport.is_closing() and self._phase < HUNG_UP:
                self._largest_bytes = max(self._largest_bytes, len(data))  # It counts while a byte of it is unsent.
                self._transport.write(data)
                self._note_unsent()
        if self._phase is ENDING:
            self._hang_up()

    def _note_unsent(self) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._largest_bytes = self._largest_bytes if unsent_bytes else 0
            self._service.unsent.note(self, max(unsent_bytes, self._largest_bytes))

    def _pace_reading(self) -> None:
        full = self._phase is LISTENING and bool(self._waiting or self._unparsed or not self._has_room())
        if full is self._reading_paused or self._transport.is_closing():
            return
        self._reading_paused = full
        if full:
            self._transport.pause_reading()
        else:
            self._reader.began_s = self._time()  # The pause in reading is not the client's delay.
            self._transport.resume_reading()

    def _enter(self, phase: ConnectionPhase) -> None:
        """Advance to a phase; a connection that is further on stays where it is."""
        if phase > self._phase:
            self._phase = phase

    def _stop_listening(self, phase: ConnectionPhase = FINISHING) -> None:
        self._enter(phase)
        self._unparsed = b""
        self._reader.drop()

    def _refuse(self, refusal: HttpResponse) -> None:
        self._stop_listening()
        self._refusal = refusal
        self._advance()

    def _hang_up(self) -> None:
        self._stop_listening(HUNG_UP)
        self.waits_since_s = self._time()
        if self._transport.is_closing():
            return
        if self._lingers and not self.gone and self._transport.can_write_eof():
            self._pace_reading()
            self._transport.write_eof()
        else:
            self._transport.close()


def _give_back(claim: BodyClaim | None, _: object = None) -> None:
    if claim is not None:
        claim.give_back()
