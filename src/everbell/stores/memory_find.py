"""The shelves of the store in memory, and searching them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Any

import msgspec

from everbell.core.event import Event, Record, position, position_at
from everbell.core.ids import SEQUENCE_MAX
from everbell.stores.port import Filter, Found
from everbell.stores.semantics import (
    EXAMINED_MAX,
    Catch,
    Space,
    bad_cursor,
    matches,
    read_cursor,
    spaces_of,
    write_cursor,
)

Name = tuple[int, str, str, int]
"""Of a record: the hour when it expires, tenant, id, and the occurrence, 0 for that of an event that is over."""

Place = tuple[Any, ...]
Rows = Iterator[tuple[Place, Event | Record]]

_PLACES: dict[Space, msgspec.msgpack.Decoder[Any]] = {
    "E": msgspec.msgpack.Decoder(tuple[int, int]),
    "W": msgspec.msgpack.Decoder(tuple[int, str, int, int]),
    "D": msgspec.msgpack.Decoder(tuple[int, int]),
    "H": msgspec.msgpack.Decoder(tuple[int, str, int]),
}


class Shelves:
    """Events and records, and the order in which they lie in each space."""

    def __init__(self, partitions: int) -> None:
        self.events: dict[int, Event] = {}
        """All that are not finished, by sequence."""
        self.scheduled: list[list[int]] = [[] for _ in range(partitions)]
        self.waiting: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
        self.dead: defaultdict[str, list[int]] = defaultdict(list)
        self.records: defaultdict[int, dict[Name, tuple[Record, int]]] = defaultdict(dict)
        """By hour, then by name: what is kept and until when."""

    def spot(self, event: Event) -> tuple[list[int], int]:
        """The list in which the event lies, and its place there."""
        if event.state == "scheduled":
            return self.scheduled[event.partition], event.position
        if event.state == "waiting":
            return self.waiting[event.partition, event.tenant, event.key or ""], event.order
        return self.dead[event.tenant], event.position

    def at(self, place: int) -> Event:
        """The event whose place this is in any of the lists."""
        return self.events[place & SEQUENCE_MAX]


def search(shelves: Shelves, filter: Filter, cursor: str | None, limit: int) -> Found:
    """One page of what matches."""
    first, raw = read_cursor(filter, cursor)
    after = _read_place(first, raw)
    spaces = spaces_of(filter)
    catch = Catch(limit)
    examined = 0
    for space in spaces[spaces.index(first) :]:
        for place, event in _rows(shelves, filter, space, after):
            examined += 1
            if matches(filter, event):
                catch.add(event)
            if catch.is_full or examined >= EXAMINED_MAX:
                return Found(catch.events, write_cursor(space, msgspec.msgpack.encode(place)))
        after = None
    return Found(catch.events, None)


def _read_place(space: Space, raw: bytes) -> Place | None:
    if not raw:
        return None
    try:
        place: Place = _PLACES[space].decode(raw)
    except msgspec.DecodeError as error:
        raise bad_cursor() from error
    return place


def _rows(shelves: Shelves, filter: Filter, space: Space, after: Place | None) -> Rows:
    if space == "E":
        return _scheduled(shelves, filter, after)
    if space == "W":
        return _waiting(shelves, filter, after)
    return _dead(shelves, filter, after) if space == "D" else _finished(shelves, filter, after)


def _scheduled(shelves: Shelves, filter: Filter, after: Place | None) -> Rows:
    start = max(position(*after) if after else -1, position(filter.from_at or 0, 0) - 1)
    lists = shelves.scheduled
    if filter.partition is not None:
        lists = [lists[filter.partition]]
    runs = [islice(shelf, bisect_right(shelf, start), None) for shelf in lists]
    return _placed(shelves, merge(*runs))


def _waiting(shelves: Shelves, filter: Filter, after: Place | None) -> Rows:
    lines = [line for line in shelves.waiting if line[1] == filter.tenant and filter.key in (None, line[2])]
    for partition, tenant, key in sorted(lines):
        if after is not None and (partition, key) < after[:2]:
            continue
        orders = shelves.waiting[partition, tenant, key]
        start = position(*after[2:]) if after is not None and (partition, key) == after[:2] else -1
        for place, event in _placed(shelves, islice(orders, bisect_right(orders, start), None)):
            yield (partition, key, *place), event


def _dead(shelves: Shelves, filter: Filter, after: Place | None) -> Rows:
    shelf = shelves.dead.get(filter.tenant, [])
    return _placed(shelves, islice(shelf, bisect_right(shelf, position(*after) if after else -1), None))


def _finished(shelves: Shelves, filter: Filter, after: Place | None) -> Rows:
    for hour in sorted(shelves.records, reverse=True):
        if after is not None and hour > after[0]:
            continue
        names = sorted((name for name in shelves.records[hour] if name[1] == filter.tenant), reverse=True)
        for name in names:
            place = (hour, *name[2:])
            if after is None or place < after or hour < after[0]:
                yield place, shelves.records[hour][name][0]


def _placed(shelves: Shelves, places: Iterable[int]) -> Rows:
    return (((position_at(place), place & SEQUENCE_MAX), shelves.at(place)) for place in places)
