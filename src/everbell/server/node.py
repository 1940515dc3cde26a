"""A server process: the engine with its store and channels, and the HTTP API before it.

With gateways, this process keeps the engine and hands the listening socket to processes that do HTTP and JSON (see
`gateways`); without, it does both.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from errno import EADDRINUSE
from pathlib import Path

from everbell.channels.guard import Guard
from everbell.channels.http import HttpChannel
from everbell.channels.http_client import HttpPool
from everbell.clock import SystemClock
from everbell.core.time import format_instant
from everbell.engine.engine import Engine
from everbell.entropy import SystemEntropy
from everbell.errors import StoreCorrupt
from everbell.server.api import Api
from everbell.server.gateways import Gateways
from everbell.server.http import HttpServer, ServerLimits
from everbell.server.metrics import render
from everbell.server.near import Near
from everbell.server.pages_guard import PagesGuard
from everbell.server.problem import server_problem
from everbell.server.system_api import Health
from everbell.settings import Settings, SettingsError
from everbell.stores.port import Store

BROKEN_EXIT = 74
"""The exit code after a store that failed: start again, and it recovers from its log."""
CORRUPT_EXIT = 1
"""The exit code when stored bytes turn out to be damaged, as at the start: starting again would not help."""

_GRACE_S = 2.0
_CONNECTIONS_PER_HOST = 1_024

_log = logging.getLogger("everbell.server")


class Node:
    """Runs until it is told to stop, or until its store fails."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._clock = SystemClock()
        self._engine: Engine | None = None
        self._stopping = False
        self._stop = asyncio.Event()

    async def run(self, ready: Callable[[str], None]) -> int:
        """Serve; `ready` is told the URL once requests are welcome. Returns the exit code of the process."""
        settings = self._settings
        listener = _listen(settings.host, settings.port)
        self._watch_signals()
        pool = HttpPool(guard=Guard(settings.allow_targets), connections_per_host_max=_CONNECTIONS_PER_HOST)
        http = HttpChannel(pool, self._clock)
        self._engine = engine = await Engine.start(
            self._store,
            {"http": http, "https": http},
            settings.tenants,
            self._clock,
            SystemEntropy(),
            settings.engine,
            lambda broken: self._stop.set(),
        )
        front = await (self._start_gateways if settings.gateways else self._start_server)(engine, listener)
        host, port = listener.getsockname()[:2]
        ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        await self._stop.wait()
        if engine.broken is not None:
            return CORRUPT_EXIT if isinstance(engine.broken, StoreCorrupt) else BROKEN_EXIT
        self._stopping = True
        _log.info("stopping: no new attempts; waiting for %d under way", engine.dispatcher.in_flight)
        if not await engine.stop():
            _log.warning("some attempts did not end in time; their events will be attempted again after the next start")
        await front.stop(_GRACE_S)
        return 0

    async def _start_server(self, engine: Engine, listener: socket.socket) -> HttpServer:
        api = Api(
            engine.operations,
            engine.leases,
            self._settings.tenants,
            self._clock,
            self._health,
            self._metrics,
            backup=self._backup,
        )
        limits = ServerLimits(body_bytes_max=self._settings.body_bytes_max)
        guard = PagesGuard(api, on_loopback=self._settings.on_loopback)
        server = HttpServer(guard, limits=limits, on_problem=server_problem)
        await server.start(listener)
        return server

    async def _start_gateways(self, engine: Engine, listener: socket.socket) -> Gateways:
        near = Near(engine.operations, engine.leases, self._backup, self._metrics, self._health)
        gateways = Gateways(self._settings, listener, near.serve)
        await gateways.start()
        return gateways

    async def _backup(self) -> str:
        """Copy the store into the directory for backups."""
        path = _backup_path(self._settings.backups, self._clock.now())
        await self._store.backup(path)
        _log.info("copied the store to %s", path)
        return path

    def _health(self) -> Health:
        if self._engine is None:
            return Health("starting")
        if self._engine.broken is not None:
            return Health("broken", str(self._engine.broken))
        return Health("stopping") if self._stopping else Health("ready")

    def _metrics(self) -> str:
        return "" if self._engine is None else render(self._engine)

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)


def announce(settings: Settings, url: str) -> None:
    """Tell whoever waits for the server: its log, and the ready file."""
    _log.info("ready on %s, events in %s", url, settings.store)
    if settings.ready_file:
        try:
            Path(settings.ready_file).write_text(url + "\n", encoding="utf-8")
        except OSError as wrong:
            raise SettingsError(f"--ready-file: {settings.ready_file} cannot be written: {wrong.strerror}") from wrong


def _backup_path(directory: str, now: int) -> str:
    """A name that sorts by time."""
    parent = Path(directory).expanduser().absolute()
    parent.mkdir(parents=True, exist_ok=True)
    return str(parent / f"everbell-{format_instant(now).replace(':', '').replace('.', '-')}")


def _listen(host: str, port: int) -> socket.socket:
    """Bind before anything else, so that an address in use is noticed at once. Never shared by `SO_REUSEPORT`."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as wrong:
        if listener is not None:
            listener.close()
        advice = "stop what listens there, or choose another port" if wrong.errno == EADDRINUSE else "choose another"
        raise SettingsError(f"--listen: {host}:{port} cannot be had: {wrong.strerror}; {advice}") from wrong
    listener.setblocking(False)
    return listener
