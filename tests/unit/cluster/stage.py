"""A stage for the shell: nodes with real engines on virtual time, one log and one store in memory.

Nodes reach each other by a call. A test can take the log away from one of them, cut two off from each other, lose
answers, and let a node die as a process does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from everbell.cluster.node import ClusterNode
from everbell.cluster.router import Router
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.store_watch import StoreWatch
from everbell.core.cluster import Member, Value
from everbell.core.ids import partition_of
from everbell.core.request import Ask, Request
from everbell.core.spec import Draft
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy
from everbell.errors import LogUnavailable, NotOwner, OutcomeUnknown, StoreUnavailable
from everbell.logs.memory import MemoryLog, SharedLog
from everbell.logs.port import LogEntry, Snapshot
from everbell.stores.memory.store import MemoryStore
from everbell.testing import VirtualClock, run_virtual
from tests.unit.engine.stage import Receiver

A = TypeVar("A")

LEASE_MS = 1_000
QUIET_MS = 2_000
PARTITIONS = 16


class MoodyLog(MemoryLog):
    """A log that can be away for one node."""

    def __init__(self, shared: SharedLog) -> None:
        super().__init__(shared)
        self.is_away = False
        self.clock_at: int | None = None

    def _there(self) -> None:
        if self.is_away:
            raise LogUnavailable("away")

    async def append(self, data: bytes) -> int:
        self._there()
        return await super().append(data)

    async def read(self, after: int, limit: int) -> Sequence[LogEntry]:
        self._there()
        return await super().read(after, limit)

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        self._there()
        await super().save(snapshot, keep)

    async def renew(self, member: str, ttl_ms: int) -> None:
        self._there()
        await super().renew(member, ttl_ms)

    async def lives(self, member: str) -> bool:
        self._there()
        return await super().lives(member)

    async def now(self) -> int | None:
        return self.clock_at


class MoodyStore(MemoryStore):
    """A store that can be away."""

    is_away = False

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().raise_fence(epochs)


class Door:
    """The way of one node to the store, which can be shut."""

    def __init__(self, store: MemoryStore) -> None:
        self.is_shut = False
        self._store = store

    def __getattr__(self, name: str) -> Any:
        there = getattr(self._store, name)
        if name == "close" or not asyncio.iscoroutinefunction(there):
            return there

        async def ask(*arguments: Any, **options: Any) -> Any:
            if self.is_shut:
                raise StoreUnavailable("away")
            return await there(*arguments, **options)

        return ask


class Resident:
    """One node."""

    def __init__(
        self, town: Town, engine: Engine, node: ClusterNode, log: MoodyLog, receiver: Receiver, door: Door
    ) -> None:
        self.engine = engine
        self.node = node
        self.log = log
        self.door = door
        self.receiver = receiver
        self._ended = False
        self.peers = Neighbours(town)
        self.router = Router(node, engine, self.peers, town.clock)
        self.ask = self.router.ask
        self._store_watch = StoreWatch(node, engine, self.peers, town.clock, lambda fault: None)
        self._store_watch.start()

    @property
    def name(self) -> str:
        return self.node.settings.name

    @property
    def owned(self) -> set[int]:
        """The partitions that the engine runs."""
        return set(self.engine.epochs)

    async def leave(self) -> bool:
        """Stop as a server does; whether everything was handed over first."""
        await self._store_watch.stop()
        is_drained = await self.node.drain(10)
        is_clean = await self.end()
        await self.node.leave(is_clean=is_clean)
        return is_drained

    async def end(self) -> bool:
        """Stop the engine, once."""
        if self._ended:
            return True
        self._ended = True
        return await self.engine.stop()

    async def die(self) -> None:
        """Stop as a process that is killed: nothing is said, and nothing more is done."""
        await self._store_watch.stop()
        self.engine.dispatcher.halt()
        self.engine.drop(list(self.engine.epochs))
        await self.node.abandon()


class Neighbour:
    """Another node's engine, as near as can be. Requests that are not for other nodes are refused, as over the wire."""

    def __init__(self, ask: Ask, *, is_forgetful: bool) -> None:
        self._ask = ask
        self._is_forgetful = is_forgetful

    async def ask(self, request: Request[A], /) -> A:
        assert request.for_peers, f"{request.tag} is not for other nodes"
        answer = await self._ask(request)
        if self._is_forgetful:
            raise OutcomeUnknown("the answer was lost")
        return answer


