"""The HTTP API: finds the route of a request, calls its handler, and turns errors into problems.

A path is split before it is decoded, so that an id may contain a slash. Two patterns may match one path
(`events/batch` and `events/{id}`). Then each handles its own methods, so an event may have the id "batch".
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from everbell.api.access_keys import KeysApi
from everbell.api.audit import AuditLog
from everbell.api.authorizer import NOBODY, STRANGER, Authorizer
from everbell.api.batches import BatchApi
from everbell.api.cluster import ClusterApi
from everbell.api.dead import DeadApi
from everbell.api.events import EventsApi
from everbell.api.facade import FacadePorts, FacadeSetting
from everbell.api.facade_list import FACADES, make_facades
from everbell.api.forecast import ForecastApi
from everbell.api.history import HistoryApi
from everbell.api.keys import LinesApi
from everbell.api.kills import KillsApi
from everbell.api.openapi import openapi
from everbell.api.page import PageApi
from everbell.api.pauses import PausesApi
from everbell.api.queues import QueuesApi
from everbell.api.recurrence import RecurrenceApi
from everbell.api.route import Access, Handle, Resource, Route
from everbell.api.search import SearchApi
from everbell.api.shared_answers import SharedAnswers
from everbell.api.system import SystemApi
from everbell.api.targets import TargetsApi
from everbell.api.tenants import TenantsApi
from everbell.clock import Clock
from everbell.core.health import Health
from everbell.core.kafka_targets import NO_KAFKA, KafkaTargets
from everbell.core.request import Ask
from everbell.core.tenant import Tenants, check_tenant_name
from everbell.edge.drafting import Edge
from everbell.entropy import Entropy, SystemEntropy
from everbell.errors import EverbellError, Forbidden, NotFound, Unauthorized
from everbell.http.address_guard import Guard
from everbell.http.message import LATER, HttpRequest, HttpResponse
from everbell.http.problem import WrongMethod, problem_of
from everbell.links.port import PoliciesPort

RESOURCES: tuple[type[Resource], ...] = (
    EventsApi,
    RecurrenceApi,
    BatchApi,
    SearchApi,
    DeadApi,
    LinesApi,
    ForecastApi,
    HistoryApi,
    QueuesApi,
    TargetsApi,
    ClusterApi,
    KeysApi,
    TenantsApi,
    PausesApi,
    KillsApi,
    PageApi,
    SystemApi,
)
ROUTES = tuple(route for resource in RESOURCES for route in resource.declared)
"""Every route of a server that has everything but facades, without instances."""

TAGS = {resource.tag: resource.__doc__ or "" for resource in (*RESOURCES, *FACADES.values())}

_PATHS_KEPT = 1_024

LARGE_AT_ONCE = 4
"""How many large responses are made at the same time: each takes some megabytes until it is in its connection."""

_Match = tuple[Handle, tuple[str, ...], Access, str | None, Route]
"""The handler, the parameters in the path, the access required, the tenant in the path, and the route."""

_Matches = dict[str, _Match]
"""By method."""


class Api:
    """The handler of an HTTP server. `allows_handlers` says that the process of the engine has handlers; `kafka` says
    which topics can be targets, and `brokers` has the brokers of each Kafka cluster.

    Without an `authorizer`, every request is allowed. Without `cluster`, `keys`, `policies` or `page`, their routes do
    not exist. `backups` and `pauses` say whether `ask` answers requests about them. Where two `facades` have the same
    path, the first one answers. `scheme` is that of the server's own address.
    """

    def __init__(
        self,
        ask: Ask,
        tenants: Tenants,
        clock: Clock,
        health: Callable[[], Health],
        metrics: Callable[[], str],
        *,
        backups: bool = False,
        cluster: ClusterApi | None = None,
        keys: KeysApi | None = None,
        policies: PoliciesPort | None = None,
        pauses: bool = False,
        page: PageApi | None = None,
        authorizer: Authorizer | None = None,
        audit: AuditLog | None = None,
        allows_handlers: bool = False,
        kafka: KafkaTargets = NO_KAFKA,
        brokers: Mapping[str, str] = MappingProxyType({}),
        guard: Guard | None = None,
        facades: Sequence[FacadeSetting] = (),
        entropy: Entropy | None = None,
        scheme: str = "http",
    ) -> None:
        authorizer = self._authorizer = authorizer or Authorizer()

        def may_read(request: HttpRequest, tenant: str) -> bool:
            return not authorizer.shuts_out(request, "read", tenant)

        edge = Edge(tenants, clock, allows_handlers=allows_handlers, kafka=kafka, guard=guard)
        ports = FacadePorts(ask, edge, tenants, policies, entropy or SystemEntropy(), brokers, may_read)
        resources: tuple[Resource | None, ...] = (
            EventsApi(ask, edge, may_read),
            RecurrenceApi(ask, edge),
            BatchApi(ask, edge),
            SearchApi(ask, edge),
            DeadApi(ask, edge),
            LinesApi(ask, edge, may_read),
            ForecastApi(ask, clock),
            HistoryApi(ask),
            QueuesApi(ask),
            TargetsApi(ask),
            cluster,
            keys,
            None if policies is None else TenantsApi(policies, tenants, ask, pauses=pauses),
            PausesApi(ask, clock) if pauses else None,
            KillsApi(ask, clock) if pauses else None,
            page,
            SystemApi(health, metrics, lambda: self.document, ask if backups else None, page, scheme),
            *make_facades(facades, ports),
        )
        routes: dict[tuple[str, str], Route] = {}
        for resource in resources:
            for route in () if resource is None else resource.routes:
                routes.setdefault((route.method, route.path), route)
        self.routes = tuple(routes.values())
        self.unauthorized = 0
        """The number of requests without a valid access key."""
        self._audit = audit or AuditLog("off", "", clock)
        shared = SharedAnswers(clock)
        pages = asyncio.Semaphore(LARGE_AT_ONCE)
        self._patterns = [
            (route.path.split("/"), route, _in_turn(route, self._audit.watching(route, _safe(route, shared)), pages))
            for route in self.routes
        ]
        # Clients use the same few paths again and again. The cache is bounded because a client may make up others.
        self._match: Callable[[str], _Matches] = lru_cache(maxsize=_PATHS_KEPT)(self._find_match)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        """The response to a request, or a future of it."""
        try:
            handle, parameters, access, tenant, _ = self._admitted(request)
            if access == "work":
                request.is_void = partial(self._authorizer.shuts_out, request, access, tenant)
            return handle(request, *parameters)
        except EverbellError as error:
            return problem_of(error)

    def screen(self, request: HttpRequest) -> HttpResponse | str:
        """Judge a request before its body has come: the answer to a refused one, else the id of its access key."""
        try:
            self._admitted(request)
        except EverbellError as error:
            return problem_of(error)
        return "" if request.who == NOBODY else request.who

    def _admitted(self, request: HttpRequest) -> _Match:
        """Find the handler of a request that is allowed."""
        matches = self._match(request.raw_path)
        match = matches.get(request.method)
        if match is None:
            raise WrongMethod(request.method, ", ".join(sorted(matches)))
        _, parameters, access, tenant, route = match
        try:
            request.who = self._authorizer.admit(request, access, tenant)
        except (Forbidden, Unauthorized) as refused:
            self._note_refusal(refused, route, request, parameters)
            raise
        return match

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI description of the routes."""
        return openapi(self.routes, TAGS)

    def _note_refusal(
        self, refused: Forbidden | Unauthorized, route: Route, request: HttpRequest, parameters: tuple[str, ...]
    ) -> None:
        request.who = refused.who if isinstance(refused, Forbidden) else STRANGER
        self.unauthorized += refused.status == 401
        if self._audit.covers(route):
            self._audit.note(route, request, parameters, refused.status)

    def _find_match(self, raw_path: str) -> _Matches:
        segments = raw_path.split("/")
        matches: _Matches = {}
        for pattern, route, handle in self._patterns:
            parameters = _parameters(pattern, segments)
            if parameters is not None:
                tenant = parameters[0] if "{tenant}" in pattern else route.tenant
                matches[route.method] = (handle, parameters, route.access, tenant, route)
                if route.method == "GET":
                    matches["HEAD"] = matches["GET"]
        if not matches:
            raise NotFound(f"there is nothing at {unquote(raw_path)[:128]!r}; /docs lists all paths")
        return matches


