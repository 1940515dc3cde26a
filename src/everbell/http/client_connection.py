"""One HTTP/1.1 connection: a request goes out in a single write, its answer is parsed as it comes in.

Rules:
- One exchange at a time, no pipelining: an answer belongs to the request in flight, or to none.
- Nothing is decided inside a parser callback. The connection first looks at the rest of the received bytes, so that
  bytes behind an answer never become the answer to the next request.
- Bytes that arrive without a request in flight close the connection.
- A connection that breaks under a request reports exactly that: whether the peer took the request is unknown,
  so the connection never sends it again. Only the caller, which counts attempts, may retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from everbell.http.client_message import HttpFailure, HttpReply
from everbell.http.deadlines import Expiring

OnOutcome = Callable[[HttpReply | HttpFailure], None]

# How much of an answer is read at most, in multiples of the bytes that are kept. Reading the rest of a moderately long
# answer saves a connection; an endless one is not worth it.
READ_FACTOR = 16
HEAD_BYTES_MAX = 65_536


class Owner(Protocol):
    """The owner of a connection: the pool's view of one peer."""

    peer: str  # How messages name it.
    response_bytes_max: int

    def released(self, connection: HttpConnection) -> None:
        """The connection is free for the next exchange."""

    def lost(self, connection: HttpConnection) -> None:
        """The connection is gone."""

    def withdraw(self, exchange: Exchange) -> HttpFailure:
        """The exchange does not wait for a connection any longer; the failure says why it got none."""


class Exchange(Expiring):
    """One request until its outcome is known: it waits for a connection, then uses one. It ends exactly once."""

    __slots__ = ("_done", "_owner", "connection", "tenant", "timeout_s", "wire")

    def __init__(self, owner: Owner, wire: bytes, timeout_s: float, done: OnOutcome, tenant: str = "") -> None:
        self.wire = wire
        self.tenant = tenant
        self.timeout_s = timeout_s
        self.connection: HttpConnection | None = None
        self._owner = owner
        self._done = done

    def finish(self, outcome: HttpReply | HttpFailure) -> None:
        self.bucket.pop(self, None)
        try:
            self._done(outcome)
        except Exception as error:  # The caller's fault must not break the exchanges beside it.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "The callback of an HTTP request failed", "exception": error}
            )

    def expire(self) -> None:
        if self.connection is None:
            self.finish(self._owner.withdraw(self))
        else:
            reason = f"{self._owner.peer} gave no complete answer within {self.timeout_s:g} s"
            self.connection.fail(HttpFailure("timeout", reason, sent=True))

    def cancel(self) -> None:
        """End it without an outcome. A request that was sent takes its connection with it."""
        self.bucket.pop(self, None)
        if self.connection is None:
            self._owner.withdraw(self)
        else:
            self.connection.leave(self)


class _Enough(Exception):
    """Raised in a callback to stop the parser: the answer is complete, and the bytes behind it are no part of it."""


