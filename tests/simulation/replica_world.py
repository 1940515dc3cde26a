"""Nodes that hold replicas in a simulated world: the real engine and service, one thread, virtual time.

A story has four parts: the nodes start; a workload runs under faults; all nodes are healed, and further events are
delivered once each; then all events end and are forgotten. Separate generators drive workload, faults, network and
receivers.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from everbell.core.replicas.copies import Copy, for_wire
from everbell.core.request import Ask
from everbell.core.retry import RetryPolicy
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.requests import RedriveMatching
from everbell.errors import EverbellError
from everbell.stores.port import Filter
from everbell.testing.virtual import START_AT
from tests.simulation.network import Network
from tests.simulation.processes import Process, ProcessLoop
from tests.simulation.receivers import DEADLINE_MS, Receivers
from tests.simulation.replica_checker import ReplicaChecker, Side
from tests.simulation.replica_clients import TENANT, ReplicaClients
from tests.simulation.replica_faults import ReplicaFaults
from tests.simulation.replica_node import ReplicaNode, ReplicaSurroundings
from tests.simulation.replica_options import ReplicaOptions
from tests.simulation.replica_registry import Registry

SETTLE_S = 120
CALM_S = 5
DRAIN_S = 300
CALM_EVENTS = 8
RETENTION_MS = 20_000


class ReplicaWorld:
    """Runs the story, and asks the checker."""

    def __init__(self, seed: int, loop: ProcessLoop, options: ReplicaOptions) -> None:
        self.nodes: dict[str, ReplicaNode] = {}
        self.checker = ReplicaChecker(options.clocks_agree)
        self.trace: list[str] = []
        self.seen: Counter[str] = Counter()
        self.network = Network(loop, random.Random(f"{seed}/network"))
        self.receivers = Receivers(loop, random.Random(f"{seed}/receivers"), options.failing)
        self.faults = ReplicaFaults(self, self.network, self.receivers, random.Random(f"{seed}/faults"), options.faults)
        self._seed = seed
        self._loop = loop
        self._options = options
        self._dice = random.Random(f"{seed}/machines")
        self._boots = 0
        self._held_at_stop: dict[str, dict[str, int]] = {}
        self._registry = Registry()
        work = random.Random(f"{seed}/work")
        self._clients = ReplicaClients(loop, self.network, self.nodes, self.checker, options, work)
        tenant = Tenant(
            retry=RetryPolicy(6, 500, 5_000),
            in_flight=options.in_flight,
            timeout_ms=DEADLINE_MS,
            retention_ms=RETENTION_MS,
        )
        self._around = ReplicaSurroundings(
            loop, self.network, self._registry, self.receivers, Tenants(tenant), options, self._find
        )

    async def run(self) -> list[str]:
        """The whole story; returns the violations."""
        self._loop.set_exception_handler(self._failed)
        for number in range(self._options.nodes):
            self.boot(f"n{number}")
        await asyncio.gather(*(node.membership.joined.wait() for node in self.nodes.values()))
        await self._work()
        await self._heal()
        await self._calm_down()
        await self._forget()
        dead = {name_of(copy) for node in self.nodes.values() for copy in live(node)}
        found = self.checker.violations(self.receivers.attempts, dead)
        self.seen.update({f"duplicates: {cause}": number for cause, number in self.checker.duplicates.items()})
        return found

    # The machines

    def boot(self, name: str) -> None:
        """Start a process of this name."""
        self._boots += 1
        if name not in self.nodes:
            self.checker.mended_ms.append(self._clients.now_ms)
        options, dice = self._options, self._dice
        rate = 1 + dice.uniform(-1, 1) * options.drift
        process = Process(self._loop, name, rate, int(dice.uniform(-1, 1) * options.clock_off_ms))
        node = ReplicaNode(self._around, process, self._boots, self._seed)
        self.nodes[name] = node
        process.on_death = lambda: self._died(node)
        self._note(f"boot {node.title}")
        process.spawn(node.boot(self._broke))

    def crash(self, name: str) -> None:
        self.nodes[name].process.die()

    def restart(self, name: str, drain_s: float) -> None:
        """Stop a process cleanly; it starts again after a while."""
        node = self.nodes[name]
        if node.serves and node.replicas is not None:
            self._note(f"stop {node.title}")
            self.troubled(name)
            self._held_at_stop[node.title] = held_by(node)
            node.process.spawn(self._stop(node, drain_s))

    async def _stop(self, node: ReplicaNode, drain_s: float) -> None:
        async with asyncio.timeout(60):
            await node.stop(drain_s)
        node.process.die()

    def _died(self, node: ReplicaNode) -> None:
        """Note what died with the process, and let the supervisor start it again."""
        self._note(f"death {node.title}")
        self.seen["deaths"] += 1
        self._count(node)
        self.checker.trouble(self._clients.now_ms, node.title)
        self.checker.ended[node.title] = self._clients.now_ms
        others = [each for each in self.nodes.values() if each is not node and not each.process.dead]
        held_elsewhere = Counter(name for each in others for name in {name_of(copy) for copy in live(each)})
        held = held_by(node)
        self.checker.died(held.items(), held_elsewhere, len(others))
        given_away = [each for each in self._held_at_stop.pop(node.title, {}).items() if each[0] not in held]
        self.checker.left(given_away, held_elsewhere, len(others))
        self._loop.after(self._dice.expovariate(0.3), self._revive, node)

    def _revive(self, node: ReplicaNode) -> None:
        if self.nodes[node.process.name] is node:
            self.boot(node.process.name)

    def troubled(self, *names: str) -> None:
        for name in names:
            if name in self.nodes:
                self.checker.trouble(self._clients.now_ms, self.nodes[name].title)

    def split(self, sides: list[list[str]], seconds: float) -> None:
        """Cut the sides off from each other, and note which events each of them has to deliver meanwhile."""
        for side in sides:
            for other in sides:
                if side is not other:
                    for sender in side:
                        for receiver in other:
                            self.network.cut(sender, receiver, seconds)
        now_ms = self._clients.now_ms
        until_ms = now_ms + int(seconds * 1_000)
        for side in sides:
            nodes = [self.nodes[name] for name in side if name in self.nodes and not self.nodes[name].process.dead]
            held = {copy.id: copy for node in nodes if self._is_able(node) for copy in live(node)}
            due = {
                name_of(copy): by_ms
                for copy in held.values()
                if (by_ms := self._attempted_by(copy, now_ms)) is not None and by_ms < until_ms
            }
            self.checker.sides.append(Side(frozenset(node.title for node in nodes), now_ms, until_ms, due))
            self.seen["events due on a side of a split"] += len(due)

    def _is_able(self, node: ReplicaNode) -> bool:
        """Whether a node can deliver events at this moment."""
        is_cut_off = self.receivers.cut_until_s.get(node.process.name, 0.0) > self._loop.true_s
        return node.process.fuse < 0 and not node.process.paused and not is_cut_off

    def _attempted_by(self, copy: Copy, from_ms: int) -> int | None:
        """The time by which an untouched event has its first attempt after a split, whichever replica makes it."""
        wanted = self.checker.wanted[name_of(copy)]
        due_ms = wanted.due_at - START_AT
        slack_ms = (copy.replication.count + 1) * copy.replication.skew_ms + 2 * 2_300 + 5_000
        is_untouched = (
            not wanted.changed
            and not wanted.maybe_cancelled
            and wanted.acknowledged_ms is not None
            and copy.event is not None
            and copy.event.occurrence == 1
            and copy.event.attempt_count == 0
            and from_ms + 2_300 < due_ms
        )
        return due_ms + slack_ms if is_untouched else None

    def _find(self, name: str) -> tuple[Process, Ask] | None:
        node = self.nodes.get(name)
        return None if node is None or node.answers is None or node.process.dead else (node.process, node.answers.ask)

    # Reports

    def _broke(self, error: BaseException) -> None:
        self.checker.broken.append(f"broken: {error!r}")

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.checker.broken.append(f"broken: {context.get('message')} {context.get('exception')!r}")

    def _note(self, what: str) -> None:
        self.trace.append(f"{self._loop.true_s:.6f} {what}")

    def _count(self, node: ReplicaNode) -> None:
        """Add up what a process has counted, when it ends."""
        if node.replicas is None:
            return
        view = node.replicas.view()
        self.seen.update({f"deliveries of rank {rank}": number for rank, number in view.started_by_rank.items()})
        self.seen["duplicates that nodes noticed"] += view.duplicates
        self.seen["copies sent by resync"] += view.resync_sent
        self.seen["copies given away"] += view.given_away
        self.seen["ends forgotten early"] += view.forgotten_early
        self.checker.forgot_early |= view.forgotten_early > 0

    def told(self) -> tuple[Counter[str], Counter[str], list[str]]:
        """The faults by kind, the number of observed events, and the trace."""
        return self.faults.count, self._summary(), [*self.trace, *self.receivers.trace]

    def _summary(self) -> Counter[str]:
        counted = Counter(self.seen)
        counted["lost messages"] = self.network.lost
        counted["repeated messages"] = self.network.repeated
        counted["attempts"] = len(self.receivers.attempts)
        counted.update({f"answered {kind}": number for kind, number in self._clients.answers.items()})
        return counted

    # The story

    async def _work(self) -> None:
        options = self._options
        self.network.loss, self.network.twice = options.loss, options.twice
        until_s = self._loop.time() + options.minutes * 60
        trouble = self._loop.create_task(self.faults.run(options.faults_a_minute, until_s))
        dice = random.Random(f"{self._seed}/pace")
        asking = []
        for index in range(options.events):
            await asyncio.sleep(dice.expovariate(options.events / (options.minutes * 60)))
            asking.append(self._loop.create_task(self._clients.one(f"event-{index}")))
        await asyncio.gather(trouble, *asking)

    async def _heal(self) -> None:
        """All faults end, and all nodes find together."""
        self._note("heal")
        self.checker.mended_ms.append(self._clients.now_ms)
        self.network.heal()
        self.receivers.healed = True
        self.receivers.cut_until_s.clear()
        for node in list(self.nodes.values()):
            node.process.fuse = -1
            node.process.resume()
        settled_s = 0
        for _ in range(SETTLE_S):
            await asyncio.sleep(1)  # Virtual time: no single node knows that the whole cluster has settled.
            settled_s = settled_s + 1 if all(self._is_settled(node) for node in self.nodes.values()) else 0
            # Nodes whose renewals were lost before may still be removed during a lease, and come back.
            if settled_s == CALM_S:
                break
        else:
            self.checker.broken.append(f"stuck: the nodes do not settle: {self._unsettled()}")
        self.checker.calm_ms = 0 if self._options.is_calm else self._clients.now_ms
        self._compare("after the resync")

    def _is_settled(self, node: ReplicaNode) -> bool:
        names = {each.process.name for each in self.nodes.values()}
        return (
            not node.process.dead
            and not node.stopping
            and node.replicas is not None
            and {member.name for member in node.membership.value.members.values()} == names
            and node.replicas.resync.is_settled
        )

    def _unsettled(self) -> list[str]:
        return [node.title for node in self.nodes.values() if not self._is_settled(node)]

    def _compare(self, when: str) -> None:
        """All holders of an event have the same copy, and as many nodes hold it as shall."""
        found: dict[tuple[str, str], dict[str, Copy]] = {}
        for node in self.nodes.values():
            for copy in live(node):
                found.setdefault(copy.name, {})[node.process.name] = for_wire(copy)
        for (_, event_id), copies in found.items():
            orders = {copy.order for copy in copies.values()}
            if len(orders) > 1 or len({repr(copy.event) for copy in copies.values()}) > 1:
                told = ", ".join(f"{name} {copy.order}" for name, copy in copies.items())
                self.checker.broken.append(f"differ: the copies of {event_id} differ {when}: {told}")

    async def _calm_down(self) -> None:
        """Further events are delivered once each, and any node answers about them."""
        names = [f"calm-{number}" for number in range(CALM_EVENTS)]
        await asyncio.gather(*(self._clients.one(name) for name in names))
        until_s = self._loop.time() + DRAIN_S
        while self._pending():
            if self._loop.time() > until_s:
                self.checker.broken.append(f"stuck: the healed cluster does not deliver {self._pending()}")
                return
            await asyncio.sleep(5)  # Virtual time, which passes only while other tasks act.
            if any(
                copy.event is not None and copy.event.state == "dead"
                for node in self.nodes.values()
                for copy in live(node)
            ):
                with suppress(EverbellError):
                    await self._clients.ask(RedriveMatching(Filter(TENANT, "dead")))

    def _pending(self) -> list[str]:
        return sorted({name_of(copy) for node in self.nodes.values() for copy in live(node)})

    async def _forget(self) -> None:
        """After the retention, no node holds anything."""
        await asyncio.sleep(RETENTION_MS / 1_000 + 200)
        for node in self.nodes.values():
            self._count(node)
            if node.replicas is None:
                continue
            self.checker.broken += [f"memory: {node.title} has {what}" for what in leftovers(node)]


def live(node: ReplicaNode) -> list[Copy]:
    return [] if node.replicas is None else list(node.replicas.store.live())


def held_by(node: ReplicaNode) -> dict[str, int]:
    """The events that a node holds, with the number of their replicas."""
    return {name_of(copy): copy.replication.count for copy in live(node)}


def name_of(copy: Copy) -> str:
    assert copy.event is not None
    return copy.event.payload.decode().partition("/")[0]


def leftovers(node: ReplicaNode) -> list[str]:
    """What a node still has in memory."""
    replicas = node.replicas
    assert replicas is not None
    store, holder, memory = replicas.store, replicas.holder, replicas.engine.memory
    counted = {
        "copies": len(store.copies),
        "bytes": store.held_bytes,
        "tombstones": store.tombstones,
        "expected changes": len(store._expected),
        "ends": len(store._ends),
        "overdue events": len(store.overdue),
        "strays": len(holder.strays),
        "announcements": len(holder.turns.busy),
        "entries": len(memory.entries),
        "records": sum(len(each) for each in store._shelves.records.values()),
    }
    return [f"{number} {what}" for what, number in counted.items() if number]
