"""Bytes in, requests out: the reading half of an HTTP/1.1 connection, without I/O.

Rules. The reader refuses bytes that are not plainly a valid request, and never repairs them: a proxy and a server that
read the same bytes differently are how requests get smuggled. A limit bounds everything that the reader keeps between
two calls of `feed`. After a refusal, or after a request that asks to close, the reader is of no further use.

llhttp (under httptools) already refuses conflicting or repeated lengths, folded lines, bare line feeds and the like.
It has no limits, gathers a header until it is complete, offers trailers as headers and stops at an Upgrade; the reader
takes care of these four.
"""

from __future__ import annotations

from collections.abc import Callable

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from everbell.http.body_budget import BodyBudget, BodyClaim, BodyHolder
from everbell.http.head_cache import HeadCache, ParsedHead
from everbell.http.limits import ServerLimits
from everbell.http.message import CLOSE, KEEP_ALIVE, HttpRequest, HttpResponse, RequestSource, Screen

Deliver = Callable[[HttpRequest, bytes], None]
"""Takes a request, and gives up its claim on the `BodyBudget` when the request is answered."""

# The request line without its target, and white space that a client may put around header values.
_HEAD_SLACK_BYTES = 256

# The names that clients send most, ready in lower case; any other is decoded when it comes.
_COMMON_NAMES = (
    "accept accept-encoding accept-language authorization cache-control connection content-encoding content-length "
    "content-type cookie expect host idempotency-key if-match if-none-match origin referer traceparent tracestate "
    "transfer-encoding user-agent x-forwarded-for x-forwarded-proto x-request-id"
).split()
_NAMES = {spelt.encode(): name for name in _COMMON_NAMES for spelt in (name, name.title())}