class HttpConnection(asyncio.Protocol):
    """The protocol of one connection, and the callbacks of its parser."""

    __slots__ = (
        "_body",
        "_complete",
        "_exchange",
        "_head",
        "_head_complete",
        "_owner",
        "_parser",
        "_received",
        "_reusable",
        "_status",
        "_transport",
        "_truncated",
        "idle_since_s",
        "is_closing",
    )

    _transport: asyncio.Transport
    is_closing: Callable[[], bool]

    def __init__(self, owner: Owner) -> None:
        self.idle_since_s = 0.0
        self._owner = owner
        self._parser = HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._head = b""  # The bytes up to the end of the headers, and those behind them in the same read.
        self._body = b""
        self._received = 0  # Bytes of an answer that is not complete yet: of its head, then of its body.
        self._status = 0
        self._head_complete = self._complete = self._truncated = self._reusable = False

    # Called by the pool.

    def start(self, exchange: Exchange) -> None:
        """Send a request. The connection must be free, and not closing: the transport would raise."""
        self._exchange = exchange
        exchange.connection = self
        self._received = 0
        self._head_complete = self._complete = self._truncated = False
        self._transport.write(exchange.wire)

    def fail(self, failure: HttpFailure) -> None:
        """Close the connection and end the exchange on it, if there is one, with this failure."""
        exchange = self.abandon()
        if exchange is not None:
            exchange.finish(failure)

    def leave(self, exchange: Exchange) -> None:
        """Close the connection if it is still busy with this exchange."""
        if self._exchange is exchange:
            self.abandon()

    def abandon(self) -> Exchange | None:
        """Close the connection. The exchange on it gets no outcome from here."""
        exchange, self._exchange = self._exchange, None
        # Not close(): that would wait for a peer that does not read, or does not say goodbye in TLS.
        self._transport.abort()
        return exchange

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # A Protocol always gets one.
        self.is_closing = transport.is_closing

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abandon()
            return
        if not self._head_complete:
            self._head += data
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._reusable = False
            if not self._complete:
                self.fail(self._not_http(error))
                return
        if self._complete:
            self._answer(exchange)
        else:
            self._limit(exchange, len(data))

    def connection_lost(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        self._owner.lost(self)
        del self._parser  # Break the reference cycle: then this object is freed without the garbage collector.
        if exchange is None:
            return
        if error is None and self._ends_with_connection():
            exchange.finish(HttpReply(self._status, self._head, self._body, self._truncated))
            return
        when = f"in the middle of its answer ({self._status})" if self._head_complete else "before it answered"
        reason = f"{self._owner.peer} closed the connection {when}; whether it took the request is unknown"
        exchange.finish(HttpFailure("closed", reason, sent=True))

    # Called by the parser. There is no `on_header`: a reply parses its headers again when a caller reads them.

    def on_message_begin(self) -> None:
        if self._complete:
            raise _Enough

    def on_headers_complete(self) -> None:
        status = self._status = self._parser.get_status_code()
        if status < 200:
            return
        self._head_complete = True
        self._received = 0
        if self._exchange is not None and self._exchange.wire.startswith(b"HEAD "):
            # The headers may announce a body, and the parser has no option to expect none. So parsing stops here.
            self._complete = True
            raise _Enough

    def on_body(self, data: bytes) -> None:
        room = self._owner.response_bytes_max - len(self._body)
        if len(data) <= room:
            self._body += data
        else:
            self._body += data[:room]
            self._truncated = True

    def on_message_complete(self) -> None:
        if self._head_complete:  # Otherwise it was an interim answer (1xx), and the real one follows.
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

    # How an exchange ends.

    def _answer(self, exchange: Exchange) -> None:
        reply = HttpReply(self._status, self._head, self._body, self._truncated)
        self._exchange = None
        self._head = self._body = b""  # Idle connections keep no bytes.
        # A peer that answers before it has read the whole request may never read the rest of it.
        if self._reusable and not self._transport.get_write_buffer_size():
            self._owner.released(self)
        else:
            self._transport.abort()
        exchange.finish(reply)

    def _limit(self, exchange: Exchange, size: int) -> None:
        self._received += size
        if self._head_complete:
            if self._received > self._owner.response_bytes_max * READ_FACTOR:
                self.abandon()
                exchange.finish(HttpReply(self._status, self._head, self._body, truncated=True))
        elif self._received > HEAD_BYTES_MAX:
            reason = f"{self._owner.peer} sent more than {HEAD_BYTES_MAX} bytes of headers"
            self.fail(HttpFailure("protocol", reason, sent=True))

    def _ends_with_connection(self) -> bool:
        """Whether the answer is one without a stated length, which ends where the connection does."""
        if not self._head_complete:
            return False
        headers = HttpReply(self._status, self._head, b"", truncated=False).headers
        return "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", "").lower()

    def _not_http(self, error: Exception) -> HttpFailure:
        if isinstance(error, HttpParserUpgrade):
            reason = f"{self._owner.peer} switched to another protocol without being asked"
        else:
            reason = f"the answer of {self._owner.peer} is not HTTP/1.1 ({error})"
        return HttpFailure("protocol", reason, sent=True)
