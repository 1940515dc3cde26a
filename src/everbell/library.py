"""Everbell inside an asyncio program: `async with Everbell("rocksdb:./everbell-data") as bell: …`.

The same engine, the same store and the same calls as with a server: `Everbell` is an `AsyncClient` that hands its
requests to the API in this very process, so what a program learns here holds everywhere, and moving to a server
changes one line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from everbell.channels.handler import Handler, HandlerChannel
from everbell.channels.http import HttpChannel
from everbell.channels.http_client import HttpPool
from everbell.channels.port import Channel
from everbell.client.awaiting import AsyncClient
from everbell.client.call import Call, Lost, Reply
from everbell.clock import Clock, SystemClock
from everbell.core.target import group_of
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine, EngineSettings
from everbell.entropy import Entropy, SystemEntropy
from everbell.errors import EverbellError
from everbell.server.api import Api
from everbell.server.message import Request
from everbell.server.metrics import render
from everbell.server.system_api import Health
from everbell.stores.port import Store
from everbell.stores.url import open_store

AnyHandler = TypeVar("AnyHandler", bound=Handler)
T = TypeVar("T")

DEFAULT_STORE = "rocksdb:./everbell-data"


class Everbell(AsyncClient):
    """A scheduler in this process. All methods of `AsyncClient`, and handlers that are Python functions.

    `store` is a store's URL, or a store. `policies` are those of tenants that have one of their own. Clock and entropy
    are for tests.
    """

    def __init__(
        self,
        store: str | Store = DEFAULT_STORE,
        tenant: str = "default",
        *,
        policies: tuple[Tenant, ...] = (),
        settings: EngineSettings | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(tenant=tenant)
        self._store = store
        self._tenants = Tenants(named=policies)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._handlers = HandlerChannel()
        self._engine: Engine | None = None
        self._api: Api | None = None

    def on(self, name: str) -> Callable[[AnyHandler], AnyHandler]:
        """Deliver the events to `handler:name` to the function below; it gets an `Occurrence`."""
        group_of(f"handler:{name}")

        def register(handler: AnyHandler) -> AnyHandler:
            self._handlers.register(name, handler)
            return handler

        return register

    async def start(self) -> None:
        """Open the store and begin. What is due already rings at once, so register handlers before."""
        if self._engine is not None:
            raise EverbellError("this Everbell has been started")
        store = open_store(self._store) if isinstance(self._store, str) else self._store
        # The program itself chooses the targets, so there is nobody to guard it against.
        http = HttpChannel(HttpPool(guard=None), self._clock)
        channels: dict[str, Channel] = {"http": http, "https": http, "handler": self._handlers}
        self._engine = await Engine.start(store, channels, self._tenants, self._clock, self._entropy, self._settings)
        self._api = Api(
            self._engine.operations,
            self._engine.leases,
            self._tenants,
            self._clock,
            self._health,
            lambda: "" if self._engine is None else render(self._engine),
            allows_handlers=True,
        )

    async def close(self) -> None:
        """Stop without losing anything: attempts under way may end, the rest stays in the store."""
        if self._engine is not None:
            engine, self._engine, self._api = self._engine, None, None
            await engine.stop()

    async def __aenter__(self) -> Everbell:
        await self.start()
        return self

    async def _exchange(self, call: Call[T]) -> Reply | Lost:
        if self._api is None:
            raise EverbellError("this Everbell is not running: use it inside `async with Everbell(…) as bell:`")
        headers = {"content-type": call.content_type}
        if call.version is not None:
            headers["if-match"] = f'"{call.version}"'
        answer = self._api(Request(call.method, call.path, headers, call.body))
        response = await answer if isinstance(answer, Awaitable) else answer
        return Reply(response.status, {name.lower(): value for name, value in response.headers}, response.body)

    def _health(self) -> Health:
        if self._engine is None:
            return Health("stopping")
        return Health("ready") if self._engine.broken is None else Health("broken", str(self._engine.broken))
