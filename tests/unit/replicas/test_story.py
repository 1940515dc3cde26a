"""Events of replicas, told as stories: real nodes on virtual time, and a network that can be cut."""

from __future__ import annotations

from everbell.core.amendment import Amendment
from everbell.core.event import Repeat
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.engine.requests import Amend, Cancel, Redrive
from everbell.engine.view_requests import Explain
from everbell.errors import Overloaded, StoreFull
from tests.simulation.replica_town import TENANT, Rang, Town, draft_at, run_town

FAILED = Outcome("failed", "not now", 503)


def test_the_first_replica_delivers_and_the_others_stay_silent() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        event_id = await town.schedule("a", draft_at(due_at))
        assert isinstance(event_id, str)
        assert event_id.startswith("er_")
        assert town.holders(event_id) == ["a", "b", "c"]
        explained = await town.nodes["b"].replicas.ask(Explain(TENANT, event_id))
        assert explained.why is not None
        assert explained.why.code == "due-later"

        await town.until(due_at + 60_000)
        assert [(rang.at, rang.attempt) for rang in town.rang] == [(due_at, 1)]
        assert town.holders(event_id) == []
        assert (await town.get("b", event_id)).status == "delivered"
        assert (await town.nodes["c"].replicas.ask(Explain(TENANT, event_id))).why is None

    run_town(story)


def test_a_dead_first_replica_costs_one_skew() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x"))
        line = town.nodes["a"].members.roster.replicas_of("x", 3)
        await town.kill(line[0])

        await town.until(due_at + 60_000)
        assert [(rang.at, rang.node) for rang in town.rang] == [(due_at + 2_000, line[1])]

    run_town(story)


def test_a_failing_receiver_is_retried_while_the_first_replica_dies() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        town.answer = lambda rang: (DELIVERED if rang.attempt == 4 else FAILED, 0.1)
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x", retry=RetryPolicy(10, 5_000, 5_000)))
        line = town.nodes["a"].members.roster.replicas_of("x", 3)
        await town.until(due_at + 2_000)
        await town.kill(line[0])

        await town.until(due_at + 120_000)
        assert [rang.attempt for rang in town.rang] == [1, 2, 3, 4]
        assert [rang.node for rang in town.rang] == [line[0], line[1], line[2], line[1]]
        for node in town.nodes.values():
            assert node.replicas.store.pending == 0

    run_town(story)


def test_a_cancel_that_all_replicas_confirmed_is_exact() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x"))
        seen = await town.nodes["b"].replicas.ask(Cancel(TENANT, "x"))
        assert sorted(seen.holders) == ["a", "b", "c"]

        await town.until(due_at + 60_000)
        assert town.rang == []
        assert (await town.get("c", "x")).status == "cancelled"

    run_town(story)


def test_a_change_reaches_all_replicas_and_the_payload_is_the_new_one() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c", "d", "e")
        due_at = town.clock.now() + 10_000
        event_id = str(await town.schedule("a", draft_at(due_at)))
        for node in town.nodes:
            amendment = Amendment(payload=f'"{node}"'.encode())
            await town.nodes[node].replicas.ask(Amend(TENANT, event_id, amendment, None))

        await town.until(due_at + 60_000)
        assert [rang.payload for rang in town.rang] == [b'"e"']
        assert (await town.get("d", event_id)).event.version == 6

    run_town(story)


def test_both_sides_of_a_split_deliver_and_merge_when_it_heals() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        first_at = town.clock.now() + 20_000
        await town.schedule("a", draft_at(first_at, id="x", repeat=Repeat(20_000, count=4)))
        line = town.nodes["a"].members.roster.replicas_of("x", 3)
        await town.until(first_at + 5_000)
        town.network.split(line[:1], line[1:])
        await town.until(first_at + 30_000)
        town.network.heal()
        await town.until(first_at + 200_000)

        rings = [(rang.occurrence, rang.node) for rang in town.rang]
        assert rings == [(1, line[0]), (2, line[0]), (2, line[1]), (3, line[0]), (4, line[0])]
        assert sum(node.replicas.holder.duplicates for node in town.nodes.values()) >= 1

    run_town(story)


def test_a_cancel_on_one_side_of_a_split_wins_when_it_heals() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        first_at = town.clock.now() + 20_000
        await town.schedule("a", draft_at(first_at, id="x", repeat=Repeat(20_000, count=9)))
        line = town.nodes["a"].members.roster.replicas_of("x", 3)
        town.network.split(line[:1], line[1:])
        seen = await town.nodes[line[0]].replicas.ask(Cancel(TENANT, "x"))
        assert seen.holders == line[:1]
        await town.until(first_at + 50_000)
        assert {rang.occurrence for rang in town.rang} == {1, 2, 3}
        town.network.heal()
        await town.until(first_at + 300_000)

        assert len(town.rang) == 3
        assert town.holders("x") == []

    run_town(story)


def test_a_node_that_lost_its_place_in_the_cluster_still_changes_and_delivers_events() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 60_000
        for event_id in ("x", "y"):
            await town.schedule("a", draft_at(due_at, id=event_id))
        line = town.nodes["a"].members.roster.replicas_of("y", 3)
        await town.until(due_at - 30_000)
        # Until now, no request and no delivery has made the node look whether it is a member.
        alone = town.nodes[line[0]]
        alone.members.is_inside = False
        town.network.split(line[:1], line[1:])
        seen = await alone.replicas.ask(Cancel(TENANT, "x"))
        assert seen.holders == line[:1]
        await town.until(due_at + 1_000)
        assert [(rang.at, rang.id) for rang in town.rang if rang.node == line[0]] == [(due_at, "y")]

    run_town(story)


