"""Pauses in the log: one for a thing, bounded in number, the same on all nodes, and followed by their engines."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from everbell.cluster.follower import OrderFollower
from everbell.cluster.pauses import ClusterPauses, LoneDocuments
from everbell.core.cluster import Command, DropDocument, Policy, PutDocument, encode_command
from everbell.core.pause import TENANT_PAUSES_MAX, Pause, Put, What, encode_pause
from everbell.errors import Conflict, NotFound, OutcomeUnknown
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import Resident, Town, in_town


class Heard:
    """The pauses that an engine got."""

    def __init__(self) -> None:
        self.told: list[list[Pause]] = []

    def follow(self, pauses: list[Pause]) -> None:
        self.told.append(list(pauses))


class Clock:
    at = 1_000

    def now(self) -> int:
        return self.at

    def elapsed_ms(self) -> int:
        return self.at


def pause(what: What, name: str = "", *, tenant: str = "shop", at: int = 1_000, **more: Any) -> Pause:
    return Pause(tenant, what, name, at, "me", **more)


def follower_of(heard: Heard) -> OrderFollower:
    return OrderFollower(heard.follow, lambda kills: None)


def make() -> tuple[ClusterPauses, LoneDocuments, Heard, Clock]:
    heard, clock = Heard(), Clock()
    documents = LoneDocuments(follower_of(heard).follow)
    return ClusterPauses(documents.documents, documents.write, clock), documents, heard, clock


def test_a_thing_is_paused_once_and_can_be_told_something_else() -> None:
    async def scene() -> None:
        pauses, _, heard, _ = make()
        first = pause("key", "k", note="first")
        assert await pauses.put(first) == Put(first, True)
        put = await pauses.put(pause("key", "k", at=2_000, note="second", until_at=9_000))
        again = put.pause
        assert (again.since_at, again.note, again.until_at, put.is_new) == (1_000, "second", 9_000, False)
        assert await pauses.pauses() == [again]
        assert heard.told == [[first], [again]]
        assert await pauses.drop("shop", "key", "k") == again
        assert await pauses.pauses() == []
        assert heard.told[-1] == []
        with pytest.raises(NotFound, match="key 'k' is not paused"):
            await pauses.drop("shop", "key", "k")

    asyncio.run(scene())


def test_there_is_an_end_to_how_much_can_be_paused() -> None:
    async def scene() -> None:
        pauses, _, _, clock = make()
        for number in range(TENANT_PAUSES_MAX):
            await pauses.put(pause("key", f"{number}", until_at=5_000))
        with pytest.raises(Conflict, match="100 things of tenant 'shop' are paused"):
            await pauses.put(pause("key", "one more"))
        await pauses.put(pause("key", "0", note="no new one"))
        await pauses.put(pause("tenant", tenant="bank"))
        clock.at = 5_000
        assert len(await pauses.pauses()) == 2
        await pauses.put(pause("key", "one more"))

    asyncio.run(scene())


def test_the_next_write_clears_ended_pauses() -> None:
    async def scene() -> None:
        pauses, documents, _, clock = make()
        for number in range(15):
            await pauses.put(pause("key", f"{number}", until_at=5_000))
        clock.at = 5_000
        await pauses.put(pause("key", "a"))
        assert len(documents.documents()) == 6
        await pauses.put(pause("key", "b"))
        assert len(documents.documents()) == 2

    asyncio.run(scene())


def test_nodes_that_did_not_confirm_are_named() -> None:
    async def unheard(index: int) -> tuple[str, ...]:
        return (f"n{index}",)

    async def scene() -> None:
        documents = LoneDocuments(follower_of(Heard()).follow)
        pauses = ClusterPauses(documents.documents, documents.write, Clock(), unheard)
        assert (await pauses.put(pause("tenant"))).unheard == ("n1",)

    asyncio.run(scene())


def test_a_write_that_was_not_played_in_time_is_no_promise() -> None:
    async def write(command: Command) -> int:
        return 7

    async def scene() -> None:
        paused = pause("key", "k")
        with pytest.raises(OutcomeUnknown, match="look, or ask again"):
            await ClusterPauses(dict, write, Clock()).put(paused)
        documents = {paused.place: Policy(3, encode_pause(paused))}
        with pytest.raises(OutcomeUnknown, match="look, or ask again"):
            await ClusterPauses(lambda: documents, write, Clock()).drop("shop", "key", "k")

    asyncio.run(scene())


def test_followers_hear_of_changes_only_and_of_unreadable_pauses(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    follower = follower_of(heard)
    known = pause("queue", "mail")
    documents = {known.place: Policy(3, encode_pause(known)), "shop": Policy(4, b"{}")}
    follower.follow(documents)
    follower.follow(documents)
    follower.follow({**documents, "shop": Policy(5, b"{}")})
    with caplog.at_level(logging.ERROR):
        follower.follow({**documents, "/pauses/shop/mood/bad": Policy(6, b"{}")})
        follower.follow({**documents, "/pauses/shop/mood/bad": Policy(6, b"{}"), "bank": Policy(7, b"{}")})
    assert heard.told == [[known]]
    assert caplog.text.count("/pauses/shop/mood/bad is not understood here") == 1


def pauses_at(resident: Resident, clock: Any) -> ClusterPauses:
    """As a server has them."""
    node = resident.node

    async def write(command: Command) -> int:
        index = await resident.log.append(encode_command(command))
        await node.player.saw(lambda value: value.index >= index, 5)
        return index

    return ClusterPauses(lambda: node.value.policies, write, clock)


def test_a_pause_holds_at_all_nodes_also_at_those_that_join_later() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        await pauses_at(one, town.clock).put(Pause("shop", "target", "https://shop.example", town.clock.now(), "me"))
        await two.node.player.saw(lambda value: value.index >= one.node.value.index, 5)
        for number in range(40):
            await schedule_seen(two.ask, "shop", [town.draft(f"{number}", key=f"{number % 7}")])
        (late,) = await town.grow("n3")
        await town.nodes.pop("n2").die()
        await town.settled()
        await asyncio.sleep(20)
        assert [resident.receiver.got for resident in (one, two, late)] == [[], [], []]
        assert one.engine.pauses.on == late.engine.pauses.on != ()

        await pauses_at(late, town.clock).drop("shop", "target", "https://shop.example")
        await asyncio.sleep(20)
        got = one.receiver.got + late.receiver.got
        assert sorted(int(each.name) for each in got) == list(range(40))
        of_key = [int(each.name) for each in sorted(got, key=lambda each: each.at) if each.event.key == "3"]
        assert of_key == sorted(of_key)

    in_town(scene)


def test_commands_are_those_of_documents() -> None:
    """So that logs of older versions stay as they are, and older nodes can play newer ones."""
    assert encode_command(PutDocument("/pauses/shop/key/k", b"{}")).startswith(b'{"command":"set-policy"')
    assert encode_command(DropDocument("/pauses/shop/key/k")).startswith(b'{"command":"drop-policy"')
