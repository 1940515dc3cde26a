"""The policies of tenants at the other end of a link, and a copy of them here that is told of every change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from everbell.cluster.follower import PolicyFollower
from everbell.core.cluster import Policy
from everbell.core.tenant import Tenants
from everbell.errors import EverbellError
from everbell.links.link import GatewayEnd

_ANY_VERSION = -1
_AGAIN_S = 0.2


class FarPolicies:
    """A gateway checks what comes in by the same policies as the engine behind it."""

    def __init__(self, link: GatewayEnd, tenants: Tenants) -> None:
        self._link = link
        self._follower = PolicyFollower(tenants)
        self._documents: Mapping[str, Policy] = {}
        self._version = _ANY_VERSION

    def documents(self) -> Mapping[str, Policy]:
        """By tenant."""
        return self._documents

    async def put(self, tenant: str, document: bytes, expected: int | None) -> int:
        """Write a document, and return its version. Raises `VersionMismatch`, `LogError`."""
        version: int = await self._link.call("put_policy", tenant, document, expected)
        await self.fetch(_ANY_VERSION)
        return version

    async def drop(self, tenant: str, expected: int | None) -> None:
        """Delete a document. Raises `VersionMismatch`, `LogError`."""
        await self._link.call("drop_policy", tenant, expected)
        await self.fetch(_ANY_VERSION)

    async def follow(self) -> None:
        """Learn of changes until the link is gone."""
        while not self._link.lost.done():
            try:
                await self.fetch(self._version)
            except EverbellError:
                await asyncio.sleep(_AGAIN_S)

    async def fetch(self, known: int = _ANY_VERSION) -> None:
        """Wait until the version is another than the one that is known, and take the documents over."""
        version, documents = await self._link.call("policies", known)
        if version > self._version:
            self._version = version
            self._documents = documents
            self._follower.follow(documents)
