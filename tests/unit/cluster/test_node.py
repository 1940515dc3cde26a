"""A node through its lives: it joins, follows the log, loses its lease, comes back, and leaves."""

from __future__ import annotations

import asyncio

import pytest

from everbell.core.cluster import Drain, Remove, SetStrategy, Undrain, Weighted, encode_command
from everbell.engine.seen import Seen
from everbell.errors import ClusterError, LogBroken
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import LEASE_MS, PARTITIONS, QUIET_MS, MoodyLog, Town, in_town

EVERYTHING = set(range(PARTITIONS))


def test_the_first_node_owns_everything() -> None:
    async def scene(town: Town) -> None:
        one = await town.start("n1")
        assert one.owned == EVERYTHING
        assert one.node.is_member
        assert 0 < one.node.lease_left_ms <= LEASE_MS

    in_town(scene)


def test_nodes_share_the_partitions() -> None:
    async def scene(town: Town) -> None:
        nodes = await town.grow("n1", "n2", "n3")
        assert sorted(len(node.owned) for node in nodes) == [5, 5, 6]
        assert set().union(*(node.owned for node in nodes)) == EVERYTHING

    in_town(scene)


def test_nodes_that_found_at_once_found_one_cluster() -> None:
    async def scene(town: Town) -> None:
        await asyncio.gather(*(town.start(name) for name in ("n1", "n2", "n3")))
        await town.settled()
        assert len({node.node.value.cluster for node in town.nodes.values()}) == 1
        assert len(town.value.members) == 3

    in_town(scene)


def test_the_partitions_of_a_dead_node_are_taken_over() -> None:
    async def scene(town: Town) -> None:
        one, two, _ = await town.grow("n1", "n2", "n3")
        died_at = town.clock.now()
        await town.nodes.pop("n3").die()
        await town.settled()
        assert one.owned | two.owned == EVERYTHING
        assert town.clock.now() - died_at < 2 * LEASE_MS
        assert one.node.takeovers + two.node.takeovers == 5

    in_town(scene)


def test_a_node_that_returns_gets_its_share_again() -> None:
    async def scene(town: Town) -> None:
        await town.grow("n1", "n2")
        past = town.nodes.pop("n2")
        owned = past.owned
        await past.die()
        # Its own past still has the name, and a lease that runs: it waits for that, and clears it.
        again = await town.start("n2")
        await town.settled()
        assert town.halted["n2"] == []
        assert again.owned == owned

    in_town(scene)


def test_a_living_namesake_is_refused() -> None:
    async def scene(town: Town) -> None:
        await town.grow("n1", "n2")
        other = await town.start("n2", ready=False)
        await asyncio.sleep(5 * LEASE_MS / 1_000)
        assert [type(reason) for reason in town.halted["n2"]] == [ClusterError]
        assert "--node" in str(town.halted["n2"][0])
        assert len(town.value.members) == 2
        await other.die()

    in_town(scene)


def test_a_node_that_loses_its_lease_drops_everything_at_once_and_comes_back_as_another() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        past = two.node.me
        two.log.is_away = True
        until_ms = two.node.lease_left_ms
        await asyncio.sleep((until_ms - 1) / 1_000)
        assert two.owned
        await asyncio.sleep(0.002)
        assert two.owned == set(), "before another node may act"
        assert one.owned != EVERYTHING
        await asyncio.sleep(LEASE_MS / 1_000)
        assert one.owned == EVERYTHING
        two.log.is_away = False
        await asyncio.sleep(10)
        await town.settled()
        assert two.node.is_member
        assert two.node.me != past
        assert past in town.value.departed

    in_town(scene)


def test_a_node_that_was_removed_while_it_lived_comes_back() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        past = two.node.me
        town.log.leases.release(past)
        await one.node.player.saw(lambda value: past not in value.members, 10)
        assert two.owned == set()
        await asyncio.sleep(5)
        await town.settled()
        assert two.node.me != past
        assert len(two.owned) == PARTITIONS // 2

    in_town(scene)


