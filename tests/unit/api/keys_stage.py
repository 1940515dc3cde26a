"""An API with an authorizer, keys in memory, and ports that record the calls that reach them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from everbell.api.access_keys import KeysApi
from everbell.api.application import Api
from everbell.api.audit import AuditLog, Extent
from everbell.api.authorizer import Authorizer
from everbell.api.cluster import ClusterApi
from everbell.api.facade import FacadeSetting
from everbell.api.page import PageApi
from everbell.cluster.follower import OrderFollower, PolicyFollower
from everbell.cluster.kills import ClusterKills
from everbell.cluster.pauses import ClusterPauses, LoneDocuments
from everbell.core import request as engine_request
from everbell.core.access import AccessKey, Keyring, new_key
from everbell.core.cluster.view import ClusterView
from everbell.core.health import Health
from everbell.core.request import Handlers
from everbell.core.tenant import Tenants
from everbell.engine.engine import Engine
from everbell.engine.requests import LookAtCluster, MakeBackup, OrderCluster
from everbell.entropy import SeededEntropy
from everbell.errors import EverbellError
from everbell.http.message import HttpRequest, HttpResponse
from everbell.stores.memory.store import MemoryStore
from everbell.testing.virtual import VirtualClock, run_virtual
from tests.unit.api.api_caller import TENANTS, Answered
from tests.unit.api.test_tenants import MemoryPolicies


class NotHere(EverbellError):
    """The answers of a port that the tests only reach."""

    status = 418


A = TypeVar("A")


class MemoryKeys:
    """Keys that are kept here. Writing takes a turn of the loop, as if there were a log."""

    def __init__(self) -> None:
        self._ring = Keyring()
        self._turn = asyncio.Lock()

    def ring(self) -> Keyring:
        return self._ring

    async def put(self, key: AccessKey) -> None:
        await asyncio.sleep(0)
        self._ring = Keyring([*(other for other in self._ring.keys if other.id != key.id), key])

    async def revoke(self, key_id: str, revoked_at: int) -> AccessKey:
        async with self._turn:
            key = self._ring.revocable(key_id)
            if key.revoked_at is None:
                key = msgspec.structs.replace(key, revoked_at=revoked_at)
                await self.put(key)
            return key

    async def drop(self, key_id: str) -> None:
        await asyncio.sleep(0)
        self._ring = Keyring([key for key in self._ring.keys if key.id != key_id])


class Watched:
    """A port that counts its calls."""

    def __init__(self, port: object, calls: list[str]) -> None:
        self._port = port
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._calls.append(name)
            return method(*arguments, **named)

        return call


class KeysStage:
    """An API with an authorizer."""

    def __init__(
        self,
        engine: Engine,
        clock: VirtualClock,
        *,
        may_be_open: bool,
        audit: Extent,
        audit_file: Path | None,
        facades: Sequence[FacadeSetting],
    ) -> None:
        self.entropy = SeededEntropy(3)
        self.clock = clock
        self.keys = MemoryKeys()
        self.calls: list[str] = []
        """The calls that reached a port."""
        alone = LoneDocuments(OrderFollower(engine.pauses.follow, engine.kills.follow).follow)
        self._handlers = Handlers(
            MakeBackup.by(self._back_up),
            LookAtCluster.by(self._look),
            OrderCluster.by(self._order),
            *ClusterPauses(alone.documents, alone.write, clock).handlers(),
            *ClusterKills(alone.documents, alone.write).handlers(),
            otherwise=engine.ask,
        )
        log = AuditLog(audit, "" if audit_file is None else str(audit_file), clock)
        self.api = Api(
            self._ask,
            TENANTS,
            clock,
            lambda: Health("ready"),
            self._metrics,
            backups=True,
            cluster=ClusterApi(self._ask),
            keys=KeysApi(cast(Any, Watched(self.keys, self.calls)), clock, self.entropy),
            policies=cast(Any, Watched(MemoryPolicies(PolicyFollower(Tenants())), self.calls)),
            pauses=True,
            authorizer=Authorizer(self.keys.ring, may_be_open=may_be_open),
            page=PageApi(log),
            audit=log,
            facades=facades,
        )

    async def key(self, tenant: str = "shop", scopes: Iterable[str] = ("read",), *, revoked: bool = False) -> str:
        """Make a key, and return its text."""
        key, text = new_key(self.entropy.nonces(4), tenant, scopes, self.clock.now())
        await self.keys.put(msgspec.structs.replace(key, revoked_at=1) if revoked else key)
        return text

    async def call(self, method: str, target: str, body: Any = b"", key: str | None = None, **headers: str) -> Answered:
        """Send a request with a key."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            named["authorization"] = f"Bearer {key}"
        answer: HttpResponse | Awaitable[HttpResponse] = self.api(
            HttpRequest(method, target, named, content, "192.0.2.7")
        )
        return Answered(answer if isinstance(answer, HttpResponse) else await answer)

    def _ask(self, request: engine_request.Request[A], /) -> Awaitable[A]:
        self.calls.append(request.tag)
        return self._handlers.ask(request)

    def _metrics(self) -> str:
        self.calls.append("metrics")
        return "up 1\n"

    async def _back_up(self, request: MakeBackup) -> str:
        raise NotHere("backup")

    async def _look(self, request: LookAtCluster) -> ClusterView:
        raise NotHere("look")

    async def _order(self, request: OrderCluster) -> ClusterView:
        raise NotHere("order")


def guarded(
    test: Callable[[KeysStage], Coroutine[Any, Any, None]],
    *,
    may_be_open: bool = True,
    audit: Extent = "off",
    audit_file: Path | None = None,
    facades: Sequence[FacadeSetting] = (),
) -> None:
    """Run a test on a fresh stage."""

    async def main(clock: VirtualClock) -> None:
        engine = await Engine.start(MemoryStore(8), {}, TENANTS, clock, SeededEntropy(7))
        try:
            stage = KeysStage(
                engine, clock, may_be_open=may_be_open, audit=audit, audit_file=audit_file, facades=facades
            )
            await test(stage)
        finally:
            await engine.stop()

    run_virtual(main)
