"""Requests and responses as values, and a response as bytes.

Rules. Nothing here does I/O. Names of headers are lower case everywhere, so that a look-up is one dict access. A
response that could break the framing of the connection (a line break in a header, a header that this layer writes
itself) is refused with ValueError before a byte of it exists: a handler may put text that came from a user into a
header value without thinking about it.

The part of a response's head that depends only on status and content type is built once and kept: for a small
answer, building the head afresh would cost more than everything else in this module.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

import msgspec

from everbell.http.body_budget import BodyClaim

CLOSE = b"connection: close\r\n"
KEEP_ALIVE = b"connection: keep-alive\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OWN_HEADERS = frozenset(("connection", "content-length", "content-type", "server", "transfer-encoding"))
_BODILESS = frozenset((204, 304))
_KEPT_MAX = 1024

_phrases = {int(status): status.phrase for status in HTTPStatus}
# Caches of checked names and built heads. Input of users may fill both, so they start over when they are full.
_prefixes: dict[tuple[int, str], bytes] = {}
_names: set[str] = set()


class RequestSource(Protocol):
    """The other end of a request's connection."""

    gone: bool

    @property
    def is_answering(self) -> bool:
        """Whether earlier requests of this connection have no answer yet."""
        ...


class HttpRequest:
    """One complete request. `raw_path` is the path before percent-decoding, without the query."""

    __slots__ = (
        "_client",
        "_fields",
        "_query_text",
        "affected",
        "body",
        "claim",
        "headers",
        "is_void",
        "method",
        "path",
        "peer",
        "raw_path",
        "subject",
        "who",
    )

    def __init__(
        self,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        peer: str = "",
        client: RequestSource | None = None,
    ) -> None:
        """Raise ValueError when `target` is no path (or absolute URL) of percent-encoded UTF-8."""
        if target[:1] != "/":
            target = _origin_form(method, target)
        self.method = method
        raw_path, _, self._query_text = target.partition("?") if "?" in target else (target, "", "")
        self.raw_path = raw_path
        self.path = unquote_to_bytes(raw_path).decode() if "%" in raw_path else raw_path
        self.headers = {} if headers is None else headers
        self.body = body
        self.peer = peer
        self.who = ""  # The id of its access key; the authorizer sets it.
        self.is_void: Callable[[], bool] | None = None  # Whether its key was revoked since; for long polls.
        self.subject = ""  # The subject in the audit log, where the path does not name it.
        self.claim: BodyClaim | None = None  # The body's place in the memory of the server.
        self.affected: int | None = None  # For the audit log: how many events a bulk operation changed.
        self._client = client
        self._fields: dict[str, list[str]] | None = None

    @property
    def query_text(self) -> str:
        """The query as it came, without its question mark."""
        return self._query_text

    @property
    def query(self) -> dict[str, str]:
        """The query's fields; of a repeated name the last value."""
        return {name: values[-1] for name, values in self._query_fields().items()}

    def query_all(self, name: str) -> list[str]:
        """Every value of one field of the query, in order."""
        return list(self._query_fields().get(name, ()))

    @property
    def abandoned(self) -> bool:
        """Whether the client hung up or lost its access meanwhile. A long poll then gives nothing away."""
        return (self._client is not None and self._client.gone) or (self.is_void is not None and self.is_void())

    @property
    def is_behind(self) -> bool:
        """Whether requests that came before it, on its connection, are not answered yet."""
        return self._client is not None and self._client.is_answering

    def _query_fields(self) -> dict[str, list[str]]:
        if self._fields is None:
            self._fields = parse_qs(self._query_text, keep_blank_values=True) if self._query_text else {}
        return self._fields


class HttpResponse(msgspec.Struct, frozen=True, gc=False):
    """One response. The connection adds its own headers: length, keep-alive, server."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


LATER = HttpResponse(503)
"""A handler returns this very object to be called again when all earlier requests of the connection are answered."""

HttpHandler = Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]


Screen = Callable[[HttpRequest], HttpResponse | str]
"""Judges a request whose body has not come yet: a refusal, or the access key that it shows (empty: none)."""


def problem(status: int, detail: str) -> HttpResponse:
    """An RFC 9457 problem without a type of its own."""
    title = _phrases.get(status, "Unknown")
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return HttpResponse(status, msgspec.json.encode(content), "application/problem+json")


def encode(response: HttpResponse, head_only: bool, connection: bytes) -> bytes:
    """The bytes of a response; `connection` is b"", CLOSE or KEEP_ALIVE. Raises ValueError for unsafe headers."""
    status = response.status
    prefix = _prefixes.get((status, response.content_type)) or _add_prefix(status, response.content_type)
    headers = _encode_headers(response.headers) if response.headers else b""
    if status in _BODILESS:
        return b"%b%b%b\r\n" % (prefix, connection, headers)
    body = response.body
    return b"%b%d\r\n%b%b\r\n%b" % (prefix, len(body), connection, headers, b"" if head_only else body)


def _add_prefix(status: int, content_type: str) -> bytes:
    if not 200 <= status <= 599:
        raise ValueError(f"{status} is no status of a final response: use 200 to 599")
    head = f"HTTP/1.1 {status} {_phrases.get(status, '')}\r\nserver: everbell\r\n"
    if status not in _BODILESS:
        head += f"content-type: {_safe_value(content_type)}\r\ncontent-length: "
    if len(_prefixes) >= _KEPT_MAX:
        _prefixes.clear()
    prefix = _prefixes[status, content_type] = head.encode("latin-1")
    return prefix


def _encode_headers(headers: tuple[tuple[str, str], ...]) -> bytes:
    lines = ""
    for name, value in headers:
        if name not in _names:
            _add_name(name)
        lines += f"{name}: {_safe_value(value)}\r\n"
    return lines.encode("latin-1")


def _add_name(name: str) -> None:
    if _TOKEN.fullmatch(name) is None or name.lower() in _OWN_HEADERS:
        raise ValueError(f"{name!r} cannot be given as a response header: it is no token or set by the server")
    if len(_names) >= _KEPT_MAX:
        _names.clear()
    _names.add(name)


def _safe_value(value: str) -> str:
    # The first check is cheap, and nearly always decides.
    if not value.isprintable() and _UNSAFE_IN_VALUE.search(value) is not None:
        raise ValueError(f"the header value {value!r} has a control character: encode it first")
    return value


def _origin_form(method: str, target: str) -> str:
    """The path and query of an absolute URL, which every server has to accept (RFC 9112, 3.2.2)."""
    if target == "*" and method == "OPTIONS":
        return target
    url = urlsplit(target)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise ValueError("the request target is neither a path nor an http URL")
    path = url.path or "/"
    return f"{path}?{url.query}" if url.query else path
