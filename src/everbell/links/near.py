"""The engine's end of a link: what a gateway asks for by name, carried out on the engine's own ports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from everbell.core.health import Health
from everbell.core.spec import Draft
from everbell.engine.port import LeasesPort, OperationsPort, Seen
from everbell.links.link import CALLS, PackedChange, PackedLine, PackedSeen, Scheduled, pack_error
from everbell.links.port import ChangingKeys, ChangingPolicies, ClusterPort, MakeBackup, NewsPort, PausesPort

CHANGE_WAIT_S = 10.0
"""How long a gateway waits for keys or policies to change before it asks again."""


class Near:
    """Serves links."""

    def __init__(
        self,
        operations: OperationsPort,
        leases: LeasesPort,
        backup: MakeBackup,
        metrics: Callable[[], str],
        health: Callable[[], Health],
        cluster: ClusterPort | None = None,
        keys: ChangingKeys | None = None,
        policies: ChangingPolicies | None = None,
        pauses: PausesPort | None = None,
        stopping: Callable[[], Awaitable[object]] | None = None,
        news: NewsPort | None = None,
    ) -> None:
        """`stopping` returns when the node begins to stop."""
        self._operations = operations
        self._leases = leases
        self._backup = backup
        self._metrics = metrics
        self._health = health
        self._cluster = cluster
        self._keys = keys
        self._policies = policies
        self._pauses = pauses
        self._stopping = stopping
        self._news = news

    async def serve(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Carry out one of `CALLS`."""
        assert method in CALLS, "gateway and engine are of one version"
        match method:
            case "schedule":
                return await self._schedule(*arguments)
            case "find":
                found, cursor = await self._operations.find(*arguments)
                return [PackedSeen.pack(seen) for seen in found], cursor
            case "change":
                return await self._change(*arguments)
            case "line":
                return PackedLine.pack(await self._operations.line(*arguments))
            case "backup" | "metrics" | "health" | "until_stopping" | "kafka_news":
                return await self._about_node(method, *arguments)
            case "look" | "order":
                assert self._cluster is not None, "only gateways ask, and they have a node behind them"
                return await getattr(self._cluster, method)(*arguments)
            case "keys" | "put_key" | "revoke_key" | "drop_key":
                return await self._about_keys(method, *arguments)
            case "policies" | "put_policy" | "drop_policy":
                return await self._about_policies(method, *arguments)
            case "pauses" | "put_pause" | "drop_pause":
                assert self._pauses is not None, "only gateways ask, and they have a node behind them"
                return await getattr(self._pauses, method.removesuffix("_pause"))(*arguments)
            case "lease" | "acknowledge" | "fail" | "give_back" | "extend":
                return await getattr(self._leases, method)(*arguments)
            case _:
                result = await getattr(self._operations, method)(*arguments)
                return PackedSeen.pack(result) if isinstance(result, Seen) else result

    async def _about_node(self, method: str, *arguments: Any) -> Any:
        match method:
            case "backup":
                return await self._backup()
            case "metrics" | "health":
                return self._metrics() if method == "metrics" else self._health()
            case "until_stopping":
                assert self._stopping is not None, "only gateways ask, and they have a node behind them"
                await self._stopping()
            case _:
                assert self._news is not None, "only gateways that read Kafka tell any"
                self._news.hear(*arguments)
        return None

    async def _about_keys(self, method: str, *arguments: Any) -> Any:
        assert self._keys is not None, "only gateways ask, and they have a node behind them"
        if method == "keys":
            return await self._keys.changed(arguments[0], CHANGE_WAIT_S)
        return await getattr(self._keys, method.removesuffix("_key"))(*arguments)

    async def _about_policies(self, method: str, *arguments: Any) -> Any:
        assert self._policies is not None, "only gateways ask, and they have a node behind them"
        match method:
            case "put_policy":
                return await self._policies.put(*arguments)
            case "drop_policy":
                return await self._policies.drop(*arguments)
            case _:
                return await self._policies.changed(arguments[0], CHANGE_WAIT_S)

    async def _change(self, tenant: str, event_id: str, change: PackedChange, version: int | None) -> PackedSeen:
        return PackedSeen.pack(await self._operations.change(tenant, event_id, change.unpack(), version))

    async def _schedule(self, tenant: str, drafts: Sequence[Draft]) -> Scheduled:
        scheduled = Scheduled([], {}, {})
        for index, result in enumerate(await self._operations.schedule_ids(tenant, drafts)):
            if isinstance(result, str):
                scheduled.ids.append(result)
                continue
            scheduled.ids.append(None)
            if isinstance(result, Seen):
                scheduled.seen[index] = PackedSeen.pack(result)
            else:
                scheduled.errors[index] = pack_error(result)
        return scheduled
