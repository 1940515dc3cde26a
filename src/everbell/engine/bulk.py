"""The same operation on every event that a search finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from everbell.core.event import Event
from everbell.engine.port import Seen
from everbell.errors import Conflict, NotFound
from everbell.stores.port import Filter

_AT_A_TIME = 500

Find = Callable[[Filter, str | None, int], Awaitable[tuple[list[Seen], str | None]]]


async def in_bulk(find: Find, filter: Filter, act: Callable[[Event], Awaitable[Seen]]) -> int:
    """Act on all that match, some at a time; returns how many it was done to. Who ended meanwhile does not count."""
    done = 0
    cursor: str | None = None
    while True:
        found, cursor = await find(filter, cursor, _AT_A_TIME)
        events = [seen.event for seen in found if isinstance(seen.event, Event)]
        for result in await asyncio.gather(*map(act, events), return_exceptions=True):
            if isinstance(result, Seen):
                done += 1
            elif not isinstance(result, (NotFound, Conflict)):
                raise result
        if cursor is None:
            return done
