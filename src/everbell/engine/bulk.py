"""The same operation on every event that a search finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from everbell.core.event import Event
from everbell.core.time import DURATION_MAX_MS
from everbell.engine.port import Seen
from everbell.errors import Conflict, NotFound
from everbell.stores.port import Filter

_AT_A_TIME = 500

Find = Callable[[Filter, str | None, int], Awaitable[tuple[list[Seen], str | None]]]
Act = Callable[[Event], Awaitable[Seen]]
Which = Callable[[Event], bool]
Redrive = Callable[[str, str, int], Awaitable[Seen]]
"""Given a tenant, an id and a delay in milliseconds."""


async def in_bulk(find: Find, filter: Filter, act: Act, which: Which = lambda event: True) -> int:
    """Act on all that match, some at a time; returns how many it was done to. Who ended meanwhile does not count."""
    done, cursor = await on_page(find, filter, None, _AT_A_TIME, act, which)
    while cursor is not None:
        more, cursor = await on_page(find, filter, cursor, _AT_A_TIME, act, which)
        done += more
    return done


async def on_page(
    find: Find, filter: Filter, cursor: str | None, limit: int, act: Act, which: Which = lambda event: True
) -> tuple[int, str | None]:
    """The same for one page of the search, with the cursor of the next.

    For what takes events out of the search: what stays in it, further on, would be found and done again, unless
    `which` knows it.
    """
    found, cursor = await find(filter, cursor, limit)
    events = [seen.event for seen in found if isinstance(seen.event, Event) and which(seen.event)]
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
        # However small the rate is: an event has to be due within the calendar.
        return 0 if per_s is None else int(min((taken - 1) * 1_000 / per_s, DURATION_MAX_MS))

    return delay_ms


def died_by(at: int) -> Which:
    """Those that were dead then. Who redrives all must not find again what dies again meanwhile, for ever."""
    return lambda event: event.run_at <= at
