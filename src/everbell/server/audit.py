"""The audit log: who changed what, when, and what came of it. One JSON document a line.

It holds names and outcomes, never what was in a request: no payload, no header, no secret. `changes` leaves out what
producers and workers do all day; `all` has every request that needs a key. A request that was refused because its key
does not reach far enough is in it, too; one without a key that counts is not, or anybody could fill the disk.

Lines go to a file or to the server's own log. The file is opened for every line, so whoever rotates it needs to tell
nobody; a line is one append, so the processes of a server can share it. When it cannot be written, that is said in
the server's log and the request goes on: it has been carried out already.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Literal

import msgspec

from everbell.clock import Clock
from everbell.core.time import format_instant
from everbell.errors import EverbellError
from everbell.log_lines import redacted
from everbell.server.message import Request, Response
from everbell.server.problem import problem_of
from everbell.server.route import Handle, Route

_SUBJECT_LENGTH_MAX = 1_024

Extent = Literal["changes", "all", "off"]

_log = logging.getLogger("everbell.server")
_audit = logging.getLogger("everbell.audit")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

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
    """What it was done to: an event, a key, a node."""


class AuditLog:
    """Writes down what routes do."""

    def __init__(self, extent: Extent, file: str, clock: Clock) -> None:
        self._extent = extent
        self._clock = clock
        self._write: Callable[[bytes], None] = partial(_append, file) if file else _say

    def covers(self, route: Route) -> bool:
        """Whether requests to this route are written down."""
        if self._extent == "changes":
            return route.method != "GET" and not route.routine
        return self._extent == "all" and route.access != "open"

    def watching(self, route: Route, handle: Handle) -> Handle:
        """The handler, with its outcomes written down."""
        if not self.covers(route):
            return handle

        def answer(request: Request, *parameters: str) -> Response | Awaitable[Response]:
            try:
                result = handle(request, *parameters)
            except EverbellError as error:
                result = problem_of(error)
            if isinstance(result, Response):
                self.note(route, request, parameters, result.status)
                return result
            return self._later(result, route, request, parameters)

        return answer

    def note(self, route: Route, request: Request, parameters: tuple[str, ...], status: int) -> None:
        """Write a line."""
        tenant = parameters[0] if "{tenant}" in route.path else None
        rest = parameters if tenant is None else parameters[1:]
        # Whoever puts a secret where a name belongs must not find it here.
        subject = redacted(request.subject or "/".join(rest))[:_SUBJECT_LENGTH_MAX]
        tenant = None if tenant is None else redacted(tenant)
        now = format_instant(self._clock.now())
        self._write(
            msgspec.json.encode(Entry(now, request.who, route.name, status, request.peer, tenant, subject)) + b"\n"
        )

    async def _later(
        self, result: Awaitable[Response], route: Route, request: Request, parameters: tuple[str, ...]
    ) -> Response:
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
