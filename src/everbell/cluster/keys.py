"""The access keys of a cluster, as one of its nodes knows them: read from the value, written through the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from everbell.cluster.player import Player
from everbell.core.access import DOCUMENTS, AccessKey, Keyring, encode_key, keys_in
from everbell.core.cluster import Command, DropPolicy, Policy, SetPolicy, Value


class ClusterKeys:
    """The keys behind a node. `order` appends a command to the log, and returns when it was played."""

    def __init__(self, player: Player, order: Callable[[Command], Awaitable[object]]) -> None:
        self._player = player
        self._order = order
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
        await self._order(SetPolicy(DOCUMENTS + key.id, encode_key(key)))

    async def drop(self, key_id: str) -> None:
        """Forget a key. Raises `LogError`."""
        await self._order(DropPolicy(DOCUMENTS + key_id))

    async def changed(self, version: int, timeout_s: float) -> tuple[int, tuple[AccessKey, ...]]:
        """The version and the keys, as soon as the version is another one, or the time has passed."""

        def is_another(value: Value) -> bool:
            self.ring()
            return self.version != version

        await self._player.saw(is_another, timeout_s)
        return self.version, self._ring.keys
