"""Searching tables that are asked for slices of rows: keep what matches, up to a limit, and say where to go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from everbell.stores.places import FIRST, Place, read_place, write_place
from everbell.stores.port import Filter, Found
from everbell.stores.rows import BadRow, read_event, read_record
from everbell.stores.semantics import EXAMINED_MAX, Catch, Space, matches, read_cursor, spaces_of, write_cursor

Slice = tuple[Sequence[tuple[Place, bytes | None]], bool]
"""Places with what lies there, None for what is of no interest; and whether there is nothing behind them."""

Slices = Mapping[Space, Callable[[Place], Awaitable[Slice]]]
"""By space, the rows after a place."""


async def collect(slices: Slices, filter: Filter, cursor: str | None, limit: int) -> Found:
    """A page of at most `limit` matches, or what is found among `EXAMINED_MAX` rows."""
    first, raw = read_cursor(filter, cursor)
    place = read_place(first, raw)
    spaces = spaces_of(filter)
    catch = Catch(limit)
    examined = 0
    for space in spaces[spaces.index(first) :]:
        while True:
            rows, is_last = await slices[space](place)
            for place, body in rows:
                if body is not None:
                    _keep(space, body, filter, catch)
                if catch.is_full:
                    return Found(catch.events, write_cursor(space, write_place(place)))
            examined += len(rows)
            if is_last:
                break
            if examined >= EXAMINED_MAX:
                return Found(catch.events, write_cursor(space, write_place(place)))
        place = FIRST["W"]  # The only space that comes after another.
    return Found(catch.events, None)


def _keep(space: Space, body: bytes, filter: Filter, catch: Catch) -> None:
    try:
        event = read_record(body)[0] if space == "H" else read_event(body)
    except BadRow:
        return  # Whoever loads it will report it.
    if matches(filter, event):
        catch.add(event)
