"""A server process: the engine with its store and channels, and the HTTP API in front of it.

With gateways, this process runs the engine, and gateway processes serve HTTP and read Kafka (`node/gateway_fleet.py`).
Without gateways, this process does everything.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from errno import EADDRINUSE
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from everbell.api.access_keys import KeysApi
from everbell.api.application import Api
from everbell.api.audit import AuditLog
from everbell.api.authorizer import Authorizer
from everbell.api.cluster import ClusterApi
from everbell.api.page import PageApi
from everbell.channels.http import HttpChannel
from everbell.channels.port import Channel
from everbell.clock import SystemClock
from everbell.cluster.cluster import Cluster, Meeting
from everbell.cluster.keys import ClusterKeys
from everbell.cluster.members import ClusterMembers
from everbell.cluster.policies import ClusterPolicies
from everbell.cluster.tls import peer_tls, renew_peer_tls
from everbell.core.health import Health
from everbell.core.process_report import ProcessReport
from everbell.core.request import Ask
from everbell.core.time import format_instant
from everbell.engine.engine import Engine
from everbell.entropy import SystemEntropy
from everbell.errors import ClusterError, StoreCorrupt
from everbell.http.address_guard import Guard
from everbell.http.client import HttpPool
from everbell.http.pages_guard import PagesGuard
from everbell.http.problem import server_problem
from everbell.http.server import HttpServer, ServerLimits
from everbell.logs.port import Log
from everbell.node.answers import NodeAnswers
from everbell.node.diagnosis import diagnose, disk_health
from everbell.node.file_limits import node_shares, raise_file_limit
from everbell.node.first_key import ensure_operator, refuse_strangers
from everbell.node.gateway_fleet import Gateways, share_of
from everbell.node.loop_watch import LoopWatch
from everbell.node.loopback import Loopback
from everbell.node.metrics import render, render_disk
from everbell.node.settings import ONE_PROCESS, Settings
from everbell.node.tenant_tables import SettingsError
from everbell.node.tls import renew_certificate, server_tls
from everbell.replicas.service import Replicas
from everbell.stores.port import Store
from everbell.stores.url import without_password

if TYPE_CHECKING:
    from everbell.kafka.service import KafkaService
    from everbell.outbox.service import OutboxService
    from everbell.tracing import Tracing

# The exit code after a store or a log failed, or after a bug: a restart recovers.
BROKEN_EXIT = 74
# The exit code if stored bytes are damaged: a restart does not help.
CORRUPT_EXIT = 1
# The exit code of a node that the cluster refuses, or that cannot read the cluster's log: its settings are wrong.
HALTED_EXIT = 78

_GRACE_S = 2.0
_CONNECTIONS_PER_HOST = 1_024

_log = logging.getLogger("everbell.server")


class Node:
    """Runs until a signal stops it, or until its store fails."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        log: Log,
        tracing: Tracing | None = None,
        kafka: KafkaService | None = None,
        outbox: OutboxService | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._log = log
        self._tracing = tracing
        self._kafka = kafka
        self._outbox = outbox
        self._clock = SystemClock()
        self._entropy = SystemEntropy()
        self._engine: Engine | None = None
        self._cluster: Cluster | None = None
        self._answers: NodeAnswers | None = None
        self._api: Api | None = None
        self._loopback = Loopback(on_loopback=settings.on_loopback, will_have_keys=bool(settings.bootstrap_key))
        self._guard = Guard(settings.allow_targets, self._loopback.is_open)
        self._loop_watch = LoopWatch(self._clock)
        self._halted: BaseException | None = None
        self._stopping = False
        self._stop = asyncio.Event()
        self._tls: ssl.SSLContext | None = None
        self._meeting: Meeting | None = None
        self._on_hangup: Callable[[], None] = lambda: None

    async def run(self, ready: Callable[[str], None]) -> int:
        """Serve. `ready` is called with the URL when the server accepts requests. Returns the exit code."""
        settings = self._settings
        listener = _listen(settings.host, settings.port)
        self._tls = server_tls(settings.tls)
        self._meeting = meeting_of(settings)
        await refuse_strangers(settings, self._log, self._clock)
        self._watch_signals()
        self._loop_watch.start()
        outbound = node_shares(raise_file_limit()).outbound
        pool = HttpPool(guard=self._guard, connections_per_host_max=_CONNECTIONS_PER_HOST, connections_max=outbound)
        http = HttpChannel(pool, self._clock)
        channels: dict[str, Channel] = {"http": http, "https": http}
        if self._kafka is not None:
            channels["kafka"] = self._kafka.channel
        self._engine = engine = await Engine.start(
            self._store,
            channels,
            settings.tenants,
            self._clock,
            self._entropy,
            settings.engine,
            lambda broken: self._stop.set(),
            epochs={},
            tracing=self._tracing,
        )
        if not settings.has_store and self._meeting is None:
            _log.warning("there is one node and no store: every event has one replica, and is lost with this process")
        url = _url_of(listener, "http" if self._tls is None else "https")
        self._cluster = cluster = await self._join(engine, url, channels)
        if cluster is None:
            return await self._give_up(engine)
        keys = ClusterKeys(cluster.node.player, cluster.write)
        policies = ClusterPolicies(cluster.node.player, cluster.write)
        if settings.bootstrap_key:
            await ensure_operator(keys, settings.bootstrap_key, self._clock, self._entropy)
        answers = self._answers = NodeAnswers(
            cluster.ask,
            keys,
            policies,
            self._backup,
            self._metrics,
            self._health,
            self._stop.wait,
            None if self._kafka is None else self._kafka.readers,
            None if self._outbox is None else self._outbox.add,
        )
        start = self._start_gateways if settings.gateways else self._start_server
        front = await start(answers, keys, policies, listener)
        if self._kafka is not None and not settings.gateways:
            self._kafka.read(cluster.ask, settings.tenants, settings.body_bytes_max, self._guard)
        if self._outbox is not None and not settings.gateways:
            self._outbox.collect(cluster.ask, settings.tenants, settings.kafka.targets, self._guard)
        if not self._stop.is_set():
            ready(url)
        await self._stop.wait()
        if self._halted is not None or engine.broken is not None:
            return await self._give_up(engine)
        self._stopping = True
        _log.info("stopping: no new attempts; waiting for %d under way", engine.dispatcher.in_flight)
        if self._kafka is not None:
            await self._kafka.stop_reading()
        if self._outbox is not None:
            await self._outbox.stop_collecting()
        if not await cluster.stop(settings.engine.drain_s):
            _log.warning("some attempts did not end in time; their events will be attempted again after the next start")
        await front.stop(_GRACE_S)
        return 0

    async def _join(self, engine: Engine, url: str, channels: Mapping[str, Channel]) -> Cluster | None:
        """Join the cluster. None: the node was stopped before it had joined."""

        def hold(members: ClusterMembers, stored: Ask) -> Awaitable[Replicas]:
            settings = self._settings
            return Replicas.start(
                members,
                channels,
                settings.tenants,
                self._clock,
                self._entropy,
                settings.engine,
                settings.replica_bytes,
                stored,
                self._halt,
                self._tracing,
                has_store=settings.has_store,
            )

        joining = asyncio.ensure_future(
            Cluster.start(
                self._log,
                engine,
                self._clock,
                self._entropy,
                self._settings.cluster,
                self._halt,
                meeting=self._meeting,
                http_url=url,
                hold=hold if self._settings.replica_bytes else None,
                follow=self._loopback.follow,
            )
        )
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([joining, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if joining.done():
            return joining.result()
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        return None

    async def _give_up(self, engine: Engine) -> int:
        """End a process that could not become a node, or is no longer one. A store that failed is not used again."""
        if engine.broken is not None:
            return CORRUPT_EXIT if isinstance(engine.broken, StoreCorrupt) else BROKEN_EXIT
        await engine.stop()
        if self._halted is None:
            return 0
        _log.critical("this node stops: %s", self._halted)
        return HALTED_EXIT if isinstance(self._halted, ClusterError) else BROKEN_EXIT

    def _halt(self, reason: BaseException) -> None:
        self._halted = reason
        self._stop.set()

    async def _start_server(
        self, answers: NodeAnswers, keys: ClusterKeys, policies: ClusterPolicies, listener: socket.socket
    ) -> HttpServer:
        settings = self._settings
        audit = AuditLog(settings.audit, settings.audit_file, self._clock)
        api = self._api = Api(
            answers.ask,
            self._settings.tenants,
            self._clock,
            self._health,
            self._metrics,
            backups=True,
            cluster=ClusterApi(answers.ask),
            keys=KeysApi(keys, self._clock, self._entropy),
            policies=policies,
            pauses=True,
            page=PageApi(audit) if settings.ui else None,
            authorizer=Authorizer(keys.ring, may_be_open=settings.may_be_open),
            audit=audit,
            kafka=settings.kafka.targets,
            brokers=settings.kafka.brokers,
            guard=self._guard,
            facades=settings.facades,
            scheme="http" if self._tls is None else "https",
        )
        shares = node_shares(raise_file_limit())
        limits = ServerLimits(
            body_bytes_max=settings.body_bytes_max,
            bodies_bytes_max=settings.bodies_bytes_max,
            connections_max=shares.inbound,
            turned_away_max=shares.turned_away,
        )
        guard = PagesGuard(api, on_loopback=settings.on_loopback)
        server = HttpServer(guard, limits=limits, on_problem=server_problem, screen=guard.screening(api.screen))
        await server.start(listener, self._tls)
        if self._tls is not None:
            self._on_hangup = partial(renew_certificate, self._tls, settings.tls)
        return server

    async def _start_gateways(
        self, answers: NodeAnswers, keys: ClusterKeys, policies: ClusterPolicies, listener: socket.socket
    ) -> Gateways:
        gateways = Gateways(self._settings, listener, answers.ask, self._stop, self._forget_gateway)
        await gateways.start()
        self._on_hangup = gateways.renew_certificate
        return gateways

    def _forget_gateway(self, number: int) -> None:
        if self._kafka is not None:
            self._kafka.readers.forget(number)
        if self._answers is not None:
            self._answers.processes.forget(number)
        if self._outbox is not None:
            self._outbox.forget(share_of(number, self._settings.gateways, len(self._settings.outboxes)))

    async def _backup(self) -> str:
        """Copy the store into the directory for backups."""
        path = _backup_path(self._settings.backups, self._clock.now())
        await self._store.backup(path)
        _log.info("copied the store to %s", path)
        return path

    def _health(self) -> Health:
        if self._engine is None or self._cluster is None:
            return Health("starting", "the store is open; the node is not in the cluster yet")
        disk = disk_health(self._settings.store, self._settings.reserve_disk_bytes)
        kafka = None if self._kafka is None else self._kafka.health()
        outbox = None if self._outbox is None else self._outbox.health()
        node, now = self._cluster.node, self._clock.now()
        replicas = self._cluster.replicas
        return diagnose(
            self._engine,
            node,
            disk,
            kafka,
            outbox,
            now,
            is_stopping=self._stopping,
            held=None if replicas is None else replicas.engine,
            has_store=self._settings.has_store,
        )

    def _metrics(self) -> str:
        more = render_disk(disk_health(self._settings.store, self._settings.reserve_disk_bytes))
        more += [] if self._kafka is None else self._kafka.metrics()
        more += [] if self._outbox is None else self._outbox.metrics()
        if self._answers is not None:
            watch, unauthorized = self._loop_watch, 0 if self._api is None else self._api.unauthorized
            report = ProcessReport(unauthorized, watch.blocks, watch.blocked_ms)
            more += self._answers.tags.metrics() + self._answers.processes.metrics(report)
        return "" if self._engine is None else render(self._engine, self._cluster, more)

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if self._tls is not None or self._peer_tls:
            loop.add_signal_handler(signal.SIGHUP, self._renew_certificates)

    @property
    def _peer_tls(self) -> list[ssl.SSLContext]:
        """The certificates that this node uses with other nodes."""
        meeting = self._meeting
        return [] if meeting is None else [tls for tls in (meeting.called_tls, meeting.caller_tls) if tls is not None]

    def _renew_certificates(self) -> None:
        if self._tls is not None:
            self._on_hangup()
        if self._peer_tls:
            meeting = self._settings.meeting
            renew_peer_tls(self._peer_tls, meeting.certificate, meeting.key, meeting.authority)


def meeting_of(settings: Settings) -> Meeting | None:
    """How other nodes reach this one. None: there can be only one node. Raises `SettingsError`."""
    if settings.log.partition(":")[0] in ONE_PROCESS:
        return None
    meeting = settings.meeting
    called, caller = peer_tls(meeting.certificate, meeting.key, meeting.authority)
    return Meeting(meeting.host, meeting.port, meeting.advertise, meeting.secret, called, caller)


def _url_of(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def announce(settings: Settings, url: str) -> None:
    """Announce that the server is ready: in its log and in the ready file."""
    _log.info("ready on %s, events in %s", url, without_password(settings.store))
    if settings.ready_file:
        try:
            Path(settings.ready_file).write_text(url + "\n", encoding="utf-8")
        except OSError as wrong:
            raise SettingsError(f"--ready-file: {settings.ready_file} cannot be written: {wrong.strerror}") from wrong


def _backup_path(directory: str, now: int) -> str:
    """A name that sorts by time."""
    parent = Path(directory).expanduser().absolute()
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(parent / f"everbell-{format_instant(now).replace(':', '').replace('.', '-')}")


def _listen(host: str, port: int) -> socket.socket:
    """Bind before anything else, so that an address in use is noticed first. Never shared by `SO_REUSEPORT`."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as wrong:
        if listener is not None:
            listener.close()
        advice = "stop the other server, or choose another port" if wrong.errno == EADDRINUSE else "choose another"
        raise SettingsError(f"--listen: {host}:{port} cannot be had: {wrong.strerror}; {advice}") from wrong
    listener.setblocking(False)
    return listener
