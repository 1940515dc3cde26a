"""An API behind a gate, with keys in memory, and ports that remember who was let through to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from everbell.cluster.follower import PolicyFollower
from everbell.cluster.pauses import ClusterPauses, LoneDocuments
from everbell.core.access import AccessKey, Keyring, new_key
from everbell.core.cluster import Command
from everbell.core.cluster.view import ClusterView
from everbell.core.health import Health
from everbell.core.tenant import Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy
from everbell.errors import EverbellError
from everbell.server.api import Api
from everbell.server.audit import AuditLog, Extent
from everbell.server.cluster_api import ClusterApi
from everbell.server.gate import Gate
from everbell.server.keys_api import KeysApi
from everbell.server.message import Request, Response
from everbell.stores.memory import MemoryStore
from everbell.testing.virtual import VirtualClock, run_virtual
from tests.unit.server.api_caller import TENANTS, Answered
from tests.unit.server.test_api_tenants import MemoryPolicies


class NotHere(EverbellError):
    """What a port answers that is only here to be reached."""

    status = 418


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
    """An API with a gate."""

    def __init__(
        self, engine: Engine, clock: VirtualClock, *, may_be_open: bool, audit: Extent, audit_file: Path | None
    ) -> None:
        self.entropy = SeededEntropy(3)
        self.clock = clock
        self.keys = MemoryKeys()
        self.calls: list[str] = []
        """What came through the gate."""
        alone = LoneDocuments(engine.pauses)
        self.api = Api(
            cast(Any, Watched(engine.operations, self.calls)),
            cast(Any, Watched(engine.leases, self.calls)),
            TENANTS,
            clock,
            lambda: Health("ready"),
            self._metrics,
            backup=self._back_up,
            cluster=ClusterApi(self._look, self._order),
            keys=KeysApi(cast(Any, Watched(self.keys, self.calls)), clock, self.entropy),
            policies=cast(Any, Watched(MemoryPolicies(PolicyFollower(Tenants())), self.calls)),
            pauses=cast(Any, Watched(ClusterPauses(alone.documents, alone.write, clock), self.calls)),
            gate=Gate(self.keys.ring, may_be_open=may_be_open),
            audit=AuditLog(audit, "" if audit_file is None else str(audit_file), clock),
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
        answer: Response | Awaitable[Response] = self.api(Request(method, target, named, content, "192.0.2.7"))
        return Answered(answer if isinstance(answer, Response) else await answer)

    def _metrics(self) -> str:
        self.calls.append("metrics")
        return "up 1\n"

    async def _back_up(self) -> str:
        self.calls.append("backup")
        raise NotHere("backup")

    async def _look(self) -> ClusterView:
        self.calls.append("look")
        raise NotHere("look")

    async def _order(self, command: Command) -> ClusterView:
        self.calls.append("order")
        raise NotHere("order")


def guarded(
    test: Callable[[KeysStage], Coroutine[Any, Any, None]],
    *,
    may_be_open: bool = True,
    audit: Extent = "off",
    audit_file: Path | None = None,
) -> None:
    """Run a test on a fresh stage."""

    async def main(clock: VirtualClock) -> None:
        engine = await Engine.start(MemoryStore(8), {}, TENANTS, clock, SeededEntropy(7))
        try:
            await test(KeysStage(engine, clock, may_be_open=may_be_open, audit=audit, audit_file=audit_file))
        finally:
            await engine.stop()

    run_virtual(main)
