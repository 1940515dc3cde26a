"""Keys in the log: the same on all nodes, and gone from all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from everbell.cluster.keys import ClusterKeys
from everbell.cluster.player import Player
from everbell.core.access import AccessKey, new_key
from everbell.core.cluster import Command, Found, SetPolicy, encode_command
from everbell.logs.memory import SharedLog
from everbell.testing import VirtualClock, run_virtual

KEY, TEXT = new_key(bytes(range(36)), "shop", ["read"], 1_000)
OTHER, _ = new_key(bytes(36), "*", ["admin"], 2_000)


class Node:
    """As much of a node as keys need."""

    def __init__(self, shared: SharedLog, clock: VirtualClock, keep: int = 200) -> None:
        self.shared = shared
        self.clock = clock
        self.log = shared.handle()
        self.player = Player(self.log, clock, lambda before, after: None, lambda reason: None, keep)
        self.keys = ClusterKeys(self.player, self.order)

    async def order(self, command: Command) -> None:
        index = await self.log.append(encode_command(command))
        await self.player.saw(lambda value: value.index >= index, 5)


def played(test: Callable[[Node, Node], Coroutine[Any, Any, None]], keep: int = 200) -> None:
    """Run a test with two nodes that play one log."""

    async def main(clock: VirtualClock) -> None:
        shared = SharedLog()
        await shared.handle().append(encode_command(Found("cluster", 4)))
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


def test_what_one_node_writes_all_know() -> None:
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
        await here.order(SetPolicy("shop", b"{}"))
        assert here.keys.ring() is ring, "a policy is no key"
        await here.keys.put(OTHER)
        assert here.keys.ring() is not ring
        assert here.keys.ring().keys == (KEY, OTHER)

    played(scene)


def test_waiting_for_a_change_ends_with_it_or_with_the_time() -> None:
    async def scene(here: Node, there: Node) -> None:
        assert await here.keys.changed(0, 1) == (0, ())
        waiting = asyncio.ensure_future(there.keys.changed(0, 3_600))
        await here.order(SetPolicy("shop", b"{}"))
        await here.keys.put(KEY)
        assert await waiting == (1, (KEY,))
        assert await there.keys.changed(0, 3_600) == (1, (KEY,)), "who is behind is told at once"

    played(scene)


def test_keys_survive_a_snapshot() -> None:
    async def scene(here: Node, there: Node) -> None:
        await here.keys.put(KEY)
        for _ in range(20):
            await here.order(SetPolicy("shop", b"{}"))
        late = Node(here.shared, here.clock)
        await late.player.catch_up()
        assert late.keys.ring().keys == (KEY,)

    played(scene, keep=5)
