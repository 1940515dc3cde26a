"""The limits of nodes that hold replicas: memory, ends, and the rate of a resync."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from everbell.core.replicas.copies import Copy, Stamp
from everbell.core.replicas.pace import BUSY_MS
from everbell.core.replication import Replication
from everbell.core.verdict import cancelled
from everbell.engine.replica_requests import HoldCopies
from everbell.engine.requests import Schedule
from everbell.errors import StoreFull
from everbell.replicas import store as copy_store
from tests.simulation.replica_town import TENANT, Town, TownNode, draft_at, run_town

ROOM_FOR_100 = 100 * (copy_store.COPY_BYTES + 1)


def held(node: TownNode) -> int:
    return node.replicas.store.pending


def test_memory_stays_below_the_cap_when_many_requests_come_at_once() -> None:
    async def story(town: Town) -> None:
        for name in ("a", "b", "c"):
            await town.start(name, cap_bytes=ROOM_FOR_100)
        town.know_all()
        due_at = town.clock.now() + 10_000
        batches = [Schedule(TENANT, [draft_at(due_at) for _ in range(30)]) for _ in range(10)]
        nodes = [town.nodes[name].replicas for name in ("a", "b", "c")]
        answers = await asyncio.gather(*(nodes[turn % 3].ask(batch) for turn, batch in enumerate(batches)))
        results = [result for answer in answers for result in answer]
        accepted = {result for result in results if isinstance(result, str)}

        assert all(isinstance(result, (str, StoreFull)) for result in results)
        for node in town.nodes.values():
            assert node.replicas.store.held_bytes <= ROOM_FOR_100
        assert accepted
        await town.until(due_at + 60_000)
        assert {rang.id for rang in town.rang} >= accepted

    run_town(story)


def test_a_resync_into_a_full_node_drops_nothing_that_was_acknowledged() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b")
        due_at = town.clock.now() + 600_000
        before = {str(await town.schedule("a", draft_at(due_at))) for _ in range(150)}
        await town.start("c", cap_bytes=ROOM_FOR_100)
        town.know_all()
        full = town.nodes["c"]
        await town.until(town.clock.now() + 5_000)
        # The others give it their events while users create new ones.
        results = []
        for _ in range(40):
            results.append(await town.schedule("c", draft_at(due_at, ack="all")))
            results.append(await town.schedule("a", draft_at(due_at)))
            await asyncio.sleep(0.05)
        await town.until(town.clock.now() + 60_000)
        accepted = {result for result in results if isinstance(result, str)}

        assert any(isinstance(result, StoreFull) for result in results)
        assert full.replicas.store.held_bytes <= ROOM_FOR_100
        assert held(full) <= 100
        await town.until(due_at + 120_000)
        assert {rang.id for rang in town.rang} >= before | accepted

    run_town(story)


def test_the_ends_of_events_have_a_cap_and_events_end_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_store, "ENDS_MAX", 50)

    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        ids = {str(await town.schedule("a", draft_at(due_at + number))) for number in range(300)}
        await town.until(due_at + 60_000)

        assert sorted(rang.id for rang in town.rang) == sorted(ids)
        for node in town.nodes.values():
            assert node.replicas.store.tombstones <= 50
            assert len(node.replicas.store.copies) <= 50
            assert held(node) == 0

    run_town(story)


def test_tombstones_of_events_that_a_node_never_held_count_against_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_store, "ENDS_MAX", 50)

    async def story(town: Town) -> None:
        await town.found("a")
        node = town.nodes["a"]
        event_id = str(await town.schedule("a", draft_at(town.clock.now() + 600_000)))
        event = node.replicas.store.copies[TENANT, event_id].event
        assert event is not None
        end = cancelled(event, 0)
        ends = [
            Copy(None, replace(end, id=f"other-{number}"), Replication(), touched=Stamp(number, "b"))
            for number in range(200)
        ]
        await node.answers.ask(HoldCopies(ends, False))

        assert node.replicas.store.tombstones <= 50
        assert town.holders(event_id) == ["a"]

    run_town(story)


def test_a_resync_goes_slower_while_the_other_node_is_slow() -> None:
    def refill_ms(slow_s: float) -> int:
        async def story(town: Town) -> int:
            await town.found("a", "b")
            due_at = town.clock.now() + 3_600_000
            for _ in range(10):
                drafts = [draft_at(due_at + number) for number in range(200)]
                await town.nodes["a"].replicas.ask(Schedule(TENANT, drafts))
            await town.kill("b")
            node = await town.start("b")
            town.network.slow_s = slow_s
            town.know_all()
            began_at = town.clock.now()
            for _ in range(10_000):
                await asyncio.sleep(0.01)
                if held(node) == 2_000:
                    break
            return town.clock.now() - began_at

        return run_town(story)

    # Each of the five pages waits for four messages, and then rests for longer than that.
    slow_ms = 2 * BUSY_MS
    assert refill_ms(slow_ms / 1_000) - refill_ms(0.0) > 2 * 5 * 4 * slow_ms
