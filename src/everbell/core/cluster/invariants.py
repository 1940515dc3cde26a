"""The invariants of every value and of every step between values. Checked after each entry, in production too.

A broken invariant is a bug. All nodes with the same code break it at the same entry. They stop rather than run
partitions that may have two owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from everbell.core.cluster.backups import WARDS_MAX
from everbell.core.cluster.pools import able, can_own, pools
from everbell.core.cluster.strategy import Percentage
from everbell.core.cluster.value import DEPARTED_MAX, TRANSITIONS_MAX, Placement, Value
from everbell.errors import BrokenInvariant


def check(value: Value) -> None:
    """Raise `BrokenInvariant` unless all invariants of a value hold."""
    _check_ring(value)
    _check_joins(value)
    _check_owners(value)
    _check_balance(value)
    _check_backups(value)
    _require(len(value.transitions) <= TRANSITIONS_MAX, value, "the history is bounded")
    _require(len(value.departed) <= DEPARTED_MAX, value, "the list of the departed is bounded")


def check_step(before: Value, after: Value) -> None:
    """Raise `BrokenInvariant` unless one entry may lead from `before` to `after`."""
    _require(after.index > before.index, after, "the index grows")
    if not before.cluster:
        return
    _require(after.cluster == before.cluster, after, "a cluster keeps its id")
    _require(after.format >= before.format, after, "the format never goes back")
    _require(len(after.partitions) == len(before.partitions), after, "the number of partitions is fixed")
    for number, (old, new) in enumerate(zip(before.partitions, after.partitions, strict=True)):
        if new is not old:
            _check_move(after, number, old, new)


def _check_move(after: Value, number: int, old: Placement, new: Placement) -> None:
    _require(new.epoch >= old.epoch, after, f"the epoch of partition {number} never decreases")
    if (new.owner, new.epoch) == (old.owner, old.epoch):
        _require(bool(new.to) or not old.to, after, f"the hand-over of partition {number} is not called off")
    elif new.owner:
        _require(new.epoch == after.index, after, f"the epoch of partition {number} is the index of its entry")
        is_ceded = old.to or old.owner not in after.members or new.owner == old.owner
        _require(bool(is_ceded), after, f"partition {number} was not taken from an owner that has it")


def _check_ring(value: Value) -> None:
    _require(sorted(value.ring) == sorted(value.members), value, "the ring goes once through every member")
    _require(all(key == member.incarnation for key, member in value.members.items()), value, "members have their keys")
    _require(value.members.keys().isdisjoint(value.departed), value, "no departed incarnation comes back")
    processes = [*value.members.values(), *(join.member for join in value.joins.values())]
    _require(_differ(member.name for member in processes), value, "names are unique")
    _require(all(member.format >= value.format for member in processes), value, "all processes understand the log")


def _check_joins(value: Value) -> None:
    _require(value.joins.keys().isdisjoint(value.members), value, "a joiner is no member")
    _require(all(join.target in value.members for join in value.joins.values()), value, "a target is a member")
    _require(_differ(join.target for join in value.joins.values()), value, "no two joiners have the same target")


def _check_owners(value: Value) -> None:
    owners = {incarnation for incarnation, member in value.members.items() if can_own(member)}
    for number, part in enumerate(value.partitions):
        _require(part.epoch <= value.index, value, f"the epoch of partition {number} is an entry of the log")
        if owners:
            _require(part.owner in owners, value, f"partition {number} has an owner")
            _require(not part.to or part.to in owners, value, f"partition {number} goes to a member")
        else:
            _require(not part.owner and not part.to, value, f"partition {number} has no owner")


def _check_balance(value: Value) -> None:
    # The percentage strategy's teams are not part of the value and may change among members that own nothing.
    if isinstance(value.strategy, Percentage):
        return
    counts = Counter(part.to or part.owner for part in value.partitions)
    for pool in pools(value):
        total = sum(pool.weights.values())
        for member, weight in pool.weights.items():
            least, remainder = divmod(len(pool.partitions) * weight, total)
            fair = least <= counts[member] <= least + bool(remainder)
            _require(fair, value, f"{member} has its share of the partitions, and not {counts[member]}")


def _check_backups(value: Value) -> None:
    wards = {incarnation for incarnation, member in value.members.items() if can_own(member)}
    _require(set(value.backups) == (wards if len(wards) > 1 else set()), value, "every owner has a backup")
    loads = Counter(value.backups.values())
    for ward, backup in value.backups.items():
        _require(ward != backup and backup in wards, value, f"the backup of {ward} is another member")
    # With two wards for each backup there is room for all, unless too many members drain.
    backups = len(able(value))
    if backups > 1 and len(wards) <= WARDS_MAX * backups:
        _require(all(load <= WARDS_MAX for load in loads.values()), value, "no member backs up more than two others")


def _differ(items: Iterable[str]) -> bool:
    listed = list(items)
    return len(set(listed)) == len(listed)


def _require(holds: bool, value: Value, rule: str) -> None:
    if not holds:
        raise BrokenInvariant(
            f"After entry {value.index} of the log it is not true that {rule}. This is a bug in Everbell: "
            "this node stops before it does harm. Please report it, with the log."
        )
