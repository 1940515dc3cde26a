"""What the earlier changes of an apply have made of an event, for the later ones that look at it.

A store builds one atomic write from many changes while it stays as it is, so what is not written yet is found here.
The view is only made when somebody looks: adding events with made ids, ending them and moving them costs nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import assert_never

from everbell.core.event import Event, Record
from everbell.stores.parcel import Parcel
from everbell.stores.port import Add, Block, Finish, Move, Unblock, Write

Stored = Event | tuple[Record, int]
"""An unfinished event, or what is kept of it and until when."""


class View:
    """The changes of one apply that were not refused, by the id of their event."""

    def __init__(self, changes: Sequence[Write], refused: Container[int]) -> None:
        self._changes = changes
        self._refused = refused
        self._latest: dict[tuple[str, str], Stored] = {}
        self._noted = 0

    def before(self, index: int, tenant: str, event_id: str) -> Stored | None:
        """What the changes before `index` have made of an event; None if they did not touch it."""
        for noted in range(self._noted, index):
            if noted not in self._refused:
                self._note(self._changes[noted])
        self._noted = index
        return self._latest.get((tenant, event_id))

    def _note(self, change: Write) -> None:
        match change:
            case Add(event) | Move(after=event):
                self._latest[event.tenant, event.id] = event
            case Finish(record=record, following=following):
                self._latest[record.tenant, record.id] = following or (record, change.keep_until_at)
            case Block() | Unblock():
                pass
            case Parcel():
                pass  # Nobody knows their ids yet.
            case _:
                assert_never(change)
