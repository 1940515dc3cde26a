"""One simulated node: the real engine and the real cluster code, assembled as in `Cluster`, in a simulated process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from everbell.cluster.node import ClusterNode
from everbell.cluster.router import Router
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.store_watch import StoreWatch
from everbell.core.tenant import Tenants
from everbell.engine.engine import Engine
from everbell.engine.settings import EngineSettings
from everbell.entropy import SeededEntropy
from tests.simulation.cluster_options import ClusterOptions
from tests.simulation.network import Network
from tests.simulation.processes import Process, ProcessClock, ProcessLoop
from tests.simulation.receivers import Receivers, RoughChannel
from tests.simulation.rough_log import LogServer, RoughLog
from tests.simulation.rough_peers import Find, RoughPeers
from tests.simulation.rough_store import RoughStore, StoreServer


@dataclass(frozen=True)
class Surroundings:
    """The parts that all nodes share."""

    loop: ProcessLoop
    network: Network
    log: LogServer
    store: StoreServer
    receivers: Receivers
    tenants: Tenants
    options: ClusterOptions
    find: Find


class RoughNode:
    """A node from its boot to its death."""

    def __init__(self, around: Surroundings, process: Process, boot: int, seed: int) -> None:
        self.process = process
        self.engine: Engine | None = None
        self.node: ClusterNode | None = None
        self.router: Router | None = None
        self.store_watch: StoreWatch | None = None
        self.title = f"{process.name}#{boot}"
        self.stopping = False
        self._around = around
        self._entropy = SeededEntropy(hash((seed, boot, int(process.name[1:]))))

    async def boot(self, on_broken: Callable[[BaseException], None], on_halt: Callable[[BaseException], None]) -> None:
        """Start, as a process does. Raises `LogError`, `ClusterError` and `StoreError`: then the process ends."""
        around, options = self._around, self._around.options
        name = self.process.name
        clock = ProcessClock(around.loop, self.process)
        store = RoughStore(around.store, around.network, self.process, self.title)
        channel = RoughChannel(around.loop, around.receivers, self.process, clock, self.title)
        engine_settings = EngineSettings(options.memory_bytes, 2_000, options.page_events, 50, 4.0)
        settings = ClusterSettings(
            name,
            lease_ms=options.lease_ms,
            handover_ms=options.handover_ms,
            snapshot_entries=options.snapshot_entries,
        )
        self.engine = engine = await Engine.start(
            store, {"https": channel}, around.tenants, clock, self._entropy, engine_settings, on_broken, epochs={}
        )
        log = RoughLog(around.loop, around.log, around.network, name)
        self.node = node = await ClusterNode.start(log, engine, clock, self._entropy, settings, (name,), on_halt)
        peers = RoughPeers(around.network, name, around.find)
        self.router = Router(node, engine, peers, clock)
        self.store_watch = StoreWatch(node, engine, peers, clock, lambda fault: None)
        self.store_watch.start()

    async def stop(self, drain_s: float, given_up: Callable[[Mapping[int, int]], None]) -> None:
        """Stop cleanly. `given_up` gets the partitions of which not all could be stored, before the log does: the
        process may die right after that.
        """
        assert self.node is not None
        assert self.engine is not None
        self.stopping = True
        if self.store_watch is not None:
            await self.store_watch.stop()
        await self.node.drain(drain_s)
        epochs = dict(self.engine.epochs)
        is_clean = await self.engine.stop()
        writer = self.engine._writer
        ready = [] if writer._ready is None else [unit for unit in writer._ready.units if not unit.is_new]
        if ready or writer._queue._units:
            given_up(epochs)
        await self.node.leave(is_clean=is_clean)
        await self.node.abandon()

    @property
    def answers(self) -> bool:
        """Whether clients can send requests to the node."""
        return self.router is not None and not self.process.dead
