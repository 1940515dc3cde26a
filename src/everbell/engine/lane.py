"""A key that has something due, in memory: its head, its line, and what is known about the rest of it in the store."""

from __future__ import annotations

from msgspec.structs import replace

from everbell.core.event import Event
from everbell.engine.entry import Entry, Phase
from everbell.stores.port import Move


class Lane:
    """One key that has something due."""

    __slots__ = (
        "asking",
        "away",
        "freed",
        "head",
        "horizon",
        "key",
        "line",
        "marked",
        "partition",
        "spills",
        "tenant",
        "withheld",
    )

    def __init__(self, partition: int, tenant: str, key: str) -> None:
        self.partition = partition
        self.tenant = tenant
        self.key = key
        self.head: Entry | None = None
        self.line: list[Entry] = []
        self.away: list[Entry] = []
        """Out of the line because a user is changing them; they keep their place until that is over."""
        self.horizon: int | None = None
        """The line is in memory up to this order; None: all of it."""
        self.marked = False
        """The store has a mark for the key. It stays there until nothing of the key is left in the store's line."""
        self.asking = False
        """The store is being asked whose turn it is; until then everybody lines up here."""
        self.freed = False
        """The mark was lifted while the store was being asked."""
        self.spills = 0
        """How many entries went to the store's line, so that a read can tell whether it may have missed some."""
        self.withheld = False
        """The head may not go, because somebody paused the key."""

    def look(self) -> tuple[Event | None, int]:
        """Whose turn it is, and how many of the line are nowhere else in a line."""
        only_here = sum(entry.event.state != "waiting" for entry in (*self.line, *self.away))
        return None if self.head is None else self.head.event, only_here

    @property
    def is_only_here(self) -> bool:
        """Whether nothing is known of the key but what is scheduled and waits here: nobody is at work on any of it, and
        nothing of it is in line in the store."""
        if self.head is None or self.asking or self.away or self.marked or self.horizon is not None:
            return False
        return all(_is_plain(entry) for entry in (self.head, *self.line))


def order_of(entry: Entry) -> int:
    """Its place in the line."""
    return entry.event.order


def to_line(event: Event) -> Move:
    """The change that sends an event to the line in the store."""
    return Move(event, replace(event, state="waiting"))


def _is_plain(entry: Entry) -> bool:
    return entry.phase is Phase.READY and entry.event.state == "scheduled" and not entry.blocks_key
