"""The server itself over HTTP: backups, health, readiness, metrics, and the description of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from everbell.api.docs_page import docs_page, front_page
from everbell.api.page import PageApi
from everbell.api.route import HTML, Resource, ResponseKind, Route
from everbell.api.views import json_response
from everbell.core.health import Health
from everbell.core.request import Ask
from everbell.engine.requests import MakeBackup
from everbell.errors import Conflict, StoreUnusable
from everbell.http.message import HttpRequest, HttpResponse

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class BackupView(Struct, frozen=True):
    """The path of a copy of the store, on the server's machine."""

    path: str


def _page(path: str, summary: str) -> Route:
    """The route of a page for people."""
    return Route(
        "GET",
        path,
        summary,
        (ResponseKind(200, "a page", content_type=HTML),),
        access="open",
        no_client="for browsers",
        no_command="for browsers",
    )


class SystemApi(Resource, tag="server"):
    """The server itself."""

    def __init__(
        self,
        health: Callable[[], Health],
        metrics: Callable[[], str],
        document: Callable[[], dict[str, Any]],
        ask: Ask | None,
        page: PageApi | None = None,
        scheme: str = "http",
    ) -> None:
        """`ask` answers `MakeBackup`; None where there is nothing to copy. Without `page`, `/` is a list of links."""
        self._scheme = scheme
        self._health = health
        self._metrics = metrics
        self._document = document
        self._ask = ask
        self._front = front_page if page is None else page.index

    @Route(
        "POST",
        "/v1/backups",
        "Copy the store while it is in use",
        (ResponseKind(201, "a complete copy", BackupView),),
        access="admin",
        problems=(409,),
    )
    async def back_up(self, request: HttpRequest) -> HttpResponse:
        """The server chooses the path of the copy, on its own machine."""
        if self._ask is None:
            raise Conflict("there is nothing to copy here: the store is in the program that uses it")
        try:
            path = await self._ask(MakeBackup())
        except StoreUnusable as reason:
            raise Conflict(str(reason)) from None
        return json_response(BackupView(path), 201)

    @Route(
        "GET",
        "/healthz",
        "Liveness probe",
        (
            ResponseKind(200, "the process works", Health),
            ResponseKind(503, "the process is broken: restart it", Health),
        ),
        access="open",
        no_client="for probes; health() reads /readyz, which says more",
        no_command="for probes; everbell status reads /readyz, which says more",
    )
    def healthz(self, request: HttpRequest) -> HttpResponse:
        """Restart the process when it does not answer 200."""
        health = self._health()
        return json_response(health, 503 if health.state == "broken" else 200)

    @Route(
        "GET",
        "/readyz",
        "Readiness probe",
        (ResponseKind(200, "ready", Health), ResponseKind(503, "not ready; the body says why", Health)),
        access="open",
    )
    def readyz(self, request: HttpRequest) -> HttpResponse:
        """Send requests to the process while it answers 200."""
        health = self._health()
        return json_response(health, 200 if health.state == "ready" else 503)

    @Route(
        "GET",
        "/metrics",
        "Metrics for Prometheus",
        (ResponseKind(200, "the metrics", content_type=METRICS_TYPE),),
        access="read",
    )
    def metrics(self, request: HttpRequest) -> HttpResponse:
        """The metrics of the asked node, as text."""
        return HttpResponse(200, self._metrics().encode(), METRICS_TYPE)

    @Route(
        "GET",
        "/openapi.json",
        "The OpenAPI document",
        (ResponseKind(200, "OpenAPI 3.1", dict[str, Any]),),
        access="open",
        no_client="for tools that read OpenAPI",
        no_command="for tools that read OpenAPI",
    )
    def openapi(self, request: HttpRequest) -> HttpResponse:
        """Every operation and every schema of this API."""
        return HttpResponse(200, msgspec.json.encode(self._document()))

    @_page("/docs", "The documentation of the API")
    def docs(self, request: HttpRequest) -> HttpResponse:
        """The OpenAPI document as a page."""
        # The caller knows the server by this name, also behind a proxy.
        scheme = request.headers.get("x-forwarded-proto", self._scheme)
        server = f"{scheme}://{request.headers.get('host', '127.0.0.1:8420')}"
        return docs_page(self._document(), server)

    @_page("/", "The operations page")
    def front(self, request: HttpRequest) -> HttpResponse:
        """Events, queues, targets, tenants and the cluster, for people. With `--ui off`, links to the other pages."""
        return self._front(request)
