"""A look at a key's line: who has to end before others may go, and how many wait.

The head is the event that the store's mark names (it failed, or is dead, and blocks the key), or else the one whose
turn it is in memory. The mark names a sequence, so an event that is not in memory is looked for among the key's.
"""

from __future__ import annotations

from everbell.core.event import Event, Status
from everbell.engine.floor import Floor
from everbell.engine.lanes import NOBODY, Lanes
from everbell.stores.port import Filter, Store

COUNTED_MAX = 10_000
_PAGE = 1_000
_BLOCKING: tuple[Status, ...] = ("retrying", "dead", "scheduled", "paused")
"""What a head that is not in memory may be, the likeliest first."""


async def look_at(
    store: Store, lanes: Lanes, floor: Floor, partition: int, tenant: str, key: str
) -> tuple[Event | None, int, bool]:
    """The head, if anything of the key is due; how many wait behind it; and whether there are more than that."""
    (mark,) = await store.heads(partition, [(tenant, key)])
    waiting, is_more = await _count(store, partition, tenant, key)
    head, only_here = lanes.look(tenant, key)
    if mark is not None and mark != NOBODY:
        entry = floor.entries.get(mark)
        head = await _search(store, partition, tenant, key, mark) if entry is None else entry.event
    elif head is not None and head.state == "waiting":
        waiting -= 1  # It has its turn, and its row is still in line.
    return head, max(waiting, 0) + only_here, is_more


async def _count(store: Store, partition: int, tenant: str, key: str) -> tuple[int, bool]:
    count, after = 0, -1
    while count < COUNTED_MAX:
        page = await store.waiting(partition, tenant, key, after, _PAGE)
        count += len(page.events)
        if not page.more or not page.events:
            return count, False
        after = page.events[-1].order
    return count, True


async def _search(store: Store, partition: int, tenant: str, key: str, sequence: int) -> Event | None:
    for status in _BLOCKING:
        cursor: str | None = None
        while True:
            found = await store.find(Filter(tenant, status, key, partition=partition), cursor, _PAGE)
            for event in found.events:
                if isinstance(event, Event) and event.sequence == sequence:
                    return event
            cursor = found.cursor
            if cursor is None:
                break
    return None
