"""Which members hold an event: the fewest moves, the same order, different zones."""

from __future__ import annotations

import random
from collections import Counter

from everbell.core.replicas.placement import Roster

NAMES = [f"event-{number}" for number in range(300)]


def zoned(members: int, zones: int) -> dict[str, str]:
    return {f"node-{number}": f"z{number % zones}" for number in range(members)}


def test_shares_are_fair() -> None:
    roster = Roster(zoned(5, 1))
    held = Counter(member for number in range(2_000) for member in roster.replicas_of(f"e{number}", 3))

    assert sum(held.values()) == 6_000
    assert all(1_050 <= count <= 1_350 for count in held.values())


def test_a_member_that_leaves_moves_only_its_own_events_and_keeps_the_order_of_the_others() -> None:
    dice = random.Random(3)
    for _ in range(60):
        members = zoned(dice.randint(2, 9), dice.randint(1, 4))
        count = dice.randint(1, 7)
        gone = dice.choice(sorted(members))
        before, after = Roster(members), Roster({name: zone for name, zone in members.items() if name != gone})
        for name in NAMES:
            had, has = before.replicas_of(name, count), after.replicas_of(name, count)
            stayed = [member for member in had if member != gone]
            assert [member for member in has if member in stayed] == stayed
            if gone not in had:
                assert had == has
            assert len(set(has) - set(had)) <= 1


def test_replicas_are_in_different_zones_while_there_are_enough() -> None:
    members = zoned(9, 3)
    roster = Roster(members)
    for name in NAMES:
        assert len({members[member] for member in roster.replicas_of(name, 3)}) == 3
        assert set(Counter(members[member] for member in roster.replicas_of(name, 6)).values()) == {2}


def test_few_members_hold_everything() -> None:
    assert sorted(Roster({"a": "", "b": ""}).replicas_of("x", 5)) == ["a", "b"]
