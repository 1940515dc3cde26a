"""The cluster values of all states, each kept once, and the results of the real functions between them.

Two states that differ only in the numbers of log entries behave alike: the code compares epochs and never counts with
them. So the numbers in a state are replaced by their ranks. The one use of a number, the choice of a joiner's target,
is explored for every choice. Departed incarnations that cannot ask to join any more are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from everbell.core.cluster import (
    Command,
    Effect,
    PrepareJoin,
    Release,
    Value,
    apply,
    effects,
    encode_value,
    reactions,
)


class Freed(NamedTuple):
    """A release as a value that can be hashed."""

    owner: str
    epochs: tuple[tuple[int, int], ...]


Order = Command | Freed
"""A command in the queue of a process."""

Response = tuple[tuple[Effect, ...], tuple[Command, ...]]


class Values:
    """A table of values by number."""

    def __init__(self) -> None:
        self._values: list[Value] = []
        self._numbers: dict[bytes, int] = {}
        self._indexes: list[tuple[int, ...]] = []
        self._applied: dict[tuple[int, Order, int], int] = {}
        self._seen: dict[tuple[int, int, str], Response] = {}
        self._renamed: dict[tuple[int, tuple[int, ...], tuple[str, ...]], int] = {}

    def __getitem__(self, number: int) -> Value:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)

    def keep(self, value: Value) -> int:
        """The number of a value. Only the transition of its own entry is kept: the code looks at no other."""
        value = replace(value, transitions=tuple(each for each in value.transitions[-1:] if each.index == value.index))
        key = encode_value(value)
        number = self._numbers.setdefault(key, len(self._values))
        if number == len(self._values):
            self._values.append(value)
            self._indexes.append(tuple(sorted({value.index, *(part.epoch for part in value.partitions)})))
        return number

    def indexes(self, number: int) -> tuple[int, ...]:
        """All log indexes that occur in a value."""
        return self._indexes[number]

    def choices(self, number: int, order: Order) -> int:
        """The number of different values that an order may lead to, depending on the index that it gets."""
        if not isinstance(order, PrepareJoin):
            return 1
        value = self[number]
        return max(1, len(value.members) - len(value.joins))

    def applied(self, number: int, order: Order, choice: int) -> int:
        """The value after an order, at an index that makes this choice."""
        key = (number, order, choice)
        if key not in self._applied:
            value = self[number]
            count, index = self.choices(number, order), value.index + 1
            index += (choice - index) % count
            command = Release(order.owner, dict(order.epochs)) if isinstance(order, Freed) else order
            self._applied[key] = self.keep(apply(value, index, command))
        return self._applied[key]

    def seen(self, before: int, after: int, me: str) -> Response:
        """The effects and reactions of a process that plays from one value to another."""
        key = (before, after, me)
        if key not in self._seen:
            old, new = self[before], self[after]
            self._seen[key] = (effects(old, new, me), reactions(old, new, me)) if me else ((), ())
        return self._seen[key]

    def renamed(self, number: int, ranks: Mapping[int, int], joining: Iterable[str]) -> int:
        """The value with other indexes, and without departed incarnations that are not among these."""
        value = self[number]
        departed = tuple(sorted(set(value.departed).intersection(joining)))
        key = (number, tuple(ranks[index] for index in self._indexes[number]), departed)
        if key not in self._renamed:
            ring = value.ring
            first = ring.index(min(ring)) if ring else 0
            self._renamed[key] = self.keep(
                replace(
                    value,
                    index=ranks[value.index],
                    departed=departed,
                    # The ring is a circle: where its list begins means nothing.
                    ring=ring[first:] + ring[:first],
                    joins=dict(sorted(value.joins.items())),
                    members=dict(sorted(value.members.items())),
                    partitions=tuple(replace(part, epoch=ranks[part.epoch]) for part in value.partitions),
                    transitions=tuple(replace(each, index=ranks[each.index]) for each in value.transitions),
                )
            )
        return self._renamed[key]
