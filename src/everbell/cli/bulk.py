"""Changing many events at a time, in pages, with a bar that shows how far it is.

An interrupted command keeps the changes that it made. Repeating it goes on with the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from everbell.cli.parser import FAILED, OK
from everbell.cli.printing import print_result
from everbell.cli.reporting import complain
from everbell.cli.terminal import Progress
from everbell.client.answers import Cancelled, EventView
from everbell.client.blocking import Client
from everbell.clock import SystemClock

PAGE_EVENTS = 1_000
_ERRORS_SHOWN = 20
_SEARCHES_MAX = 5


def cancel_all(page: Callable[..., Cancelled], chosen: dict[str, Any], verb: str, *, as_json: bool) -> int:
    """Cancel all that `page` finds, page by page, and again until a search finds no more: an event that moved to an
    earlier time meanwhile is missed by the first search.
    """
    progress = Progress(None, SystemClock())
    cancelled = 0
    for _ in range(_SEARCHES_MAX):
        before = cancelled
        cursor: str | None = None
        while True:
            done = page(**chosen, limit=PAGE_EVENTS, cursor=cursor)
            cancelled += done.cancelled
            cursor = done.cursor
            if cursor is None:
                break
            progress.show(0, cancelled)
        if cancelled == before:
            break
    progress.clear()
    print_result({verb: cancelled}, f"{verb} {events(cancelled)}", as_json=as_json)
    return OK


def reschedule_all(client: Client, chosen: dict[str, Any], args: argparse.Namespace) -> int:
    """Reschedule all events that match. All are found first, so that none is found again at its new time."""
    names = _find(client, chosen)
    progress = Progress(len(names), SystemClock())
    moved = skipped = 0
    for start in range(0, len(names), PAGE_EVENTS):
        some = names[start : start + PAGE_EVENTS]
        result = client.reschedule_many(some, at=args.at, in_=args.in_, by=args.by)
        moved += result.rescheduled
        for error in result.errors[: max(_ERRORS_SHOWN - skipped, 0)]:
            progress.clear()
            complain("reschedule", f"{error.id}: {error.detail}")
        skipped += result.skipped
        progress.show(start + len(some), moved)
    progress.clear()
    print_result(
        {"rescheduled": moved, "skipped": skipped}, f"rescheduled {events(moved)}" + _left(skipped), as_json=args.json
    )
    return FAILED if skipped else OK


def count_matching(client: Client, verb: str, chosen: dict[str, Any], *, as_json: bool) -> int:
    """Print how many events a command would change, and change none."""
    count = sum(len(some) for some in _pages(client, chosen))
    print_result({f"would_{verb}": count}, f"would {verb} {events(count)}", as_json=as_json)
    return OK


def events(count: int) -> str:
    """A number of events, in words."""
    return "1 event" if count == 1 else f"{count:,} events"


def _left(count: int) -> str:
    return "" if count == 0 else ", left 1 as it was" if count == 1 else f", left {count:,} as they were"


def _find(client: Client, chosen: dict[str, Any]) -> list[tuple[str, int | None]]:
    """The ids and versions of all that match. An event that moves meanwhile may be found twice, and is named once."""
    return list({event.id: event.version for some in _pages(client, chosen) for event in some}.items())


def _pages(client: Client, chosen: dict[str, Any]) -> Iterator[Sequence[EventView]]:
    progress = Progress(None, SystemClock())
    found = 0
    page = client.page(**chosen, limit=PAGE_EVENTS)
    while True:
        yield page.events
        if page.rest is None:
            progress.clear()
            return
        found += len(page.events)
        progress.show(0, found)
        page = client.run(page.rest)
