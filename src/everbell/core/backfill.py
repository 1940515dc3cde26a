"""Backfill: past occurrences of a recurring event, once more, as single events.

Their ids follow from the event and the nominal time, so a repeated request is harmless. They are due at their
nominal times in the past: they ring at once, oldest first, and one at a time if the event has a key. They do not
expire, because the user asks for them although they are late.
"""

from __future__ import annotations

from collections.abc import Iterator

from everbell.core.event import Event
from everbell.core.recurrence import between, count_between
from everbell.core.spec import Draft, check_name
from everbell.core.time import format_instant
from everbell.errors import Conflict, InvalidInput, TooLarge


def backfill(
    event: Event, from_at: int, until_at: int, now: int, limit: int, trace: str | None = None
) -> Iterator[Draft]:
    """The drafts of the occurrences in a range, both ends included. Raises `InvalidInput` and `Conflict`."""
    if event.repeat is None:
        raise Conflict("only an event that repeats has other occurrences")
    if until_at < from_at:
        raise InvalidInput("lies before from", "until")
    if until_at > now:
        raise InvalidInput("lies in the future: what is to come rings by itself", "until")
    if count_between(event.repeat, event.due_at, from_at, until_at) > limit:
        raise TooLarge(f"the range has more than {limit} occurrences; take a shorter one", "until")
    return (_draft(event, at, trace) for at in between(event.repeat, event.due_at, from_at, until_at))


def _draft(event: Event, at: int, trace: str | None) -> Draft:
    event_id = f"backfill:{event.id}@{format_instant(at)}"
    check_name(event_id, "id")
    return Draft(
        at,
        event.to,
        event.payload,
        event_id,
        event.key,
        event.content_type,
        event.headers,
        event.tags,
        event.retry,
        None,
        None,
        trace,
    )
