"""Reading a request: its body, its query and its conditions, each into a checked type.

Rules. Input that cannot be read is an `InvalidInput` that names the field. All text is UTF-8, payloads included: the
decoder skips payloads without checking their encoding, and a payload that is not UTF-8 could never be shown again.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

import msgspec

from everbell.core.tenant import Limits
from everbell.edge.decode_errors import complaint
from everbell.edge.duplicate_keys import check_unique
from everbell.errors import InvalidInput, MalformedInput, TooLarge
from everbell.http.message import HttpRequest
from everbell.http.problem import WrongMediaType

T = TypeVar("T")

REST_BYTES_MAX = 256 * 1024
"""The size of an event without its payload."""

_OTHER_BYTES_MAX = 2 * 1024 * 1024
"""The size of bodies that are no events: some list thousands of ids."""

TOO_DEEP = "the JSON is nested too deeply"

_JSON_TYPE = re.compile(r"[^/;\s]+/(?:[^/;\s]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
_CURL_TYPE = "application/x-www-form-urlencoded"
_LINES_TYPE = re.compile(r"application/(?:x-)?(?:ndjson|jsonl|jsonlines)\s*(?:;.*)?", re.IGNORECASE)
_VERSION = re.compile(r'"([1-9][0-9]{0,17})"', re.ASCII)

ANY_VERSION = "*"


def event_bytes_max(limits: Limits) -> int:
    """The size of the JSON of an event beyond which it cannot be valid. A payload may be in base64."""
    return REST_BYTES_MAX + limits.payload_bytes * 4 // 3


EVENT_BYTES_MAX = event_bytes_max(Limits())
"""The same for tenants with default limits."""


class Body(Generic[T]):
    """Reads JSON bodies of one type."""

    __slots__ = ("_decode", "_type")

    def __init__(self, expected: type[T]) -> None:
        self._type = expected
        self._decode = msgspec.json.Decoder(expected).decode

    def read(self, request: HttpRequest, bytes_max: int = _OTHER_BYTES_MAX) -> T:
        """The body of the request. A larger one is refused unread: decoding keeps all other tasks waiting."""
        check_content_type(request)
        if len(request.body) > bytes_max:
            raise TooLarge(f"the body has more than {bytes_max} bytes")
        return self.parse(request.body)

    def parse(self, text: bytes, *, hints: bool = True) -> T:
        """One JSON text. Without `hints`, an error suggests nothing and costs little."""
        try:
            if not text.isascii():
                text.decode()
            read = self._decode(text)
            payload = getattr(read, "payload", None)
            check_unique(text, payload if isinstance(payload, msgspec.Raw) else None)
            return read
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise unreadable(error, self._type, hints=hints) from None


def unreadable(error: Exception, expected: object, *, hints: bool = True) -> InvalidInput:
    """The error for the user, from an error of the decoder."""
    if isinstance(error, msgspec.ValidationError):
        return complaint(error, expected, hints=hints)
    if isinstance(error, UnicodeDecodeError):
        return MalformedInput("the text is not UTF-8")
    if isinstance(error, RecursionError):
        return MalformedInput(TOO_DEEP)
    return MalformedInput(str(error))


def check_content_type(request: HttpRequest, *, lines: bool = False) -> None:
    """Refuse a body that does not claim to be JSON (or `lines` of it), or that is compressed."""
    headers = request.headers
    content_type = headers.get("content-type")
    if content_type is not None and content_type != "application/json":
        is_lines = lines and _LINES_TYPE.fullmatch(content_type)
        if not is_lines and not _JSON_TYPE.fullmatch(content_type):
            wanted = "application/x-ndjson or application/json" if lines else "application/json"
            hint = " (curl: use --json instead of -d)" if content_type == _CURL_TYPE else ""
            raise WrongMediaType(f"send {wanted}, not {content_type[:64]!r}{hint}", "content-type")
    if headers.get("content-encoding", "identity") != "identity":
        raise WrongMediaType("send the body without compression", "content-encoding")


def read_query(request: HttpRequest, expected: type[T]) -> T:
    """The query of the request. An unknown or repeated name is refused: ignoring it would ignore a filter."""
    query = request.query
    for name in query:
        if len(request.query_all(name)) > 1:
            raise InvalidInput("is given more than once", name[:64])
    try:
        # Not strict: everything in a query is text, also numbers.
        return msgspec.convert(query, expected, strict=False)
    except msgspec.ValidationError as error:
        raise complaint(error, expected) from None


def if_match(request: HttpRequest) -> int | str | None:
    """The version that `If-Match` names, `ANY_VERSION` for `*`, None where there is no such header."""
    condition = request.headers.get("if-match")
    if condition is None or condition == ANY_VERSION:
        return condition
    version = _VERSION.fullmatch(condition)
    if version is None:
        raise MalformedInput('write the ETag as it came, such as "3", or *', "if-match")
    return int(version[1])


def version_of(request: HttpRequest) -> int | None:
    """The version that an event which exists must have; `*` is satisfied by any."""
    condition = if_match(request)
    return condition if isinstance(condition, int) else None
