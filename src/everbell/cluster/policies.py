"""The policies of tenants: a node reads them from the cluster value and writes them through the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from everbell.cluster.player import Player
from everbell.core.cluster import Command, DropDocument, Policy, PutDocument, Value
from everbell.core.tenant import is_tenant_name
from everbell.errors import OutcomeUnknown, VersionMismatch


class ClusterPolicies:
    """The documents of all tenants that have one.

    `write` appends a command, waits until this node has played it, and returns its index.
    """

    def __init__(self, player: Player, write: Callable[[Command], Awaitable[int]]) -> None:
        self._player = player
        self._write_command = write
        self._seen: Mapping[str, Policy] = {}
        self._documents: dict[str, Policy] = {}
        self.version = 0
        """Rises with each change of the documents, in this process."""

    def documents(self) -> Mapping[str, Policy]:
        """By tenant. The log has other documents as well, with names that no tenant can have."""
        seen = self._player.value.policies
        if seen is not self._seen:
            self._seen = seen
            documents = {name: policy for name, policy in seen.items() if is_tenant_name(name)}
            if documents != self._documents:
                self._documents = documents
                self.version += 1
        return self._documents

    async def put(self, tenant: str, document: bytes, expected: int | None) -> int:
        """Write a document, and return its version; this node applies it before the call returns.

        Raises `VersionMismatch`, `LogError`, and `OutcomeUnknown` when the log has it but this node has not played it.
        """
        index = await self._write(PutDocument(tenant, document, expected), tenant, expected)
        policy = self.documents().get(tenant)
        if policy is None or policy.version != index:
            raise _overtaken(tenant)
        return index

    async def drop(self, tenant: str, expected: int | None) -> None:
        """Delete a document. Raises the same errors as `put`."""
        await self._write(DropDocument(tenant, expected), tenant, expected)
        if tenant in self.documents():
            raise _overtaken(tenant)

    async def changed(self, version: int, timeout_s: float) -> tuple[int, Mapping[str, Policy]]:
        """The version and the documents, as soon as the version differs or the time has passed."""

        def differs(value: Value) -> bool:
            self.documents()
            return self.version != version

        await self._player.saw(differs, timeout_s)
        return self.version, self._documents

    async def _write(self, command: Command, tenant: str, expected: int | None) -> int:
        policy = self.documents().get(tenant)
        version = 0 if policy is None else policy.version
        if expected is not None and expected != version:
            raise VersionMismatch(f"the policy of {tenant!r} has version {version}, not {expected}: look again")
        index = await self._write_command(command)
        if self._player.value.index < index:
            raise OutcomeUnknown(f"whether the policy of {tenant!r} is changed is not known yet: look, or ask again")
        return index


def _overtaken(tenant: str) -> VersionMismatch:
    return VersionMismatch(f"another request changed the policy of {tenant!r} at the same time: read it again")
