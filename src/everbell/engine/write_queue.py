"""The changes that wait to be stored, in units, in the order in which they must be stored.

New events come after all other changes, so that a flood of new events does not delay outcomes. But each group contains
some new events, even if many other changes wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everbell.errors import Overloaded, StoreError
from everbell.stores.port import Change, PreparedRows, Refusal

# Called when a unit was stored, with the refused changes by their index in the unit, or with the error if it was not.
OnStored = Callable[[Mapping[int, Refusal] | StoreError], None]

INTAKE_CHANGES_MAX = 50_000


class Unit:
    """Changes that are stored in one atomic write.

    `must`: the changes have happened already and cannot be refused. `is_new`: the unit only adds events. Submitted
    units have a `number`: a read waits until all units up to a number are stored.
    """

    __slots__ = ("changes", "done", "is_new", "must", "number", "size")

    def __init__(
        self, changes: Sequence[Change], done: OnStored, *, must: bool, is_new: bool = False, number: int = 0
    ) -> None:
        self.changes = changes
        first = changes[0] if changes else None
        self.size = first.count if isinstance(first, PreparedRows) else len(changes)
        """The number of changes. Prepared rows are alone in their unit, and each of their events counts."""
        self.done = done
        self.must = must
        self.is_new = is_new
        self.number = number


class WriteGroup:
    """Units that are written together."""

    __slots__ = ("changes", "units")

    def __init__(self, units: list[Unit]) -> None:
        self.units = units
        self.changes: list[Change] = []
        for unit in units:
            self.changes.extend(unit.changes)


class WriteQueue:
    """Two queues of units: submitted changes, and new events."""

    def __init__(self) -> None:
        self.intake: deque[Unit] = deque()
        self._units: deque[Unit] = deque()
        self._intake_size = 0
        self._submitted = 0

    def __bool__(self) -> bool:
        return bool(self._units or self.intake)

    @property
    def submitted(self) -> int:
        """The number of the last submitted unit."""
        return self._submitted

    @property
    def size(self) -> int:
        """The number of changes that wait."""
        return self._intake_size + sum(unit.size for unit in self._units)

    def submit(self, changes: Sequence[Change], done: OnStored, *, must: bool) -> None:
        """Add changes of existing events."""
        self._submitted += 1
        self._units.append(Unit(changes, done, must=must, number=self._submitted))

    def take_in(self, changes: Sequence[Change], done: OnStored) -> None:
        """Add new events. Raises `Overloaded` if too many are waiting."""
        if self._intake_size >= INTAKE_CHANGES_MAX:
            raise Overloaded("the store is too slow for the incoming events; nothing of this request was stored")
        unit = Unit(changes, done, must=False, is_new=True)
        self.intake.append(unit)
        self._intake_size += unit.size

    def next_group(self, enough: int) -> WriteGroup:
        """Take the next group: as many units as make `enough` changes."""
        units: list[Unit] = []
        size = 0
        while self._units and size < enough:
            unit = self._units.popleft()
            size += unit.size
            units.append(unit)
        outcomes = size
        while self.intake and (size < enough or size == outcomes):  # At least one unit of new events.
            unit = self.intake.popleft()
            size += unit.size
            self._intake_size -= unit.size
            units.append(unit)
        return WriteGroup(units)

    def put_back(self, group: WriteGroup) -> None:
        """Return a group that was not written to the front of the queues."""
        for unit in reversed(group.units):
            (self.intake if unit.is_new else self._units).appendleft(unit)
            self._intake_size += unit.size if unit.is_new else 0

    def stored(self, writing: WriteGroup | None = None) -> int:
        """The number up to which all units are stored or refused, if `writing` is still being written."""
        pending = [*([] if writing is None else writing.units), *self._units]
        return next((unit.number - 1 for unit in pending if unit.number), self._submitted)

    def take_new(self) -> list[Unit]:
        """Remove and return all new events."""
        units = list(self.intake)
        self.intake.clear()
        self._intake_size = 0
        return units

    def take_refusable(self) -> list[Unit]:
        """Remove and return all units that may be refused."""
        units = [unit for unit in self._units if not unit.must]
        self._units = deque(unit for unit in self._units if unit.must)
        return [*units, *self.take_new()]


def failing(future: asyncio.Future[Any]) -> Callable[[StoreError], None]:
    """A callback that fails the future of a caller that awaits a read."""

    def failed(error: StoreError) -> None:
        if not future.done():
            future.set_exception(error)

    return failed
