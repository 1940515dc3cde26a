"""A dead node is forgotten when the last event that it left behind has ended, or after some time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from everbell.cluster.depletion import Depletion, homes_of
from everbell.core.cluster import stand_ins
from everbell.core.time import HOUR_MS, MINUTE_MS
from everbell.engine.requests import Cancel
from everbell.engine.seen import Seen
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import LEASE_MS, Resident, Town, in_town

LOOKS_S = 10 * LEASE_MS / 1_000
"""Long enough for a node to be taken for dead, and for two looks after that."""


def in_forgetful_town(scene: Callable[[Town], Coroutine[Any, Any, None]]) -> None:
    """Play a scene in which every node that is alive at first checks on dead nodes."""

    async def with_depletion(town: Town) -> None:
        residents = [await town.start(name, forget_after_ms=HOUR_MS) for name in ("n1", "n2", "n3")]
        await town.settled()
        depletions = [Depletion(each.node, town.store, town.clock, lambda fault: None) for each in residents]
        for depletion in depletions:
            depletion.start()
        try:
            await scene(town)
        finally:
            for depletion in depletions:
                await depletion.stop()

    in_town(with_depletion)


async def schedule(town: Town, node: Resident, in_ms: int, **fields: Any) -> str:
    [seen] = await schedule_seen(node.ask, "shop", [town.draft("e", in_ms, **fields)])
    assert isinstance(seen, Seen)
    return seen.event.id


def expected_back(town: Town) -> set[str]:
    return set(stand_ins(town.value))


def test_a_dead_node_is_forgotten_when_its_last_event_has_ended() -> None:
    async def scene(town: Town) -> None:
        two = town.nodes["n2"]
        await schedule(town, two, MINUTE_MS)
        last = await schedule(town, two, 30 * MINUTE_MS)
        await town.nodes.pop("n2").die()
        await asyncio.sleep(LOOKS_S)
        assert expected_back(town) == {"n2"}
        # Events that arrive later are not events of the dead node.
        await schedule(town, town.nodes["n1"], 100 * HOUR_MS, key="k")
        await asyncio.sleep(2 * MINUTE_MS / 1_000)
        assert expected_back(town) == {"n2"}
        await town.nodes["n1"].ask(Cancel("shop", last))
        await asyncio.sleep(LOOKS_S)
        assert expected_back(town) == set()
        assert [each.what for each in town.value.transitions if each.kind == "forget"] == ["n2"]

    in_forgetful_town(scene)


def test_a_dead_node_is_forgotten_after_some_time_although_events_are_left() -> None:
    async def scene(town: Town) -> None:
        await schedule(town, town.nodes["n2"], 100 * HOUR_MS)
        await town.nodes.pop("n2").die()
        await asyncio.sleep(HOUR_MS / 1_000 - 60)
        assert expected_back(town) == {"n2"}
        await asyncio.sleep(60 + LOOKS_S)
        assert expected_back(town) == set()

    in_forgetful_town(scene)


def test_a_node_that_comes_back_in_time_is_not_forgotten() -> None:
    async def scene(town: Town) -> None:
        await schedule(town, town.nodes["n2"], MINUTE_MS)
        mine = set(town.nodes["n2"].owned)
        await town.nodes.pop("n2").die()
        await asyncio.sleep(LOOKS_S)
        assert (await town.start("n2")).owned <= mine
        await town.settled()
        assert town.nodes["n2"].owned == mine
        await asyncio.sleep(2 * MINUTE_MS / 1_000)
        assert "forget" not in [each.kind for each in town.value.transitions]

    in_forgetful_town(scene)


def test_one_node_checks_on_a_dead_node_and_another_follows_when_it_dies() -> None:
    async def scene(town: Town) -> None:
        await schedule(town, town.nodes["n3"], 5 * MINUTE_MS)
        await town.nodes.pop("n3").die()
        await asyncio.sleep(LOOKS_S)
        [first] = [node for node in town.nodes.values() if homes_of(node.node.value, node.node.me)]
        await town.nodes.pop(first.name).die()
        await asyncio.sleep(LOOKS_S)
        assert "n3" in expected_back(town)
        await asyncio.sleep(6 * MINUTE_MS / 1_000)
        assert expected_back(town) == set()

    in_forgetful_town(scene)
