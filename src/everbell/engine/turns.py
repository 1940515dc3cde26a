"""When this node may attempt an event that other nodes hold as well. Stored events have one owner, and no turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from everbell.channels.queue import LeaseFollower
from everbell.core.event import Event
from everbell.engine.agenda import Agenda
from everbell.engine.entry import Entry, Phase


class Turns(LeaseFollower, Protocol):
    """Decides which of the nodes that hold an event attempts it, and when."""

    def turn_at(self, event: Event) -> int:
        """The time from which this node may attempt the event. It is asked again before the attempt starts."""

    def begun(self, entries: Sequence[Entry]) -> None:
        """Attempts have started on this node."""

    def make_ids(self, dues: Sequence[int], first: int, partitions: Sequence[int], nonces: bytes) -> list[str]:
        """The ids of events that follow from other events, as `core.ids.make_ids`."""


def postpone(turns: Turns, agenda: Agenda, entry: Entry, now: int) -> bool:
    """Whether it is another node's turn to attempt the entry. Then the entry rings again when its turn comes."""
    if turns.turn_at(entry.event) <= now:
        return False
    entry.phase = Phase.AHEAD
    agenda.add(entry)
    return True
