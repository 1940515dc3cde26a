"""One simulated node that holds replicas: the real service and the real members, assembled as in `Cluster`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from everbell.cluster.members import ClusterMembers
from everbell.core.request import Handlers, Request
from everbell.core.tenant import Tenants
from everbell.engine import requests
from everbell.engine.settings import EngineSettings
from everbell.entropy import SeededEntropy
from everbell.errors import NotFound
from everbell.replicas.service import Replicas
from tests.simulation.network import Network
from tests.simulation.processes import Process, ProcessClock, ProcessLoop
from tests.simulation.receivers import Receivers, RoughChannel
from tests.simulation.replica_options import ReplicaOptions
from tests.simulation.replica_registry import Membership, Registry
from tests.simulation.rough_peers import Find, RoughPeers

A = TypeVar("A")


@dataclass(frozen=True)
class ReplicaSurroundings:
    """The parts that all nodes share."""

    loop: ProcessLoop
    network: Network
    registry: Registry
    receivers: Receivers
    tenants: Tenants
    options: ReplicaOptions
    find: Find


class ReplicaNode:
    """A node from its boot to its death."""

    def __init__(self, around: ReplicaSurroundings, process: Process, boot: int, seed: int) -> None:
        self.process = process
        self.title = f"{process.name}#{boot}"
        self.stopping = False
        self.replicas: Replicas | None = None
        self.answers: Handlers | None = None
        self.membership = Membership(
            around.loop, around.network, around.registry, process.name, boot, f"zone{int(process.name[1:]) % 2}"
        )
        self._around = around
        self._entropy = SeededEntropy(hash((seed, boot, int(process.name[1:]))))

    async def boot(self, on_broken: Callable[[BaseException], None]) -> None:
        """Start, as a process does."""
        around = self._around
        clock = ProcessClock(around.loop, self.process)
        peers = RoughPeers(around.network, self.process.name, around.find)
        members = ClusterMembers(self.process.name, lambda: self.membership, peers, self._own)  # type: ignore[arg-type, return-value]
        channel = RoughChannel(around.loop, around.receivers, self.process, clock, self.title)

        async def stored(request: Request[Any], /) -> Any:
            if isinstance(request, requests.Find):
                return [], None
            raise NotFound("there is no store")

        self.replicas = await Replicas.start(
            members,
            {"https": channel},
            around.tenants,
            clock,
            self._entropy,
            EngineSettings(100_000, 2_000, 50, 50, 4.0, 1.0),
            around.options.cap_bytes,
            stored,
            on_broken,
            has_store=False,
        )
        self.replicas.store.ends_max = around.options.ends_max
        self.answers = Handlers(*self.replicas.peer_handlers)
        self.replicas.begin()
        await self.membership.run()

    def _own(self) -> Callable[[Request[A]], Awaitable[A]]:
        assert self.answers is not None
        return self.answers.ask

    async def stop(self, drain_s: float) -> None:
        """Stop cleanly, as `Cluster` does."""
        assert self.replicas is not None
        self.stopping = True
        await self.membership.renew(draining=True)
        await self.replicas.stop(drain_s)
        await self.membership.leave()

    @property
    def serves(self) -> bool:
        """Whether clients can send requests to the node."""
        return self.membership.joined.is_set() and not self.process.dead and not self.stopping
