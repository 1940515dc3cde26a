"""Every invariant notices when it is broken."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from everbell.core.cluster import Member, Placement, PrepareJoin, Transition, Value, check, check_step
from everbell.core.cluster.value import DEPARTED_MAX, TRANSITIONS_MAX
from everbell.errors import BrokenInvariant
from tests.unit.core.cluster.towns import after, joined, town

SOUND = joined(town("abc", 6), Member("g", "g", gateway=True))
JOINING = after(SOUND, PrepareJoin(Member("d", "d")), PrepareJoin(Member("e", "e")))


def with_partition(value: Value, **fields: object) -> Value:
    return replace(value, partitions=(replace(value.partitions[0], **fields), *value.partitions[1:]))


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (replace(SOUND, ring=("a", "b", "c")), "the ring goes once through every member"),
        (replace(SOUND, ring=("a", "b", "c", "g", "g")), "the ring goes once through every member"),
        (replace(SOUND, members={**SOUND.members, "a": Member("a", "b")}), "members have their keys"),
        (replace(SOUND, members={**SOUND.members, "a": Member("b", "a")}), "names are unique"),
        (replace(SOUND, departed=("a",)), "no departed incarnation comes back"),
        (replace(SOUND, format=2), "all processes understand the log"),
        (replace(JOINING, joins={"a": JOINING.joins["d"]}), "a joiner is no member"),
        (replace(JOINING, joins={"d": replace(JOINING.joins["d"], target="x")}), "a target is a member"),
        (
            replace(JOINING, joins={j: replace(join, target="a") for j, join in JOINING.joins.items()}),
            "no two joiners have the same target",
        ),
        (with_partition(SOUND, owner="x"), "partition 0 has an owner"),
        (with_partition(SOUND, owner=""), "partition 0 has an owner"),
        (with_partition(SOUND, owner="g"), "partition 0 has an owner"),
        (with_partition(SOUND, to="g"), "partition 0 goes to a member"),
        (with_partition(SOUND, epoch=10**6), "is an entry of the log"),
        (replace(SOUND, partitions=(SOUND.partitions[0],) * 6), "has its share of the partitions"),
        (replace(SOUND, backups={}), "every owner has a backup"),
        (replace(SOUND, backups={**SOUND.backups, "a": "a"}), "the backup of a is another member"),
        (replace(SOUND, backups={**SOUND.backups, "a": "g"}), "the backup of a is another member"),
        (replace(SOUND, transitions=(Transition(1, "x", "y"),) * (TRANSITIONS_MAX + 1)), "the history is bounded"),
        (replace(SOUND, departed=("x",) * (DEPARTED_MAX + 1)), "the list of the departed is bounded"),
    ],
)
def test_a_broken_invariant_is_found(broken: Value, rule: str) -> None:
    check(SOUND)
    check(JOINING)
    with pytest.raises(BrokenInvariant, match=rule):
        check(broken)


def test_no_member_backs_up_three_when_two_are_enough() -> None:
    value = town("abcd", 8)

    with pytest.raises(BrokenInvariant, match="more than two"):
        check(replace(value, backups={"a": "b", "b": "a", "c": "a", "d": "a"}))


def test_partitions_without_members_have_no_owner() -> None:
    value = town("", 2)

    check(value)
    with pytest.raises(BrokenInvariant, match="has no owner"):
        check(with_partition(value, owner="a"))


NEXT = replace(SOUND, index=SOUND.index + 1)
EPOCH = SOUND.partitions[0].epoch
OTHER = next(member for member in "abc" if member != SOUND.partitions[0].owner)


@pytest.mark.parametrize(
    ("before", "broken", "rule"),
    [
        (SOUND, SOUND, "the index grows"),
        (SOUND, replace(NEXT, cluster="other"), "keeps its id"),
        (SOUND, replace(NEXT, format=0), "the format never goes back"),
        (SOUND, replace(NEXT, partitions=(Placement(),)), "the number of partitions is fixed"),
        (SOUND, with_partition(NEXT, epoch=EPOCH - 1), "never decreases"),
        (SOUND, with_partition(NEXT, owner=OTHER), "is the index of its entry"),
        (SOUND, with_partition(NEXT, owner=OTHER, epoch=NEXT.index), "was not taken from an owner that has it"),
        (with_partition(SOUND, to=OTHER), NEXT, "is not called off"),
    ],
)
def test_a_step_that_must_not_be_is_found(before: Value, broken: Value, rule: str) -> None:
    check_step(SOUND, NEXT)
    with pytest.raises(BrokenInvariant, match=rule):
        check_step(before, broken)
