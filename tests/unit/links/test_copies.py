"""A gateway's copy of the keys: it follows changes, and is never older than its own writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import pytest

from everbell.core.access import AccessKey, new_key
from everbell.errors import Conflict, NotFound
from everbell.links.copies import KeysCopy
from everbell.links.link_client import LinkClient
from everbell.links.link_server import LinkServer
from everbell.node.answers import NodeAnswers
from everbell.testing import VirtualClock, run_virtual
from tests.unit.api.keys_stage import MemoryKeys
from tests.unit.links.test_link import Wire

KEY, TEXT = new_key(bytes(range(36)), "shop", ["read"], 1_000)


def operator(number: int) -> AccessKey:
    return new_key(bytes([number] * 36), "*", ["admin"], 1_000)[0]


class EngineKeys(MemoryKeys):
    """Keys of an engine, which says when they change."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self._waiting: list[asyncio.Event] = []

    async def put(self, key: AccessKey) -> None:
        await super().put(key)
        self._bump()

    async def drop(self, key_id: str) -> None:
        await super().drop(key_id)
        self._bump()

    def _bump(self) -> None:
        self.version += 1
        for event in self._waiting:
            event.set()

    async def changed(self, version: int, timeout_s: float) -> tuple[int, tuple[AccessKey, ...]]:
        if version == self.version:
            event = asyncio.Event()
            self._waiting.append(event)
            await asyncio.wait_for(event.wait(), timeout_s)
        return self.version, self.ring().keys


def linked(test: Callable[[EngineKeys, list[KeysCopy]], Coroutine[Any, Any, None]]) -> None:
    """Run a test with an engine and two gateways."""

    async def main(clock: VirtualClock) -> None:
        keys = EngineKeys()
        nothing = cast(Any, None)
        answers = NodeAnswers(nothing, keys, nothing, nothing, nothing, nothing, nothing, None)
        copies, ends, tasks = [], [], []
        for _ in range(2):
            gateway, engine = LinkClient(), LinkServer(answers.ask)
            there, back = Wire(65_536), Wire(65_536)
            there.peer, back.peer = engine, gateway
            gateway.connection_made(there)
            engine.connection_made(back)
            copies.append(KeysCopy(gateway))
            ends += [gateway, engine]
            await copies[-1].fetch()
            tasks.append(asyncio.ensure_future(copies[-1].follow()))
        await test(keys, copies)
        for end in ends:
            end.connection_lost(None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(main)


async def turns() -> None:
    """Let messages arrive that are on their way; virtual time does not move meanwhile."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_change_reaches_every_gateway_without_being_asked_for() -> None:
    async def scene(keys: EngineKeys, copies: list[KeysCopy]) -> None:
        await turns()
        await keys.put(KEY)
        await turns()
        assert [copy.ring().find(f"Bearer {TEXT}") for copy in copies] == [KEY, KEY]
        await keys.put(msgspec.structs.replace(KEY, revoked_at=2_000))
        await turns()
        assert [copy.ring().find(f"Bearer {TEXT}") for copy in copies] == [None, None]

    linked(scene)


def test_a_gateway_knows_its_own_writes_when_they_return() -> None:
    async def scene(keys: EngineKeys, copies: list[KeysCopy]) -> None:
        await copies[0].put(KEY)
        assert copies[0].ring().get(KEY.id) == KEY
        assert keys.ring().get(KEY.id) == KEY
        await copies[0].drop(KEY.id)
        assert copies[0].ring().keys == ()
        assert keys.ring().keys == ()

    linked(scene)


def test_a_gateway_has_keys_revoked_where_they_are_known() -> None:
    async def scene(keys: EngineKeys, copies: list[KeysCopy]) -> None:
        first, second = operator(1), operator(2)
        await keys.put(first)
        await keys.put(second)
        results = await asyncio.gather(
            copies[0].revoke(first.id, 2_000), copies[1].revoke(second.id, 2_000), return_exceptions=True
        )
        assert results[0] == msgspec.structs.replace(first, revoked_at=2_000) == copies[0].ring().get(first.id)
        assert isinstance(results[1], Conflict), "it is the last operator's by then"
        with pytest.raises(NotFound):
            await copies[0].revoke("nonsense", 2_000)

    linked(scene)


def test_the_ring_is_the_same_object_until_keys_change() -> None:
    async def scene(keys: EngineKeys, copies: list[KeysCopy]) -> None:
        await keys.put(KEY)
        await turns()
        ring = copies[0].ring()
        await copies[0].fetch()
        assert copies[0].ring() is ring

    linked(scene)
