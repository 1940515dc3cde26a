"""Errors as RFC 9457 problems: the form of every answer that is not a success.

The class of an error gives its problem the status, the slug and the title. The details of an internal error (status
500) go to the log and not to the client.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from msgspec import Struct

from everbell.errors import (
    Conflict,
    EverbellError,
    Forbidden,
    InvalidInput,
    MalformedInput,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StoreFull,
    Throttled,
    TooLarge,
    Unauthorized,
    VersionMismatch,
)
from everbell.http.message import HttpResponse

TYPES = "https://everbell.dev/problems/"
CONTENT_TYPE = "application/problem+json"
INTERNAL = "Everbell failed to answer this request; its log says why."

_log = logging.getLogger("everbell.server")
_encode = msgspec.json.Encoder().encode


class Problem(Struct, frozen=True, omit_defaults=True):
    """An error, and how to correct the request (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    """The part of the request that is at fault, such as `retry.backoff`."""


class WrongMethod(EverbellError):
    """The path exists, but not with this method."""

    status = 405
    slug = "method"
    title = "The method is not allowed here"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method[:32]} is not possible here; use {allowed}")
        self.allowed = allowed


class WrongMediaType(InvalidInput):
    """The body is of a kind that is not read here."""

    status = 415
    slug = "media-type"
    title = "The body is of a kind that is not read here"


_NAMED: dict[int, type[EverbellError]] = {
    kind.status: kind
    for kind in (
        MalformedInput,
        Unauthorized,
        Forbidden,
        NotFound,
        WrongMethod,
        Conflict,
        VersionMismatch,
        TooLarge,
        WrongMediaType,
        InvalidInput,
        Throttled,
        EverbellError,
        Overloaded,
        StoreFull,
        OutcomeUnknown,
    )
}
_PLAIN = {
    408: ("request-timeout", "The request did not come in time"),
    414: ("request-uri-too-long", "The path is too long"),
    431: ("request-header-fields-too-large", "The headers are too large"),
}
"""Those of the HTTP layer, by slug and title; the phrases of `HTTPStatus` differ between versions of Python."""


def problem_of(error: EverbellError) -> HttpResponse:
    """The answer that an error stands for."""
    status = error.status
    detail = str(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("a request failed", exc_info=error)
        detail = INTERNAL
    error.as_value()
    field = error.field if isinstance(error, InvalidInput) else None
    body = _encode(Problem(TYPES + error.slug, error.title, status, detail, field))
    return HttpResponse(status, body, CONTENT_TYPE, _headers(error))


def server_problem(status: int, detail: str) -> HttpResponse:
    """The answer of the HTTP server to bytes that are no valid request, in the same form."""
    slug, title = _called(status)
    return HttpResponse(status, _encode(Problem(TYPES + slug, title, status, detail)), CONTENT_TYPE)


def title_of(status: int) -> str:
    """The title of a problem with this status."""
    return _called(status)[1]


def _called(status: int) -> tuple[str, str]:
    if status in _NAMED:
        return _NAMED[status].slug, _NAMED[status].title
    phrase = HTTPStatus(status).phrase
    return _PLAIN.get(status) or (phrase.lower().replace(" ", "-"), phrase)


def _headers(error: EverbellError) -> tuple[tuple[str, str], ...]:
    if error.retry_after_s is not None:
        return (("retry-after", str(error.retry_after_s)),)
    if isinstance(error, WrongMethod):
        return (("allow", error.allowed),)
    if isinstance(error, Unauthorized):
        return (("www-authenticate", 'Bearer realm="everbell"'),)
    return ()
