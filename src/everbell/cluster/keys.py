"""The access keys of a cluster, as one of its nodes knows them: read from the value, written through the log.

An operator's key is revoked in two entries, so that two nodes cannot revoke the last two at once. The first writes the
key of another operator, which is to stay, again as it is, and so gives it another version; the second revokes. Each is
ignored unless its key has the version that was seen before both. So whoever is about to revoke the key that is to stay
has to look again, and whoever has done so stops the second entry, or has found another one that is to stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from everbell.cluster.player import Player
from everbell.core.access import DOCUMENTS, AccessKey, Keyring, encode_key, keys_in
from everbell.core.cluster import Command, DropPolicy, Policy, SetPolicy, Value
from everbell.errors import Conflict, OutcomeUnknown


class ClusterKeys:
    """The keys behind a node. `write` appends a command to the log, waits until it was played, and returns its
    index."""

    def __init__(self, player: Player, write: Callable[[Command], Awaitable[int]]) -> None:
        self._player = player
        self._write = write
        self._turn = asyncio.Lock()
        self._documents: Mapping[str, Policy] = {}
        self._ring = Keyring()
        self.version = 0
        """Goes up with every change of the keys, in this process."""

    def ring(self) -> Keyring:
        """All keys as of now. The same object until they change, so it is cheap to ask for every request."""
        documents = self._player.value.policies
        if documents is not self._documents:
            self._documents = documents
            keys = keys_in(documents)
            if keys != self._ring.keys:
                self._ring = Keyring(keys)
                self.version += 1
        return self._ring

    async def put(self, key: AccessKey) -> None:
        """Write a key, new or changed; it counts here when this returns. Raises `LogError`."""
        await self._write(SetPolicy(DOCUMENTS + key.id, encode_key(key)))

    async def revoke(self, key_id: str, revoked_at: int) -> AccessKey:
        """Shut a key out, for good, and return it. Raises `NotFound`, `LogError`, and `Conflict` if it is the last
        operator's, or would be by what others do at the same time.
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
            index = await self._write(SetPolicy(name, encode_key(key), documents[name].version))
            if self._player.value.index < index:
                raise OutcomeUnknown(f"whether the key {key_id} is revoked is not known yet: look, or ask again")
            kept = self.ring().get(key_id)
            if kept is not None and kept.revoked_at is None:
                raise _overtaken()
            return kept or key

    async def _hold(self, key: AccessKey, documents: Mapping[str, Policy]) -> None:
        """Give the key that is to stay another version, so that who is about to revoke it has to look again."""
        name = DOCUMENTS + key.id
        index = await self._write(SetPolicy(name, documents[name].document, documents[name].version))
        policy = self._player.value.policies.get(name)
        if policy is None or policy.version != index:
            raise _overtaken()

    async def drop(self, key_id: str) -> None:
        """Forget a key. Raises `LogError`."""
        await self._write(DropPolicy(DOCUMENTS + key_id))

    async def changed(self, version: int, timeout_s: float) -> tuple[int, tuple[AccessKey, ...]]:
        """The version and the keys, as soon as the version is another one, or the time has passed."""

        def is_another(value: Value) -> bool:
            self.ring()
            return self.version != version

        await self._player.saw(is_another, timeout_s)
        return self.version, self._ring.keys


def _overtaken() -> Conflict:
    return Conflict("somebody else is revoking operators' keys, so this one was not revoked: look, and ask again")
