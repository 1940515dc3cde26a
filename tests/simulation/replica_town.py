"""Some nodes that hold events of replicas, on virtual time, with a network that a test can cut.

Every node is the real thing: engine, holder, coordinator and resync. Requests between nodes travel as bytes. A test
decides which members each node knows, which messages are lost, and how the receiver answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everbell.channels.port import Channel, Delivery
from everbell.core.replicas.placement import Roster
from everbell.core.replication import Replication
from everbell.core.request import Handlers, Request
from everbell.core.retry import DELIVERED, Outcome
from everbell.core.spec import Draft
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.forecast import Forecast
from everbell.engine.requests import CountEvents, Find, Get, GetForecast, Schedule
from everbell.engine.seen import DraftResult, Seen
from everbell.engine.settings import EngineSettings
from everbell.entropy import SeededEntropy
from everbell.errors import NotFound, NotOwner, OutcomeUnknown
from everbell.links.packing import answer_packed, pack_request, unpack_answer
from everbell.replicas.service import Replicas
from everbell.testing.virtual import VirtualClock, VirtualLoop
from everbell.tracing import Tracing

A = TypeVar("A")

TENANT = "default"
RECEIVER = "https://receiver.example/"
CAP_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Rang:
    """One delivery as the receiver saw it."""

    at: int
    """By the receiver's clock, which is right."""
    node: str
    node_at: int
    """By the clock of the node that delivered it."""
    id: str
    occurrence: int
    attempt: int
    due_at: int
    payload: bytes


class TownNetwork:
    """Carries bytes between nodes: late, in any order, twice, or not at all."""

    def __init__(self, dice: random.Random) -> None:
        self.cuts: set[tuple[str, str]] = set()
        self.loss = 0.0
        self.twice = 0.0
        self.slow_s = 0.0
        self.patience_s = 0.2
        """How long it takes until a sender notices that a message was lost."""
        self.lost = 0
        self.repeated = 0
        self._dice = dice

    def split(self, *sides: Sequence[str]) -> None:
        """Let only the nodes of one side hear each other."""
        for side in sides:
            for other in sides:
                if side is not other:
                    self.cuts.update((sender, receiver) for sender in side for receiver in other)

    def heal(self) -> None:
        self.cuts.clear()

    def delay_s(self) -> float:
        return 0.001 + (self._dice.expovariate(1 / self.slow_s) if self.slow_s else 0.0)

    def loses(self, sender: str, receiver: str) -> bool:
        is_lost = (sender, receiver) in self.cuts or (self.loss > 0 and self._dice.random() < self.loss)
        self.lost += is_lost
        return is_lost

    def repeats(self) -> bool:
        is_twice = self.twice > 0 and self._dice.random() < self.twice
        self.repeated += is_twice
        return is_twice


class TownMembers:
    """The members as one node knows them."""

    def __init__(self, town: Town, me: str) -> None:
        self.me = me
        self.roster = Roster({me: ""})
        self.is_inside = True
        self._town = town

    def know(self, names: Sequence[str]) -> None:
        self.roster = Roster(dict.fromkeys(names, ""))

    async def ask(self, name: str, request: Request[A], /) -> A:
        town, network = self._town, self._town.network
        sender = town.nodes.get(self.me)
        if sender is None or sender.members is not self:
            await asyncio.sleep(1e6)  # This process was killed: nothing that it still waits for happens.
        if name == self.me:
            return await town.nodes[name].answers.ask(request)
        packed = pack_request(request)
        await asyncio.sleep(network.delay_s())
        if network.loses(self.me, name) or name not in town.nodes:
            await asyncio.sleep(network.patience_s)
            raise NotOwner(f"node {name} cannot be reached")
        if network.repeats():
            town.begin(answer_packed(packed, town.nodes[name].answers.ask))
        answer = await answer_packed(packed, town.nodes[name].answers.ask)
        await asyncio.sleep(network.delay_s())
        if network.loses(name, self.me) or name not in town.nodes:
            await asyncio.sleep(network.patience_s)
            raise OutcomeUnknown(f"node {name} did not answer")
        return unpack_answer(request, answer)


@dataclass
class TownNode:
    """One process."""

    name: str
    members: TownMembers
    clock: VirtualClock
    replicas: Replicas
    answers: Handlers


class TownChannel:
    """Delivers to the town's receiver."""

    holds = False
    together = 1

    def __init__(self, town: Town, name: str) -> None:
        self._town = town
        self._name = name
        self.is_dead = False
        self.is_cut_off = False
        self.clock: VirtualClock | None = None

    def start(self, deliveries: Sequence[Delivery]) -> None:
        if self.is_dead:
            return
        for delivery in deliveries:
            if delivery.begin():
                self._town.begin(self._deliver(delivery))

    async def _deliver(self, delivery: Delivery) -> None:
        if self.is_cut_off:
            await asyncio.sleep(0.01)
            delivery.settle(Outcome("lost", "no connection"))
            return
        assert self.clock is not None
        outcome, takes_s = self._town.receive(self._name, self.clock.now(), delivery)
        await asyncio.sleep(takes_s)
        if not self.is_dead:
            delivery.settle(outcome)

    async def close(self) -> None:
        """Nothing to release."""


