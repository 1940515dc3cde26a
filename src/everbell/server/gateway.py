"""A gateway process: HTTP and JSON on its own core, everything else over the link to the engine."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys

import msgspec
import uvloop

from everbell.clock import SystemClock
from everbell.core.tenant import Tenants
from everbell.server.api import Api
from everbell.server.cluster_api import ClusterApi
from everbell.server.far import FarLeases, FarOperations
from everbell.server.gateways import GatewayPlan
from everbell.server.http import HttpServer, ServerLimits
from everbell.server.link import GatewayEnd
from everbell.server.pages_guard import PagesGuard
from everbell.server.problem import server_problem
from everbell.server.process import collect_rarely
from everbell.server.system_api import Health

_LOOK_S = 1.0
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
        tenants = Tenants(self._plan.default, self._plan.tenants)
        api = Api(
            FarOperations(link),
            FarLeases(link),
            tenants,
            SystemClock(),
            lambda: self._health,
            lambda: self._metrics,
            backup=lambda: link.call("backup"),
            cluster=ClusterApi(lambda: link.call("look"), lambda command: link.call("order", command)),
        )
        limits = ServerLimits(body_bytes_max=self._plan.body_bytes_max, bodies_bytes_max=self._plan.bodies_bytes_max)
        guard = PagesGuard(api, on_loopback=self._plan.on_loopback)
        server = HttpServer(guard, limits=limits, on_problem=server_problem)
        await server.start(socket.socket(fileno=self._plan.listener))
        looking = asyncio.create_task(self._keep_looking(link))
        await stop.wait()
        looking.cancel()
        self._health = Health("stopping")
        await server.stop(0 if link.lost.done() else _GRACE_S)

    async def _keep_looking(self, link: GatewayEnd) -> None:
        while not link.lost.done():
            await asyncio.sleep(_LOOK_S)
            await self._look(link)

    async def _look(self, link: GatewayEnd) -> None:
        self._health = await link.call("health")
        self._metrics = await link.call("metrics")


def main() -> None:
    """The process: its plan comes on standard input."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=GatewayPlan)
    logging.basicConfig(level=plan.log_level, format="%(asctime)s %(levelname)s gateway %(message)s")
    collect_rarely()
    uvloop.run(Gateway(plan).run())


if __name__ == "__main__":
    main()
