"""What goes into the HTTP client and what comes out: a request, and a reply or a failure.

A request is made of parts that are cheap to keep: the caller encodes its header block once and reuses it, the
pool adds what depends on the connection (`host`) and on the body (`content-length`). A failure is a value
that can be raised too: the callback style passes it, `fetch` raises it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Literal

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from everbell.errors import EverbellError, InvalidInput

URL_LENGTH_MAX = 8_192

FailureKind = Literal["refused-address", "resolve", "connect", "tls", "timeout", "closed", "protocol"]

# The authority ends at the first of / ? #, whatever other parsers may see in it; an @ or a backslash is
# refused.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]*\]|[^\[\]/?#@:\\]+)(?::(?P<port>[0-9]{1,5}))?(?P<target>[/?][!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_HOST_LENGTH_MAX = 253
_PORTS = {"http": 80, "https": 443}
# Requests of these methods have no body unless there is one; all others state its length even when it is
# empty.
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class HttpRequest(msgspec.Struct, frozen=True, gc=False):
    """One request. `target` comes from `split_url`, or is made of percent-encoded parts: it is sent as it is."""

    scheme: str
    host: str
    port: int
    method: str
    target: str
    headers: bytes = b""  # Encoded lines, each "name: value\r\n"; without host and content-length.
    body: bytes = b""


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
        # Parsed when somebody asks: most deliveries look at nothing but the status, and calling back for
        # every header would cost more than the rest of the answer.
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
        with suppress(HttpParserError, HttpParserUpgrade):  # What follows the head was judged when it came.
            self._parser.feed_data(head)
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


def authority_of(scheme: str, host: str, port: int) -> str:
    """The `host` header: the port is named only where it is not the scheme's own."""
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port == _PORTS[scheme] else f"{bracketed}:{port}"


def encode_request(request: HttpRequest, authority: str) -> bytes:
    """The bytes of a request, ready for a single write."""
    method, body = request.method, request.body
    start = f"{method} {request.target} HTTP/1.1\r\nhost: {authority}\r\n"
    if body or method not in _BODILESS:
        start = f"{start}content-length: {len(body)}\r\n"
    return b"".join((start.encode("ascii"), request.headers, b"\r\n", body))


@lru_cache(maxsize=4_096)
def split_url(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and target (path and query) of an http or https URL; raises `InvalidInput` for anything odd.

    The host is in lower case and ASCII (IDNA), an IPv6 address is without its brackets. Where parsers are
    known to disagree (user names, backslashes, white space, numbers that are almost an address), the URL is
    refused rather than guessed.
    """
    if len(url) > URL_LENGTH_MAX:
        raise InvalidInput(f"the URL is longer than {URL_LENGTH_MAX} characters")
    if "#" in url:
        raise InvalidInput("a URL to send to has no fragment (#…); leave it away")
    match = _URL.fullmatch(url)
    if match is None:
        raise InvalidInput(
            f"{url[:64]!r} cannot be sent to: write http:// or https://, a host, perhaps a port, then a path;"
            " printable ASCII characters only, and no user name"
        )
    scheme = match["scheme"].lower()
    port = int(match["port"] or _PORTS[scheme])
    if not 0 < port < 65_536:
        raise InvalidInput(f"{port} is not a port; ports go from 1 to 65535")
    target = match["target"] or "/"
    return scheme, _host(match["host"]), port, target if target[0] == "/" else f"/{target}"


def _host(text: str) -> str:
    if text[0] == "[":
        try:
            return IPv6Address(text[1:-1]).compressed
        except AddressValueError:
            raise InvalidInput(f"{text[:64]!r} is not an IPv6 address") from None
    try:
        host = text.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise InvalidInput(f"{text[:64]!r} is not a host name") from None
    labels = host.removesuffix(".").split(".")
    if len(host) > _HOST_LENGTH_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidInput(f"{text[:64]!r} is not a host name")
    return _ipv4(host) if _is_numeric(labels[-1]) else host


def _is_numeric(label: str) -> bool:
    return label.isdecimal() or label.startswith("0x")


def _ipv4(host: str) -> str:
    # The C library reads 127.1, 0x7f.1 and 2130706433 as addresses. There is one way to write one here.
    try:
        return str(IPv4Address(host))
    except AddressValueError:
        raise InvalidInput(f"{host[:64]!r} is not an IPv4 address; write four decimal numbers") from None
