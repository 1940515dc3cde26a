"""What waits to be stored: changes in units, in the order in which they have to be made.

New events come after everything else, so that a flood of them does not hold up what is under way; but each group takes
some of them, however long the line of the others is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from everbell.errors import Overloaded, StoreError
from everbell.stores.parcel import Parcel
from everbell.stores.port import Refusal, Write

Done = Callable[[Mapping[int, Refusal] | StoreError], None]
"""Told when a unit was stored, with the refused changes by their index in the unit; or why it was not."""

INTAKE_CHANGES_MAX = 50_000


class Unit:
    """Changes that are stored in one atomic write.

    `must` marks what has happened already and cannot be refused, `is_new` what only adds events. Those that are
    submitted have a `number`, by which reads know what they have to come after.
    """

    __slots__ = ("changes", "done", "is_new", "must", "number", "size")

    def __init__(
        self, changes: Sequence[Write], done: Done, *, must: bool, is_new: bool = False, number: int = 0
    ) -> None:
        self.changes = changes
        first = changes[0] if changes else None
        self.size = len(first) if isinstance(first, Parcel) else len(changes)
        """How many changes that is: a parcel comes alone, and each event in it counts."""
        self.done = done
        self.must = must
        self.is_new = is_new
        self.number = number


class Group:
    """Units that are written together."""

    __slots__ = ("changes", "units")

    def __init__(self, units: list[Unit]) -> None:
        self.units = units
        self.changes: list[Write] = []
        for unit in units:
            self.changes.extend(unit.changes)


class Backlog:
    """Two lines of units: submitted changes, and new events."""

    def __init__(self) -> None:
        self.intake: deque[Unit] = deque()
        self._units: deque[Unit] = deque()
        self._intake_size = 0
        self._submitted = 0

    def __bool__(self) -> bool:
        return bool(self._units or self.intake)

    @property
    def submitted(self) -> int:
        """The number of the unit that was submitted last."""
        return self._submitted

    @property
    def size(self) -> int:
        """How many changes wait."""
        return self._intake_size + sum(unit.size for unit in self._units)

    def submit(self, changes: Sequence[Write], done: Done, *, must: bool) -> None:
        """Changes of events that are known already."""
        self._submitted += 1
        self._units.append(Unit(changes, done, must=must, number=self._submitted))

    def take_in(self, changes: Sequence[Write], done: Done) -> None:
        """New events. Raises `Overloaded` when too many are waiting."""
        if self._intake_size >= INTAKE_CHANGES_MAX:
            raise Overloaded("the store is too slow for what comes in; nothing of this request was stored")
        unit = Unit(changes, done, must=False, is_new=True)
        self.intake.append(unit)
        self._intake_size += unit.size

    def next_group(self, enough: int) -> Group:
        """What is written next: as many units as make `enough` changes."""
        units: list[Unit] = []
        size = 0
        while self._units and size < enough:
            unit = self._units.popleft()
            size += unit.size
            units.append(unit)
        outcomes = size
        while self.intake and (size < enough or size == outcomes):  # One at least, however long a backlog takes.
            unit = self.intake.popleft()
            size += unit.size
            self._intake_size -= unit.size
            units.append(unit)
        return Group(units)

    def put_back(self, group: Group) -> None:
        """Nothing of the group was written: its units are the first again."""
        for unit in reversed(group.units):
            (self.intake if unit.is_new else self._units).appendleft(unit)
            self._intake_size += unit.size if unit.is_new else 0

    def stored(self, under_way: Group | None = None) -> int:
        """Up to which number all units are stored, or were refused, but for those of a group that is under way."""
        left = [*([] if under_way is None else under_way.units), *self._units]
        return next((unit.number - 1 for unit in left if unit.number), self._submitted)

    def take_new(self) -> list[Unit]:
        """Take out all new events."""
        units = list(self.intake)
        self.intake.clear()
        self._intake_size = 0
        return units

    def take_refusable(self) -> list[Unit]:
        """Take out all that need not be stored."""
        units = [unit for unit in self._units if not unit.must]
        self._units = deque(unit for unit in self._units if unit.must)
        return [*units, *self.take_new()]