@dataclass
class Town:
    """Nodes, a network and a receiver."""

    loop: VirtualLoop
    seed: int = 1
    tenant: Tenant = field(default_factory=Tenant)
    nodes: dict[str, TownNode] = field(default_factory=dict)
    rang: list[Rang] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.clock = VirtualClock(self.loop)
        self.network = TownNetwork(self.dice)
        self.answer: Callable[[Rang], tuple[Outcome, float]] = lambda rang: (DELIVERED, 0.005)
        self.channels: dict[str, TownChannel] = {}
        self.more_channels: dict[str, Channel] = {}
        """Channels of all nodes beside that of the receiver."""
        self.tracing: Tracing | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starts = 0

    def begin(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]

    def receive(self, node: str, node_at: int, delivery: Delivery) -> tuple[Outcome, float]:
        event = delivery.event
        rang = Rang(
            self.clock.now(), node, node_at, event.id, event.occurrence, delivery.attempt, event.due_at, event.payload
        )
        self.rang.append(rang)
        return self.answer(rang)

    async def start(self, name: str, *, offset_ms: int = 0, cap_bytes: int = CAP_BYTES) -> TownNode:
        """Start a process with an empty memory. The other nodes do not know it yet."""
        self._starts += 1
        members = TownMembers(self, name)
        clock = VirtualClock(self.loop)
        clock.offset_ms += offset_ms
        channel = self.channels[name] = TownChannel(self, name)
        channel.clock = clock

        async def stored(request: Request[Any], /) -> Any:
            if isinstance(request, Find):
                return [], None
            if isinstance(request, CountEvents):
                return {}
            if isinstance(request, GetForecast):
                return Forecast(self.clock.now(), request.per_ms, [0] * request.count, 0, None)
            raise NotFound("there is no store")

        replicas = await Replicas.start(
            members,
            {"https": channel, "http": channel, **self.more_channels},
            Tenants(self.tenant),
            clock,
            SeededEntropy(self.seed * 1_000 + self._starts),
            EngineSettings(drain_s=1.0),
            cap_bytes,
            stored,
            lambda broken: None,
            self.tracing,
            has_store=False,
        )
        node = TownNode(name, members, clock, replicas, Handlers(*replicas.peer_handlers))
        self.nodes[name] = node
        replicas.begin()
        return node

    async def found(self, *names: str) -> None:
        """Start nodes that know each other."""
        for name in names:
            await self.start(name)
        self.know_all()

    def know_all(self) -> None:
        """Let every node know all nodes that are up, as if it had played the log."""
        for node in self.nodes.values():
            node.members.know(tuple(self.nodes))

    async def kill(self, name: str) -> None:
        """End a process at once. The other nodes are not told."""
        node = self.nodes.pop(name)
        self.channels[name].is_dead = True
        node.replicas.engine.dispatcher.halt()
        node.replicas.engine._agenda.stop()
        await node.replicas.resync.stop()
        await node.replicas.beacons.stop()

    async def until(self, at: int) -> None:
        """Let the time pass, by the receiver's clock."""
        await asyncio.sleep(max(at - self.clock.now(), 0) / 1_000)

    async def schedule(self, node: str, draft: Draft) -> DraftResult:
        (result,) = await self.nodes[node].replicas.ask(Schedule(TENANT, [draft]))
        return result

    async def get(self, node: str, event_id: str) -> Seen:
        return await self.nodes[node].replicas.ask(Get(TENANT, event_id))

    def holders(self, event_id: str) -> list[str]:
        """The nodes that hold the event, in any state but ended."""
        found = []
        for name, node in sorted(self.nodes.items()):
            copy = node.replicas.store.copies.get((TENANT, event_id))
            if copy is not None and copy.event is not None:
                found.append(name)
        return found


def draft_at(
    due_at: int, *, count: int = 3, skew_ms: int = 2_000, ack: Any = "majority", to: str = RECEIVER, **fields: Any
) -> Draft:
    return Draft(due_at, to, b"1", replicas=Replication(count, skew_ms, ack), **fields)


def run_town(story: Callable[[Town], Awaitable[A]], seed: int = 1, tenant: Tenant | None = None) -> A:
    """Run a story on virtual time."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        town = Town(loop, seed, tenant or Tenant())

        async def main() -> A:
            try:
                return await story(town)
            finally:
                for name in list(town.nodes):
                    await town.kill(name)

        return loop.run_until_complete(main())
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