class Neighbours:
    """All other nodes, as one of them reaches them."""

    def __init__(self, town: Town) -> None:
        self.cut: set[str] = set()
        """The names of nodes that cannot be reached."""
        self.forgetful: set[str] = set()
        """The names of nodes with answers that are lost."""
        self.asked: list[str] = []
        self._town = town

    async def reach(self, member: Member) -> Neighbour:
        self.asked.append(member.name)
        other = self._town.nodes.get(member.name)
        if other is None or other.node.me != member.incarnation or member.name in self.cut:
            raise NotOwner(f"node {member.name} cannot be reached; nothing of this request was done")
        return Neighbour(other.engine.ask, is_forgetful=member.name in self.forgetful)


class Town:
    """All nodes, and the log, store and clock that they share."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.log = SharedLog()
        self.store = MoodyStore(PARTITIONS)
        self.nodes: dict[str, Resident] = {}
        self.halted: dict[str, list[BaseException]] = {}
        self.past: list[Resident] = []
        """All incarnations that ever ran."""

    async def start(self, name: str, *, ready: bool = True, log: MoodyLog | None = None, **settings: Any) -> Resident:
        """A node; it is a member and runs its partitions, unless the test does not wait for that."""
        entropy = SeededEntropy(len(self.past))
        receiver = Receiver(self.clock)
        log = log or MoodyLog(self.log)
        door: Any = Door(self.store)
        engine = await Engine.start(
            door, {"https": receiver}, Tenants(Tenant(timeout_ms=QUIET_MS)), self.clock, entropy, epochs={}
        )
        chosen = ClusterSettings(name, **{"lease_ms": LEASE_MS, **settings})
        halted = self.halted.setdefault(name, [])
        node = await ClusterNode.start(log, engine, self.clock, entropy, chosen, (name,), halted.append)
        resident = Resident(self, engine, node, log, receiver, door)
        self.past.append(resident)
        if ready:
            self.nodes[name] = resident
            await node.ready()
        return resident

    async def grow(self, *names: str) -> list[Resident]:
        """Several nodes, one after the other, and then everything where it belongs."""
        residents = [await self.start(name) for name in names]
        await self.settled()
        return residents

    @property
    def value(self) -> Value:
        """The value of the node that has played most."""
        return max((resident.node.value for resident in self.nodes.values()), key=lambda value: value.index)

    async def settled(self, patience_s: float = 60) -> None:
        """Wait until every partition runs, and where the log says so."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + patience_s
        while not self._is_settled():
            assert loop.time() < until_s, self.value
            await asyncio.sleep(0.01)

    def owner_of(self, partition: int) -> str:
        """The name of the node that owns a partition, as the log says."""
        value = self.value
        return value.members[value.partitions[partition].owner].name

    def _is_settled(self) -> bool:
        value = self.value
        if any(part.state != "owned" for part in value.partitions):
            return False
        runs = {name: resident.owned for name, resident in self.nodes.items()}
        return sum(map(len, runs.values())) == len(value.partitions) and all(
            number in runs.get(self.owner_of(number), ()) for number in range(len(value.partitions))
        )

    def key_of(self, name: str) -> str:
        """A key of the tenant `shop` in a partition of a node."""
        keys = (f"k{number}" for number in range(1_000))
        return next(key for key in keys if self.owner_of(partition_of("shop", key, PARTITIONS)) == name)

    def draft(self, name: str, in_ms: int = 0, **fields: Any) -> Draft:
        return Draft(self.clock.now() + in_ms, fields.pop("to", "https://shop.example"), name.encode(), **fields)


def in_town(scene: Callable[[Town], Coroutine[Any, Any, None]]) -> None:
    """Play a scene, then kill the remaining nodes."""

    async def main(clock: VirtualClock) -> None:
        town = Town(clock)
        try:
            await scene(town)
            await asyncio.sleep(2)  # Abandoned requests come to their end.
        finally:
            for resident in town.past:
                await resident.die()
                await resident.end()

    run_virtual(main)
