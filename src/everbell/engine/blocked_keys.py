"""The keys of a tenant that are blocked on this node: the store's marks name them, and the heads that they wait for.

A key also has a mark while its line is too long for memory. Such a key is listed as well, for its events wait too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everbell.core.event import Event
from everbell.core.request import Handler
from everbell.engine.key_view import view_key
from everbell.engine.ordering import Lanes
from everbell.engine.partition import Partition
from everbell.engine.seen import KeyLine, KeyLines, Seen
from everbell.engine.view_requests import GetBlockedKeys
from everbell.engine.working_set import WorkingSet
from everbell.stores.port import Store

# A list of keys needs no exact numbers, and counting reads every waiting event.
_COUNTED_MAX = 100


class KeyLister:
    """Lists the blocked keys of the partitions that this node owns."""

    def __init__(
        self,
        store: Store,
        partitions: Sequence[Partition],
        lanes: Lanes,
        memory: WorkingSet,
        seen: Callable[[Event], Seen],
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._lanes = lanes
        self._memory = memory
        self._seen = seen

    def handlers(self) -> tuple[Handler, ...]:
        """The request for the list."""
        return (GetBlockedKeys.by(self._list),)

    async def _list(self, request: GetBlockedKeys) -> KeyLines:
        tenant, limit = request.tenant, request.limit
        lines: list[tuple[str, KeyLine]] = []
        marked = await self._marked(tenant, limit + 1)
        for index, key in marked[:limit]:
            head, waiting, is_more = await view_key(
                self._store, self._lanes, self._memory, index, tenant, key, counted_max=_COUNTED_MAX
            )
            # Without a head, the key was freed after its mark was read, or its line starts in a moment. A head that
            # never failed and has no event behind it is only the last of a line that was blocked.
            if head is not None and (waiting or head.attempt_count or head.state == "dead"):
                lines.append((key, KeyLine(self._seen(head), waiting, is_more)))
        return KeyLines(tuple(lines), is_more=len(marked) > limit)

    async def _marked(self, tenant: str, limit: int) -> list[tuple[int, str]]:
        """The marked keys of a tenant with their partitions, up to `limit` of them."""
        found: list[tuple[int, str]] = []
        for partition in self._partitions:
            if partition.epoch and len(found) < limit:
                rows = await self._store.blocked(partition.index, (tenant, ""), limit - len(found))
                found += [(partition.index, key) for owner, key, _ in rows if owner == tenant]
        return found