def test_events_survive_their_owner() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        made = [(await schedule_seen(two.ask, "shop", [town.draft(f"e{n}", 5_000)]))[0] for n in range(5)]
        assert all(isinstance(seen, Seen) and seen.event.partition in two.owned for seen in made)  # type: ignore[union-attr]
        await town.nodes.pop("n2").die()
        await asyncio.sleep(10)
        assert sorted(one.receiver.names) == [f"e{n}" for n in range(5)]
        assert two.receiver.names == []

    in_town(scene)


def test_keyed_events_of_a_dead_owner_wait_until_its_requests_have_ended() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        two.receiver.answer = lambda delivery: None
        await schedule_seen(two.ask, "shop", [town.draft("e", key=town.key_of("n2"))])
        await asyncio.sleep(0.1)
        assert two.receiver.names == ["e"]
        await town.nodes.pop("n2").die()
        ended_at = town.clock.now() + LEASE_MS
        await asyncio.sleep(10)
        [got] = one.receiver.got
        assert QUIET_MS <= got.at - ended_at + LEASE_MS // 5 <= QUIET_MS + LEASE_MS

    in_town(scene)


def test_a_node_that_leaves_hands_over_first() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        assert await town.nodes.pop("n2").leave()
        assert one.owned == EVERYTHING
        assert [each.kind for each in one.node.value.transitions[-1:]] == ["leave"]
        assert one.node.takeovers == 0
        assert not await one.log.lives(two.node.me)

    in_town(scene)


def test_the_last_node_leaves_at_once_and_the_next_one_starts_where_it_stopped() -> None:
    async def scene(town: Town) -> None:
        one = await town.start("n1")
        left_at = town.clock.now()
        assert not await town.nodes.pop("n1").leave()
        assert town.clock.now() - left_at < 100
        again = await town.start("n1")
        assert again.owned == EVERYTHING
        assert again.node.takeovers == 0
        assert again.node.value.cluster == one.node.value.cluster

    in_town(scene)


def test_a_node_that_leaves_attempts_under_way_says_so() -> None:
    async def scene(town: Town) -> None:
        one = await town.start("n1", handover_ms=100)
        one.receiver.answer = lambda delivery: None
        await schedule_seen(one.ask, "shop", [town.draft("e", 0, key="k")])
        await asyncio.sleep(0.1)
        await town.nodes.pop("n1").leave()
        again = await town.start("n1")
        assert again.node.takeovers == PARTITIONS, "the next owner has to wait for the requests"

    in_town(scene)


def test_a_node_that_leaves_soon_after_a_takeover_passes_the_waiting_on() -> None:
    async def scene(town: Town) -> None:
        one = await town.start("n1", handover_ms=100)
        one.receiver.answer = lambda delivery: None
        await schedule_seen(one.ask, "shop", [town.draft("e", 0, key="k")])
        await asyncio.sleep(0.1)
        await town.nodes.pop("n1").leave()
        await town.start("n1")
        await town.nodes.pop("n1").leave()
        third = await town.start("n1")
        assert third.node.takeovers == PARTITIONS, "the request of the first owner may still be in flight"
        await asyncio.sleep(2 * QUIET_MS / 1_000)
        await town.nodes.pop("n1").leave()
        assert (await town.start("n1")).node.takeovers == 0, "no request can be in flight any more"

    in_town(scene)


def test_a_node_can_be_drained_and_used_again() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        one.node.append(Drain("n2"))
        await asyncio.sleep(1)
        assert (one.owned, two.owned) == (EVERYTHING, set())
        assert two.node.is_member
        one.node.append(Undrain("n2"))
        await asyncio.sleep(1)
        assert len(two.owned) == PARTITIONS // 2

    in_town(scene)


def test_a_drain_outlives_a_lost_lease() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        past = two.node.me
        one.node.append(Drain("n2"))
        await asyncio.sleep(1)
        two.log.is_away = True
        await one.node.player.saw(lambda value: past not in value.members, 10)
        two.log.is_away = False
        await asyncio.sleep(10)
        await town.settled()
        assert two.node.is_member
        assert two.node.me != past
        assert (one.owned, two.owned) == (EVERYTHING, set())
        one.node.append(Undrain("n2"))
        await asyncio.sleep(1)
        assert len(two.owned) == PARTITIONS // 2

    in_town(scene)


