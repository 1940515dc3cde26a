"""Keys in the log: the same on all nodes, and gone from all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from everbell.cluster.keys import ClusterKeys
from everbell.cluster.player import Player
from everbell.core.access import AccessKey, new_key
from everbell.core.cluster import Command, FoundCluster, PutDocument, encode_command
from everbell.errors import Conflict, NotFound, OutcomeUnknown
from everbell.logs.memory import SharedLog
from everbell.testing import VirtualClock, run_virtual

KEY, TEXT = new_key(bytes(range(36)), "shop", ["read"], 1_000)
OTHER, _ = new_key(bytes(36), "*", ["admin"], 2_000)
OPERATORS = [new_key(bytes([number] * 36), "*", ["admin"], 2_000 + number)[0] for number in range(1, 4)]


class Script:
    """The order in which nodes write, by name. No node waits for one that is done."""

    def __init__(self, names: str) -> None:
        self._left = list(names)
        self._moved = asyncio.Condition()

    async def wait(self, name: str) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self._left[0] == name)

    async def has_written(self, name: str) -> None:
        async with self._moved:
            self._left.remove(name)
            self._moved.notify_all()

    async def is_done(self, name: str) -> None:
        async with self._moved:
            self._left = [other for other in self._left if other != name]
            self._moved.notify_all()


class Node:
    """As much of a node as keys need. With a script it writes when that says so."""

    def __init__(self, shared: SharedLog, clock: VirtualClock, keep: int = 200) -> None:
        self.shared = shared
        self.clock = clock
        self.log = shared.handle()
        self.player = Player(self.log, clock, lambda before, after: None, lambda reason: None, keep)
        self.keys = ClusterKeys(self.player, self.write)
        self.name = ""
        self.script: Script | None = None

    async def write(self, command: Command) -> int:
        if self.script is not None:
            await self.script.wait(self.name)
        index = await self.log.append(encode_command(command))
        if self.script is not None:
            await self.script.has_written(self.name)
        await self.player.saw(lambda value: value.index >= index, 5)
        return index

    async def revoke(self, key: AccessKey) -> AccessKey | Conflict:
        try:
            return await self.keys.revoke(key.id, 3_000)
        except Conflict as refused:
            return refused
        finally:
            if self.script is not None:
                await self.script.is_done(self.name)


def played(test: Callable[[Node, Node], Coroutine[Any, Any, None]], keep: int = 200) -> None:
    """Run a test with two nodes that play one log."""

    async def main(clock: VirtualClock) -> None:
        shared = SharedLog()
        await shared.handle().append(encode_command(FoundCluster("cluster", 4)))
        nodes = [Node(shared, clock, keep), Node(shared, clock, keep)]
        for node in nodes:
            node.player.start()
        try:
            await test(*nodes)
        finally:
            for node in nodes:
                await node.player.stop()

    run_virtual(main)


def revoked(key: AccessKey) -> AccessKey:
    return msgspec.structs.replace(key, revoked_at=3_000)


def test_all_nodes_know_a_key_that_one_wrote() -> None:
    async def scene(here: Node, there: Node) -> None:
        await here.keys.put(KEY)
        assert here.keys.ring().find(f"Bearer {TEXT}") == KEY, "it counts here when that returns"
        await there.keys.changed(0, 5)
        assert there.keys.ring().find(f"Bearer {TEXT}") == KEY

        await there.keys.put(revoked(KEY))
        await here.keys.changed(1, 5)
        assert here.keys.ring().find(f"Bearer {TEXT}") is None
        await here.keys.drop(KEY.id)
        assert here.keys.ring().keys == ()

    played(scene)


def test_the_ring_is_the_same_object_until_keys_change() -> None:
    async def scene(here: Node, there: Node) -> None:
        await here.keys.put(KEY)
        ring = here.keys.ring()
        await here.write(PutDocument("shop", b"{}"))
        assert here.keys.ring() is ring, "a policy is no key"
        await here.keys.put(OTHER)
        assert here.keys.ring() is not ring
        assert here.keys.ring().keys == (KEY, OTHER)

    played(scene)


def test_waiting_for_a_change_ends_with_it_or_with_the_time() -> None:
    async def scene(here: Node, there: Node) -> None:
        assert await here.keys.changed(0, 1) == (0, ())
        waiting = asyncio.ensure_future(there.keys.changed(0, 3_600))
        await here.write(PutDocument("shop", b"{}"))
        await here.keys.put(KEY)
        assert await waiting == (1, (KEY,))
        assert await there.keys.changed(0, 3_600) == (1, (KEY,)), "a caller with an old version gets an answer at once"

    played(scene)


def test_keys_survive_a_snapshot() -> None:
    async def scene(here: Node, there: Node) -> None:
        await here.keys.put(KEY)
        for _ in range(20):
            await here.write(PutDocument("shop", b"{}"))
        late = Node(here.shared, here.clock)
        await late.player.catch_up()
        assert late.keys.ring().keys == (KEY,)

    played(scene, keep=5)


def test_a_key_is_revoked_once() -> None:
    async def scene(here: Node, there: Node) -> None:
        await here.keys.put(KEY)
        assert await here.keys.revoke(KEY.id, 3_000) == revoked(KEY)
        assert await here.keys.revoke(KEY.id, 4_000) == revoked(KEY)
        with pytest.raises(NotFound):
            await here.keys.revoke("nonsense", 3_000)

    played(scene)


def test_of_the_last_two_operators_one_stays_on_a_node() -> None:
    async def scene(here: Node, there: Node) -> None:
        first, second, _ = OPERATORS
        await here.keys.put(first)
        await here.keys.put(second)
        results = await asyncio.gather(here.revoke(first), here.revoke(second))
        assert results[0] == revoked(first)
        assert isinstance(results[1], Conflict)
        assert here.keys.ring().operators == (second,)

    played(scene)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("order", ["hhtt", "htht", "htth", "thht", "thth", "tthh"])
def test_an_operator_stays_in_every_order_in_which_two_nodes_revoke(order: str, count: int) -> None:
    async def scene(here: Node, there: Node) -> None:
        first, second, *_ = operators = OPERATORS[:count]
        for key in operators:
            await here.keys.put(key)
        await there.player.saw(lambda value: value.index == here.player.value.index, 5)
        here.name, there.name = "ht"
        here.script = there.script = Script(order)
        results = await asyncio.gather(here.revoke(first), there.revoke(second))
        await there.player.saw(lambda value: value.index >= here.player.value.index, 5)
        await here.player.saw(lambda value: value.index >= there.player.value.index, 5)
        gone = [result.id for result in results if isinstance(result, AccessKey)]
        assert here.keys.ring().keys == there.keys.ring().keys
        left = [key.id for key in here.keys.ring().operators]
        assert left == [key.id for key in operators if key.id not in gone]
        assert left

    played(scene)


def test_the_outcome_of_an_entry_that_was_not_played_in_time_is_unknown() -> None:
    async def scene(here: Node, there: Node) -> None:
        await here.keys.put(KEY)
        await here.player.stop()
        with pytest.raises(OutcomeUnknown):
            await here.keys.revoke(KEY.id, 3_000)

    played(scene)
