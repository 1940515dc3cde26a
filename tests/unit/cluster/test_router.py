"""Any node answers any request: which node is asked, how long it waits, and which requests are not repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everbell.cluster.router import MOVE_S
from everbell.core.amendment import Amendment
from everbell.core.batch_item import BatchItem, ItemDone
from everbell.core.cluster import Drain, Group, Percentage, SetStrategy
from everbell.core.event import Event
from everbell.core.ids import partition_of
from everbell.core.queue_view import WorkerInfo
from everbell.core.tenant import Tenant
from everbell.engine.requests import (
    Amend,
    ApplyItems,
    Cancel,
    CancelMatching,
    CountEvents,
    Get,
    GetLine,
    Replace,
    Ring,
    Schedule,
)
from everbell.engine.seen import Seen
from everbell.engine.tally import SCHEDULED
from everbell.engine.view_requests import Explain, GetPast, GetQueues, GetTargets, NoteWorker
from everbell.errors import EverbellError, NotFound, NotOwner, OutcomeUnknown
from everbell.stores.port import Filter
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import LEASE_MS, PARTITIONS, Resident, Town, in_town

HOUR = 3_600_000
_NAMELESS: dict[str, Any] = {}


async def schedule(town: Town, node: Resident, name: str = "e", in_ms: int = HOUR, **fields: Any) -> Any:
    [result] = await schedule_seen(node.ask, "shop", [town.draft(name, in_ms, **fields)])
    return result


async def scheduled(town: Town, node: Resident, name: str = "e", in_ms: int = HOUR, **fields: Any) -> str:
    """An event that has to be made; its id."""
    result = await schedule(town, node, name, in_ms, **fields)
    assert isinstance(result, Seen), result
    return result.event.id


async def stored(town: Town, event_id: str) -> Event:
    found = await town.store.get("shop", event_id)
    assert isinstance(found, Event)
    return found


def test_events_without_a_name_stay_on_this_node() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        for _ in range(10):
            assert (await stored(town, await scheduled(town, one))).partition in one.owned
        assert one.peers.asked == []
        assert one.router.forwarded == two.router.forwarded == 0

    in_town(scene)


def test_events_of_a_tenant_that_spreads_them_go_to_all_owners_in_turn() -> None:
    async def scene(town: Town) -> None:
        one, two, three = await town.grow("n1", "n2", "n3")
        one.engine.tenants.override("shop", Tenant("shop", placement="spread"))
        for _ in range(PARTITIONS):
            await scheduled(town, one)
        batch = [town.draft(str(number), HOUR) for number in range(PARTITIONS)]
        assert all(isinstance(result, Seen) for result in await schedule_seen(one.ask, "shop", batch))
        for node in (one, two, three):
            assert node.engine.meter.tallies.of("shop").counts[SCHEDULED] == 2 * len(node.owned)

    in_town(scene)


def test_events_to_spread_stay_here_while_another_owner_cannot_be_reached() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        one.engine.tenants.override("shop", Tenant("shop", placement="spread"))
        one.peers.cut.add("n2")
        began_at = town.clock.now()
        for _ in range(4):
            assert (await stored(town, await scheduled(town, one))).partition in one.owned
        assert town.clock.now() - began_at < 1_000

    in_town(scene)


@pytest.mark.parametrize("field", ["key", "id"])
def test_the_name_of_an_event_decides_its_owner(field: str) -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        name = town.key_of("n2")
        event_id = await scheduled(town, one, **{field: name})  # type: ignore[arg-type]
        assert (await stored(town, event_id)).partition == partition_of("shop", name, PARTITIONS)
        assert one.peers.asked == ["n2"]

    in_town(scene)


def test_a_batch_goes_to_each_owner_once_and_comes_back_in_order() -> None:
    async def scene(town: Town) -> None:
        one, _, _ = await town.grow("n1", "n2", "n3")
        drafts = [town.draft(str(number), HOUR, id=f"id-{number}") for number in range(50)]
        ids = await one.ask(Schedule("shop", drafts))
        assert ids == [f"id-{number}" for number in range(50)]
        assert sorted(one.peers.asked) == ["n2", "n3"]

    in_town(scene)


def test_items_of_a_batch_go_to_the_owners_of_their_events() -> None:
    async def scene(town: Town) -> None:
        one, two, _ = await town.grow("n1", "n2", "n3")
        key = town.key_of("n2")
        await scheduled(town, two, id="keyed", key=key)
        made = await scheduled(town, two)
        items = [
            BatchItem("cancel", "keyed"),
            BatchItem("cancel", made),
            BatchItem("put", "new", town.draft("new", HOUR, id="new", key=key)),
            BatchItem("cancel", "new"),
            BatchItem("cancel", "nothing"),
            *(BatchItem("put", f"id-{number}", town.draft("x", HOUR, id=f"id-{number}")) for number in range(30)),
        ]
        results = await one.ask(ApplyItems("shop", items))
        statuses = [result.status for result in results if isinstance(result, ItemDone)]
        assert statuses == ["cancelled", "cancelled", "created", "cancelled", "unknown", *["created"] * 30]
        assert sorted(one.peers.asked) == ["n2", "n3"]
        again = await one.ask(ApplyItems("shop", items[5:]))
        assert {result.status for result in again if isinstance(result, ItemDone)} == {"replaced"}

    in_town(scene)


def test_items_of_one_id_keep_their_order_while_a_partition_moves() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        key = town.key_of("n2")
        await scheduled(town, two, id="a", key=key)
        one.node.append(Drain("n2"))
        for number in range(40):
            items = [BatchItem("put", "a", town.draft(f"{number}-{turn}", HOUR, id="a", key=key)) for turn in range(3)]
            results = await one.ask(ApplyItems("shop", items))
            assert [result.status for result in results if isinstance(result, ItemDone)] == ["replaced"] * 3
            assert (await stored(town, "a")).payload == f"{number}-2".encode()
            await asyncio.sleep(0.02)
        assert town.owner_of((await stored(town, "a")).partition) == "n1"
        assert (await stored(town, "a")).version == 121

    in_town(scene)


def test_every_node_answers_every_kind_of_request() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        edge = await town.start("edge", gateway=True)
        for node in (one, two, edge):
            made = await scheduled(town, two)
            own = await scheduled(town, node, id=f"own-{node.name}", key=town.key_of("n2"))
            for event_id in (made, own):
                assert (await node.ask(Get("shop", event_id))).status == "scheduled"
                changed = await node.ask(Amend("shop", event_id, Amendment(tags=("new",)), None))
                assert changed.event.version == 2
                assert (await node.ask(Ring("shop", event_id))).event.id == event_id
                await asyncio.sleep(0.1)
                assert (await node.ask(Get("shop", event_id))).status == "delivered"
            assert (await node.ask(GetLine("shop", town.key_of("n2")))).head is None
            replaced = await node.ask(
                Replace("shop", f"put-{node.name}", town.draft("p", HOUR, id=f"put-{node.name}"), None)
            )
            assert replaced.created
            cancelled = await node.ask(Cancel("shop", f"put-{node.name}"))
            assert cancelled.status == "cancelled"
            with pytest.raises(NotFound):
                await node.ask(Cancel("shop", "nothing"))
        assert edge.owned == set()
        assert len(two.receiver.names) == 6

    in_town(scene)


def test_many_are_cancelled_wherever_they_are() -> None:
    async def scene(town: Town) -> None:
        one, _, _ = await town.grow("n1", "n2", "n3")
        for number in range(20):
            await scheduled(town, one, id=f"id-{number}", tags=("old",))
        assert await one.ask(CancelMatching(Filter("shop", tag="old"))) == 20
        assert (await one.ask(CountEvents()))["shop"].cancelled == 20

    in_town(scene)


def test_a_gateway_spreads_events_without_a_name_over_the_owners() -> None:
    async def scene(town: Town) -> None:
        await town.grow("n1", "n2")
        edge = await town.start("edge", gateway=True)
        for _ in range(4):
            await scheduled(town, edge)
        assert sorted(edge.peers.asked) == ["n1", "n1", "n2", "n2"]

    in_town(scene)


def test_a_partition_that_moves_goes_on_taking_events() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        two.receiver.answer = lambda delivery: None
        key = town.key_of("n2")
        await scheduled(town, two, "slow", 0, key=key)
        await asyncio.sleep(0.1)
        one.node.append(Drain("n2"))
        await asyncio.sleep(0.5)
        assert town.owner_of(partition_of("shop", key, PARTITIONS)) == "n2", "it waits for its receiver"
        await scheduled(town, one, "next", 0, key=key)
        two.receiver.settle("slow")
        await asyncio.sleep(1)
        assert town.owner_of(partition_of("shop", key, PARTITIONS)) == "n1"
        assert (two.receiver.names, one.receiver.names) == (["slow"], ["next"])

    in_town(scene)


def test_a_request_waits_for_a_take_over() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        event_id = await scheduled(town, one, key=town.key_of("n2"))
        await town.nodes.pop("n2").die()
        began_at = town.clock.now()
        changed = await one.ask(Amend("shop", event_id, Amendment(tags=("new",)), None))
        assert changed.event.version == 2
        assert LEASE_MS / 2 < town.clock.now() - began_at < 2 * LEASE_MS

    in_town(scene)


def test_a_request_to_an_unreachable_owner_is_refused_as_not_done() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        one.peers.cut.add("n2")
        began_at = town.clock.now()
        result = await schedule(town, one, id=town.key_of("n2"))
        assert isinstance(result, NotOwner)
        assert MOVE_S * 1_000 <= town.clock.now() - began_at < MOVE_S * 1_000 + 500
        assert await town.store.get("shop", town.key_of("n2")) is None
        with pytest.raises(NotOwner):
            await one.ask(Replace("shop", town.key_of("n2"), town.draft("e", HOUR), None))

    in_town(scene)


def test_some_of_a_batch_may_be_refused_while_others_are_made() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        one.peers.cut.add("n2")
        drafts = [town.draft("e", HOUR, id=town.key_of(name)) for name in ("n1", "n2")]
        results = await schedule_seen(one.ask, "shop", drafts)
        assert [type(result) for result in results] == [Seen, NotOwner]

    in_town(scene)


def test_a_request_with_an_unknown_outcome_is_not_repeated() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        one.peers.forgetful.add("n2")
        assert isinstance(await schedule(town, one, key=town.key_of("n2")), OutcomeUnknown)
        assert (await two.ask(CountEvents()))["shop"].pending == 1
        event_id = await scheduled(town, two)
        with pytest.raises(OutcomeUnknown):
            await one.ask(Amend("shop", event_id, Amendment(tags=("new",)), None))
        assert (await stored(town, event_id)).version == 2

    in_town(scene)


@pytest.mark.parametrize("how", ["cut", "forgetful"])
def test_an_event_can_be_read_while_its_owner_is_unreachable(how: str) -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        event_id = await scheduled(town, two)
        getattr(one.peers, how).add("n2")
        assert (await one.ask(Get("shop", event_id))).status == "scheduled"

    in_town(scene)


def test_a_node_out_of_the_cluster_takes_nothing_for_itself() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        one.log.is_away = True
        await asyncio.sleep(2 * LEASE_MS / 1_000)
        assert not one.node.is_member
        for fields in (_NAMELESS, {"id": town.key_of("n2")}):
            result = await schedule(town, one, **fields)
            assert isinstance(result, Seen | EverbellError)
            if isinstance(result, Seen):
                assert (await stored(town, result.event.id)).partition in two.owned

    in_town(scene)


def test_tenants_with_a_slice_stay_in_it() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        one.node.append(SetStrategy(Percentage((Group("vip", 50, 4, 4, ("shop",)),))))
        await asyncio.sleep(1)
        await town.settled()
        for node in (one, two):
            for fields in (_NAMELESS, {"key": "a"}, {"key": "b"}):
                assert 4 <= (await stored(town, await scheduled(town, node, **fields))).partition < 8

    in_town(scene)


def test_any_node_answers_for_the_queues_targets_and_past_of_all() -> None:
    async def scene(town: Town) -> None:
        nodes = await town.grow("n1", "n2", "n3")
        for node in nodes:
            await schedule_seen(node.ask, "shop", [town.draft("e", 0, to="queue:work")])
        await nodes[0].ask(NoteWorker("shop", "work", WorkerInfo("w1")))
        await asyncio.sleep(20)
        for node in nodes:
            queues = await node.ask(GetQueues("shop"))
            assert [(queue.name, queue.waiting) for queue in queues.queues] == [("work", 3)]
            assert [worker.name for worker in queues.queues[0].workers] == ["w1"]
            targets = await node.ask(GetTargets("shop"))
            assert [(target.target, target.waiting) for target in targets.targets] == [("queue:work", 3)]
            past = await node.ask(GetPast("shop", "minutes"))
            assert sum(sample.counts[SCHEDULED] for sample in past.samples) == 3
            assert past.now.pending == 3
            assert queues.unheard == targets.unheard == past.unheard == ()

    in_town(scene)


def test_a_node_that_does_not_answer_is_named() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        await schedule_seen(one.ask, "shop", [town.draft("e", 0, to="queue:work")])
        await asyncio.sleep(0.1)
        one.peers.cut.add(two.name)
        view = await one.ask(GetQueues("shop"))
        assert view.unheard == ("n2",)
        assert [queue.waiting for queue in view.queues] == [1]

    in_town(scene)


def test_the_owner_explains_an_event_and_the_lack_of_one_is_an_explanation() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        event_id = await scheduled(town, two, "e", 0, to="queue:work")
        await asyncio.sleep(0.1)
        why = (await one.ask(Explain("shop", event_id))).why
        assert why is not None
        assert (why.code, why.queue) == ("no-worker", "work")

        one.peers.cut.add("n2")
        explained = await one.ask(Explain("shop", event_id))
        assert explained.why is not None
        assert (explained.seen.status, explained.why.code) == ("scheduled", "no-owner")
        with pytest.raises(NotFound):
            await one.ask(Explain("shop", "absent"))

    in_town(scene)
