"""Backups: another member, in another zone where that is possible, and no more than two wards for one."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everbell.core.cluster import Drain, Member, Remove, Value, next_in_line
from everbell.core.cluster.backups import assign_backups
from everbell.core.cluster.pools import able
from tests.unit.core.cluster.towns import NAMES, after, joined, town, unsettled


def elsewhere(value: Value, backups: dict[str, str]) -> int:
    return sum(value.members[ward].zone != value.members[backup].zone for ward, backup in backups.items())


def most_elsewhere(value: Value) -> int | None:
    """The best that can be done with two wards for each at most, by trying everything; None if it cannot be done."""
    wards = [member.incarnation for member in value.members.values() if not member.gateway]
    choices = [[backup.incarnation for backup in able(value) if backup.incarnation != ward] for ward in wards]
    found = [
        elsewhere(value, dict(zip(wards, chosen, strict=True)))
        for chosen in product(*choices)
        if max(Counter(chosen).values(), default=0) <= 2
    ]
    return max(found, default=None)


@given(unsettled(partitions_max=1))
def test_as_many_as_possible_are_backed_up_in_another_zone(value: Value) -> None:
    backups = assign_backups(value)

    best = most_elsewhere(value)
    wards = [member for member in value.members.values() if not member.gateway]
    assert len(backups) == (len(wards) if len(wards) > 1 else 0)
    assert all(ward != backup and not value.members[backup].gateway for ward, backup in backups.items())
    if best is not None and backups:
        assert max(Counter(backups.values()).values()) <= 2
        assert elsewhere(value, backups) == best


@given(unsettled(members_max=10, partitions_max=1))
def test_assignments_stay(value: Value) -> None:
    assigned = replace(value, backups=assign_backups(value))

    assert assign_backups(assigned) == assigned.backups


@given(st.integers(2, 14))
def test_without_zones_every_member_backs_up_one(members: int) -> None:
    value = town(NAMES[:members], 1)

    assert sorted(value.backups.values()) == sorted(value.members)


@given(st.integers(3, 14), st.data())
def test_few_backups_change_when_members_do(members: int, data: st.DataObject) -> None:
    before = town(NAMES[:members], 1)
    gone = data.draw(st.sampled_from(NAMES[:members]))

    for value in (after(before, Remove(gone, by="a")), joined(before, Member("z", "z")), after(before, Drain(gone))):
        stay = value.members.keys() & before.members.keys()
        assert sum(value.backups[ward] != before.backups[ward] for ward in stay) <= 2


def test_the_line_goes_from_backup_to_backup() -> None:
    value = town("abc", 3)
    [number] = (number for number, part in enumerate(value.partitions) if part.owner == "a")

    assert next_in_line(value, number) == ("b", "c")
    assert next_in_line(town("a", 1), 0) == ()
