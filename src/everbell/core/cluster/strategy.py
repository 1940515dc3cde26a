"""Strategies: how the partitions are shared out, as plain values that travel in the log.

A strategy says which members share which partitions, and with which weights. `placement` computes the owners from
it, the same on every node.
"""

from __future__ import annotations

import msgspec

WEIGHT_MAX = 1_000_000


class Balanced(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="balanced", tag_field="strategy"):
    """Every member that can own partitions gets the same number, within one, whatever its capacity."""


class Weighted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="weighted", tag_field="strategy"):
    """Every member gets its share by capacity, rounded down or up.

    `weights` overrides the capacity that a member announced when it joined, by name. It is part of the strategy, not
    of the member, so that it outlives a restart of that member.
    """

    weights: dict[str, int] = {}


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tenants that have a slice of the partitions, and `percent` of the members to serve it, to themselves.

    The slice is `count` partitions from `first` on. The operator names it; it is not derived from
    `percent`, because stored events stay in the partition that their key was hashed to: the percentage of a group may
    change at any time, its slice only while its tenants have no events.
    """

    name: str
    percent: int
    first: int
    count: int
    tenants: tuple[str, ...] = ()


class Percentage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="percentage", tag_field="strategy"):
    """Each group has its percentage of the members, at least one; the others serve all partitions of no group.

    Inside a group, and among the others, partitions are shared out by capacity. With fewer members than groups,
    members serve several.
    """

    groups: tuple[Group, ...]


Strategy = Balanced | Weighted | Percentage


def slices_of(strategy: Strategy) -> dict[str, tuple[int, int]]:
    """The first partition and the number of partitions of every tenant that has a slice of its own."""
    if not isinstance(strategy, Percentage):
        return {}
    return {tenant: (group.first, group.count) for group in strategy.groups for tenant in group.tenants}


def flaw(strategy: Strategy, partitions: int) -> str:
    """The reason why the strategy is invalid for a cluster with `partitions` partitions; empty if it is valid."""
    match strategy:
        case Weighted():
            if any(not 0 <= weight <= WEIGHT_MAX for weight in strategy.weights.values()):
                return f"a weight is a number from 0 to {WEIGHT_MAX:,}"
        case Percentage():
            return _flaw_of_groups(strategy.groups, partitions)
    return ""


def _flaw_of_groups(groups: tuple[Group, ...], partitions: int) -> str:
    if any(not 1 <= group.percent <= 100 or group.count < 1 for group in groups):
        return "a group has 1 to 100 percent of the members and at least one partition"
    if any(group.first < 0 or group.first + group.count > partitions for group in groups):
        return f"the slice of a group lies within the partitions 0 to {partitions - 1}"
    taken = [partition for group in groups for partition in range(group.first, group.first + group.count)]
    tenants = [tenant for group in groups for tenant in group.tenants]
    if len(set(taken)) < len(taken) or len(set(tenants)) < len(tenants):
        return "no partition and no tenant is in two groups"
    if len({group.name for group in groups}) < len(groups):
        return "two groups have the same name"
    if sum(group.percent for group in groups) > (100 if len(taken) == partitions else 99):
        return "the groups take more than all members, and partitions of no group need members too"
    return ""
