"""A gateway process: what comes in over HTTP and from Kafka, on a core of its own; the rest is over the link."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import suppress

import msgspec
import uvloop

from everbell.clock import SystemClock
from everbell.cluster.follower import PolicyFollower
from everbell.core.health import Health
from everbell.core.tenant import Tenants
from everbell.entropy import SystemEntropy
from everbell.errors import EverbellError
from everbell.links.far import FarLeases, FarOperations
from everbell.links.far_copies import FarKeys, FarPolicies
from everbell.links.far_parcels import GatewayOperations
from everbell.links.far_pauses import FarPauses
from everbell.links.link import GatewayEnd
from everbell.log_lines import set_up_logging
from everbell.server.api import Api
from everbell.server.audit import AuditLog
from everbell.server.cluster_api import ClusterApi
from everbell.server.door import Board, Place
from everbell.server.gate import Gate
from everbell.server.gateways import GatewayPlan
from everbell.server.http import HttpServer, ServerLimits
from everbell.server.keys_api import KeysApi
from everbell.server.pages_guard import PagesGuard
from everbell.server.problem import server_problem
from everbell.server.process import collect_rarely
from everbell.server.tls import renew_certificate, server_tls

_LOOK_S = 1.0
_ANSWER_S = 3.0
_GRACE_S = 2.0


class Gateway:
    """Answers from the engine; health and metrics as the engine last told them."""

    def __init__(self, plan: GatewayPlan) -> None:
        self._plan = plan
        self._health = Health("starting")
        self._metrics = ""

    async def run(self) -> None:
        """Serve until told to stop, or until the engine is gone."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # The engine's process says when to stop.
        _, link = await loop.connect_accepted_socket(GatewayEnd, socket.socket(fileno=self._plan.link))
        link.lost.add_done_callback(lambda _: stop.set())
        await self._look(link)
        plan = self._plan
        clock = SystemClock()
        keys = FarKeys(link)
        await keys.fetch()
        tls = server_tls(plan.tls)
        tenants = Tenants(plan.default, plan.tenants)
        policies = FarPolicies(link, PolicyFollower(tenants).follow)
        await policies.fetch()
        operations = GatewayOperations(link, clock, SystemEntropy())
        api = Api(
            operations,
            FarLeases(link),
            tenants,
            clock,
            lambda: self._health,
            lambda: self._metrics,
            backup=lambda: link.call("backup"),
            cluster=ClusterApi(lambda: link.call("look"), lambda command: link.call("order", command)),
            keys=KeysApi(keys, clock, SystemEntropy()),
            policies=policies,
            pauses=FarPauses(link),
            gate=Gate(keys.ring, may_be_open=plan.may_be_open),
            audit=AuditLog(plan.audit, plan.audit_file, clock),
            kafka=plan.kafka.clusters.keys(),
        )
        limits = ServerLimits(body_bytes_max=plan.body_bytes_max, bodies_bytes_max=plan.bodies_bytes_max)
        guard = PagesGuard(api, on_loopback=plan.on_loopback)
        server = HttpServer(guard, limits=limits, on_problem=server_problem)
        if tls is not None:
            loop.add_signal_handler(signal.SIGHUP, renew_certificate, tls, plan.tls)
        listener = socket.socket(fileno=plan.listener)
        if plan.board is None:
            await server.start(listener, tls)
        else:
            server.share(listener, Place(Board(plan.board, plan.gateways), plan.number), tls)
        following = [asyncio.create_task(work) for work in (self._keep_looking(link), keys.follow(), policies.follow())]
        reading = asyncio.create_task(self._read_topics(link, operations, tenants, stop))
        reading.add_done_callback(lambda ended: stop.set() if ended.exception() else None)
        await stop.wait()
        for task in following:
            task.cancel()
        self._health = Health("stopping")
        await server.stop(0 if link.lost.done() else _GRACE_S)
        await reading

    async def _read_topics(
        self, link: GatewayEnd, operations: FarOperations, tenants: Tenants, stop: asyncio.Event
    ) -> None:
        plan = self._plan
        if plan.kafka.topics:
            from everbell.server.far_reading import FarReading  # The library need not be there unless topics are read.

            reading = FarReading(link, plan.number, plan.kafka, operations, tenants, SystemClock(), plan.body_bytes_max)
            await reading.run(stop)

    async def _keep_looking(self, link: GatewayEnd) -> None:
        while not link.lost.done():
            await asyncio.sleep(_LOOK_S)
            silent = asyncio.get_running_loop().call_later(_ANSWER_S, self._miss_engine)
            with suppress(EverbellError):  # It is in the engine's log, and what was said before it still stands.
                await self._look(link)
            silent.cancel()

    def _miss_engine(self) -> None:
        self._health = Health("away", "the engine behind this gateway does not answer", self._health.node)

    async def _look(self, link: GatewayEnd) -> None:
        self._health = await link.call("health")
        self._metrics = await link.call("metrics")


def main() -> None:
    """The process: its plan comes on standard input."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=GatewayPlan)
    set_up_logging(plan.log_level, "gateway", layout=plan.log_format, node=plan.node)
    collect_rarely()
    uvloop.run(Gateway(plan).run())


if __name__ == "__main__":
    main()
