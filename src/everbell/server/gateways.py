"""Gateways as the engine's process sees them: it starts them, serves their links, and starts them again when they end.

A gateway is a process of its own (`python -m everbell.server.gateway`) that inherits two sockets: the listening one,
which all gateways accept from, in turns (`server/door.py`), and its end of the link. What else it has to know it reads
from its standard input, where nobody else sees a secret.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import msgspec

from everbell.core.tenant import Tenant
from everbell.kafka.settings import KafkaSettings
from everbell.links.link import EngineEnd, Serve
from everbell.log_lines import LogFormat
from everbell.server.door import Board, open_board
from everbell.server.http import BACKLOG
from everbell.settings import Settings, TlsSettings

_log = logging.getLogger("everbell.server")

_RESTART_S = 0.5


class GatewayPlan(msgspec.Struct, frozen=True):
    """What a gateway has to know; the rest it asks the engine."""

    number: int
    """Which of the gateways it is; one that takes the place of another has the same."""
    gateways: int
    """How many there are."""
    listener: int
    board: int | None
    """The file in which they write down how many connections each has, if there are several."""
    link: int
    body_bytes_max: int
    bodies_bytes_max: int
    log_level: str
    log_format: LogFormat
    node: str
    on_loopback: bool
    may_be_open: bool
    tls: TlsSettings
    audit: Literal["changes", "all", "off"]
    audit_file: str
    default: Tenant
    tenants: tuple[Tenant, ...]
    kafka: KafkaSettings


class Gateways:
    """A few processes, kept alive."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        serve: Serve,
        stopping: asyncio.Event,
        on_end: Callable[[int], None],
    ) -> None:
        """`on_end` is told the number of each that has ended, when nothing more comes from it."""
        self._settings = settings
        self._listener = listener
        # One alone has nobody to share with.
        self._board = Board(open_board(settings.gateways), settings.gateways) if settings.gateways > 1 else None
        self._serve = serve
        self._stopping = stopping
        self._on_end = on_end
        self._keepers: list[asyncio.Task[None]] = []
        self._processes: set[asyncio.subprocess.Process] = set()

    async def start(self) -> None:
        """Start them all; returns when each has a link, or when the node is to stop."""
        self._listener.listen(BACKLOG)
        started = [asyncio.Event() for _ in range(self._settings.gateways)]
        self._keepers = [asyncio.create_task(self._keep(number, event)) for number, event in enumerate(started)]
        waits = asyncio.gather(*(event.wait() for event in started)), asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def renew_certificate(self) -> None:
        """Let them read the certificate again."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    async def stop(self, grace_s: float) -> None:
        """Ask them to end, as the engine has ended."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.terminate()
        waits = [asyncio.create_task(process.wait()) for process in self._processes]
        if waits:
            _, late = await asyncio.wait(waits, timeout=grace_s + 3)
            for process in self._processes if late else ():
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
        if self._board is not None:
            self._board.close()

    async def _keep(self, number: int, started: asyncio.Event) -> None:
        while True:
            try:
                process, link = await self._spawn(number)
            except OSError as wrong:
                _log.error("a gateway cannot be started now (%s); trying again", wrong.strerror or wrong)
                await asyncio.sleep(_RESTART_S)
                continue
            self._processes.add(process)
            await link.linked
            started.set()
            code = await process.wait()
            if self._board is not None:
                self._board.strike_out(number)
            self._processes.discard(process)
            await link.lost
            self._on_end(number)
            if not code and self._stopping.is_set():
                return  # Whoever asked the engine to end asked all of its processes.
            _log.error("a gateway ended with code %s; starting another", code)
            await asyncio.sleep(_RESTART_S)

    async def _spawn(self, number: int) -> tuple[asyncio.subprocess.Process, EngineEnd]:
        settings = self._settings
        near, far = socket.socketpair()
        near.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, link = await loop.connect_accepted_socket(lambda: EngineEnd(self._serve), near)
        plan = GatewayPlan(
            number,
            settings.gateways,
            self._listener.fileno(),
            None if self._board is None else self._board.file,
            far.fileno(),
            settings.body_bytes_max,
            settings.bodies_bytes_max,
            settings.log_level,
            settings.log_format,
            settings.cluster.name,
            settings.on_loopback,
            settings.may_be_open,
            settings.tls,
            settings.audit,
            settings.audit_file,
            settings.tenants.default,
            settings.tenants.named,
            settings.kafka,
        )
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "everbell.server.gateway",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(self._listener.fileno(), far.fileno(), *(() if self._board is None else (self._board.file,))),
            )
        except OSError:
            transport.abort()
            raise
        finally:
            far.close()
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(plan))
        process.stdin.close()
        return process, link
