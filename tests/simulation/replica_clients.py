"""Clients of a simulated cluster of replicas: they ask any node, and know only the answers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TypeVar

from everbell.core.amendment import Amendment
from everbell.core.event import Repeat
from everbell.core.replication import Replication
from everbell.core.request import Request
from everbell.core.spec import Draft
from everbell.engine.requests import Amend, Cancel, Get, Schedule
from everbell.engine.seen import DraftResult, Seen
from everbell.errors import Conflict, EverbellError, NotFound, Stopping
from everbell.testing.virtual import START_AT
from tests.simulation.network import Network
from tests.simulation.processes import ProcessLoop
from tests.simulation.replica_checker import ReplicaChecker, Wanted
from tests.simulation.replica_node import ReplicaNode
from tests.simulation.replica_options import ReplicaOptions

A = TypeVar("A")

TENANT = "default"
EVERY_MS = 15_000


class ReplicaClients:
    """All clients."""

    def __init__(
        self,
        loop: ProcessLoop,
        network: Network,
        nodes: dict[str, ReplicaNode],
        checker: ReplicaChecker,
        options: ReplicaOptions,
        dice: random.Random,
    ) -> None:
        self.answers: Counter[str] = Counter()
        """The answers, by their kind."""
        self._loop = loop
        self._network = network
        self._nodes = nodes
        self._checker = checker
        self._options = options
        self._dice = dice

    @property
    def now_ms(self) -> int:
        return int((self._loop.true_s + 1e-6) * 1_000)

    async def ask(self, request: Request[A], event_id: str | None = None) -> A:
        """Ask a running node, perhaps about an event. Raises the node's error; `Overloaded` means that the outcome is
        unknown.
        """
        ready = [node for node in self._nodes.values() if node.serves]
        if not ready:
            raise Stopping("no node runs")
        node = self._dice.choice(ready)
        replicas = node.replicas
        assert replicas is not None
        try:
            return await self._network.ask("client", node.title, lambda: node.process, lambda: replicas.ask(request))
        except EverbellError as failed:
            self.answers[type(failed).__name__] += 1
            if isinstance(failed, NotFound) and self._cannot_know(node, event_id):
                raise Stopping("no member can know of the nodes that hold the event") from failed
            raise

    def _cannot_know(self, asked: ReplicaNode, event_id: str | None) -> bool:
        """Whether no member that a node knows has ever seen a node that holds the event: all have started since those
        nodes left the cluster.
        """
        holders = {
            node.process.name
            for node in self._nodes.values()
            if node.replicas is not None and (TENANT, event_id) in node.replicas.store.copies
        }
        members = (self._nodes[member.name] for member in asked.membership.value.members.values())
        return all(holders.isdisjoint(member.membership.met) for member in members)

    async def one(self, name: str) -> None:
        """Schedule an event, and perhaps read, change or cancel it."""
        dice, options = self._dice, self._options
        lead_ms = int(dice.choice((0.1, 1.0, 1.0, 2.0)) * options.lead_s * 1_000 * dice.uniform(0.5, 1.5))
        repeat = Repeat(EVERY_MS, count=4) if dice.random() < options.repeats else None
        target = f"https://host{dice.randrange(options.targets)}.{dice.choice(('fine', 'fine', 'slow'))}"
        replication = Replication(dice.choice((options.count, options.count, 1)), options.skew_ms, options.ack)
        due_at = START_AT + self.now_ms + lead_ms
        wanted = Wanted(name, due_at, replication.needed(replication.count), payloads={f"{name}/1"})
        if repeat is not None:
            wanted.occurrences, wanted.every_ms = 4, EVERY_MS
        self._checker.wanted[name] = wanted
        client_id = name if dice.random() < 0.5 else None
        draft = Draft(due_at, target, f"{name}/1".encode(), client_id, repeat=repeat, replicas=replication)
        event_id = await self._schedule(draft, wanted)
        if event_id is None:
            return
        roll = dice.random()
        await asyncio.sleep(dice.expovariate(3 / options.lead_s))
        if roll < options.cancels:
            await self._cancel(event_id, wanted)
        elif roll < options.cancels + options.changes:
            await self._change(event_id, wanted)
        elif roll < options.cancels + options.changes + options.reads:
            await self._read(event_id, wanted)

    async def _schedule(self, draft: Draft, wanted: Wanted) -> str | None:
        for _ in range(3):
            try:
                result: DraftResult
                (result,) = await self.ask(Schedule(TENANT, [draft]))
            except EverbellError as failed:
                result = failed
            if not isinstance(result, EverbellError):
                wanted.acknowledged_ms = self.now_ms
                wanted.needed = self._needed(draft)
                self.answers["acknowledged"] += 1
                return result if isinstance(result, str) else result.event.id
            self.answers[f"schedule: {type(result).__name__}"] += 1
            if draft.id is None:
                return None  # Some nodes may hold the event, and a retry would make another one.
            await asyncio.sleep(self._dice.uniform(0, 2))
        return None

    def _needed(self, draft: Draft) -> int:
        """How many nodes had to hold an event: a node that knows few members needs no more than those."""
        assert draft.replicas is not None
        known = min(
            len(node.replicas.members.roster.names)
            for node in self._nodes.values()
            if node.membership.joined.is_set() and node.replicas is not None
        )
        return draft.replicas.needed(min(draft.replicas.count, known))

    async def _cancel(self, event_id: str, wanted: Wanted) -> None:
        wanted.maybe_cancelled = True
        try:
            seen = await self.ask(Cancel(TENANT, event_id), event_id)
        except EverbellError as failed:
            self._missed(failed, wanted)
            return
        wanted.cancelled_by = frozenset(self._nodes[name].title for name in seen.holders)
        wanted.cancel_answered_ms = self.now_ms
        is_confirmed = is_confirmed_by_all(seen)
        self.answers["cancelled by all" if is_confirmed else "cancelled by some"] += 1
        if is_confirmed:
            wanted.cancelled_ms = self.now_ms

    async def _change(self, event_id: str, wanted: Wanted) -> None:
        """Two clients change the payload, and one of them perhaps the time. Each may be on another side of a split."""
        wanted.changed = True

        async def change(number: int) -> None:
            payload = f"{wanted.name}/{number}"
            wanted.payloads.add(payload)
            amendment = Amendment(payload=payload.encode())
            if not wanted.every_ms and self._dice.random() < 0.5:
                due_at = START_AT + self.now_ms + int(self._dice.uniform(0, 20_000))
                wanted.due_at = min(wanted.due_at, due_at)
                amendment = Amendment(payload=payload.encode(), due_at=due_at)
            try:
                await self.ask(Amend(TENANT, event_id, amendment, None), event_id)
            except Conflict:
                pass
            except EverbellError as failed:
                self._missed(failed, wanted)
            else:
                self.answers["changed"] += 1

        await asyncio.gather(*(change(number) for number in (2, 3)))

    async def _read(self, event_id: str, wanted: Wanted) -> None:
        try:
            await self.ask(Get(TENANT, event_id), event_id)
        except EverbellError as failed:
            self._missed(failed, wanted)
        else:
            self.answers["read"] += 1

    def _missed(self, failed: EverbellError, wanted: Wanted) -> None:
        if isinstance(failed, NotFound):
            wanted.missed_ms = self.now_ms


def is_confirmed_by_all(seen: Seen) -> bool:
    """Whether the answer says that all replicas have a change, and that no other node may lack it."""
    return bool(seen.holders) and not seen.unreached