def _parameters(pattern: list[str], segments: list[str]) -> tuple[str, ...] | None:
    """The values of a pattern's parameters in a path; None when the path does not match the pattern."""
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


def _in_turn(route: Route, handle: Handle, pages: asyncio.Semaphore) -> Handle:
    """The handler, called for a large response only when all earlier responses were sent, and for a few at a time.

    Otherwise a client that pipelines requests and reads nothing, or many clients that ask at the same moment, would
    make the server build many large responses.
    """
    if not route.large:
        return handle

    def answer(request: HttpRequest, *parameters: str) -> HttpResponse | Awaitable[HttpResponse]:
        return LATER if request.is_behind else one_of_few(request, *parameters)

    async def one_of_few(request: HttpRequest, *parameters: str) -> HttpResponse:
        async with pages:
            made = handle(request, *parameters)
            return made if isinstance(made, HttpResponse) else await made

    return answer


def _safe(route: Route, shared: SharedAnswers) -> Handle:
    """The handler, with errors raised in its coroutine turned into answers, too. Viewers share some answers."""
    handle, refuse = route.handle, route.refuse
    if not inspect.iscoroutinefunction(handle):
        return handle

    async def answer(request: HttpRequest, *parameters: str) -> HttpResponse:
        try:
            response: HttpResponse = await handle(request, *parameters)
        except EverbellError as error:
            return refuse(error)
        return response

    return shared.sharing(answer) if route.shared else answer
