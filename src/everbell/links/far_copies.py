"""What a gateway has a copy of, because it needs it for every request: access keys, and the policies of tenants.

The originals are at the other end of the link, and the copies are told of every change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everbell.core.access import AccessKey, Keyring
from everbell.core.cluster import Policy
from everbell.errors import EverbellError
from everbell.links.link import GatewayEnd

_ANY_VERSION = -1
_AGAIN_S = 0.2


class _FarCopy:
    """What a method of the other end answers with a version, as soon as it has another than the one that is known;
    `adopt` takes it over."""

    def __init__(self, link: GatewayEnd, method: str, adopt: Callable[[Any], None]) -> None:
        self._link = link
        self._method = method
        self._adopt = adopt
        self._version = _ANY_VERSION

    async def fetch(self) -> None:
        """Take over what there is now."""
        await self._fetch(_ANY_VERSION)

    async def follow(self) -> None:
        """Learn of changes until the link is gone."""
        while not self._link.lost.done():
            try:
                await self._fetch(self._version)
            except EverbellError:
                await asyncio.sleep(_AGAIN_S)

    async def _fetch(self, known: int) -> None:
        version, copy = await self._link.call(self._method, known)
        if version > self._version:
            self._version = version
            self._adopt(copy)


class FarKeys(_FarCopy):
    """The access keys."""

    def __init__(self, link: GatewayEnd) -> None:
        super().__init__(link, "keys", self._take)
        self._ring = Keyring()

    def ring(self) -> Keyring:
        return self._ring

    async def put(self, key: AccessKey) -> None:
        await self._link.call("put_key", key)
        await self.fetch()

    async def revoke(self, key_id: str, revoked_at: int) -> AccessKey:
        key: AccessKey = await self._link.call("revoke_key", key_id, revoked_at)
        await self.fetch()
        return key

    async def drop(self, key_id: str) -> None:
        await self._link.call("drop_key", key_id)
        await self.fetch()

    def _take(self, keys: Sequence[AccessKey]) -> None:
        self._ring = Keyring(keys)


class FarPolicies(_FarCopy):
    """The policies: a gateway checks what comes in by the same ones as the engine behind it."""

    def __init__(self, link: GatewayEnd, on_change: Callable[[Mapping[str, Policy]], None]) -> None:
        super().__init__(link, "policies", self._take)
        self._on_change = on_change
        self._documents: Mapping[str, Policy] = {}

    def documents(self) -> Mapping[str, Policy]:
        """By tenant."""
        return self._documents

    async def put(self, tenant: str, document: bytes, expected: int | None) -> int:
        """Write a document, and return its version. Raises `VersionMismatch`, `LogError`."""
        version: int = await self._link.call("put_policy", tenant, document, expected)
        await self.fetch()
        return version

    async def drop(self, tenant: str, expected: int | None) -> None:
        """Delete a document. Raises `VersionMismatch`, `LogError`."""
        await self._link.call("drop_policy", tenant, expected)
        await self.fetch()

    def _take(self, documents: Mapping[str, Policy]) -> None:
        self._documents = documents
        self._on_change(documents)
