"""Access keys and policies, which every request needs: the originals on a node, or the copies of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from everbell.core.access import AccessKey, Keyring
from everbell.core.cluster import Policy


class KeysPort(Protocol):
    """The access keys of the cluster."""

    def ring(self) -> Keyring: ...

    async def put(self, key: AccessKey) -> None: ...

    async def revoke(self, key_id: str, revoked_at: int) -> AccessKey: ...

    async def drop(self, key_id: str) -> None: ...


class PoliciesPort(Protocol):
    """The policy documents of the tenants."""

    def documents(self) -> Mapping[str, Policy]: ...

    async def put(self, tenant: str, document: bytes, expected: int | None) -> int: ...

    async def drop(self, tenant: str, expected: int | None) -> None: ...


class ChangingKeys(KeysPort, Protocol):
    """The access keys of a node, which its gateways copy."""

    async def changed(self, version: int, timeout_s: float) -> tuple[int, tuple[AccessKey, ...]]:
        """The keys and their version: as soon as it differs from `version`, or after `timeout_s`."""
        ...


class ChangingPolicies(PoliciesPort, Protocol):
    """The policies of a node, which its gateways copy."""

    async def changed(self, version: int, timeout_s: float) -> tuple[int, Mapping[str, Policy]]:
        """The policies and their version: as soon as it differs from `version`, or after `timeout_s`."""
        ...
