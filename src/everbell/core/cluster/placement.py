"""Placement: which member owns which partition, computed from the value alone.

- Every member of a pool gets its share by weight, rounded down or up. Rounding favours members that have one
  partition too many already, so that as few partitions as possible move.
- Only partitions without a seat (their owner left, drains, or is in another pool) and the excess partitions of a
  member move. That is the least that any balanced placement can do.
- A partition that has lost its owner goes to its home if that is back, else to its owner's backup while that has
  room, else to the member with most room. It never goes through an intermediate stand-in: each move is final, and
  all survivors start their part at once.
- A partition that has an owner is only marked (`to`); it moves when its owner has released it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from everbell.core.cluster.backups import assign_backups
from everbell.core.cluster.pools import Pool, pools, seat
from everbell.core.cluster.value import Placement, Value


def settle(value: Value) -> Value:
    """Give every partition without an owner to one, at this index, and mark those that have to move."""
    targets = plan(value)
    parts = tuple(_settled(value, part, targets.get(number, "")) for number, part in enumerate(value.partitions))
    after = replace(value, partitions=parts)
    return replace(after, backups=assign_backups(after))


def plan(value: Value) -> dict[int, str]:
    """The intended owner of each partition; empty if no member can own one."""
    targets: dict[int, str] = {}
    for pool in pools(value):
        targets.update(_Sharing(value, pool).targets())
    return targets


def quotas(weights: dict[str, int], counts: dict[str, int], partitions: int) -> dict[str, int]:
    """The number of partitions for each member, its share rounded down or up, given its current count.

    Rounding up favours members above their rounded-down share, because each of them keeps one partition that would
    otherwise move.
    """
    total = sum(weights.values())
    found = {member: partitions * weight // total for member, weight in weights.items()}
    fractions = {member: partitions * weight % total for member, weight in weights.items()}
    favoured = sorted(
        (member for member in weights if fractions[member]),
        key=lambda member: (counts.get(member, 0) <= found[member], -fractions[member]),
    )
    for member in favoured[: partitions - sum(found.values())]:
        found[member] += 1
    return found


def _settled(value: Value, part: Placement, target: str) -> Placement:
    if not target:
        return part if part.owner in value.members else replace(part, owner="", to="")
    if part.owner not in value.members:
        home = "" if part.clean or part.home == value.members[target].name else part.home
        return Placement(target, value.index, "", part.clean, home)
    if part.to or part.owner != target:
        return part if part.to == target else replace(part, to=target)
    return part


class _Sharing:
    """One pool being shared out."""

    def __init__(self, value: Value, pool: Pool) -> None:
        self._value = value
        self._held: dict[str, list[int]] = {member: [] for member in pool.weights}
        self._loose: list[int] = []
        for partition in pool.partitions:
            self._held.get(seat(value.partitions[partition], self._held), self._loose).append(partition)
        counts = {member: len(held) for member, held in self._held.items()}
        self._quotas = quotas(pool.weights, counts, len(pool.partitions))
        self._room = {member: max(0, quota - counts[member]) for member, quota in self._quotas.items()}
        self._homes = {value.members[member].name: member for member in pool.weights}

    def targets(self) -> dict[int, str]:
        """The owners. Members with too many partitions give some away; loose ones are given by preference."""
        for member, held in self._held.items():
            excess = len(held) - self._quotas[member]
            if excess > 0:
                held.sort(key=lambda partition: (not self._has_room(self._home(partition)), -partition))
                self._loose += held[:excess]
                del held[:excess]
        self._loose.sort()
        for wish in (self._home, self._heir):
            self._loose = [partition for partition in self._loose if not self._give(partition, wish(partition))]
        for partition, member in zip(self._loose, self._rooms(), strict=True):
            self._held[member].append(partition)
        return {partition: member for member, held in self._held.items() for partition in held}

    def _home(self, partition: int) -> str:
        return self._homes.get(self._value.partitions[partition].home, "")

    def _heir(self, partition: int) -> str:
        return self._value.backups.get(self._value.partitions[partition].owner, "")

    def _has_room(self, member: str) -> bool:
        return self._room.get(member, 0) > 0

    def _give(self, partition: int, member: str) -> bool:
        if not self._has_room(member):
            return False
        self._room[member] -= 1
        self._held[member].append(partition)
        return True

    def _rooms(self) -> Iterator[str]:
        """Each member as often as it has room: those with most room come first and take turns at the end."""
        free = ((left, member) for member, room in self._room.items() for left in range(1, room + 1))
        return (member for _, member in sorted(free, key=lambda entry: -entry[0]))
