"""A gateway's copies of the data that every request needs: access keys, and the policies of tenants.

The node at the other end of the link has the originals. A copy asks it for the next version, and adopts every one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from everbell.core.access import AccessKey, Keyring
from everbell.core.cluster import Policy
from everbell.engine.requests import (
    DropKey,
    DropTenantPolicy,
    FollowKeys,
    FollowPolicies,
    PutKey,
    PutTenantPolicy,
    RevokeKey,
)
from everbell.errors import EverbellError
from everbell.links.link_client import LinkClient

_ANY_VERSION = -1
_AGAIN_S = 0.2

T = TypeVar("T")


class _Copy(Generic[T]):
    """A value with a version. `ask` takes the known version, and answers as soon as there is a newer one."""

    def __init__(
        self, link: LinkClient, ask: Callable[[int], Awaitable[tuple[int, T]]], adopt: Callable[[T], None]
    ) -> None:
        self._link = link
        self._ask = ask
        self._adopt = adopt
        self._version = _ANY_VERSION

    async def fetch(self) -> None:
        """Adopt the current version."""
        await self._fetch(_ANY_VERSION)

    async def follow(self) -> None:
        """Adopt every new version until the link is gone."""
        while not self._link.lost.done():
            try:
                await self._fetch(self._version)
            except EverbellError:
                await asyncio.sleep(_AGAIN_S)

    async def _fetch(self, known: int) -> None:
        version, copy = await self._ask(known)
        if version > self._version:
            self._version = version
            self._adopt(copy)


class KeysCopy(_Copy[tuple[AccessKey, ...]]):
    """The access keys."""

    def __init__(self, link: LinkClient) -> None:
        super().__init__(link, lambda known: link.ask(FollowKeys(known)), self._take)
        self._ring = Keyring()

    def ring(self) -> Keyring:
        return self._ring

    async def put(self, key: AccessKey) -> None:
        await self._link.ask(PutKey(key))
        await self.fetch()

    async def revoke(self, key_id: str, revoked_at: int) -> AccessKey:
        key = await self._link.ask(RevokeKey(key_id, revoked_at))
        await self.fetch()
        return key

    async def drop(self, key_id: str) -> None:
        await self._link.ask(DropKey(key_id))
        await self.fetch()

    def _take(self, keys: tuple[AccessKey, ...]) -> None:
        self._ring = Keyring(keys)


class PoliciesCopy(_Copy[Mapping[str, Policy]]):
    """The policies: a gateway checks requests by the same ones as the engine behind it."""

    def __init__(self, link: LinkClient, on_change: Callable[[Mapping[str, Policy]], None]) -> None:
        super().__init__(link, lambda known: link.ask(FollowPolicies(known)), self._take)
        self._on_change = on_change
        self._documents: Mapping[str, Policy] = {}

    def documents(self) -> Mapping[str, Policy]:
        return self._documents

    async def put(self, tenant: str, document: bytes, expected: int | None) -> int:
        """Write a document, and return its version. Raises `VersionMismatch`, `LogError`."""
        version = await self._link.ask(PutTenantPolicy(tenant, document, expected))
        await self.fetch()
        return version

    async def drop(self, tenant: str, expected: int | None) -> None:
        """Delete a document. Raises `VersionMismatch`, `LogError`."""
        await self._link.ask(DropTenantPolicy(tenant, expected))
        await self.fetch()

    def _take(self, documents: Mapping[str, Policy]) -> None:
        self._documents = documents
        self._on_change(documents)
