"""A gateway process: it serves HTTP, reads Kafka and collects outboxes on a core of its own, and asks the engine over
the link.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_network

import msgspec
import uvloop

from everbell.api.access_keys import KeysApi
from everbell.api.application import Api
from everbell.api.audit import AuditLog
from everbell.api.authorizer import Authorizer
from everbell.api.cluster import ClusterApi
from everbell.api.page import PageApi
from everbell.clock import SystemClock
from everbell.cluster.follower import PolicyFollower
from everbell.core.health import Health
from everbell.core.process_report import ProcessReport
from everbell.core.tenant import Tenants
from everbell.engine.requests import GetHealth, GetMetrics, ReportProcess
from everbell.entropy import SystemEntropy
from everbell.errors import EverbellError
from everbell.http.accept_balancer import ConnectionCounts, OwnCount
from everbell.http.address_guard import Guard
from everbell.http.pages_guard import PagesGuard
from everbell.http.problem import server_problem
from everbell.http.server import HttpServer, ServerLimits
from everbell.links.copies import KeysCopy, PoliciesCopy
from everbell.links.link_client import LinkClient
from everbell.links.remote_engine import GatewayEngine
from everbell.log_lines import set_up_logging
from everbell.node.file_limits import gateway_shares, raise_file_limit
from everbell.node.gateway_fleet import GatewayPlan, share_of
from everbell.node.loop_watch import LoopWatch
from everbell.node.process import collect_rarely
from everbell.node.tls import renew_certificate, server_tls

_LOOK_S = 1.0
_ANSWER_S = 3.0
_GRACE_S = 2.0


class Gateway:
    """Serves requests with answers of the engine. Health and metrics are those that the engine last reported."""

    def __init__(self, plan: GatewayPlan) -> None:
        self._plan = plan
        self._health = Health("starting")
        self._metrics = ""
        self._watch = LoopWatch(SystemClock())

    async def run(self) -> None:
        """Serve until a signal stops this process, or until the engine ends."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        self._watch.start()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # The engine's process stops its gateways.
        _, link = await loop.connect_accepted_socket(LinkClient, socket.socket(fileno=self._plan.link))
        link.lost.add_done_callback(lambda _: stop.set())
        await self._look(link)
        plan = self._plan
        clock = SystemClock()
        keys = KeysCopy(link)
        await keys.fetch()
        tls = server_tls(plan.tls)
        tenants = Tenants(
            plan.default,
            plan.tenants,
            are_required=plan.tenants_are_required,
            may_replicate=plan.tenants_may_replicate,
        )
        policies = PoliciesCopy(link, PolicyFollower(tenants).follow)
        await policies.fetch()
        engine = GatewayEngine(link, clock, SystemEntropy())
        audit = AuditLog(plan.audit, plan.audit_file, clock)
        networks = tuple(map(ip_network, plan.allow_targets))
        guard = Guard(networks, lambda: plan.on_loopback and not keys.ring().keys)
        api = Api(
            engine.ask,
            tenants,
            clock,
            lambda: self._health,
            lambda: self._metrics,
            backups=True,
            cluster=ClusterApi(engine.ask),
            keys=KeysApi(keys, clock, SystemEntropy()),
            policies=policies,
            pauses=True,
            page=PageApi(audit) if plan.ui else None,
            authorizer=Authorizer(keys.ring, may_be_open=plan.may_be_open),
            audit=audit,
            kafka=plan.kafka.targets,
            brokers=plan.kafka.brokers,
            guard=guard,
            facades=plan.facades,
            scheme="http" if tls is None else "https",
        )
        shares = gateway_shares(raise_file_limit())
        limits = ServerLimits(
            body_bytes_max=plan.body_bytes_max,
            bodies_bytes_max=plan.bodies_bytes_max,
            connections_max=shares.inbound,
            turned_away_max=shares.turned_away,
        )
        pages = PagesGuard(api, on_loopback=plan.on_loopback)
        server = HttpServer(pages, limits=limits, on_problem=server_problem, screen=pages.screening(api.screen))
        if tls is not None:
            loop.add_signal_handler(signal.SIGHUP, renew_certificate, tls, plan.tls)
        listener = socket.socket(fileno=plan.listener)
        if plan.counts is None:
            await server.start(listener, tls)
        else:
            server.share(listener, OwnCount(ConnectionCounts(plan.counts, plan.gateways), plan.number), tls)
        looking = self._keep_looking(link, partial(self._report, api))
        following = [asyncio.create_task(work) for work in (looking, keys.follow(), policies.follow())]
        readings = [
            asyncio.create_task(work(engine, tenants, guard, stop))
            for work in (self._read_topics, self._collect_outboxes)
        ]
        for reading in readings:
            reading.add_done_callback(lambda ended: stop.set() if ended.exception() else None)
        await stop.wait()
        for task in following:
            task.cancel()
        self._health = Health("stopping")
        await server.stop(0 if link.lost.done() else _GRACE_S)
        await asyncio.gather(*readings)

    async def _read_topics(self, engine: GatewayEngine, tenants: Tenants, guard: Guard, stop: asyncio.Event) -> None:
        plan = self._plan
        if plan.kafka.topics:
            from everbell.node.gateway_kafka import (
                GatewayReading,  # The Kafka library is needed only if topics are read.
            )

            reading = GatewayReading(
                engine, plan.number, plan.kafka, tenants, SystemClock(), plan.body_bytes_max, guard
            )
            await reading.run(stop)

    async def _collect_outboxes(
        self, engine: GatewayEngine, tenants: Tenants, guard: Guard, stop: asyncio.Event
    ) -> None:
        plan = self._plan
        numbers = share_of(plan.number, plan.gateways, len(plan.outboxes))
        if numbers:
            from everbell.node.gateway_outbox import GatewayCollecting  # The driver of PostgreSQL is needed only here.

            outboxes = {number: plan.outboxes[number] for number in numbers}
            await GatewayCollecting(engine, outboxes, tenants, SystemClock(), plan.kafka.targets, guard).run(stop)

    def _report(self, api: Api) -> ReportProcess:
        watch = self._watch
        return ReportProcess(self._plan.number, ProcessReport(api.unauthorized, watch.blocks, watch.blocked_ms))

    async def _keep_looking(self, link: LinkClient, report: Callable[[], ReportProcess]) -> None:
        """Report this process's own counts, and follow the health and metrics of the engine."""
        while not link.lost.done():
            await asyncio.sleep(_LOOK_S)
            silent = asyncio.get_running_loop().call_later(_ANSWER_S, self._miss_engine)
            with suppress(EverbellError):  # The engine logs the error, and the last health and metrics stay valid.
                await link.ask(report())
                await self._look(link)
            silent.cancel()

    def _miss_engine(self) -> None:
        self._health = Health("away", "the engine behind this gateway does not answer", self._health.node)

    async def _look(self, link: LinkClient) -> None:
        self._health = await link.ask(GetHealth())
        self._metrics = await link.ask(GetMetrics())


def main() -> None:
    """Run the process. Its plan comes on standard input."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=GatewayPlan)
    set_up_logging(plan.log_level, "gateway", layout=plan.log_format, node=plan.node)
    collect_rarely()
    uvloop.run(Gateway(plan).run())


if __name__ == "__main__":
    main()
