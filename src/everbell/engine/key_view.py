"""A view of a key's line: the head that must end before the next event starts, and the number of waiting events.

The head is the event that the store's mark names: it failed or is dead, and blocks the key. Without a mark it is the
head of the lane in memory. The mark is a sequence number, so an event that is not in memory is searched among the
events of the key.
"""

from __future__ import annotations

from everbell.core.event import Event, Status
from everbell.engine.marks import NO_HEAD
from everbell.engine.ordering import Lanes
from everbell.engine.working_set import WorkingSet
from everbell.stores.port import Filter, Store

COUNTED_MAX = 10_000
_PAGE = 1_000
# The statuses of a head that is not in memory, most likely first.
_BLOCKING: tuple[Status, ...] = ("retrying", "dead", "scheduled", "paused")


async def view_key(
    store: Store,
    lanes: Lanes,
    memory: WorkingSet,
    partition: int,
    tenant: str,
    key: str,
    *,
    counted_max: int = COUNTED_MAX,
) -> tuple[Event | None, int, bool]:
    """The head, if an event of the key is due; the number of events behind it; and whether there are more."""
    waiting, is_more = await _count(store, partition, tenant, key, counted_max)
    head = await head_of_key(store, lanes, memory, partition, tenant, key)
    first_here, only_here = lanes.summary(tenant, key)
    if head is not None and head is first_here and head.state == "waiting":
        waiting -= 1  # The row of the head is still in the store's line.
    return head, max(waiting, 0) + only_here, is_more


async def head_of_key(
    store: Store, lanes: Lanes, memory: WorkingSet, partition: int, tenant: str, key: str
) -> Event | None:
    """The event that has to end before the next event of the key starts, if one is due."""
    (mark,) = await store.heads(partition, [(tenant, key)])
    if mark is not None and mark != NO_HEAD:
        entry = memory.entries.get(mark)
        marked = await _search(store, partition, tenant, key, mark) if entry is None else entry.event
        if marked is not None:
            return marked
    # If the marked event is not found, it ended after the mark was read. Then the head in memory counts.
    return lanes.summary(tenant, key)[0]


async def _count(store: Store, partition: int, tenant: str, key: str, counted_max: int) -> tuple[int, bool]:
    count, after = 0, -1
    while count < counted_max:
        page = await store.waiting(partition, tenant, key, after, min(_PAGE, counted_max))
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
