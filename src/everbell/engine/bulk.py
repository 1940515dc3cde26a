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
Act = Callable[[Event], Awaitable[Seen]]


async def in_bulk(find: Find, filter: Filter, act: Act) -> int:
    """Act on all that match, some at a time; returns how many it was done to. Who ended meanwhile does not count."""
    done, cursor = await on_page(find, filter, None, _AT_A_TIME, act)
    while cursor is not None:
        more, cursor = await on_page(find, filter, cursor, _AT_A_TIME, act)
        done += more
    return done


async def on_page(find: Find, filter: Filter, cursor: str | None, limit: int, act: Act) -> tuple[int, str | None]:
    """The same for one page of the search, with the cursor of the next.

    For what takes events out of the search: what stays in it, further on, would be found and done again.
    """
    found, cursor = await find(filter, cursor, limit)
    events = [seen.event for seen in found if isinstance(seen.event, Event)]
    done = 0
    for result in await asyncio.gather(*map(act, events), return_exceptions=True):
        if isinstance(result, Seen):
            done += 1
        elif not isinstance(result, (NotFound, Conflict)):
            raise result
    return done, cursor


def spread(per_s: float | None) -> Callable[[], int]:
    """Delays in milliseconds, one for each event in turn, so that they come at a rate; None: all at once."""
    taken = 0

    def delay_ms() -> int:
        nonlocal taken
        taken += 1
        return 0 if per_s is None else int((taken - 1) * 1_000 / per_s)

    return delay_ms
