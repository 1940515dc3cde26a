"""The HTTP API: finds the route of a request, calls its handler, and turns errors into problems.

A path is split before it is decoded, so that an id may contain a slash. Two patterns may match one path
(`events/batch` and `events/{id}`); then each answers to its own methods, and an event may well be named "batch".
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from functools import cached_property, lru_cache, partial
from typing import Any
from urllib.parse import unquote

from everbell.clock import Clock
from everbell.core.health import Health
from everbell.core.tenant import Tenants, check_tenant_name
from everbell.engine.port import LeasesPort, OperationsPort
from everbell.errors import EverbellError, Forbidden, NotFound
from everbell.links.port import MakeBackup, PausesPort, PoliciesPort
from everbell.server.audit import AuditLog
from everbell.server.batch_api import BatchApi
from everbell.server.cluster_api import ClusterApi
from everbell.server.cluster_routes import cluster_routes
from everbell.server.dead_api import DeadApi
from everbell.server.edge import Edge
from everbell.server.events_api import EventsApi
from everbell.server.forecast_api import ForecastApi
from everbell.server.gate import Gate
from everbell.server.keys_api import KeysApi
from everbell.server.keys_routes import key_routes
from everbell.server.lines_api import LinesApi
from everbell.server.message import LATER, Request, Response
from everbell.server.openapi import openapi
from everbell.server.pauses_api import PausesApi
from everbell.server.pauses_routes import pause_routes
from everbell.server.problem import WrongMethod, problem_of
from everbell.server.queues_api import QueuesApi
from everbell.server.recurrence_api import RecurrenceApi
from everbell.server.route import Access, Handle, Route
from everbell.server.routes import event_routes, queue_routes, recurrence_routes, system_routes
from everbell.server.search_api import SearchApi
from everbell.server.search_routes import dead_routes, event_set_routes, forecast_routes, line_routes
from everbell.server.system_api import SystemApi
from everbell.server.tenants_api import TenantsApi
from everbell.server.tenants_routes import tenant_routes

_PATHS_KEPT = 1_024

_Matches = dict[str, tuple[Handle, tuple[str, ...], Access, str | None, Route]]
"""By method: the handler, the parameters in the path, what it takes, whose tenant it is, and the route."""


class Api:
    """The handler of an HTTP server. `allows_handlers` where the engine is in a process that has some; `kafka` names
    the Kafka clusters that it reaches.

    Without a `gate` it is for whoever can call it; without `keys` there are none to list, make and revoke; without
    `policies` those of tenants can be neither seen nor changed, and without `pauses` nothing of them can be paused.
    """

    def __init__(
        self,
        operations: OperationsPort,
        leases: LeasesPort,
        tenants: Tenants,
        clock: Clock,
        health: Callable[[], Health],
        metrics: Callable[[], str],
        *,
        backup: MakeBackup | None = None,
        cluster: ClusterApi | None = None,
        keys: KeysApi | None = None,
        policies: PoliciesPort | None = None,
        pauses: PausesPort | None = None,
        gate: Gate | None = None,
        audit: AuditLog | None = None,
        allows_handlers: bool = False,
        kafka: Collection[str] = frozenset(),
    ) -> None:
        edge = Edge(tenants, clock, allows_handlers=allows_handlers, kafka=kafka)
        self.routes: tuple[Route, ...] = (
            *event_routes(EventsApi(operations, edge)),
            *recurrence_routes(RecurrenceApi(operations, edge)),
            *event_set_routes(BatchApi(operations, edge), search := SearchApi(operations, edge)),
            *dead_routes(search, DeadApi(operations)),
            *line_routes(LinesApi(operations)),
            *forecast_routes(ForecastApi(operations, clock)),
            *queue_routes(QueuesApi(leases)),
            *(cluster_routes(cluster) if cluster is not None else ()),
            *(key_routes(keys) if keys is not None else ()),
            *(tenant_routes(TenantsApi(policies, tenants, operations, pauses)) if policies is not None else ()),
            *(pause_routes(PausesApi(pauses, clock)) if pauses is not None else ()),
            *system_routes(SystemApi(health, metrics, lambda: self.document, backup)),
        )
        self._gate = gate or Gate()
        self._audit = audit or AuditLog("off", "", clock)
        self._patterns = [
            (route.path.split("/"), route, _in_turn(route, self._audit.watching(route, _safe(route.handle))))
            for route in self.routes
        ]
        # Clients use the same few paths again and again; the cache is bounded, as anybody may make up others.
        self._match: Callable[[str], _Matches] = lru_cache(maxsize=_PATHS_KEPT)(self._find_match)

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        """Answer a request; a future where that takes time."""
        try:
            matches = self._match(request.raw_path)
            match = matches.get(request.method)
            if match is None:
                raise WrongMethod(request.method, ", ".join(sorted(matches)))
            handle, parameters, access, tenant, route = match
            try:
                request.who = self._gate.admit(request, access, tenant)
            except Forbidden as refused:
                self._note_refusal(refused, route, request, parameters)
                raise
            if access == "work":
                request.is_void = partial(self._gate.shuts_out, request, access, tenant)
            return handle(request, *parameters)
        except EverbellError as error:
            return problem_of(error)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI description of the routes."""
        return openapi(self.routes)

    def _note_refusal(self, refused: Forbidden, route: Route, request: Request, parameters: tuple[str, ...]) -> None:
        request.who = refused.who
        if self._audit.covers(route):
            self._audit.note(route, request, parameters, refused.status)

    def _find_match(self, raw_path: str) -> _Matches:
        segments = raw_path.split("/")
        matches: _Matches = {}
        for pattern, route, handle in self._patterns:
            parameters = _parameters(pattern, segments)
            if parameters is not None:
                tenant = parameters[0] if "{tenant}" in pattern else None
                matches[route.method] = (handle, parameters, route.access or "admin", tenant, route)
                if route.method == "GET":
                    matches["HEAD"] = matches["GET"]
        if not matches:
            raise NotFound(f"there is nothing at {unquote(raw_path)[:128]!r}; /docs says what there is")
        return matches


def _parameters(pattern: list[str], segments: list[str]) -> tuple[str, ...] | None:
    """The parameters that the segments of a path give to a pattern; None when they do not fit it."""
    if len(pattern) != len(segments):
        return None
    parameters = []
    for wanted, segment in zip(pattern, segments, strict=True):
        if wanted[:1] == "{" and segment:
            parameters.append(unquote(segment))
        elif wanted != segment:
            return None
    if "{tenant}" in pattern:
        check_tenant_name(parameters[0])
    return tuple(parameters)


def _in_turn(route: Route, handle: Handle) -> Handle:
    """The handler, asked for a large answer only when all before it went out: a client that pipelines requests for them
    and reads nothing would else have as many of them made as it may send requests.
    """
    if not route.large:
        return handle

    def answer(request: Request, *parameters: str) -> Response | Awaitable[Response]:
        return LATER if request.is_behind else handle(request, *parameters)

    return answer


def _safe(handle: Handle) -> Handle:
    """The handler, with errors that come up later turned into problems, too."""
    if not inspect.iscoroutinefunction(handle):
        return handle

    async def answer(request: Request, *parameters: str) -> Response:
        try:
            response: Response = await handle(request, *parameters)
        except EverbellError as error:
            return problem_of(error)
        return response

    return answer
