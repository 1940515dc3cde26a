"""Placement: fair shares, and never a move more than the least that any fair placement needs."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everbell.core.cluster import (
    Balanced,
    Drain,
    Forget,
    Group,
    Leave,
    Member,
    Percentage,
    Remove,
    SetStrategy,
    Strategy,
    Undrain,
    Value,
    Weighted,
    check,
    flaw,
    stand_ins,
)
from everbell.core.cluster.placement import plan, quotas, settle
from everbell.core.cluster.pools import able, pools
from tests.unit.core.cluster.towns import NAMES, after, founded, joined, owners, rested, town, unsettled


def least_moves(weights: dict[str, int], counts: Counter[str], partitions: int) -> int:
    """The lower bound, by trying every way of rounding the shares."""
    total = sum(weights.values())
    floors = {member: partitions * weight // total for member, weight in weights.items()}
    uneven = [member for member, weight in weights.items() if partitions * weight % total]
    return min(
        partitions - sum(min(counts[member], floors[member] + (member in favoured)) for member in weights)
        for favoured in combinations(uneven, partitions - sum(floors.values()))
    )


@given(unsettled(), st.sampled_from([Balanced(), Weighted(), Weighted({"a": 5, "b": 0})]))
def test_shares_are_fair_and_moves_are_the_fewest_possible(value: Value, strategy: Strategy) -> None:
    value = replace(value, strategy=strategy)
    targets = plan(value)

    if not able(value):
        assert not targets
        return
    [pool] = pools(value)
    total = sum(pool.weights.values())
    placed = Counter(targets.values())
    for member, weight in pool.weights.items():
        share = len(value.partitions) * weight / total
        assert share - 1 < placed[member] < share + 1
    moved = sum(targets[number] != part.owner for number, part in enumerate(value.partitions))
    counts = Counter(part.owner for part in value.partitions)
    assert moved == least_moves(pool.weights, counts, len(value.partitions))


@given(unsettled(members_max=8, partitions_max=40), st.integers(1, 99), st.data())
def test_a_group_has_members_of_its_own_and_shares_are_fair_in_it(
    value: Value, percent: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(value.partitions)))
    first = data.draw(st.integers(0, len(value.partitions) - count))
    value = replace(value, strategy=Percentage((Group("g", percent, first, count),)))

    targets = plan(value)

    for pool in pools(replace(value)):
        shares = Counter(targets[partition] for partition in pool.partitions)
        total = sum(pool.weights.values())
        for member, weight in pool.weights.items():
            assert abs(shares[member] - len(pool.partitions) * weight / total) < 1
    inside = {targets[number] for number in targets if first <= number < first + count}
    outside = {targets[number] for number in targets if not first <= number < first + count}
    # Members without capacity are not counted, unless there are no others.
    willing = [member for member in able(value) if member.capacity] or able(value)
    assert len(willing) < 2 or inside.isdisjoint(outside)


@pytest.mark.parametrize(("percent", "members"), [(1, 1), (10, 1), (25, 2), (50, 4), (75, 6), (99, 7)])
def test_a_percentage_is_that_of_the_members(percent: int, members: int) -> None:
    value = after(town(NAMES[:8], 64), SetStrategy(Percentage((Group("g", percent, 0, 32),))))

    assert len(set(owners(value)[:32])) == members
    assert len(set(owners(value)[32:])) == 8 - members


@given(unsettled(), st.sampled_from([Balanced(), Weighted(), Percentage((Group("g", 40, 0, 1),))]))
def test_a_settled_placement_stays(value: Value, strategy: Strategy) -> None:
    once = settle(replace(value, strategy=strategy))

    check(once)
    assert settle(once) == once


@given(st.integers(1, 12), st.integers(1, 64))
def test_a_newcomer_gets_its_share_and_nothing_else_moves(members: int, partitions: int) -> None:
    before = town(NAMES[:members], partitions)

    value = joined(before, Member("z", "z"))

    moved = [new for old, new in zip(owners(before), owners(value), strict=True) if new != old]
    assert set(moved) <= {"z"}
    assert len(moved) == partitions // (members + 1)


@given(st.integers(2, 12), st.integers(1, 64), st.booleans(), st.data())
def test_only_partitions_without_an_owner_move(members: int, partitions: int, dead: bool, data: st.DataObject) -> None:
    before = town(NAMES[:members], partitions)
    gone = data.draw(st.sampled_from(NAMES[:members]))

    value = after(before, Remove(gone, by="a") if dead else Leave(gone))

    for old, new in zip(before.partitions, value.partitions, strict=True):
        assert new == old if old.owner != gone else (new.epoch, new.clean) == (value.index, not dead)


@given(st.integers(2, 12), st.integers(1, 64), st.data())
def test_a_backup_is_the_first_to_take_over(members: int, partitions: int, data: st.DataObject) -> None:
    before = town(NAMES[:members], partitions)
    gone = data.draw(st.sampled_from(NAMES[:members]))
    backup = before.backups[gone]

    value = after(before, Remove(gone, by=backup))

    counts = Counter(owners(before))
    taken = sum(old == gone and new == backup for old, new in zip(owners(before), owners(value), strict=True))
    room = -(-partitions // (members - 1)) - counts[backup]
    assert taken in (min(room, counts[gone]), min(max(0, room - 1), counts[gone]))


def test_a_returning_member_gets_its_partitions_back() -> None:
    before = town("abcd", 64)

    lost = after(before, Remove("b", by="a"))
    assert sum(map(len, stand_ins(lost)["b"].values())) == 16
    back = rested(joined(lost, Member("b", "b2")))

    assert [owner.replace("b2", "b") for owner in owners(back)] == owners(before)
    assert not stand_ins(back)


def test_a_member_that_is_forgotten_has_no_stand_ins() -> None:
    value = after(town("abcd", 64), Remove("b", by="a"))

    assert not stand_ins(after(value, Forget("b")))


def test_a_stand_in_that_dies_is_stood_in_for_as_well() -> None:
    value = after(town("ab", 4), Remove("b", by="a"), Remove("a", by="x"))

    assert {part.home for part in value.partitions} == {"a", "b"}
    assert not any(part.owner or part.clean for part in value.partitions)


def test_draining_moves_everything_away_and_nothing_else() -> None:
    before = town("abcd", 64)

    value = after(before, Drain("b"))

    assert "b" not in owners(value)
    assert all(new == old for old, new in zip(owners(before), owners(value), strict=True) if old != "b")
    assert owners(rested(after(value, Undrain("b")))).count("b") == 16


def test_draining_members_own_partitions_if_all_drain() -> None:
    value = rested(after(town("ab", 8), Drain("a"), Drain("b")))

    assert Counter(owners(value)) == {"a": 4, "b": 4}
    assert set(owners(after(value, Leave("a")))) == {"b"}


def test_gateways_own_nothing() -> None:
    value = joined(town("ab", 8), Member("g", "g", gateway=True))

    assert "g" not in owners(value)
    assert "g" in value.ring
    assert "g" not in value.backups
    alone = after(value, Remove("a", by="b"), Remove("b", by="g"))
    assert not any(part.owner for part in alone.partitions)


def test_capacity_counts_and_a_weight_of_the_strategy_beats_it() -> None:
    value = founded(12)
    for name, capacity in (("a", 1), ("b", 2), ("c", 3)):
        value = rested(joined(value, Member(name, name, capacity=capacity)))

    assert Counter(owners(value)) == {"a": 2, "b": 4, "c": 6}
    assert Counter(owners(after(value, SetStrategy(Weighted({"c": 1}))))) == {"a": 3, "b": 6, "c": 3}
    assert Counter(owners(after(value, SetStrategy(Balanced())))) == {"a": 4, "b": 4, "c": 4}


def test_members_are_equal_if_none_has_weight() -> None:
    assert Counter(owners(after(town("ab", 8), SetStrategy(Weighted({"a": 0, "b": 0}))))) == {"a": 4, "b": 4}


def test_rounding_favours_members_that_have_more_already() -> None:
    assert quotas({"a": 1, "b": 1}, {"a": 1, "b": 2}, 3) == {"a": 1, "b": 2}
    assert quotas({"a": 1, "b": 1}, {"a": 2, "b": 1}, 3) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "strategy",
    [
        Weighted({"a": -1}),
        Percentage((Group("g", 0, 0, 1),)),
        Percentage((Group("g", 101, 0, 8),)),
        Percentage((Group("g", 10, 0, 0),)),
        Percentage((Group("g", 10, 5, 4),)),
        Percentage((Group("g", 10, -1, 2),)),
        Percentage((Group("g", 10, 0, 10**9),)),
        Percentage((Group("g", 10, 0, 4), Group("h", 10, 3, 2))),
        Percentage((Group("g", 10, 0, 2), Group("g", 10, 3, 2))),
        Percentage((Group("g", 10, 0, 2, ("t",)), Group("h", 10, 3, 2, ("t",)))),
        Percentage((Group("g", 60, 0, 2), Group("h", 40, 3, 2))),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(strategy: Strategy) -> None:
    before = town("ab", 8)

    value = after(before, SetStrategy(strategy))

    assert flaw(strategy, 8)
    assert value.strategy == before.strategy
    assert value.partitions == before.partitions
    assert value.transitions[-1].kind == "refuse-strategy"
