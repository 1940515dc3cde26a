"""Pools: which members share which partitions, and with which weights. Strategies differ in nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import NamedTuple, assert_never

from everbell.core.cluster.strategy import Balanced, Percentage, Weighted
from everbell.core.cluster.value import Member, Placement, Value


class Pool(NamedTuple):
    """Some partitions, and the members that share them."""

    weights: dict[str, int]
    """By incarnation; at least one, not all zero."""
    partitions: Sequence[int]


def can_own(member: Member) -> bool:
    """Whether this member may own partitions at all."""
    return not member.gateway


def able(value: Value) -> list[Member]:
    """The members that should own partitions, by name. Draining members count only if there are no others."""
    owners = sorted((member for member in value.members.values() if can_own(member)), key=lambda member: member.name)
    return [member for member in owners if not member.draining] or owners


def seat(part: Placement, members: Container[str]) -> str:
    """The member that has a partition, or will get it if that is one of `members`. Leaving it there costs nothing."""
    return part.to if part.to in members else part.owner


def pools(value: Value) -> list[Pool]:
    """The pools of the current strategy; none if no member can own partitions."""
    members = able(value)
    if not members:
        return []
    everything = range(len(value.partitions))
    match value.strategy:
        case Balanced():
            return [Pool({member.incarnation: 1 for member in members}, everything)]
        case Weighted(weights):
            return [Pool(_by_capacity(members, weights), everything)]
        case Percentage():
            return _by_percentage(value, value.strategy, members)
        case _ as never:
            assert_never(never)


def _by_capacity(members: Sequence[Member], weights: dict[str, int]) -> dict[str, int]:
    found = {member.incarnation: max(0, weights.get(member.name, member.capacity)) for member in members}
    return found if any(found.values()) else dict.fromkeys(found, 1)


def _by_percentage(value: Value, strategy: Percentage, members: list[Member]) -> list[Pool]:
    # Otherwise a group could have only members without capacity, which should own nothing.
    members = [member for member in members if member.capacity > 0] or members
    slices: list[Sequence[int]] = [range(group.first, group.first + group.count) for group in strategy.groups]
    percents = [group.percent for group in strategy.groups]
    grouped = {partition for part in slices for partition in part}
    rest = [partition for partition in range(len(value.partitions)) if partition not in grouped]
    if rest:
        slices.append(rest)
        percents.append(100 - sum(percents))
    if len(members) < len(slices):
        teams = [[members[number % len(members)]] for number in range(len(slices))]
    else:
        teams = _teams(value, slices, _sizes(percents, len(members)), members)
    return [Pool(_by_capacity(team, {}), part) for team, part in zip(teams, slices, strict=True)]


def _sizes(percents: list[int], members: int) -> list[int]:
    """The number of members for each percentage: at least one, the others one by one to the group that lacks most."""
    sizes = [1] * len(percents)
    for _ in range(members - len(sizes)):
        lacking = [percent * members - 100 * size for percent, size in zip(percents, sizes, strict=True)]
        sizes[lacking.index(max(lacking))] += 1
    return sizes


def _teams(value: Value, slices: list[Sequence[int]], sizes: list[int], members: list[Member]) -> list[list[Member]]:
    """Split the members into teams of these sizes, so that members stay where they own most."""
    stay = {member.incarnation for member in members}
    owned = [Counter(seat(value.partitions[partition], stay) for partition in part) for part in slices]
    choices = sorted(
        (-owned[team][member.incarnation], team, place)
        for team in range(len(slices))
        for place, member in enumerate(members)
    )
    teams: list[list[Member]] = [[] for _ in slices]
    chosen: set[int] = set()
    for _, team, place in choices:
        if place not in chosen and len(teams[team]) < sizes[team]:
            chosen.add(place)
            teams[team].append(members[place])
    return teams
