"""Searching: the rows that a filter means, their order, and the cursor that continues a search.

A search goes through one or two spaces of a store, each in its own order:

    E  scheduled   by position, over all partitions
    W  waiting     by partition and key, then in the key's order
    D  dead        by the time of death
    H  finished    by the hour in which their record expires, the latest first, then by id, backwards

A cursor names the space and the last place that was examined there, without the tenant. A search always stays inside
the tenant of its filter, so a forged cursor shows no events of other tenants.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from everbell.core.event import End, Event, Record, status_of
from everbell.core.target import group_of
from everbell.errors import InvalidInput
from everbell.stores.port import Filter, Found
from everbell.stores.rows import BadRow, read_event, read_record

Space = Literal["E", "W", "D", "H"]

EXAMINED_MAX = 20_000
"""How many rows one call of `find` examines; then it returns the matches so far, and a cursor."""

FOUND_BYTES_MAX = 4 * 1024 * 1024
"""How many bytes of events one call of `find` returns, plus at most one event. Each process that a page passes on its
way to the client holds the whole page in memory."""
_FIXED_BYTES = 400
"""The names, times and numbers of an event in an answer, and those of an attempt."""
_ESCAPED_BYTES = 6
"""The longest form of a character in JSON."""

_ENDS: frozenset[End] = frozenset({"delivered", "cancelled", "expired"})


class Matches:
    """The matches of one call of `find`, until there are enough, by number or by bytes."""

    __slots__ = ("_bytes", "_filter", "_limit", "events")

    def __init__(self, filter: Filter, limit: int) -> None:
        self._filter = filter
        self._limit = limit
        self._bytes = 0
        self.events: list[Event | Record] = []

    def examine(self, found: Event | Record) -> None:
        """Keep an event or record if the filter means it."""
        if matches(self._filter, found):
            self.events.append(found)
            self._bytes += shown_bytes(found)

    def examine_row(self, space: Space, body: bytes) -> None:
        """The same for a row. A row that cannot be decoded is skipped, because the loader reports it."""
        try:
            found = read_record(body)[0] if space == "H" else read_event(body)
        except BadRow:
            return
        self.examine(found)

    @property
    def is_full(self) -> bool:
        return len(self.events) >= self._limit or self._bytes >= FOUND_BYTES_MAX


def shown_bytes(found: Event | Record) -> int:
    """At least the size of an event in an answer, whatever its content: no field may make a page larger than meant."""
    texts = [found.id, found.to, found.key or "", found.reason or "", *found.tags]
    size = _FIXED_BYTES
    for attempt in found.attempts:
        size += _FIXED_BYTES
        if attempt.reason is not None:
            texts.append(attempt.reason)
    if isinstance(found, Event):
        # Bytes that are not JSON are shown in base64.
        size += len(found.payload) if found.content_type is None else len(found.payload) * 4 // 3 + 4
        for header in found.headers:
            texts += header
        if found.repeat is not None:
            size += _FIXED_BYTES + len(msgspec.json.encode(found.repeat))
    for text in texts:
        plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
        size += len(text) if plain else len(text) * _ESCAPED_BYTES
    return size


def spaces_of(filter: Filter) -> tuple[Space, ...]:
    """The spaces that may have matches, in the order of the search."""
    if filter.status is None:
        return ("E", "W")
    if filter.status in _ENDS:
        return ("H",)
    return ("D",) if filter.status == "dead" else ("W",) if filter.status == "waiting" else ("E",)


def matches(filter: Filter, found: Event | Record) -> bool:
    """Whether the filter means a row of one of its spaces."""
    return (
        found.tenant == filter.tenant
        and (filter.key is None or found.key == filter.key)
        and (filter.tag is None or filter.tag in found.tags)
        and (filter.from_at is None or found.due_at >= filter.from_at)
        and (filter.until_at is None or found.due_at <= filter.until_at)
        and (filter.to is None or found.to.startswith(filter.to))
        and (filter.id_prefix is None or found.id.startswith(filter.id_prefix))
        and found.attempt_count >= filter.attempts_min
        and (filter.reason is None or found.reason == filter.reason)
        and (filter.target is None or group_of(found.to) == filter.target)
        and (not filter.repeats or (isinstance(found, Event) and found.repeat is not None))
        and _has_status(filter, found)
    )


def _has_status(filter: Filter, found: Event | Record) -> bool:
    if isinstance(found, Record):
        return found.status == filter.status
    # Only the engine knows which events are in delivery; here every scheduled event may be.
    if filter.status is None or filter.status == "delivering":
        return True
    return status_of(found) == filter.status


def write_cursor(space: Space, place: bytes) -> str:
    """The text that continues a search after a place; an empty place is the beginning of the space."""
    return urlsafe_b64encode(space.encode() + place).rstrip(b"=").decode()


def read_cursor(filter: Filter, cursor: str | None) -> tuple[Space, bytes]:
    """Where to continue: the space, and the last place there. Raises `InvalidInput` for a cursor of another search."""
    spaces = spaces_of(filter)
    if cursor is None:
        return spaces[0], b""
    try:
        raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except (Error, UnicodeError) as error:
        raise bad_cursor() from error
    for space in spaces:
        if raw[:1] == space.encode():
            return space, raw[1:]
    raise bad_cursor()


def bad_cursor() -> InvalidInput:
    """The error for a cursor that does not belong to its search."""
    return InvalidInput("is not one that this search returned; repeat the search without it", "cursor")


# Stores with keys of several columns search in slices.

SearchPlace = tuple[Any, ...]
"""The place of a row in the order of its space."""

SearchSlice = tuple[Sequence[tuple[SearchPlace, Event | Record | bytes | None]], bool]
"""Places with the events or rows there (None for a row that cannot match), and whether these are the last."""

SearchSlices = Mapping[Space, Callable[[SearchPlace], Awaitable[SearchSlice]]]
"""By space, the rows after a place."""

_PLACES: dict[Space, msgspec.msgpack.Decoder[Any]] = {
    "E": msgspec.msgpack.Decoder(tuple[int, int]),
    "W": msgspec.msgpack.Decoder(tuple[int, str, int, int]),
    "D": msgspec.msgpack.Decoder(tuple[int, int]),
    "H": msgspec.msgpack.Decoder(tuple[int, str, int]),
}
FIRST: dict[Space, SearchPlace] = {
    "E": (-1, -1),
    "W": (-1, "", -1, -1),
    "D": (-1, -1),
    "H": ((1 << 31) - 1, "", -1),
}
NUMBER_MAX = (1 << 63) - 1


async def collect(slices: SearchSlices, filter: Filter, cursor: str | None, limit: int) -> Found:
    """A page of at most `limit` matches, or the matches among `EXAMINED_MAX` rows."""
    first, raw = read_cursor(filter, cursor)
    place = read_place(first, raw)
    spaces = spaces_of(filter)
    found = Matches(filter, limit)
    examined = 0
    for space in spaces[spaces.index(first) :]:
        while True:
            rows, is_last = await slices[space](place)
            for place, row in rows:
                if isinstance(row, bytes):
                    found.examine_row(space, row)
                elif row is not None:
                    found.examine(row)
                if found.is_full:
                    return Found(found.events, write_cursor(space, msgspec.msgpack.encode(place)))
            examined += len(rows)
            if is_last:
                break
            if examined >= EXAMINED_MAX:
                return Found(found.events, write_cursor(space, msgspec.msgpack.encode(place)))
        place = FIRST["W"]  # The only space that comes after another.
    return Found(found.events, None)


def read_place(space: Space, raw: bytes) -> SearchPlace:
    """The place that a cursor carries, or the beginning of the space. Raises `InvalidInput`."""
    if not raw:
        return FIRST[space]
    try:
        place: SearchPlace = _PLACES[space].decode(raw)
    except msgspec.DecodeError as error:
        raise bad_cursor() from error
    numbers = [part for part in place if isinstance(part, int)]
    if not all(-1 <= number <= NUMBER_MAX for number in numbers) or any("\0" in str(part) for part in place):
        raise bad_cursor()
    if space in "WH" and place[0] >= 1 << 31:
        raise bad_cursor()
    return place
