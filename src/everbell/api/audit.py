"""The audit log: the caller, the operation, the time and the outcome of requests. One JSON document a line.

It holds names and outcomes, never the content of a request: no payload, no header, no secret. `changes` leaves out the
routine calls of producers and workers; `all` has every request that needs a key. A request that was refused because its
key has too little access is logged. A request without a valid key is not, or a stranger could fill the disk.

Lines go to a file or to the server's own log. The file is opened for every line, so it can be rotated at any time. A
line is one append, so the processes of a server can share the file. If the file cannot be written, the server's log
reports it and the request goes on: it has been carried out already.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Literal

import msgspec

from everbell.api.route import Handle, Route
from everbell.clock import Clock
from everbell.core.time import format_instant
from everbell.errors import EverbellError
from everbell.http.message import HttpRequest, HttpResponse
from everbell.http.problem import problem_of
from everbell.log_lines import redacted

_SUBJECT_LENGTH_MAX = 1_024
LATEST_MAX = 200
"""How many of its latest lines a process keeps in memory."""

Extent = Literal["changes", "all", "off"]

_log = logging.getLogger("everbell.server")
_audit = logging.getLogger("everbell.audit")


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the audit log."""

    at: str
    who: str
    """The id of the access key, or `nobody` where none is needed."""
    operation: str
    """Its `operationId`."""
    status: int
    peer: str = ""
    """The address that the request came from."""
    tenant: str | None = None
    subject: str = ""
    """The object of the operation: an event, a key, a node, or the selection of a bulk operation."""
    events: int | None = None
    """How many events a bulk operation changed."""


class AuditLog:
    """Logs the requests to routes."""

    def __init__(self, extent: Extent, file: str, clock: Clock) -> None:
        self.extent = extent
        self.latest: deque[AuditLine] = deque(maxlen=LATEST_MAX)
        self._clock = clock
        self._write: Callable[[bytes], None] = partial(_append, file) if file else _say

    def covers(self, route: Route) -> bool:
        """Whether requests to this route are logged."""
        if self.extent == "changes":
            return route.method != "GET" and not route.routine
        return self.extent == "all" and route.access != "open"

    def watching(self, route: Route, handle: Handle) -> Handle:
        """The handler, with its outcomes logged."""
        if not self.covers(route):
            return handle

        def answer(request: HttpRequest, *parameters: str) -> HttpResponse | Awaitable[HttpResponse]:
            try:
                result = handle(request, *parameters)
            except EverbellError as error:
                result = problem_of(error)
            if isinstance(result, HttpResponse):
                self.note(route, request, parameters, result.status)
                return result
            return self._later(result, route, request, parameters)

        return answer

    def note(self, route: Route, request: HttpRequest, parameters: tuple[str, ...], status: int) -> None:
        is_named = "{tenant}" in route.path
        tenant = parameters[0] if is_named else route.tenant
        rest = parameters[1:] if is_named else parameters
        # A caller may have put a secret where a name belongs.
        subject = redacted(request.subject or "/".join(rest))[:_SUBJECT_LENGTH_MAX]
        tenant = None if tenant is None else redacted(tenant)
        now = format_instant(self._clock.now())
        line = AuditLine(now, request.who, route.name, status, request.peer, tenant, subject, request.affected)
        self.latest.append(line)
        self._write(msgspec.json.encode(line) + b"\n")

    async def _later(
        self, result: Awaitable[HttpResponse], route: Route, request: HttpRequest, parameters: tuple[str, ...]
    ) -> HttpResponse:
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            response = await result
            status = response.status
            return response
        finally:
            self.note(route, request, parameters, status)


def _append(file: str, line: bytes) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as wrong:
        _log.error("the audit log %s cannot be written (%s); lost: %s", file, wrong.strerror, line.decode().rstrip())


def _say(line: bytes) -> None:
    _audit.info("%s", line.decode().rstrip(), extra={"audit": msgspec.json.decode(line)})
