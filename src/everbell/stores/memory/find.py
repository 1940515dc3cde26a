"""Searching the store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import merge
from itertools import islice

from everbell.core.event import Event, Record, position, position_at
from everbell.core.ids import SEQUENCE_MAX
from everbell.stores.memory.positions import Positions
from everbell.stores.memory.shelves import Shelves
from everbell.stores.port import Filter, Found
from everbell.stores.searching import SearchPlace, SearchSlice, Space, collect

_NONE = Positions()
SLICE = 2_000  # How many rows are examined at a time.

MemoryRows = Iterator[tuple[SearchPlace, Event | Record]]


async def search(shelves: Shelves, filter: Filter, cursor: str | None, limit: int) -> Found:
    async def some(rows: Callable[[Shelves, Filter, SearchPlace], MemoryRows], after: SearchPlace) -> SearchSlice:
        found = list(islice(rows(shelves, filter, after), SLICE))
        return found, len(found) < SLICE

    spaces: dict[Space, Callable[[Shelves, Filter, SearchPlace], MemoryRows]] = {
        "E": _scheduled,
        "W": _waiting,
        "D": _dead,
        "H": _finished,
    }
    return await collect({space: partial(some, rows) for space, rows in spaces.items()}, filter, cursor, limit)


def _scheduled(shelves: Shelves, filter: Filter, after: SearchPlace) -> MemoryRows:
    start = max(_position(after), position(filter.from_at or 0, 0) - 1)
    lists = shelves.scheduled if filter.partition is None else [shelves.scheduled[filter.partition]]
    return _placed(shelves, merge(*(shelf.after(start) for shelf in lists)))


def _waiting(shelves: Shelves, filter: Filter, after: SearchPlace) -> MemoryRows:
    lines = [line for line in shelves.waiting if line[1] == filter.tenant and filter.key in (None, line[2])]
    for partition, tenant, key in sorted(lines):
        if (partition, key) < after[:2]:
            continue
        start = _position(after[2:]) if (partition, key) == after[:2] else -1
        for place, event in _placed(shelves, shelves.waiting[partition, tenant, key].after(start)):
            yield (partition, key, *place), event


def _dead(shelves: Shelves, filter: Filter, after: SearchPlace) -> MemoryRows:
    return _placed(shelves, shelves.dead.get(filter.tenant, _NONE).after(_position(after)))


def _finished(shelves: Shelves, filter: Filter, after: SearchPlace) -> MemoryRows:
    for hour in sorted(shelves.records, reverse=True):
        names = [name for name in shelves.records[hour] if name[1] == filter.tenant and (hour, *name[2:]) < after]
        for name in sorted(names, reverse=True):
            yield (hour, *name[2:]), shelves.records[hour][name][0]


def _position(place: SearchPlace) -> int:
    at, sequence = place
    return position(at, min(sequence, SEQUENCE_MAX)) if at >= 0 else -1


def _placed(shelves: Shelves, places: Iterable[int]) -> MemoryRows:
    return (((position_at(place), place & SEQUENCE_MAX), shelves.at(place)) for place in places)
