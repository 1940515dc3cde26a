"""The access keys of a cluster: a node reads them from the cluster value and writes them through the log.

A node revokes an operator's key with two log entries, so that two nodes cannot revoke the last two keys at once. The
first entry writes the key of another operator, which must stay, again without changes, which gives it a new version.
The second entry revokes. Each entry takes effect only if its key still has the version that the node saw before both.
So a node that is about to revoke the key that must stay has to read again; and a node that has already revoked it makes
the second entry fail, or has found another key that stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from everbell.cluster.player import Player
from everbell.core.access import DOCUMENTS, AccessKey, Keyring, encode_key, keys_in
from everbell.core.cluster import Command, DropDocument, Policy, PutDocument, Value
from everbell.errors import Conflict, OutcomeUnknown


class ClusterKeys:
    """All access keys. `write` appends a command, waits until this node has played it, and returns its index."""

    def __init__(self, player: Player, write: Callable[[Command], Awaitable[int]]) -> None:
        self._player = player
        self._write = write
        self._turn = asyncio.Lock()
        self._documents: Mapping[str, Policy] = {}
        self._ring = Keyring()
        self.version = 0
        """Rises with each change of the keys, in this process."""

    def ring(self) -> Keyring:
        """All keys as of now. The same object until they change, so asking for each request is cheap."""
        documents = self._player.value.policies
        if documents is not self._documents:
            self._documents = documents
            keys = keys_in(documents)
            if keys != self._ring.keys:
                self._ring = Keyring(keys)
                self.version += 1
        return self._ring

    async def put(self, key: AccessKey) -> None:
        """Write a new or changed key; this node applies it before the call returns. Raises `LogError`."""
        await self._write(PutDocument(DOCUMENTS + key.id, encode_key(key)))

    async def revoke(self, key_id: str, revoked_at: int) -> AccessKey:
        """Revoke a key for good, and return it.

        Raises `NotFound`, `LogError`, and `Conflict` if it is the last operator's key, or would be because of another
        revocation at the same time.
        """
        async with self._turn:
            ring, documents = self.ring(), self._documents
            key = ring.revocable(key_id)
            if key.revoked_at is not None:
                return key
            if key.is_operator:
                await self._hold(next(other for other in ring.operators if other is not key), documents)
            key = replace(key, revoked_at=revoked_at)
            name = DOCUMENTS + key_id
            index = await self._write(PutDocument(name, encode_key(key), documents[name].version))
            if self._player.value.index < index:
                raise OutcomeUnknown(f"whether the key {key_id} is revoked is not known yet: look, or ask again")
            kept = self.ring().get(key_id)
            if kept is not None and kept.revoked_at is None:
                raise _overtaken()
            return kept or key

    async def _hold(self, key: AccessKey, documents: Mapping[str, Policy]) -> None:
        """Give the key that must stay a new version, so that a node that is about to revoke it has to read again."""
        name = DOCUMENTS + key.id
        index = await self._write(PutDocument(name, documents[name].document, documents[name].version))
        policy = self._player.value.policies.get(name)
        if policy is None or policy.version != index:
            raise _overtaken()

    async def drop(self, key_id: str) -> None:
        """Delete a key. Raises `LogError`."""
        await self._write(DropDocument(DOCUMENTS + key_id))

    async def changed(self, version: int, timeout_s: float) -> tuple[int, tuple[AccessKey, ...]]:
        """The version and the keys, as soon as the version differs or the time has passed."""

        def differs(value: Value) -> bool:
            self.ring()
            return self.version != version

        await self._player.saw(differs, timeout_s)
        return self.version, self._ring.keys


def _overtaken() -> Conflict:
    return Conflict("another request is revoking operators' keys, so this one was not revoked: check, and try again")
