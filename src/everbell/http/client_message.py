"""The values of the HTTP client: a request goes in, and a reply or a failure comes out.

A request is made of parts that are cheap to keep: the caller encodes its header block once and reuses it, the
pool adds the headers that depend on the connection (`host`) and on the body (`content-length`). A failure is a value
that can be raised too: the callback style passes it, `fetch` raises it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from everbell.errors import EverbellError

FailureKind = Literal["refused-address", "resolve", "connect", "tls", "timeout", "no-turn", "closed", "protocol"]

# Requests of these methods have no body unless there is one; all others state its length even when it is
# empty.
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class OutgoingRequest(msgspec.Struct, frozen=True, gc=False):
    """One request. `target` comes from `split_url`, or is made of percent-encoded parts: it is sent as it is."""

    scheme: str
    host: str
    port: int
    method: str
    target: str
    headers: bytes = b""  # Encoded lines, each "name: value\r\n"; without host and content-length.
    body: bytes = b""
    tenant: str = ""
    """Tenants share lookups and sockets fairly."""


class HttpReply:
    """An answer. `truncated` says that its body was longer, and only the beginning was kept."""

    __slots__ = ("_head", "_headers", "body", "status", "truncated")

    def __init__(self, status: int, head: bytes, body: bytes, truncated: bool) -> None:
        self.status = status
        self.body = body
        self.truncated = truncated
        self._head = head  # As received: interim answers before it and the beginning of the body are possible.
        self._headers: dict[str, str] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """By name in lower case; the values of a repeated header are joined by commas."""
        # Parsed at the first use: most deliveries look at nothing but the status, and a callback for every header
        # would cost more than the rest of the answer.
        if self._headers is None:
            self._headers = _HeaderCollector().collect(self._head)
        return self._headers

    def __repr__(self) -> str:
        return f"HttpReply(status={self.status}, body={len(self.body)} bytes, truncated={self.truncated})"


class _HeaderCollector:
    """Takes the headers out of the head of an answer, with the same parser that found its end."""

    def __init__(self) -> None:
        self._headers: dict[str, str] = {}
        self._complete = False
        self._parser = HttpResponseParser(self)

    def collect(self, head: bytes) -> dict[str, str]:
        # The connection has already checked the bytes behind the head.
        with suppress(HttpParserError, HttpParserUpgrade):
            self._parser.feed_data(head)
        del self._parser  # The parser refers to this object: break the reference cycle.
        return self._headers

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._complete:
            return  # Trailers are not headers.
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._headers.clear()
        else:
            self._complete = True


class HttpFailure(EverbellError):
    """There is no answer. `sent` says whether the peer may have got the request: if so, the outcome is unknown."""

    status = 502
    slug = "unreachable"
    title = "The peer gave no answer"

    def __init__(self, kind: FailureKind, reason: str, *, sent: bool = False) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind: FailureKind = kind
        self.reason = reason
        self.sent = sent


def encode_request(request: OutgoingRequest, authority: str) -> bytes:
    """The bytes of a request, ready for a single write."""
    method, body = request.method, request.body
    start = f"{method} {request.target} HTTP/1.1\r\nhost: {authority}\r\n"
    if body or method not in _BODILESS:
        start = f"{start}content-length: {len(body)}\r\n"
    return b"".join((start.encode("ascii"), request.headers, b"\r\n", body))
