"""Nodes that know different members, or are not known to the others: told as stories."""

from __future__ import annotations

import asyncio

import pytest

from everbell.core.event import Repeat
from everbell.core.replicas.sightings import DOUBT_MS
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.engine.requests import Cancel, Redrive
from everbell.errors import NotFound, Overloaded
from tests.simulation.replica_town import TENANT, Town, draft_at, run_town

REFUSED = Outcome("refused", "never", 400)
FAILED = Outcome("failed", "not now", 503)


async def settle(town: Town) -> None:
    await town.until(town.clock.now() + 10_000)


def placed_at(town: Town, name: str, node: str = "a") -> str:
    """A client's id whose first replica is the node, among the members that `node` knows."""
    roster = town.nodes[node].members.roster
    return next(f"x{number}" for number in range(1_000) if roster.replicas_of(f"x{number}", 1) == (name,))


def test_occurrences_that_are_late_are_delivered_once_each() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        town.answer = lambda rang: (REFUSED, 0.005)
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x", repeat=Repeat(15_000, count=4)))
        await town.until(due_at + 120_000)
        assert len(town.rang) == 1
        town.answer = lambda rang: (DELIVERED, 0.05)
        await town.nodes["b"].replicas.ask(Redrive(TENANT, "x"))

        await town.until(due_at + 240_000)
        assert [rang.occurrence for rang in town.rang] == [1, 1, 2, 3, 4]

    run_town(story)


def test_a_cancel_names_a_node_that_left_with_its_copy() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 60_000
        await town.schedule("a", draft_at(due_at, id="x"))
        await town.schedule("a", draft_at(due_at, id="y"))
        await settle(town)
        seen = await town.nodes["a"].replicas.ask(Cancel(TENANT, "y"))
        assert (sorted(seen.holders), seen.unreached) == (["a", "b", "c"], ())

        # The log cannot see c, so a and b go on without it. The network is fine.
        for node in ("a", "b"):
            town.nodes[node].members.know(["a", "b"])
        await settle(town)
        seen = await town.nodes["a"].replicas.ask(Cancel(TENANT, "x"))
        assert (sorted(seen.holders), seen.unreached) == (["a", "b"], ("c",))

    run_town(story)


def test_a_node_that_is_told_of_an_older_copy_answers_with_the_later_one() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        town.answer = lambda rang: (FAILED, 0.005)
        due_at = town.clock.now() + 30_000
        await town.schedule("a", draft_at(due_at, id="x", retry=RetryPolicy(9, 1_000, 1_000)))
        for node in ("a", "b"):
            town.nodes[node].members.know(["a", "b"])
        await settle(town)
        await town.nodes["a"].replicas.ask(Cancel(TENANT, "x"))

        await town.until(due_at + 60_000)
        # Node c has not heard of the cancel. It learns of it when it tells the others that its attempt has failed.
        assert [rang.node for rang in town.rang] == ["c"]
        assert town.holders("x") == []

    run_town(story)


def test_an_event_that_a_departed_node_may_hold_is_not_unknown() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        event_id = placed_at(town, "c")
        await town.schedule("a", draft_at(town.clock.now() + 86_400_000, id=event_id, count=1))
        await settle(town)
        for node in ("a", "b"):
            town.nodes[node].members.know(["a", "b"])
        await settle(town)
        with pytest.raises(Overloaded, match="c left the cluster"):
            await town.get("a", event_id)

        # A node that starts now has never heard of c, and learns of it from the others.
        await town.start("d")
        for node in ("a", "b", "d"):
            town.nodes[node].members.know(["a", "b", "d"])
        await settle(town)
        with pytest.raises(Overloaded, match="c left the cluster"):
            await town.get("d", event_id)

        await town.until(town.clock.now() + DOUBT_MS)
        with pytest.raises(NotFound):
            await town.get("d", event_id)

    run_town(story)


def test_two_nodes_that_know_different_members_do_not_drop_an_event_together() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        # By the members that a knows it belongs to b, and by those that b knows to a.
        town.nodes["a"].members.know(["a", "b"])
        town.nodes["b"].members.know(["a", "c"])
        event_id = next(
            f"x{number}"
            for number in range(1_000)
            if town.nodes["a"].members.roster.replicas_of(f"x{number}", 1) == ("b",)
            and town.nodes["b"].members.roster.replicas_of(f"x{number}", 1) == ("a",)
        )
        await town.schedule("a", draft_at(town.clock.now() + 600_000, id=event_id, count=1))
        await town.schedule("b", draft_at(town.clock.now() + 600_000, id=event_id, count=1))
        await asyncio.gather(*(town.nodes[node].replicas.resync.walk(None) for node in ("a", "b")))
        await settle(town)
        assert town.holders(event_id)

        town.know_all()
        await settle(town)
        assert len(town.holders(event_id)) == 1

    run_town(story)


def test_a_copy_at_the_wrong_node_moves_although_no_member_changes() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        await settle(town)
        event_id = placed_at(town, "c")
        town.nodes["a"].members.know(["a", "b"])  # It has not heard of c yet.
        await town.schedule("a", draft_at(town.clock.now() + 600_000, id=event_id, count=1))
        assert "c" not in town.holders(event_id)
        town.nodes["a"].members.know(["a", "b", "c"])
        await settle(town)
        assert town.holders(event_id) == ["c"]

    run_town(story)


def test_a_node_that_restarts_without_the_log_comes_last() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        line = town.nodes["a"].members.roster.replicas_of("x", 3)
        await town.kill(line[1])
        node = await town.start(line[1])  # The others know it by its name, and it knows only itself.
        node.members.is_inside = False
        due_at = town.clock.now() + 30_000
        await town.schedule(line[0], draft_at(due_at, id="x", ack="all"))
        await town.until(due_at + 60_000)
        assert [rang.node for rang in town.rang] == [line[0]]

    run_town(story)


def test_a_silent_member_does_not_make_all_replicas_deliver_to_a_slow_receiver() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c", "d")
        town.answer = lambda rang: (DELIVERED, 3.0)
        due_at = town.clock.now() + 10_000
        for number in range(30):
            await town.schedule("a", draft_at(due_at, id=f"x{number}"))
        town.network.split(["d"], ["a", "b", "c"])
        town.network.patience_s = 6.0
        town.channels["d"].is_dead = True

        await town.until(due_at + 300_000)
        assert len({rang.id for rang in town.rang}) == 30
        assert len(town.rang) == 30

    run_town(story, tenant=Tenant(in_flight=2))
