"""Calls an API the way a connection does, over a real engine on the memory store and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from everbell.api.application import Api
from everbell.channels.port import Channel
from everbell.core.health import Health
from everbell.core.request import Ask
from everbell.core.tenant import Limits, Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy
from everbell.http.message import HttpRequest, HttpResponse
from everbell.stores.memory.store import MemoryStore
from everbell.testing.virtual import VirtualClock, run_virtual

EVENTS = "/v1/tenants/shop/events"
SOON = {"in": "1h", "to": "queue:work"}

TENANTS = Tenants(
    Tenant(limits=Limits(payload_bytes=1_000, batch_events=5, header_bytes=200)),
    (
        Tenant("tasks", identity="key+at+id"),
        Tenant("private", to="queue:private", payloads="hidden"),
        Tenant("homely", to="queue:home"),
        Tenant("near", to="queue:near", limits=Limits(horizon_ms=60_000)),
    ),
)


class Answered:
    """A response, decoded."""

    def __init__(self, response: HttpResponse) -> None:
        self.status = response.status
        self.body = response.body
        self.content_type = response.content_type
        self.headers = dict(response.headers)

    @property
    def json(self) -> Any:
        assert self.content_type in ("application/json", "application/problem+json"), self.content_type
        return msgspec.json.decode(self.body)


class Caller:
    """An API, and the engine behind it."""

    def __init__(
        self,
        engine: Engine,
        clock: VirtualClock,
        ask: Ask | None = None,
        *,
        allows_handlers: bool = False,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.health = Health("ready")
        self.api = Api(
            ask or engine.ask,
            TENANTS,
            clock,
            lambda: self.health,
            lambda: "up 1\n",
            allows_handlers=allows_handlers,
        )

    async def call(self, method: str, target: str, body: Any = b"", **headers: str) -> Answered:
        """Send a request and wait for the answer. A body that is not bytes is sent as JSON."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.send(HttpRequest(method, target, named, content))

    async def send(self, request: HttpRequest) -> Answered:
        answer = self.api(request)
        return Answered(answer if isinstance(answer, HttpResponse) else await answer)

    async def schedule(self, tenant: str = "shop", **fields: Any) -> str:
        """Schedule an event that is to be accepted, and return its id."""
        answer = await self.call("POST", f"/v1/tenants/{tenant}/events", {**SOON, **fields})
        assert answer.status == 201, answer.body
        event_id: str = answer.json["id"]
        return event_id


def called(test: Callable[[Caller], Coroutine[Any, Any, None]], channels: dict[str, Channel] | None = None) -> None:
    """Run a test with a caller, from a fresh engine to its end."""

    async def main(clock: VirtualClock) -> None:
        engine = await Engine.start(MemoryStore(8), channels or {}, TENANTS, clock, SeededEntropy(7))
        try:
            await test(Caller(engine, clock))
            await asyncio.sleep(0)
        finally:
            await engine.stop()

    run_virtual(main)
