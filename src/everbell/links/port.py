"""What may be asked over a link beside the engine's own ports: keys, policies, pauses, the cluster, backups, and what a
gateway has to tell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from everbell.core.access import AccessKey, Keyring
from everbell.core.cluster import Command, Policy
from everbell.core.cluster.view import ClusterView
from everbell.core.pause import Pause, Put, What
from everbell.kafka.news import KafkaNews

MakeBackup = Callable[[], Awaitable[str]]
"""Copies the store while everything goes on, and says where to."""


class KeysPort(Protocol):
    """Where keys are kept."""

    def ring(self) -> Keyring: ...

    async def put(self, key: AccessKey) -> None: ...

    async def revoke(self, key_id: str, revoked_at: int) -> AccessKey: ...

    async def drop(self, key_id: str) -> None: ...


class PoliciesPort(Protocol):
    """Where documents are kept."""

    def documents(self) -> Mapping[str, Policy]: ...

    async def put(self, tenant: str, document: bytes, expected: int | None) -> int: ...

    async def drop(self, tenant: str, expected: int | None) -> None: ...


class PausesPort(Protocol):
    """Where pauses are kept."""

    async def pauses(self) -> list[Pause]: ...

    async def put(self, pause: Pause) -> Put: ...

    async def drop(self, tenant: str, what: What, name: str) -> Pause: ...


class ChangingKeys(KeysPort, Protocol):
    """The access keys, and when they change."""

    async def changed(self, version: int, timeout_s: float) -> tuple[int, tuple[AccessKey, ...]]: ...


class ChangingPolicies(PoliciesPort, Protocol):
    """The policies of tenants, and when they change."""

    async def changed(self, version: int, timeout_s: float) -> tuple[int, Mapping[str, Policy]]: ...


class ClusterPort(Protocol):
    """What a gateway may ask of the node behind it."""

    async def look(self) -> ClusterView: ...

    async def order(self, command: Command) -> ClusterView: ...


class NewsPort(Protocol):
    """Who is told what gateways read from Kafka."""

    def hear(self, number: int, news: KafkaNews) -> None: ...
