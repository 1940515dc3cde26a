"""Queues of the whole cluster: a worker may ask any node, and every lease reaches a worker or is given back."""

from __future__ import annotations

import asyncio

import pytest

from everbell.core.retry import Outcome
from everbell.engine.requests import Acknowledge, CountEvents, ExtendLeases, FailLeases, LeaseEvents
from everbell.errors import NotOwner
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import Resident, Town, in_town

LEASE = 10_000


async def put(town: Town, node: Resident, name: str = "e", in_ms: int = 0) -> None:
    await schedule_seen(node.ask, "shop", [town.draft(name, in_ms, to="queue:work")])
    await asyncio.sleep(0.05)


async def lease(node: Resident, wait_ms: int = 0, limit: int = 10, lease_ms: int = LEASE) -> dict[str, str]:
    """Names and tokens."""
    leases = await node.ask(LeaseEvents("shop", "work", limit, wait_ms, lease_ms))
    return {each.occurrence.raw.decode(): each.token for each in leases}


def test_an_event_due_on_one_node_is_leased_from_another() -> None:
    async def scene(town: Town) -> None:
        one, two, three = await town.grow("n1", "n2", "n3")
        await put(town, one)
        tokens = await lease(two)
        assert list(tokens) == ["e"]
        assert await three.ask(Acknowledge("shop", "work", list(tokens.values()))) == []
        assert (await one.ask(CountEvents()))["shop"].delivered == 1

    in_town(scene)


def test_a_gateway_leases_too() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        edge = await town.start("edge", gateway=True)
        await put(town, one)
        tokens = list((await lease(edge)).values())
        assert await edge.ask(ExtendLeases("shop", "work", tokens, LEASE)) == []
        failed = {token: Outcome("failed", "not now") for token in tokens}
        assert await edge.ask(FailLeases("shop", "work", failed)) == []
        assert (await edge.ask(CountEvents()))["shop"].delivered == 0

    in_town(scene)


def test_nodes_take_turns() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        for number in range(4):
            await put(town, one, f"one-{number}")
            await put(town, two, f"two-{number}")
        firsts = [next(iter(await lease(one, limit=1))).partition("-")[0] for _ in range(4)]
        assert sorted(firsts) == ["one", "one", "two", "two"], "no node's events wait for those of another"

    in_town(scene)


def test_a_worker_that_waits_gets_the_next_due_event_of_any_node() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        asked = asyncio.ensure_future(lease(one, wait_ms=20_000))
        await asyncio.sleep(3)
        began_at = town.clock.now()
        await put(town, two)
        assert list(await asked) == ["e"]
        assert town.clock.now() - began_at < 200

    in_town(scene)


def test_a_worker_that_gets_nothing_waits_no_longer_than_requested() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        began_at = town.clock.now()
        assert await lease(one, wait_ms=2_500) == {}
        assert 2_500 <= town.clock.now() - began_at < 2_600

    in_town(scene)


def test_answers_that_come_too_late_are_given_back() -> None:
    async def scene(town: Town) -> None:
        one, two, three = await town.grow("n1", "n2", "n3")
        asked = asyncio.ensure_future(lease(one, wait_ms=20_000))
        await asyncio.sleep(0.2)
        # Both become due in the same moment: one of the two nodes answers after the other.
        for node in (two, three):
            await schedule_seen(node.ask, "shop", [town.draft(node.name, 100, to="queue:work")])
        got = await asked
        await asyncio.sleep(2)
        rest = await lease(one)
        assert sorted({**got, **rest}) == ["n2", "n3"], "leases that reached no worker are available at once"

    in_town(scene)


def test_no_more_is_leased_than_was_asked_for() -> None:
    async def scene(town: Town) -> None:
        one, two, three = await town.grow("n1", "n2", "n3")
        asked = asyncio.ensure_future(lease(one, wait_ms=20_000, limit=1))
        await asyncio.sleep(0.2)
        for node in (one, two, three):
            await schedule_seen(node.ask, "shop", [town.draft(node.name, 100, to="queue:work")])
        assert len(await asked) == 1
        await asyncio.sleep(2)
        assert len({**await lease(one), **await lease(one), **await lease(one)}) == 2

    in_town(scene)


def test_a_worker_that_hangs_up_takes_nothing_with_it() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        asked = asyncio.ensure_future(lease(one, wait_ms=20_000))
        await asyncio.sleep(0.2)
        asked.cancel()
        await asyncio.sleep(0)
        await put(town, two)
        await put(town, one, "f")
        await asyncio.sleep(2)
        assert sorted([*await lease(two), *await lease(two)]) == ["e", "f"]

    in_town(scene)


def test_an_unreachable_node_does_not_delay_leases_of_the_others() -> None:
    async def scene(town: Town) -> None:
        one, two, _ = await town.grow("n1", "n2", "n3")
        one.peers.cut.add("n3")
        asked = asyncio.ensure_future(lease(one, wait_ms=20_000))
        await asyncio.sleep(0.5)
        await put(town, two)
        assert list(await asked) == ["e"]

    in_town(scene)


def test_a_lease_is_lost_with_its_node() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        await put(town, two)
        tokens = list((await lease(one)).values())
        await town.nodes.pop("n2").die()
        await town.settled()
        assert await one.ask(Acknowledge("shop", "work", tokens)) == tokens
        again = await lease(one, wait_ms=20_000)
        assert list(again) == ["e"]

    in_town(scene)


def test_an_acknowledgement_for_a_node_out_of_reach_is_not_taken_for_done() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        await put(town, one, "near")
        await put(town, two, "far")
        tokens = {**await lease(one), **await lease(one)}
        one.peers.cut.add("n2")
        lost = await one.ask(Acknowledge("shop", "work", list(tokens.values())))
        assert lost == [tokens["far"]]
        assert (await one.ask(CountEvents()))["shop"].delivered == 1

    in_town(scene)


def test_an_acknowledgement_without_any_answer_is_refused() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        await put(town, two)
        tokens = list((await lease(one)).values())
        one.peers.cut.add("n2")
        with pytest.raises(NotOwner):
            await one.ask(Acknowledge("shop", "work", tokens))
        one.peers.cut.clear()
        assert await one.ask(Acknowledge("shop", "work", tokens)) == []

    in_town(scene)


def test_tokens_that_are_none_are_lost() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        assert await one.ask(Acknowledge("shop", "work", ["", "zz", "ffff.1"])) == ["", "zz", "ffff.1"]

    in_town(scene)
