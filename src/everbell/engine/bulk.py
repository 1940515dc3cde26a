"""The same request for every event that a search finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.core.request import Ask, Request
from everbell.core.time import DURATION_MAX_MS
from everbell.engine.requests import Cancel, CancelMatching, Find, Redrive, RedriveMatching
from everbell.engine.seen import Seen
from everbell.errors import Conflict, NotFound
from everbell.stores.port import Filter

_PAGE_EVENTS = 500
_PASSES_MAX = 5

RequestFor = Callable[[Event], Request[Seen]]
Which = Callable[[Event], bool]


async def cancel_matching(ask: Ask, request: CancelMatching) -> int:
    """Cancel all events that match.

    A search misses an event that moves to a place which the search has passed: a retry of an event that waited behind
    its key, or a new time. So the search is repeated until it finds no more.
    """
    tenant = request.filter.tenant
    cancelled = 0
    for _ in range(_PASSES_MAX):
        done = await _on_all(ask, request.filter, lambda event: Cancel(tenant, event.id))
        cancelled += done
        if not done:
            break
    return cancelled


async def redrive_matching(ask: Ask, clock: Clock, request: RedriveMatching) -> int:
    """Redrive all dead events that match, together or at a rate."""
    tenant, delay_ms, now = request.filter.tenant, spread(request.per_s), clock.now()
    # An event that dies again is left out. Otherwise the search might never end.
    return await _on_all(
        ask, request.filter, lambda event: Redrive(tenant, event.id, delay_ms()), lambda event: event.run_at <= now
    )


async def _on_all(ask: Ask, filter: Filter, request_for: RequestFor, which: Which = lambda event: True) -> int:
    done, cursor = await on_page(ask, filter, None, _PAGE_EVENTS, request_for, which)
    while cursor is not None:
        more, cursor = await on_page(ask, filter, cursor, _PAGE_EVENTS, request_for, which)
        done += more
    return done


async def on_page(
    ask: Ask,
    filter: Filter,
    cursor: str | None,
    limit: int,
    request_for: RequestFor,
    which: Which = lambda event: True,
) -> tuple[int, str | None]:
    """Send a request for each event on one page of a search. Returns the number of changed events and the next cursor.

    The request must change each event so that the search no longer finds it, or `which` must leave the event out.
    Otherwise a later page finds the event again.
    """
    found, cursor = await ask(Find(filter, cursor, limit))
    requests = [request_for(seen.live) for seen in found if seen.live is not None and which(seen.live)]
    done = 0
    for result in await asyncio.gather(*map(ask, requests), return_exceptions=True):
        if isinstance(result, Seen):
            done += 1
        elif not isinstance(result, (NotFound, Conflict)):
            raise result
    return done, cursor


def spread(per_s: float | None) -> Callable[[], int]:
    """A function that returns the delay of the next event in milliseconds, for events at a rate. None: no delays."""
    taken = 0

    def delay_ms() -> int:
        nonlocal taken
        taken += 1
        # Even with a tiny rate, an event must be due within the calendar.
        return 0 if per_s is None else int(min((taken - 1) * 1_000 / per_s, DURATION_MAX_MS))

    return delay_ms
