"""Refuses requests of foreign web pages: a page in a user's browser must not control a server on the user's machine.

A browser names the page's origin with every request that could change something, so a foreign origin is refused. A
page may also give its own name the address 127.0.0.1 (DNS rebinding); then the origin is not foreign, but the request
names a host that is not this machine, and is refused where the server listens on loopback only.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache
from ipaddress import ip_address

from everbell.errors import EverbellError
from everbell.http.message import HttpHandler, HttpRequest, HttpResponse, Screen
from everbell.http.problem import problem_of

_SAFE_METHODS = frozenset({"GET", "HEAD"})


class ForeignPage(EverbellError):
    """A request that comes from a web page of another site."""

    status = 403
    slug = "foreign-page"
    title = "Requests from other sites' pages are refused"


class PagesGuard:
    """Asks `handler` only if the request is not a foreign page's."""

    def __init__(self, handler: HttpHandler, *, on_loopback: bool) -> None:
        self._handler = handler
        self._on_loopback = on_loopback

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        return self.refusal(request) or self._handler(request)

    def screening(self, screen: Screen) -> Screen:
        """Judge requests before their bodies have come, first by these rules and then by `screen`."""
        return lambda request: self.refusal(request) or screen(request)

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        """The refusal of a foreign page's request."""
        headers = request.headers
        host = headers.get("host", "")
        if self._on_loopback and not is_this_machine(host):
            message = (
                f"the request is for {host!r}, but this server is only for this machine; use 127.0.0.1 or localhost"
            )
            return problem_of(ForeignPage(message))
        if request.method not in _SAFE_METHODS:
            origin = headers.get("origin")
            if (origin is not None and origin.partition("://")[2] != host) or headers.get(
                "sec-fetch-site"
            ) == "cross-site":
                return problem_of(ForeignPage(f"a page of {origin or 'another site'} may not do this"))
        return None


@lru_cache(maxsize=256)
def is_this_machine(host: str) -> bool:
    """Whether a `Host` header names this machine, with any port. Without the header (HTTP/1.0), no browser sent it."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower().rstrip(".")
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
