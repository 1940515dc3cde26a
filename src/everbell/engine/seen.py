"""Events and keys as users see them, and the result of a draft."""

from __future__ import annotations

from msgspec import Struct

from everbell.core.event import Event, Record, Status
from everbell.core.why import Why
from everbell.errors import EverbellError


class Seen(Struct, frozen=True, array_like=True):
    """An event as it is now: a live one, or the record of one that has ended.

    There is a field for each of the two because nodes send it to each other as this array.
    """

    live: Event | None
    record: Record | None
    status: Status
    created: bool = False
    """Whether this request made the event; False when a repeated request found it."""
    holders: tuple[str, ...] = ()
    """For an event that replicas hold: the nodes that have it in this form."""
    replicas: int = 0
    """For an event that replicas hold: the number of nodes that shall have it; 0 for a stored event."""
    unreached: tuple[str, ...] = ()
    """For an event that replicas hold: nodes that may have it in an earlier form. They did not answer, or left the
    cluster without giving their copies away.
    """

    @classmethod
    def of(cls, event: Event | Record, status: Status, *, created: bool = False) -> Seen:
        if isinstance(event, Event):
            return cls(event, None, status, created)
        return cls(None, event, status, created)

    @property
    def event(self) -> Event | Record:
        event = self.live or self.record
        assert event is not None, "an event is live, or it has ended"
        return event


class Explained(Struct, frozen=True, array_like=True):
    """An event as it is now, and why it has not been delivered yet. None: it has ended."""

    seen: Seen
    why: Why | None


class KeyLine(Struct, frozen=True, array_like=True):
    """A key as it is now: its first event, if one is due, and the number of events that wait for its end."""

    head: Seen | None
    waiting: int
    is_more: bool = False
    """Whether more events wait than were counted."""


class KeyLines(Struct, frozen=True, array_like=True):
    """Keys that are blocked, by name, each with its head and the number of events that wait."""

    lines: tuple[tuple[str, KeyLine], ...]
    is_more: bool = False
    """Whether there are more such keys."""
    unheard: tuple[str, ...] = ()
    """The nodes that did not answer, so that keys may be missing."""


# The result of a draft: the id of a new event, the event that a repeated request found, or the reason for a refusal.
DraftResult = str | Seen | EverbellError
