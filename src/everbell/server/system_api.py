"""What a server says about itself: health, readiness, metrics, its own description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from everbell.core.health import Health
from everbell.errors import Conflict, StoreUnusable
from everbell.links.port import MakeBackup
from everbell.server.docs_page import docs_page, front_page
from everbell.server.message import Request, Response
from everbell.server.views import json_response

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class BackupView(Struct, frozen=True):
    """Where a copy of the store lies, on the server's machine."""

    path: str


class SystemApi:
    """The handlers of everything that belongs to no tenant."""

    def __init__(
        self,
        health: Callable[[], Health],
        metrics: Callable[[], str],
        document: Callable[[], dict[str, Any]],
        backup: MakeBackup | None,
    ) -> None:
        self._health = health
        self._metrics = metrics
        self._document = document
        self._backup = backup

    async def backup(self, request: Request) -> Response:
        """Copy the store. The server says where to: nobody may choose a path on its machine from outside."""
        if self._backup is None:
            raise Conflict("there is nothing to copy here: the store is in the program that uses it")
        try:
            path = await self._backup()
        except StoreUnusable as reason:
            raise Conflict(str(reason)) from None
        return json_response(BackupView(path), 201)

    def healthz(self, request: Request) -> Response:
        """200 while the process is worth keeping."""
        health = self._health()
        return json_response(health, 503 if health.state == "broken" else 200)

    def readyz(self, request: Request) -> Response:
        """200 while requests are welcome."""
        health = self._health()
        return json_response(health, 200 if health.state == "ready" else 503)

    def metrics(self, request: Request) -> Response:
        """The text that Prometheus reads."""
        return Response(200, self._metrics().encode(), METRICS_TYPE)

    def openapi(self, request: Request) -> Response:
        """The description of this API."""
        return Response(200, msgspec.json.encode(self._document()))

    def docs(self, request: Request) -> Response:
        """The same for people."""
        return docs_page(self._document())

    def front(self, request: Request) -> Response:
        """Where to go from here."""
        return front_page()