def test_too_few_holders_refuse_an_event_and_hold_nothing() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        town.network.split(["a"], ["b", "c"])
        refused = await town.schedule("a", draft_at(due_at))
        assert isinstance(refused, Overloaded)
        assert "held by 1 of 3" in str(refused)
        assert isinstance(await town.schedule("a", draft_at(due_at, id="one", ack="one")), str)
        assert isinstance(await town.schedule("b", draft_at(due_at, id="two")), str)
        town.network.heal()

        await town.until(due_at + 30_000)
        assert sorted({rang.id for rang in town.rang}) == ["one", "two"]

    run_town(story)


def test_memory_beyond_the_cap_refuses_new_events_and_keeps_the_others() -> None:
    async def story(town: Town) -> None:
        await town.start("a", cap_bytes=5_000)
        due_at = town.clock.now() + 10_000
        results = [await town.schedule("a", draft_at(due_at)) for _ in range(6)]
        assert sum(isinstance(result, str) for result in results) == 4
        assert isinstance(results[-1], StoreFull)

        await town.until(due_at + 1_000)
        assert len(town.rang) == 4

    run_town(story)


def test_a_node_that_returns_empty_is_refilled_and_a_new_member_gets_its_share() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 600_000
        ids = [str(await town.schedule("a", draft_at(due_at))) for _ in range(40)]
        await town.kill("b")
        await town.start("b")
        town.know_all()
        await town.until(town.clock.now() + 10_000)
        assert all(town.holders(each) == ["a", "b", "c"] for each in ids)

        await town.start("d")
        town.know_all()
        await town.until(town.clock.now() + 10_000)
        assert all(len(town.holders(each)) == 3 for each in ids)
        assert any("d" in town.holders(each) for each in ids)
        assert sum(node.replicas.store.pending for node in town.nodes.values()) == 120

    run_town(story)


def test_a_request_that_outlasts_the_skew_is_not_repeated() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        town.answer = lambda rang: (DELIVERED, 9.0)
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at))

        await town.until(due_at + 60_000)
        assert len(town.rang) == 1

    run_town(story)


def test_a_slow_receiver_with_a_backlog_gets_no_event_twice() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        town.answer = lambda rang: (DELIVERED, 3.0)
        due_at = town.clock.now() + 10_000
        for number in range(40):
            await town.schedule("a", draft_at(due_at, id=f"x{number}"))

        await town.until(due_at + 300_000)
        assert len({rang.id for rang in town.rang}) == 40
        assert len(town.rang) == 40

    run_town(story, tenant=Tenant(in_flight=2))


def test_a_node_that_cannot_reach_the_receiver_leaves_it_to_the_next() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x", retry=RetryPolicy(5, 1_000, 1_000)))
        line = town.nodes["a"].members.roster.replicas_of("x", 3)
        town.channels[line[0]].is_cut_off = True

        await town.until(due_at + 60_000)
        assert [(rang.node, rang.attempt) for rang in town.rang] == [(line[1], 2)]

    run_town(story)


def test_a_dead_event_is_redriven_from_any_node() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        town.answer = lambda rang: (Outcome("refused", "never", 400), 0.01)
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x"))
        await town.until(due_at + 10_000)
        assert (await town.get("c", "x")).status == "dead"
        town.answer = lambda rang: (DELIVERED, 0.01)
        await town.nodes["b"].replicas.ask(Redrive(TENANT, "x"))

        await town.until(due_at + 30_000)
        assert (await town.get("a", "x")).status == "delivered"
        assert len(town.rang) == 2

    run_town(story)


def test_the_story_of_the_document() -> None:
    """A, B and C; A dies; B and C are split; they heal; A returns empty; the last pop clears everything."""

    async def story(town: Town) -> list[str]:
        await town.found("a", "b", "c")
        start = town.clock.now()
        # An id whose replicas are in the order of the alphabet, as the document has them.
        roster = town.nodes["a"].members.roster
        name = next(f"t{n}" for n in range(100) if roster.replicas_of(f"t{n}", 3) == ("a", "b", "c"))
        await town.schedule("b", draft_at(start + 20_000, id=name, repeat=Repeat(20_000, count=6)))
        told: list[str] = []

        async def until(second: int, what: str) -> None:
            await town.until(start + second * 1_000)
            told.extend(
                f"{(rang.at - start) / 1_000:g}: {rang.node} pops {rang.occurrence}" for rang in town.rang[len(pops) :]
            )
            pops.extend(town.rang[len(pops) :])
            told.append(f"{second}: {what}")

        pops: list[Rang] = []
        await until(30, "a dies")
        await town.kill("a")
        await until(50, "b and c are split")
        town.network.split(["b"], ["c"])
        await until(70, "b and c heal")
        town.network.heal()
        await until(90, "a returns, and is empty")
        await town.start("a")
        town.know_all()
        await until(150, "the end")
        assert town.holders(name) == []
        return told

    assert run_town(story) == [
        "20: a pops 1",
        "30: a dies",
        "42: b pops 2",
        "50: b and c are split",
        "62: b pops 3",
        "64: c pops 3",
        "70: b and c heal",
        "82: b pops 4",
        "90: a returns, and is empty",
        "100: a pops 5",
        "120: a pops 6",
        "150: the end",
    ]
