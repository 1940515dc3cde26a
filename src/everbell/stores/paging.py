"""Pages of events: how large they are, and how a page is made of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from everbell.core.event import Event, position, position_at
from everbell.core.ids import SEQUENCE_MAX
from everbell.core.target import stem_of
from everbell.stores.port import Page, Poison
from everbell.stores.rows import BadRow, read_event

PAGE_BYTES_MAX = 8 * 1024 * 1024
"""How many bytes of rows are read at a time, plus at most one row: a payload may have megabytes."""

LEFT_OUT_PER_EVENT = 4
"""A page leaves out at most this many events for each one that it may have, because skipping takes time, too."""

AT_MAX = (1 << 63) - 1
"""The highest time that a database has."""


def is_left_out(event: Event, without: Collection[tuple[str, str]]) -> bool:
    return event.key is None and (event.tenant, stem_of(event.to)) in without


def page_of(
    rows: Iterable[tuple[int, int, bytes | None]],
    partition: int,
    limit: int,
    next_at: int | None,
    *,
    more: bool,
    place: bytes = b"",
) -> Page:
    """A page of rows (time, sequence, body). Rows without a body are left out. `more`: the range goes on after them."""
    events: list[Event] = []
    poison: list[Poison] = []
    left = limit
    left_out, left_out_max = 0, limit * LEFT_OUT_PER_EVENT
    size_bytes = 0
    last = None
    for at, sequence, body in rows:
        if not left or left_out == left_out_max or size_bytes >= PAGE_BYTES_MAX:
            return Page(events, True, None, poison, left_out, last)
        last = position(at, sequence)
        if body is None:
            left_out += 1
            continue
        left -= 1
        size_bytes += len(body)
        try:
            events.append(read_event(body))
        except BadRow as bad:
            poison.append(Poison(partition, at, sequence, body, str(bad), place))
    return Page(events, more, None if more else next_at, poison, left_out, last if more else None)


def first_after(place: int) -> tuple[int, int]:
    """The first (time, sequence) after a position."""
    start = max(place + 1, 0)
    return min(position_at(start), AT_MAX), start & SEQUENCE_MAX


def last_of(page: Page) -> int:
    """The last position of a page that is not the last page."""
    if page.last is not None:
        return page.last
    last = [event.position for event in page.events[-1:]]
    last += [position(poison.run_at, poison.sequence) for poison in page.poison]
    return max(last, default=position(0, SEQUENCE_MAX))
