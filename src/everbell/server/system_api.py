"""What a server says about itself: health, readiness, metrics, its own description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from everbell.errors import Conflict, StoreUnusable
from everbell.server.docs_page import docs_page, front_page
from everbell.server.message import Request, Response
from everbell.server.views import json_response

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StoreHealth(Struct, frozen=True, omit_defaults=True):
    """Whether the store takes what it is given. One that is full still gives out what it has."""

    state: Literal["ok", "full", "away", "broken"]
    reason: str | None = None
    since: str | None = None


class DiskHealth(Struct, frozen=True, omit_defaults=True):
    """The disk of an embedded store. Below the reserve, new events are refused."""

    ok: bool
    free_bytes: int
    reserve_bytes: int
    reason: str | None = None


class ClusterHealth(Struct, frozen=True, omit_defaults=True):
    """This node's place in the cluster."""

    ok: bool
    is_member: bool
    partitions: int
    """How many are owned here."""
    lease_left_ms: int
    log_lag_ms: int
    """How long ago the end of the log was seen."""
    reason: str | None = None


class BacklogHealth(Struct, frozen=True, omit_defaults=True):
    """What is due and has to wait."""

    ok: bool
    overdue_ms: int
    """How long the oldest has been waiting for its turn, or in the store for room."""
    starved_flows: int
    """Targets with due events that were left in the store."""
    in_flight: int
    reason: str | None = None


class Health(Struct, frozen=True, omit_defaults=True):
    """The state of a server, and of its parts. A broken one must be restarted; all others must only be left alone."""

    state: Literal["starting", "ready", "away", "stopping", "broken"]
    """`away`: its store, or its place in the cluster, cannot be used for the moment."""
    reason: str | None = None
    node: str | None = None
    store: StoreHealth | None = None
    disk: DiskHealth | None = None
    cluster: ClusterHealth | None = None
    backlog: BacklogHealth | None = None


class BackupView(Struct, frozen=True):
    """Where a copy of the store lies, on the server's machine."""

    path: str


MakeBackup = Callable[[], Awaitable[str]]
"""Copies the store while everything goes on, and says where to."""


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
