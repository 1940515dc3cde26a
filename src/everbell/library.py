"""Everbell inside an asyncio program: `async with Everbell("rocksdb:./everbell-data") as bell: …`.

The same engine, the same store and the same calls as with a server: `Everbell` is an `AsyncClient` that passes its
requests to the API in this process. A program behaves here as it does with a server, and moving to a server changes
one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from os import getpid
from socket import gethostname
from typing import TYPE_CHECKING, Any, Self, TypeVar

from everbell.api.application import Api
from everbell.api.cluster import ClusterApi
from everbell.channels.handler import HandlerChannel, HandlerFunction
from everbell.channels.http import HttpChannel
from everbell.channels.port import Channel
from everbell.client.awaiting import AsyncClient
from everbell.client.call import Call, Lost, Reply
from everbell.client.task import Task, TaskOptions, TaskScope
from everbell.client.task_maker import TaskMaker
from everbell.clock import Clock, SystemClock
from everbell.cluster.cluster import Cluster, Meeting
from everbell.cluster.follower import OrderFollower
from everbell.cluster.kills import ClusterKills
from everbell.cluster.pauses import ClusterPauses, LoneDocuments
from everbell.cluster.policies import ClusterPolicies
from everbell.cluster.settings import ClusterSettings
from everbell.core.health import Health
from everbell.core.request import Ask, Handlers
from everbell.core.target import group_of
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.engine.settings import EngineSettings
from everbell.entropy import Entropy, SystemEntropy
from everbell.errors import EverbellError, InvalidInput
from everbell.http.client import HttpPool
from everbell.http.message import HttpRequest
from everbell.logs.url import open_log
from everbell.node.metrics import render
from everbell.node.settings import ONE_PROCESS
from everbell.stores.port import Store
from everbell.stores.url import open_store

if TYPE_CHECKING:
    from everbell.tracing import Tracing

AnyHandler = TypeVar("AnyHandler", bound=HandlerFunction)
T = TypeVar("T")

DEFAULT_STORE = "rocksdb:./everbell-data"


class Everbell(AsyncClient, TaskMaker):
    """A scheduler in this process. All methods of `AsyncClient`, and handlers that are Python functions.

    `store` is the URL of a store. Programs with the same shared store (`postgresql://…`) are nodes of one cluster, and
    each needs a different `node`, by default made from the host and the process. `policies` are the policies of
    tenants. `tracing` makes OpenTelemetry spans: it is the URL of a collector for OTLP over HTTP, or an
    `everbell.tracing.Tracing` with your own processor, which you close. Tests pass an open store, a clock and entropy.
    """

    def __init__(
        self,
        store: str | Store = DEFAULT_STORE,
        tenant: str = "default",
        *,
        node: str | None = None,
        policies: tuple[Tenant, ...] = (),
        settings: EngineSettings | None = None,
        tracing: str | Tracing | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        AsyncClient.__init__(self, tenant=tenant)
        TaskMaker.__init__(self)
        self._store = store
        self._node = node or f"{gethostname()}-{getpid()}"
        self._tenants = Tenants(named=policies)
        self._settings = settings
        self._traces_to = tracing
        self._tracing: Tracing | None = None
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._scope = TaskScope(lambda: self, self._clock, self.hooks)
        self._handlers = HandlerChannel()
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: Cluster | None = None
        self._halted: BaseException | None = None
        self._api: Api | None = None
        self._abandoning: asyncio.Task[None] | None = None

    def on(self, name: str) -> Callable[[AnyHandler], AnyHandler]:
        """Deliver the events for `handler:name` to the decorated function, which gets an `Occurrence`."""
        group_of(f"handler:{name}")

        def register(handler: AnyHandler) -> AnyHandler:
            self._register(name, self.hooks.wrapped(handler) if self.hooks else handler)
            return handler

        return register

    def _make_task(
        self, function: Callable[..., object], name: str, queue: str | None, options: TaskOptions
    ) -> Task[Any]:
        if queue is not None:
            raise InvalidInput("tasks of the library run in this process, and have no queue", "queue")
        group_of(f"handler:{name}")
        task: Task[Any] = Task(function, name, f"handler:{name}", options, self._scope)
        self._register(name, task.handler)
        return task

    def _register(self, name: str, handler: HandlerFunction) -> None:
        self._handlers.register(name, handler)
        if self._engine is not None and self._loop is not None:
            # A decorator may run in a thread, such as in a module that is imported late.
            self._loop.call_soon_threadsafe(self._engine.pauses.look_for_handlers)

    async def start(self) -> None:
        """Open the store and start. Due events ring immediately; those for a handler wait until it is registered."""
        if self._engine is not None:
            raise EverbellError("this Everbell has been started")
        self._halted = None
        self._loop = asyncio.get_running_loop()
        store = (
            open_store(self._store, relaxed=self._tenants.is_relaxed, level=self._tenants.level)
            if isinstance(self._store, str)
            else self._store
        )
        is_node = isinstance(self._store, str)
        wanted = self._traces_to
        self._tracing = _open_tracing(wanted, self._node) if isinstance(wanted, str) else wanted
        self._engine = engine = await Engine.start(
            store,
            {**self._ways_out(), "handler": self._handlers},
            self._tenants,
            self._clock,
            self._entropy,
            self._settings,
            self._broke,
            epochs={} if is_node else None,
            tracing=self._tracing,
        )
        if isinstance(self._store, str):
            self._cluster = await self._join(engine, self._store)
        ask = self._alone(engine) if self._cluster is None else self._cluster.ask
        self._api = Api(
            ask,
            self._tenants,
            self._clock,
            self._health,
            lambda: "" if self._engine is None else render(self._engine, self._cluster),
            cluster=None if self._cluster is None else ClusterApi(self._cluster.ask),
            policies=None if self._cluster is None else ClusterPolicies(self._cluster.node.player, self._cluster.write),
            pauses=True,
            allows_handlers=True,
        )

    async def close(self) -> None:
        """Stop without losing anything: attempts in flight may end, all other events stay in the store.

        `start` may be called again. The handlers stay registered.
        """
        engine, cluster = self._engine, self._cluster
        self._engine = self._cluster = self._api = None
        if cluster is not None:
            await cluster.stop((self._settings or EngineSettings()).drain_s)
        elif engine is not None:
            await engine.stop()
        if self._tracing is not None and isinstance(self._traces_to, str):
            await asyncio.to_thread(self._tracing.close)

    def _alone(self, engine: Engine) -> Ask:
        """The requests of an engine that is not in a cluster. It keeps its own pauses and kills."""
        alone = LoneDocuments(OrderFollower(engine.pauses.follow, engine.kills.follow).follow)
        pauses = ClusterPauses(alone.documents, alone.write, self._clock)
        kills = ClusterKills(alone.documents, alone.write)
        return Handlers(*pauses.handlers(), *kills.handlers(), otherwise=engine.ask).ask

    def _ways_out(self) -> dict[str, Channel]:
        """The channels by scheme, except the channel of handlers."""
        # The program itself chooses the targets, so they need no guard.
        http = HttpChannel(HttpPool(guard=None), self._clock)
        return {"http": http, "https": http}

    async def _join(self, engine: Engine, url: str) -> Cluster:
        alone = url.partition(":")[0] in ONE_PROCESS
        return await Cluster.start(
            await open_log(url),
            engine,
            self._clock,
            self._entropy,
            ClusterSettings(name="everbell" if alone else self._node),
            self._halt,
            meeting=None if alone else Meeting(),
        )

    def _broke(self, reason: BaseException) -> None:
        """Stop renewing the lease: the engine has ended, and other nodes can take its partitions only afterwards."""
        if self._cluster is not None:
            self._abandoning = asyncio.get_running_loop().create_task(self._cluster.node.abandon())

    def _halt(self, reason: BaseException) -> None:
        self._halted = reason

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def _exchange(self, call: Call[T]) -> Reply | Lost:
        if self._api is None:
            raise EverbellError("this Everbell is not running: use it inside `async with Everbell(…) as bell:`")
        headers = call.headers
        if self._tracing is not None and (trace := self._tracing.current()) is not None:
            headers["traceparent"] = trace
        answer = self._api(HttpRequest(call.method, call.path, headers, call.body))
        response = await answer if isinstance(answer, Awaitable) else answer
        return Reply(response.status, {name.lower(): value for name, value in response.headers}, response.body)

    def _health(self) -> Health:
        if self._engine is None:
            return Health("stopping")
        broken = self._engine.broken or self._halted or self._engine.stalls.look()
        return Health("ready") if broken is None else Health("broken", str(broken))


def _open_tracing(url: str, node: str) -> Tracing:
    try:
        from everbell.tracing import open_tracing
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        raise EverbellError("tracing needs OpenTelemetry: pip install 'everbell[otel]'") from missing
    return open_tracing(url, node)
