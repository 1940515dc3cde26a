"""Marks: the store remembers which keys wait, and for which event.

A mark survives restarts, and it costs no memory even if many keys are blocked. A Bloom filter tells which keys may be
marked, so a key that was never blocked usually costs no read.
"""

from __future__ import annotations

from collections.abc import Mapping

from everbell.core.event import Event
from everbell.core.keyfilter import KeyFilter
from everbell.engine.lane import Lane
from everbell.engine.writer import StoreWriter
from everbell.errors import StoreError
from everbell.stores.port import Block, Refusal, Store, Unblock

# The head of a marked key whose line starts by itself.
NO_HEAD = 0

_FILTER_BITS = 1 << 20
_BLOCKED_PAGE = 1_000


class Marks:
    """The marks of all keys of a node."""

    def __init__(self, store: Store, writer: StoreWriter) -> None:
        self._store = store
        self._writer = writer
        self._filter = KeyFilter(_FILTER_BITS)

    def perhaps(self, tenant: str, key: str) -> bool:
        """Whether the key may be marked."""
        return self._filter.perhaps(tenant, key)

    def expect(self, tenant: str, key: str) -> None:
        """Record that the key will be marked, by a change that the caller stores."""
        self._filter.add(tenant, key)

    async def recover(self, partition: int) -> list[tuple[str, str]]:
        """Read which keys are marked. Returns those whose line has no head. Runs as a read of the store writer."""
        headless: list[tuple[str, str]] = []
        after = ("", "")
        while rows := await self._store.blocked(partition, after, _BLOCKED_PAGE):
            for tenant, key, head in rows:
                self._filter.add(tenant, key)
                if head == NO_HEAD:
                    headless.append((tenant, key))
            after = rows[-1][:2]
        return headless

    async def blocks(self, event: Event) -> bool:
        """Whether the store has a mark that names this event. Runs as a read of the store writer."""
        if event.key is None or not self._filter.perhaps(event.tenant, event.key):
            return False
        heads = await self._store.heads(event.partition, [(event.tenant, event.key)])
        return heads[0] == event.sequence

    def mark(self, lane: Lane) -> None:
        """Mark the key of a lane, without a head, unless it is marked already."""
        if not lane.marked:
            lane.marked = True
            self._filter.add(lane.tenant, lane.key)
            self._writer.submit([Block(lane.partition, lane.tenant, lane.key, NO_HEAD)], _stored, must=True)

    def lift(self, lane: Lane) -> None:
        """Lift the mark of a key, if it has one. The store's line has no event of the key any more."""
        if lane.marked:
            self._writer.submit([Unblock(lane.partition, lane.tenant, lane.key)], _stored, must=True)


def _stored(refused: Mapping[int, Refusal] | StoreError) -> None:
    """Ignore the result: a mark cannot be refused, and a store that fails ends the engine."""
