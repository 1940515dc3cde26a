"""A node that alone lost the store gives way; when no node has it, all keep their partitions."""

from __future__ import annotations

import asyncio

from everbell.cluster.store_watch import GIVE_WAY_LEASES
from everbell.core.cluster import Drain
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import LEASE_MS, PARTITIONS, QUIET_MS, Resident, Town, in_town

EVERYTHING = set(range(PARTITIONS))
LEASE_S = LEASE_MS / 1_000
LONG_S = (GIVE_WAY_LEASES + 3) * LEASE_S
"""By then the store was missed, others were asked, and the time is over."""


def removals(town: Town) -> list[str]:
    return [each.reason for each in town.value.transitions if each.kind == "remove"]


async def shut(resident: Resident) -> None:
    """The node cannot reach the store any more, and notices: it has something to write."""
    resident.door.is_shut = True
    resident.engine._writer.read(resident.engine.store.counts, lambda error: None)
    await asyncio.sleep(0.1)


def test_a_node_that_alone_lost_the_store_gives_way_and_comes_back() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        past = two.node.me
        await schedule_seen(two.ask, "shop", [town.draft("e", 1_000, key=town.key_of("n2"))])
        await shut(two)
        await asyncio.sleep(LONG_S)
        assert not two.node.is_member
        assert (one.owned, two.owned) == (EVERYTHING, set())
        await asyncio.sleep(QUIET_MS / 1_000)
        assert one.receiver.names == ["e"]
        await asyncio.sleep(60)
        assert not two.node.is_member, "it stays away for as long as the store does"
        two.door.is_shut = False
        await asyncio.sleep(10)
        await town.settled()
        assert two.node.me not in ("", past)
        assert len(two.owned) == PARTITIONS // 2
        assert removals(town) == ["it cannot reach the store"]

    in_town(scene)


def test_when_no_node_has_the_store_no_partition_moves() -> None:
    async def scene(town: Town) -> None:
        residents = await town.grow("n1", "n2", "n3")
        members = set(town.value.members)
        for resident in residents:
            await shut(resident)
        await asyncio.sleep(60)
        for resident in residents:  # It comes back to one after the other.
            resident.door.is_shut = False
            await asyncio.sleep(LEASE_S)
        await asyncio.sleep(LONG_S)
        await town.settled()
        assert set(town.value.members) == members

    in_town(scene)


def test_a_short_while_without_the_store_is_waited_for() -> None:
    async def scene(town: Town) -> None:
        _, two = await town.grow("n1", "n2")
        for _ in range(5):
            await shut(two)
            await asyncio.sleep((GIVE_WAY_LEASES - 1) * LEASE_S)
            two.door.is_shut = False
            await asyncio.sleep(3 * LEASE_S)
        assert removals(town) == []

    in_town(scene)


def test_a_node_that_reaches_no_other_gives_way() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        two.peers.cut = {"n1"}
        await shut(two)
        await asyncio.sleep(LONG_S)
        assert one.owned == EVERYTHING

    in_town(scene)


def test_a_node_without_a_successor_stays() -> None:
    async def scene(town: Town) -> None:
        one = await town.start("n1")
        await town.start("edge", gateway=True)
        await shut(one)
        await asyncio.sleep(3 * LONG_S)
        assert one.node.is_member
        assert removals(town) == []

    in_town(scene)


def test_draining_nodes_take_over_when_all_nodes_are_draining() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        one.node.append(Drain("n1"), Drain("n2"))
        await asyncio.sleep(1)
        assert two.owned, "for there is no other node"
        await shut(two)
        await asyncio.sleep(LONG_S)
        assert one.owned == EVERYTHING

    in_town(scene)


def test_draining_nodes_count_when_all_others_are_unhealthy() -> None:
    async def scene(town: Town) -> None:
        one, two, three, four = await town.grow("n1", "n2", "n3", "n4")
        one.node.append(Drain("n1"), Drain("n2"))
        await asyncio.sleep(1)
        assert (one.owned, two.owned) == (set(), set())
        for ill in (three, four):
            await shut(ill)
        await asyncio.sleep(2 * LONG_S)
        assert one.owned | two.owned == EVERYTHING
        assert removals(town) == ["it cannot reach the store"] * 2

    in_town(scene)


def test_a_node_without_partitions_stays() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        one.node.append(Drain("n2"))
        await asyncio.sleep(1)
        await shut(two)
        await asyncio.sleep(3 * LONG_S)
        assert two.node.is_member

    in_town(scene)
