"""Queues of events that replicas hold: any node gives leases, and each event has one lease at a time."""

from __future__ import annotations

from typing import Any

import pytest

from everbell.channels.queue import Lease
from everbell.core.amendment import Amendment
from everbell.core.retry import Outcome, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.engine.requests import Acknowledge, Amend, Cancel, ExtendLeases, FailLeases, GiveBack, LeaseEvents
from everbell.engine.view_requests import Explain
from everbell.errors import NotOwner
from everbell.replicas.queues import lessor_in
from tests.simulation.replica_town import TENANT, Town, draft_at, run_town

QUEUE = "mail"
LEASE_MS = 30_000


async def lease(town: Town, node: str, limit: int = 10, wait_ms: int = 0, lease_ms: int = LEASE_MS) -> list[Lease]:
    return await town.nodes[node].replicas.ask(LeaseEvents(TENANT, QUEUE, limit, wait_ms, lease_ms))


async def acknowledge(town: Town, node: str, *leases: Lease) -> list[str]:
    return await town.nodes[node].replicas.ask(Acknowledge(TENANT, QUEUE, [each.token for each in leases]))


def line_of(town: Town, event_id: str) -> tuple[str, ...]:
    return next(iter(town.nodes.values())).members.roster.replicas_of(event_id, 3)


async def scheduled(town: Town, due_at: int, *ids: str, node: str = "a", **fields: Any) -> None:
    for event_id in ids:
        made = await town.schedule(node, draft_at(due_at, id=event_id, to=f"queue:{QUEUE}", **fields))
        assert made == event_id, made


def test_any_node_gives_the_lease_and_takes_the_acknowledgement() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c", "d")
        due_at = town.clock.now() + 10_000
        ids = [f"x{number}" for number in range(20)]
        await scheduled(town, due_at, *ids)
        await town.until(due_at - 100)
        assert await lease(town, "d") == []

        await town.until(due_at)
        got: list[Lease] = []
        while some := await lease(town, "d", limit=3):
            got += some
        assert sorted(each.occurrence.id for each in got) == sorted(ids)
        assert {lessor_in(each.token) for each in got} == {line_of(town, each)[0] for each in ids}
        assert await acknowledge(town, "b", *got) == []
        await town.until(due_at + 120_000)
        assert await lease(town, "a") == []
        for event_id in ids:
            assert (await town.get("c", event_id)).status == "delivered"

    run_town(story)


def test_a_worker_that_waits_gets_the_event_when_it_is_due() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 5_000
        await scheduled(town, due_at, "x")
        (got,) = await lease(town, "b", wait_ms=20_000)
        assert due_at <= town.clock.now() < due_at + 100
        assert await acknowledge(town, "c", got) == []

    run_town(story)


def test_nobody_else_gets_a_leased_event_and_an_extension_reaches_all_replicas() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 1_000
        await scheduled(town, due_at, "x")
        (got,) = await lease(town, "a", wait_ms=5_000, lease_ms=10_000)
        await town.until(due_at + 8_000)
        extend = ExtendLeases(TENANT, QUEUE, [got.token], 20_000)
        assert await town.nodes["c"].replicas.ask(extend) == []
        explained = await town.nodes["b"].replicas.ask(Explain(TENANT, "x"))
        assert explained.why is not None
        assert explained.why.code == "delivering"
        await town.until(due_at + 27_000)
        for node in town.nodes:
            assert await lease(town, node) == []
        assert await acknowledge(town, "b", got) == []
        await town.until(due_at + 60_000)
        assert (await town.get("a", "x")).status == "delivered"

    run_town(story)


def test_a_lease_that_runs_out_makes_the_event_due_again_with_the_next_replica() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 1_000
        await scheduled(town, due_at, "x", retry=RetryPolicy(5, 1_000, 1_000))
        line = line_of(town, "x")
        (first,) = await lease(town, "a", wait_ms=5_000, lease_ms=5_000)
        (second,) = await lease(town, "b", wait_ms=20_000)
        assert town.clock.now() >= due_at + 5_000
        assert [lessor_in(each.token) for each in (first, second)] == list(line[:2])
        assert [each.occurrence.attempt for each in (first, second)] == [1, 2]
        assert await acknowledge(town, "c", first) == [first.token]
        assert await acknowledge(town, "c", second) == []
        assert (await town.get("a", "x")).status == "delivered"

    run_town(story)


