"""The gateways of the engine's process: it starts them, serves their links, and restarts them when they end.

A gateway is a process of its own (`python -m everbell.node.gateway`) that inherits two sockets: its end of the link,
and the listening socket, from which all gateways accept connections in turns (`http/accept_balancer.py`). It reads the
rest of its plan from standard input, where no other process can see a secret.
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

from everbell.api.facade import FacadeSetting
from everbell.core.request import Ask
from everbell.core.tenant import Tenant
from everbell.http.accept_balancer import ConnectionCounts, open_counts
from everbell.http.server import BACKLOG
from everbell.kafka.settings import KafkaSettings
from everbell.links.link_server import LinkServer
from everbell.log_lines import LogFormat
from everbell.node.settings import Settings, TlsSettings
from everbell.outbox.settings import OutboxAddress

_log = logging.getLogger("everbell.server")

_RESTART_S = 0.5


class GatewayPlan(msgspec.Struct, frozen=True):
    """The plan of a gateway. A gateway asks the engine for everything else."""

    number: int
    """The number of the gateway. A gateway that replaces another has the same number."""
    gateways: int
    """The number of gateways."""
    listener: int
    counts: int | None
    """The file in which several gateways share the number of their connections."""
    link: int
    body_bytes_max: int
    bodies_bytes_max: int
    log_level: str
    log_format: LogFormat
    node: str
    on_loopback: bool
    allow_targets: tuple[str, ...]
    may_be_open: bool
    tls: TlsSettings
    audit: Literal["changes", "all", "off"]
    audit_file: str
    ui: bool
    default: Tenant
    tenants: tuple[Tenant, ...]
    tenants_are_required: bool
    tenants_may_replicate: bool
    kafka: KafkaSettings
    outboxes: tuple[OutboxAddress, ...] = ()
    facades: tuple[FacadeSetting, ...] = ()


def share_of(gateway: int, gateways: int, outboxes: int) -> list[int]:
    """The numbers of the outboxes that a gateway collects. One gateway of a node collects an outbox."""
    return list(range(gateway, outboxes, gateways))


class Gateways:
    """Gateway processes that are kept alive."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        ask: Ask,
        stopping: asyncio.Event,
        on_end: Callable[[int], None],
    ) -> None:
        """`on_end` is called with the number of a gateway that has ended, after its last message."""
        self._settings = settings
        self._listener = listener
        # A single gateway shares connections with no other.
        self._counts = (
            ConnectionCounts(open_counts(settings.gateways), settings.gateways) if settings.gateways > 1 else None
        )
        self._ask = ask
        self._stopping = stopping
        self._on_end = on_end
        self._keepers: list[asyncio.Task[None]] = []
        self._processes: set[asyncio.subprocess.Process] = set()

    async def start(self) -> None:
        """Start all gateways. Returns when each has a link, or when the node stops."""
        self._listener.listen(BACKLOG)
        started = [asyncio.Event() for _ in range(self._settings.gateways)]
        self._keepers = [asyncio.create_task(self._keep(number, event)) for number, event in enumerate(started)]
        waits = asyncio.gather(*(event.wait() for event in started)), asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def renew_certificate(self) -> None:
        """Make all gateways read the certificate again."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    async def stop(self, grace_s: float) -> None:
        """Stop all gateways, because the engine has ended."""
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
        if self._counts is not None:
            self._counts.close()

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
            if self._counts is not None:
                self._counts.remove(number)
            self._processes.discard(process)
            await link.lost
            self._on_end(number)
            if not code and self._stopping.is_set():
                return  # The signal that ends the engine ends all of its processes.
            _log.error("a gateway ended with code %s; starting another", code)
            await asyncio.sleep(_RESTART_S)

    async def _spawn(self, number: int) -> tuple[asyncio.subprocess.Process, LinkServer]:
        settings = self._settings
        near, far = socket.socketpair()
        near.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, link = await loop.connect_accepted_socket(lambda: LinkServer(self._ask), near)
        plan = GatewayPlan(
            number,
            settings.gateways,
            self._listener.fileno(),
            None if self._counts is None else self._counts.file,
            far.fileno(),
            settings.body_bytes_max,
            settings.bodies_bytes_max,
            settings.log_level,
            settings.log_format,
            settings.cluster.name,
            settings.on_loopback,
            tuple(map(str, settings.allow_targets)),
            settings.may_be_open,
            settings.tls,
            settings.audit,
            settings.audit_file,
            settings.ui,
            settings.tenants.default,
            settings.tenants.named,
            settings.tenants.are_required,
            settings.tenants.may_replicate,
            settings.kafka,
            settings.outboxes,
            settings.facades,
        )
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "everbell.node.gateway",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(
                    self._listener.fileno(),
                    far.fileno(),
                    *(() if self._counts is None else (self._counts.file,)),
                ),
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