def test_a_drain_ends_with_the_process() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        past = two.node.me
        one.node.append(Drain("n2", past))
        await asyncio.sleep(1)
        assert two.owned == set()
        await town.nodes.pop("n2").leave()
        again = await town.start("n2")
        await town.settled()
        assert len(again.owned) == PARTITIONS // 2
        one.node.append(Drain("n2", past))
        await asyncio.sleep(1)
        assert len(again.owned) == PARTITIONS // 2, "a late entry does not apply to a new incarnation of the same name"

    in_town(scene)


def test_a_node_that_was_drained_once_hands_over_when_it_leaves() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        one.node.append(Drain("n2"), Undrain("n2"))
        await asyncio.sleep(2)
        await town.settled()
        assert await town.nodes.pop("n2").leave()
        assert [each.kind for each in one.node.value.transitions[-2:]] == ["release", "leave"]

    in_town(scene)


def test_gateways_own_nothing() -> None:
    async def scene(town: Town) -> None:
        edge = await town.start("edge", gateway=True)
        one = await town.start("n1")
        assert (edge.owned, one.owned) == (set(), EVERYTHING)
        assert await town.nodes.pop("edge").leave()

    in_town(scene)


def test_another_strategy_moves_partitions() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        one.node.append(SetStrategy(Weighted({"n1": 3})))
        await asyncio.sleep(1)
        assert (len(one.owned), len(two.owned)) == (12, 4)

    in_town(scene)


def test_a_log_from_the_future_halts_the_node() -> None:
    async def scene(town: Town) -> None:
        one = await town.start("n1")
        await one.log.append(encode_command(Drain("n1")).replace(b"drain", b"dance"))
        await asyncio.sleep(1)
        assert len(town.halted["n1"]) == 1

    in_town(scene)


def test_a_log_that_is_away_for_a_moment_changes_nothing() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        me = two.node.me
        two.log.is_away = True
        await asyncio.sleep(LEASE_MS / 2_000)
        two.log.is_away = False
        await asyncio.sleep(5)
        assert two.node.me == me
        assert len(one.owned) == len(two.owned) == PARTITIONS // 2

    in_town(scene)


def test_a_store_that_is_away_delays_a_take_over() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        town.store.is_away = True
        await town.nodes.pop("n2").die()
        await asyncio.sleep(5)
        assert len(one.owned) == PARTITIONS // 2
        town.store.is_away = False
        await town.settled()
        assert one.owned == EVERYTHING

    in_town(scene)


def test_all_leases_may_end_at_once() -> None:
    async def scene(town: Town) -> None:
        nodes = await town.grow("n1", "n2", "n3")
        for node in nodes:
            node.log.is_away = True
        await asyncio.sleep(30)
        assert [node.owned for node in nodes] == [set()] * 3
        for node in nodes:
            node.log.is_away = False
        await asyncio.sleep(30)
        await town.settled()
        assert len(town.value.members) == 3

    in_town(scene)


def test_a_log_that_breaks_under_a_write_halts_the_node() -> None:
    class Breaking(MoodyLog):
        is_broken = False

        async def append(self, data: bytes) -> int:
            if self.is_broken:
                raise LogBroken("an fsync failed")
            return await super().append(data)

    async def scene(town: Town) -> None:
        log = Breaking(town.log)
        one = await town.start("n1", log=log)
        log.is_broken = True
        with pytest.raises(LogBroken):
            await one.node.write(Drain("n1"))
        assert [type(reason) for reason in town.halted["n1"]] == [LogBroken]

    in_town(scene)


def test_a_node_that_was_out_once_says_that_it_leaves_all_the_same() -> None:
    class Slow(MoodyLog):
        async def append(self, data: bytes) -> int:
            await asyncio.sleep(0.2)
            return await super().append(data)

    async def scene(town: Town) -> None:
        one = await town.start("n1", log=Slow(town.log))
        two = await town.start("n2")
        await town.settled()
        await one.log.append(encode_command(Remove(one.node.me, by=two.node.me, reason="a clock jumped")))
        await asyncio.sleep(5)
        assert one.node.is_member
        await town.settled()
        assert await one.leave()
        assert two.node.value.transitions[-1].kind == "leave"

    in_town(scene)
