"""A lane: the events of one key that are due and in memory, and its knowledge of the key's line in the store.

    OPEN ──► ASKING | FREED ──► OPEN      The store is asked whether the key is marked, and for which event.
    OPEN ──► READING ──► OPEN             The next page of the key's line is read from the store.
    OPEN ──► LED ──► OPEN                 The lane has a head.
             LED ◄──► HELD_BACK           A pause of the key holds the head back.

A new lane is open. `TRANSITIONS` is the complete list. A lane has a head exactly in the phases `LED` and `HELD_BACK`.
It leaves memory from any phase: when its line is empty, its head failed, or its partition left this node.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec.structs import replace

from everbell.core.event import Event
from everbell.engine.entry import Entry, Phase
from everbell.stores.port import Move


class LanePhase(IntEnum):
    """What a lane is waiting for."""

    ASKING = 0  # the store was asked for the key's mark; all entries line up in memory until it answers
    FREED = 1  # as ASKING, and the mark was lifted after the question was asked
    READING = 2  # the next page of the line is being read from the store
    OPEN = 3  # no head: the lane waits for the agenda, or for the end of a change
    LED = 4  # the head is dispatched, or will be in a moment
    HELD_BACK = 5  # the head waits until the pause of its key ends


TRANSITIONS: frozenset[tuple[LanePhase, LanePhase]] = frozenset(
    {
        (LanePhase.OPEN, LanePhase.ASKING),
        (LanePhase.ASKING, LanePhase.FREED),
        (LanePhase.ASKING, LanePhase.OPEN),
        (LanePhase.FREED, LanePhase.OPEN),
        (LanePhase.OPEN, LanePhase.READING),
        (LanePhase.READING, LanePhase.OPEN),
        (LanePhase.OPEN, LanePhase.LED),
        (LanePhase.LED, LanePhase.OPEN),  # the head ended, or was changed
        (LanePhase.LED, LanePhase.HELD_BACK),
        (LanePhase.HELD_BACK, LanePhase.LED),
        (LanePhase.HELD_BACK, LanePhase.OPEN),  # the head was changed or cancelled during the pause
    }
)


class Lane:
    """One key that has something due."""

    __slots__ = ("head", "horizon", "key", "line", "marked", "partition", "phase", "spills", "tenant")

    def __init__(self, partition: int, tenant: str, key: str) -> None:
        self.partition = partition
        self.tenant = tenant
        self.key = key
        self.phase = LanePhase.OPEN
        self.head: Entry | None = None
        self.line: list[Entry] = []
        # The line is in memory up to this order. None: all of it is in memory.
        self.horizon: int | None = None
        # The store has a mark for the key. The mark stays until the store's line has no event of the key.
        self.marked = False
        # The number of entries that went to the store's line. A read compares it to notice entries that it missed.
        self.spills = 0

    @property
    def is_reading(self) -> bool:
        """Whether a read of the store decides how the lane goes on."""
        return self.phase <= LanePhase.READING

    def summary(self) -> tuple[Event | None, int]:
        """The head, and the number of entries of the line that are not in the store's line as well."""
        only_here = sum(entry.event.state != "waiting" for entry in self.line)
        return None if self.head is None else self.head.event, only_here

    def cut(self) -> list[Entry]:
        """Remove the entries beyond the horizon from the line in memory, and return them."""
        line, horizon = self.line, self.horizon
        if horizon is None:
            return []
        self.line = [entry for entry in line if order_of(entry) <= horizon]
        return line[len(self.line) :]

    @property
    def is_only_here(self) -> bool:
        """Whether the whole lane waits in memory: no entry is in flight or being stored, and the store has no line."""
        if self.head is None or self.marked or self.horizon is not None:
            return False
        return all(_is_untouched(entry) for entry in (self.head, *self.line))


def order_of(entry: Entry) -> int:
    """The entry's place in its line."""
    return entry.event.order


def to_line(event: Event) -> Move:
    """The change that moves an event to the line in the store."""
    return Move(event, replace(event, state="waiting"))


def _is_untouched(entry: Entry) -> bool:
    return entry.phase is Phase.READY and entry.event.state == "scheduled" and not entry.blocks_key