class Refused(Exception):
    """The client gets a problem with this status and detail, then the connection ends."""

    def __init__(self, status: int, detail: str, response: HttpResponse | None = None) -> None:
        """`response` is the problem itself, where it is made already."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.response = response


class RequestReader:
    """Feeds on bytes; hands each complete request to `deliver` with the `connection` line that its answer needs."""

    __slots__ = (
        "_begun",
        "_body",
        "_budget",
        "_claim",
        "_client",
        "_deliver",
        "_fed",
        "_head",
        "_headers",
        "_heads",
        "_holder",
        "_in_head",
        "_keep_alive",
        "_key",
        "_limits",
        "_lines",
        "_method",
        "_parser",
        "_peer",
        "_rest_bytes",
        "_screen",
        "_seen_bytes",
        "_silent_bytes",
        "_time",
        "_upgrade",
        "_url",
        "awaits_continue",
        "began_s",
        "ended",
        "in_message",
    )

    def __init__(
        self,
        limits: ServerLimits,
        heads: HeadCache,
        budget: BodyBudget,
        client: RequestSource,
        peer: str,
        time: Callable[[], float],
        deliver: Deliver,
        screen: Screen,
    ) -> None:
        self._limits = limits
        self._heads = heads
        self._budget = budget
        self._client = client
        self._peer = peer
        self._time = time
        self._deliver = deliver
        self._screen = screen
        self._holder = BodyHolder()
        self._claim: BodyClaim | None = None
        self._key = ""
        self._parser = HttpRequestParser(self)
        self._head = b""
        self._fed: bytes | memoryview = b""
        self._in_head = False
        self._begun = b""  # The last bytes of earlier calls, while a head is incomplete.
        self._body: bytes | bytearray = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._silent_bytes = -1  # Not counting; see _count_silence.
        self._seen_bytes = 0
        self.in_message = False  # The first byte of a request has arrived, but not its last.
        self.began_s = 0.0  # When that first byte arrived, on the loop's clock.
        self.awaits_continue = False  # The client waits for `100 Continue` before it sends the body.
        self.ended = False  # The last request asked to close: the reader ignores everything after it.

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes. Raises Refused if they are not an acceptable request."""
        if self.in_message or not isinstance(data, bytes):
            self._head = b""
        elif self._deliver_if_known(data):
            return
        offset = self._parse(data)
        while offset is not None:
            # The server declines an Upgrade by ignoring it. The parser stopped here and would skip the body, so the
            # reader parses the head again without the Upgrade: common clients offer HTTP/2 with their first POST.
            head = self._head_without_upgrade()
            self._parser = HttpRequestParser(self)
            self._parse(head)
            data = data[offset:]
            offset = self._parse(data)
        if self.in_message:
            self._count_silence(len(data))
            if self._in_head:
                self._begun = (self._begun + data)[-self._head_bytes_max :]

    def close(self) -> None:
        """Break the reference cycles with the parser and the connection: a closed one is freed at once, and not by
        the garbage collector."""
        self.drop()
        self.ended = True
        del self._parser, self._client, self._deliver, self._screen

    def drop(self) -> None:
        """Discard the body that is being received, and give its bytes back to the budget."""
        if self._claim is not None:
            self._claim.give_back()
            self._claim = None
        self._body = b""

    def _deliver_if_known(self, data: bytes) -> bool:
        head_bytes = data.find(b"\r\n\r\n") + 4
        head = data[:head_bytes]
        body_bytes = len(data) - head_bytes
        known = self._heads.get(head)
        if known is None or known.body_bytes != body_bytes:
            self._head = head
            self._rest_bytes = body_bytes
            return False
        method, target, headers, connection, _ = known
        body = data[head_bytes:] if body_bytes else b""
        request = HttpRequest(method, target, headers.copy(), body, self._peer, self._client)
        if body_bytes:
            request.claim = self._budget.claim(self._holder)
            if not request.claim.take(body_bytes):
                raise self._too_busy()
        self._deliver(request, connection)
        return True

    def _parse(self, data: bytes | memoryview) -> int | None:
        """Parse up to the end, or up to the offset that is returned when an Upgrade was met."""
        if self.ended:
            return None
        self._fed = data
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            return int(upgrade.args[0])
        except HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except HttpParserError as error:
            if not self.ended:
                raise Refused(400, f"The request is not valid HTTP/1.1: {error}.") from None
        return None

    def _head_without_upgrade(self) -> bytes:
        lines = [f"{name}: {value}" for name, value in self._headers.items() if name != "upgrade"]
        version = self._parser.get_http_version()
        start = f"{self._method} {self._url.decode('latin-1')} HTTP/{version}"
        return "\r\n".join((start, *lines, "", "")).encode("latin-1")

    def _count_silence(self, length: int) -> None:
        """Bound the bytes that the parser gathers before they can be checked: headers, trailers, chunk extensions.

        The bytes of a call that added to the body count there. The call that began the message does not count either,
        because only its end belongs to the message; its own size is bounded.
        """
        seen_bytes = len(self._body)
        if self._silent_bytes < 0:
            self.began_s = self._time()
            self._silent_bytes = 0
        elif seen_bytes != self._seen_bytes:
            self._silent_bytes = 0
        else:
            self._silent_bytes += length
        self._seen_bytes = seen_bytes
        if self._silent_bytes > self._head_bytes_max:
            raise self._head_too_large()

    @property
    def _head_bytes_max(self) -> int:
        return self._limits.header_bytes_max + self._limits.request_line_bytes_max + _HEAD_SLACK_BYTES

    # Called by the parser.

    def on_message_begin(self) -> None:
        self.in_message = True
        self._url = b""
        self._body = b""
        self._in_head = True
        self._lines.clear()
        self._silent_bytes = -1

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.request_line_bytes_max:
            limit = self._limits.request_line_bytes_max
            raise Refused(414, f"The request target is longer than {limit} bytes: send it in the body instead.")

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the head these are trailers. The head was checked without them, so they never count as headers.
        self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        headers = self._headers = self._read_lines()
        method = self._method = self._parser.get_method().decode()
        self._keep_alive = self._parser.should_keep_alive()
        self._upgrade = False
        if method == "CONNECT":
            raise Refused(501, "CONNECT is not supported: this server is no proxy.")
        if (
            not self._keep_alive  # True for every version but 1.1, unless the client asks for keep-alive.
            or "connection" in headers
            or "host" not in headers
            or "transfer-encoding" in headers
            or "expect" in headers
            or "upgrade" in headers
        ):
            self._check_unusual(self._parser.get_http_version())
        self._check_protocol(method)
        length = headers.get("content-length")
        if length is not None and int(length) > self._limits.body_bytes_max:
            raise self._body_too_large()
        if (length not in (None, "0") or "transfer-encoding" in headers) and "upgrade" not in headers:
            self._screen_body()

    def _check_protocol(self, method: str) -> None:
        """Refuse RTSP and ICE: the parser accepts them, and tells nothing about it."""
        begun, self._begun, self._in_head = self._begun, b"", False
        if b"%b %b HTTP/" % (method.encode(), self._url) not in (begun + self._fed if begun else bytes(self._fed)):
            raise Refused(400, "The request is not HTTP: this server speaks HTTP/1.1 only.")

    def _screen_body(self) -> None:
        """Ask whether the body may come. A client without access must not fill the memory for bodies."""
        verdict = self._screen(self._request(b""))
        if isinstance(verdict, HttpResponse):
            raise Refused(verdict.status, "", verdict)
        self._key = verdict

    def on_body(self, chunk: bytes) -> None:
        if self._claim is None:
            self._claim = self._budget.claim(self._holder, self._key)
        if not self._claim.take(len(chunk)):
            raise self._too_busy()
        # A list of chunks would let a client that sends tiny ones take forty times the limit in object headers.
        if not self._body:
            self._body = chunk
        elif isinstance(self._body, bytes):
            self._body = bytearray(self._body) + chunk
        else:
            self._body += chunk
        if len(self._body) > self._limits.body_bytes_max:
            raise self._body_too_large()

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        self.in_message = False
        self.awaits_continue = False
        headers = self._headers
        # The reader lives as long as the connection: a body that it kept after the request would not be counted.
        body, self._body = bytes(self._body), b""
        request = self._request(body)
        request.claim, self._claim = self._claim, None
        if not self._keep_alive:
            self.ended = True
            self._deliver(request, CLOSE)
            return
        connection = KEEP_ALIVE if "connection" in headers else b""
        # Only a request that ends exactly with these bytes leaves as many bytes after its head as its body has.
        if self._head and self._rest_bytes == len(body):
            target = self._url.decode("ascii")
            self._heads.learn(self._head, ParsedHead(self._method, target, headers.copy(), connection, len(body)))
        self._deliver(request, connection)

    def _request(self, body: bytes) -> HttpRequest:
        try:
            return HttpRequest(self._method, self._url.decode("ascii"), self._headers, body, self._peer, self._client)
        except ValueError as error:
            raise Refused(400, f"The request target cannot be read: {error}.") from None

    def _read_lines(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        names = _NAMES
        for name, value in self._lines:
            key = names.get(name) or name.decode().lower()
            if key not in headers:
                headers[key] = value.decode("latin-1")
            elif key == "host":
                raise Refused(400, "The request has more than one Host header: send one.")
            else:
                headers[key] += ", " + value.decode("latin-1")
        # Headers that arrived in one call smaller than the limit need no counting.
        limit = self._limits.header_bytes_max
        may_exceed = self._silent_bytes >= 0 or len(self._fed) > limit
        if may_exceed and sum(len(name) + len(value) + 4 for name, value in self._lines) > limit:
            raise self._head_too_large()
        return headers

    def _check_unusual(self, version: str) -> None:
        """Make the checks that a plain HTTP/1.1 keep-alive request does not need."""
        headers = self._headers
        if version not in ("1.0", "1.1"):
            raise Refused(505, f"HTTP/{version} is not spoken here: use HTTP/1.1.")
        if "host" not in headers and version == "1.1":
            raise Refused(400, "The request has no Host header, which HTTP/1.1 requires.")
        encoding = headers.get("transfer-encoding")
        if encoding is not None and version == "1.0":
            raise Refused(400, "Transfer-Encoding does not exist in HTTP/1.0: send Content-Length.")
        if encoding is not None and encoding.lower() != "chunked":
            raise Refused(501, "The only Transfer-Encoding supported is chunked.")
        expectation = headers.get("expect")
        if expectation is not None and version == "1.1":
            if expectation.lower() != "100-continue":
                raise Refused(417, "The only expectation supported is 100-continue.")
            self.awaits_continue = True
        self._upgrade = self._parser.should_upgrade()

    def _body_too_large(self) -> Refused:
        limit = self._limits.body_bytes_max
        return Refused(413, f"The body is larger than {limit} bytes: send it in several requests.")

    def _too_busy(self) -> Refused:
        return Refused(503, "The server holds too many requests: try again in a second.")

    def _head_too_large(self) -> Refused:
        return Refused(431, f"The headers are larger than {self._limits.header_bytes_max} bytes: send fewer.")
