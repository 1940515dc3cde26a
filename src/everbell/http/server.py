"""The HTTP/1.1 server: it listens, checks its connections, and stops without dropping an answer.

The server gets one handler and knows nothing about the API. If the handler returns an `HttpResponse`, the
server sends it at once, without a task. If it returns a Future, a callback sends the answer. Only a coroutine costs a
task.

Rules. One timer for the whole server, once a second; a connection has none of its own, since arming and cancelling a
timer per request costs more than answering it. Stopping closes the listening socket, then idle connections, and lets
busy ones finish with `connection: close`, until the grace is over.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from everbell.http.accept_balancer import AcceptBalancer, OwnCount
from everbell.http.limits import ServerLimits
from everbell.http.message import HttpHandler, HttpRequest, HttpResponse, Screen, problem
from everbell.http.server_connection import ServerConnection
from everbell.http.service import MakeProblem, Service

__all__ = ["HttpHandler", "HttpRequest", "HttpResponse", "HttpServer", "ServerLimits", "problem"]

CHECK_INTERVAL_S = 1.0
ABORT_WAIT_S = 1.0
BACKLOG = 1024
HANDSHAKE_S = 10.0
SHUTDOWN_S = 2.0


class HttpServer:
    """Serves `handler` on one address. `on_problem` answers errors found before the handler is called. `screen` judges
    requests with a body when their headers have arrived.
    """

    def __init__(
        self,
        handler: HttpHandler,
        *,
        limits: ServerLimits,
        on_problem: MakeProblem = problem,
        screen: Screen = lambda request: "",
    ) -> None:
        self._handler = handler
        self._screen = screen
        self._limits = limits
        self._on_problem = on_problem
        self._service: Service | None = None
        self._server: asyncio.Server | None = None
        self._balancer: AcceptBalancer | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port listened on, also when it was chosen by the system."""
        if self._server is None:
            raise RuntimeError("the server is not listening: call start() first")
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, where: socket.socket | tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        """Listen on an address, or on a bound socket."""
        service = self._begin()
        place: dict[str, Any] = {"sock": where}
        if not isinstance(where, socket.socket):
            place = {"host": where[0], "port": where[1]}
        self._server = await service.loop.create_server(
            lambda: ServerConnection(service), backlog=BACKLOG, **place, **_secured(tls)
        )

    def share(self, listener: socket.socket, own: OwnCount, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a socket that other processes listen on as well."""
        balancer = AcceptBalancer(listener, own, lambda: ServerConnection(service), _secured(tls))
        service = self._begin(on_leave=balancer.left)
        self._balancer = balancer
        balancer.open()

    def _begin(self, on_leave: Callable[[], None] = lambda: None) -> Service:
        if self._service is not None:
            raise RuntimeError("the server was started before: make a new one")
        loop = asyncio.get_running_loop()
        self._service = Service(
            self._handler, self._limits, self._on_problem, loop=loop, on_leave=on_leave, screen=self._screen
        )
        self._arm()
        return self._service

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, let requests finish for at most `grace_s`, then close the remaining connections."""
        if self._service is None:
            return
        service = self._service
        service.draining = True
        if self._server is not None:
            self._server.close()
        if self._balancer is not None:
            self._balancer.close()
            self._balancer = None
        for connection in service.connections():
            connection.drain()
        if not await self._is_quiet_within(grace_s):
            for connection in service.connections():
                connection.abort()
            service.cancel_tasks()
            await self._is_quiet_within(ABORT_WAIT_S)
        if self._timer is not None:
            self._timer.cancel()

    async def _is_quiet_within(self, timeout_s: float) -> bool:
        assert self._service is not None
        try:
            async with asyncio.timeout(timeout_s):
                await self._service.quiet.wait()
        except TimeoutError:
            return False
        return True

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CHECK_INTERVAL_S, self._check)

    def _check(self) -> None:
        assert self._service is not None
        now_s = self._service.loop.time()
        for connection in self._service.connections():
            connection.check(now_s)
        self._arm()


def _secured(tls: ssl.SSLContext | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S}