def test_a_node_that_dies_with_leases_leaves_its_events_to_the_next_replica() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 1_000
        await scheduled(town, due_at, "x")
        line = line_of(town, "x")
        (first,) = await lease(town, line[2], wait_ms=5_000, lease_ms=10_000)
        await town.until(due_at + 1_000)
        await town.kill(line[0])
        assert await lease(town, line[2]) == []
        with pytest.raises(NotOwner):  # While the dead node is a member, it may be back in a moment.
            await acknowledge(town, line[1], first)
        town.know_all()
        assert await acknowledge(town, line[1], first) == [first.token]
        (second,) = await lease(town, line[2], wait_ms=30_000)
        assert town.clock.now() >= first.until_at
        assert lessor_in(second.token) == line[1]
        assert (second.occurrence.id, second.occurrence.number) == (first.occurrence.id, first.occurrence.number)
        assert await acknowledge(town, line[2], second) == []

    run_town(story)


def test_failed_and_returned_leases_and_dead_events() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 1_000
        await scheduled(town, due_at, "x", retry=RetryPolicy(2, 1_000, 1_000))
        (first,) = await lease(town, "a", wait_ms=5_000)
        assert await town.nodes["b"].replicas.ask(GiveBack(TENANT, QUEUE, [first.token])) == []
        (again,) = await lease(town, "c", wait_ms=5_000)
        assert again.occurrence.attempt == 1
        for node, each in (("b", again), ("c", None)):
            held = each or (await lease(town, "b", wait_ms=10_000))[0]
            failure = FailLeases(TENANT, QUEUE, {held.token: Outcome("failed", "no such mailbox")})
            assert await town.nodes[node].replicas.ask(failure) == []
        await town.until(town.clock.now() + 5_000)
        seen = await town.get("a", "x")
        assert seen.status == "dead"
        assert "no such mailbox" in str(seen.event)

    run_town(story)


def test_a_queue_without_a_worker_keeps_each_event_at_one_node() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 1_000
        await scheduled(town, due_at, *(f"x{number}" for number in range(30)))
        await town.until(due_at + 600_000)
        waiting = [node.replicas.engine.observer.waiting_queues() for node in town.nodes.values()]
        assert all(waiting), "each node is the first in line for some events"
        got: list[Lease] = []
        for node in ("a", "b", "c") * 4:
            got += await lease(town, node, limit=7)
        assert len({each.occurrence.id for each in got}) == len(got) == 30

        # The events of a node that dies are offered by the others.
        await acknowledge(town, "a", *got)
        due_at = town.clock.now() + 1_000
        await scheduled(town, due_at, *(f"y{number}" for number in range(30)))
        await town.until(due_at + 120_000)
        await town.kill("c")
        got = []
        for _ in range(30):
            got += await lease(town, "a", limit=30, wait_ms=1_000, lease_ms=600_000)
        assert len({each.occurrence.id for each in got}) == len(got) == 30

    run_town(story)


def test_a_cancelled_event_is_not_leased_and_an_event_can_move_to_a_queue() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 5_000
        await scheduled(town, due_at, "x", "y")
        assert await town.schedule("a", draft_at(due_at, id="z")) == "z"
        await town.nodes["b"].replicas.ask(Cancel(TENANT, "x"))
        await town.nodes["c"].replicas.ask(Amend(TENANT, "z", Amendment(to=f"queue:{QUEUE}"), None))
        await town.until(due_at + 10)
        got: list[Lease] = []
        while some := await lease(town, "a"):
            got += some
        assert sorted(each.occurrence.id for each in got) == ["y", "z"]

    run_town(story)


def test_dead_letters_go_to_a_queue() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        town.answer = lambda rang: (Outcome("refused", "never", 400), 0.01)
        due_at = town.clock.now() + 1_000
        await town.schedule("a", draft_at(due_at, id="x"))
        (letter,) = await lease(town, "b", wait_ms=10_000)
        assert letter.occurrence.payload == 1
        assert await acknowledge(town, "c", letter) == []
        assert (await town.get("a", "x")).status == "dead"

    run_town(story, tenant=Tenant(dead_letter_to=f"queue:{QUEUE}"))


def test_both_sides_of_a_split_lease_the_event() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 5_000
        await scheduled(town, due_at, "x")
        line = line_of(town, "x")
        town.network.split(line[:1], line[1:])
        await town.until(due_at + 3_000)
        (one,) = await lease(town, line[0], wait_ms=5_000)
        (other,) = await lease(town, line[2], wait_ms=5_000)
        assert (lessor_in(one.token), lessor_in(other.token)) == line[:2]
        assert await acknowledge(town, line[0], one) == []
        assert await acknowledge(town, line[1], other) == []
        town.network.heal()
        await town.until(town.clock.now() + 60_000)
        assert await lease(town, "a") == []
        assert sum(node.replicas.holder.duplicates for node in town.nodes.values()) >= 1

    run_town(story)
