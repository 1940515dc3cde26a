"""Many nodes in a simulated world: the real engine and the real cluster code, one thread, virtual time.

A story has four parts: the nodes start; a workload runs under faults; a core of the cluster is healed, while the other
nodes stay faulty, and all events have to drain; then all nodes are healed, and have to agree. Separate generators drive
workload, faults, network and receivers, so that a change in one leaves the others as they were.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from everbell.core.request import Ask
from everbell.core.retry import RetryPolicy
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.requests import RedriveMatching
from everbell.errors import EverbellError
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Filter
from tests.simulation.cluster_checker import ClusterChecker
from tests.simulation.cluster_clients import Clients, is_parking
from tests.simulation.cluster_faults import Faults
from tests.simulation.cluster_options import ClusterOptions
from tests.simulation.cluster_watch import ClusterWatch
from tests.simulation.cluster_workers import Workers
from tests.simulation.network import NEVER_S, Network
from tests.simulation.processes import Process, ProcessLoop, finished
from tests.simulation.receivers import DEADLINE_MS, Receivers
from tests.simulation.rough_log import LogServer
from tests.simulation.rough_node import RoughNode, Surroundings
from tests.simulation.rough_store import StoreServer

DRAIN_S = 300
BLOCKING = Tenant(retry=RetryPolicy(8, 200, 5_000), in_flight=4, timeout_ms=DEADLINE_MS)
PARKING = Tenant("parking", retry=RetryPolicy(3, 200, 1_000), on_dead="park", in_flight=4, timeout_ms=DEADLINE_MS)


class ClusterWorld:
    """Runs the story, and asks the checker."""

    def __init__(self, seed: int, loop: ProcessLoop, options: ClusterOptions) -> None:
        self.names = [f"n{number}" for number in range(options.nodes)]
        self.nodes: dict[str, RoughNode] = {}
        self.checker = ClusterChecker()
        self.checker.promises.restarts = 1 << 30  # The cluster's checker judges hand-overs.
        self.trace: list[str] = []
        self.network = Network(loop, random.Random(f"{seed}/network"))
        self.faults = Faults(self, self.network, random.Random(f"{seed}/faults"), options.faults, options.keys)
        self._seed = seed
        self._loop = loop
        self._options = options
        self._dice = random.Random(f"{seed}/machines")
        self._boots = 0
        self._store = StoreServer(MemoryStore(options.partitions), loop, random.Random(f"{seed}/store"))
        self._log = LogServer()
        self._receivers = Receivers(loop, random.Random(f"{seed}/receivers"), options.failing)
        self._clients = Clients(
            loop, self.network, self.nodes, self.checker, options, random.Random(f"{seed}/work"), self._store.inner
        )
        self._watch = ClusterWatch(self.checker, self._receivers, self._log, self._note)
        self._store.on_taken = self._watch.taken
        self._workers = Workers(
            self.network, self.nodes, self._receivers, random.Random(f"{seed}/workers"), options.skew_ms
        )
        self._around = Surroundings(
            loop,
            self.network,
            self._log,
            self._store,
            self._receivers,
            Tenants(BLOCKING, (PARKING,)),
            options,
            self._find,
        )
        self._rates = {
            name: (1 + self._dice.uniform(-1, 1) * options.drift, int(self._dice.uniform(-1, 1) * options.skew_ms))
            for name in self.names
        }
        self._reboots: dict[str, bool] = dict.fromkeys(self.names, True)

    async def run(self) -> list[str]:
        """The whole story; returns the violations."""
        self._loop.set_exception_handler(self._failed)
        for name in self.names:
            self.boot(name)
            await asyncio.sleep(self._dice.expovariate(1))
        working = [
            self._loop.create_task(self._workers.run(f"worker-{tenant}-{number}", tenant))
            for number in range(self._options.workers if self._options.queued else 0)
            for tenant in ("default", "parking")
        ]
        await self._work()
        await self._heal_core()
        await self._heal_all()
        for task in working:
            task.cancel()
        for attempt in self._receivers.attempts:
            if attempt.refused or attempt.number >= PARKING.retry.max_attempts:
                self._let_pass(attempt.name)
        of_log = self.checker.judge_log(self._log.entries, self._watch.snapshots)
        unclean = self._watch.unclean | self.checker.unclean
        promises = self.checker.violations(self._receivers.attempts, self._store.ended, self._store.taken_ms, unclean)
        return [*self._store.violations, *promises, *of_log]

    # The machines

    @property
    def now(self) -> int:
        """The true time of day, which no node in the world knows."""
        return self._clients.now

    def boot(self, name: str) -> None:
        """Start a process of this name."""
        self._boots += 1
        rate, skew_ms = self._rates[name]
        process = Process(self._loop, name, rate, skew_ms)
        node = RoughNode(self._around, process, self._boots, self._seed)
        self.nodes[name] = node
        process.on_death = lambda: self._died(node)
        self._note(f"boot {node.title}")
        process.spawn(self._boot(node))

    def crash(self, name: str, again_s: float) -> None:
        """Kill a process; it starts again after a while."""
        node = self.nodes[name]
        self._reboots[name] = again_s < NEVER_S
        if not node.process.dead:
            self._note(f"crash {node.title}")
            node.process.die()

    def restart(self, name: str, drain_s: float, again_s: float) -> None:
        """Stop a process cleanly; it starts again after a while."""
        node = self.nodes[name]
        if node.node is not None and not node.stopping and not node.process.dead:
            self._note(f"stop {node.title}")
            self._watch.seen["stops"] += 1
            node.process.spawn(self._stop(node, drain_s))

    async def _boot(self, node: RoughNode) -> None:
        try:
            await node.boot(self._broke, lambda halted: self._halted(node, halted))
        except EverbellError:
            node.process.die()
            return
        self._watch.watch(node)

    async def _stop(self, node: RoughNode, drain_s: float) -> None:
        async with asyncio.timeout(60):
            await node.stop(drain_s, self._watch.given_up)
        node.process.die()

    def _halted(self, node: RoughNode, halted: BaseException) -> None:
        self.checker.broken.append(f"halted: {halted}")
        node.process.die()

    def _died(self, node: RoughNode) -> None:
        """The supervisor starts the process again."""
        self._watch.seen["deaths"] += 1
        self._loop.after(self._dice.expovariate(0.5), self._revive, node)

    def _revive(self, node: RoughNode) -> None:
        name = node.process.name
        if self.nodes[name] is node and self._reboots[name]:
            self.boot(name)

    def _find(self, name: str) -> tuple[Process, Ask] | None:
        node = self.nodes.get(name)
        return None if node is None or node.engine is None or node.process.dead else (node.process, node.engine.ask)

    # Reports

    def _broke(self, error: BaseException) -> None:
        self.checker.broken.append(f"broken: {error!r}")

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.checker.broken.append(f"broken: {context.get('message')} {context.get('exception')!r}")

    def _note(self, what: str) -> None:
        self.trace.append(f"{self._loop.true_s:.6f} {what}")

    def told(self) -> tuple[Counter[str], Counter[str], list[str]]:
        """The faults by kind, the number of observed events and of needed safeguards, and the trace."""
        return self.faults.count, self._summary(), [*self.trace, *self._receivers.trace]

    def _summary(self) -> Counter[str]:
        counted = Counter(self._watch.seen)
        counted["fenced writes"] = self._store.fenced
        counted["changes refused by version"] = self._store.refused
        counted["changes refused for their level"] = self._store.unmet
        counted["lost messages"] = self.network.lost
        counted["lost replies to a commit"] = self.network.lost_replies
        counted["appends of unknown outcome"] = self._log.uncertain
        counted["attempts"] = len(self._receivers.attempts)
        counted.update({f"answered {kind}": number for kind, number in self._clients.answers.items()})
        return counted

    def _let_pass(self, name: str) -> None:
        """A parked event does not block its key, so the order of its later occurrences is not checked."""
        asked = self.checker.promises.asked.get(name)
        if asked is not None and is_parking(int(name.partition("-")[2])):
            asked.moved = True

    # The story

    async def _work(self) -> None:
        options = self._options
        self.network.loss = options.loss
        self._store.full = options.store_full
        self._store.partial = options.store_partial
        until_s = self._loop.time() + options.minutes * 60
        trouble = self._loop.create_task(self.faults.run(options.faults_a_minute, until_s))
        bursts_a_second = options.events / options.burst / (options.minutes * 60)
        dice = random.Random(f"{self._seed}/pace")
        asking = []
        for index in range(options.events):
            if index % options.burst == 0:
                await asyncio.sleep(dice.expovariate(bursts_a_second))
            asking.append(self._loop.create_task(self._clients.one(index)))
        await asyncio.gather(trouble, *asking)

    async def _heal_core(self) -> None:
        """Some nodes, the log and the store are healthy again; the other nodes are not, and must not block these."""
        self._note("heal the core")
        self.network.heal()
        self._store.full = self._store.partial = 0.0
        self._receivers.healed = True
        size = max(1, round(len(self.names) * self._options.core))
        core = self._dice.sample(self.names, size)
        for name in self.names:
            self.nodes[name].process.resume()
        ill = [self._loop.create_task(self.faults.keep_ill(name)) for name in self.names if name not in core]
        if not await self._drains(DRAIN_S):
            self.checker.broken.append(f"stuck: the core {core} does not drain: {self._pending()}")
        for task in ill:
            task.cancel()

    async def _heal_all(self) -> None:
        self._note("heal all")
        self.network.heal()
        self._reboots = dict.fromkeys(self.names, True)
        for name in self.names:
            self.nodes[name].process.resume()
            self._revive(self.nodes[name]) if self.nodes[name].process.dead else None
        for _ in range(600):
            await asyncio.sleep(1)  # Virtual time: no single node knows that the whole cluster has settled.
            if all(self._is_settled(node) for node in self.nodes.values()):
                break
        else:
            self.checker.broken.append("stuck: the nodes do not agree again")
        if not await self._drains(DRAIN_S):
            self.checker.broken.append(f"stuck: the healed cluster does not drain: {self._pending()}")

    def _is_settled(self, node: RoughNode) -> bool:
        return (
            node.node is not None
            and not node.process.dead
            and node.node.is_member
            and node.node._keeper.is_settled
            and node.node.value.index == self._log.shared.last_index
        )

    async def _drains(self, within_s: float) -> bool:
        until_s = self._loop.time() + within_s
        while self._pending():
            if self._loop.time() > until_s:
                return False
            await asyncio.sleep(5)  # Virtual time, which passes only while other tasks act.
            if any(count.dead for count in finished(self._store.inner.counts()).values()):
                for tenant in ("default", "parking"):
                    await self._redrive(tenant)
        return True

    async def _redrive(self, tenant: str) -> None:
        with suppress(EverbellError):
            await self._clients.ask(RedriveMatching(Filter(tenant, "dead")))

    def _pending(self) -> dict[str, int]:
        counts = finished(self._store.inner.counts())
        return {tenant: count.pending + count.dead for tenant, count in counts.items() if count.pending + count.dead}
