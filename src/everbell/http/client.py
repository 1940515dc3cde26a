"""The HTTP/1.1 client: pooled keep-alive connections, used for deliveries and by the client library.

Made for many small requests to few hosts at a time: on a free connection a request is one write of bytes and
one callback, with no task, future or timer of its own. Deliberately left out: redirects (a 3xx is a reply
like any other), proxies from the environment, cookies, compression and retries, because a deliverer has to
know exactly which bytes it sent, to which peer and how often.

The deadline of a request covers everything from `send` on: waiting for a connection, resolving, connecting,
the handshake and an answer that comes byte by byte.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from everbell.http.address_guard import Guard
from everbell.http.client_connection import Exchange, OnOutcome
from everbell.http.client_message import HttpFailure, HttpReply, OutgoingRequest, encode_request
from everbell.http.deadlines import Deadlines
from everbell.http.dial import Dialler
from everbell.http.origin import Endpoint, Origin, Surroundings
from everbell.http.resolver import Resolve, resolve_by_system
from everbell.http.sockets import Sockets

__all__ = ["HttpFailure", "HttpPool", "HttpReply", "OutgoingRequest"]


class HttpPool:
    """Connections to any number of hosts. Made and used inside one running event loop.

    Beyond `connections_per_host_max` requests to a host wait their turn, first come, first served; the caller
    bounds how many.
    """

    def __init__(
        self,
        *,
        guard: Guard | None,
        connections_per_host_max: int = 64,
        connections_max: int = 16_384,
        idle_s: float = 30.0,
        response_bytes_max: int = 65_536,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve = resolve_by_system,
        now: Callable[[], float] | None = None,
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._now = now or loop.time
        self._deadlines = Deadlines(loop, self._now)
        self._shared = Surroundings(
            loop=loop,
            dialler=Dialler(guard, resolve, ssl_context, now=self._now),
            sockets=Sockets(connections_max),
            deadlines=self._deadlines,
            now=self._now,
            connections_max=connections_per_host_max,
            idle_s=idle_s,
            response_bytes_max=response_bytes_max,
        )
        self._origins: dict[Endpoint, Origin] = {}
        self._closed = False

    def send(self, request: OutgoingRequest, timeout_s: float, done: OnOutcome) -> Exchange:
        """Send a request; `done` is called once with the outcome, never before this returns.

        A caller that does not want the outcome any more cancels the exchange; then `done` is not called.
        """
        endpoint = (request.scheme, request.host, request.port)
        origin = self._origins.get(endpoint) or self._open(endpoint)
        exchange = Exchange(origin, encode_request(request, origin.authority), timeout_s, done, request.tenant)
        now_s = self._now()
        self._deadlines.add(exchange, now_s + timeout_s)
        origin.submit(exchange, now_s)
        return exchange

    async def fetch(self, request: OutgoingRequest, timeout_s: float) -> HttpReply:
        """Send a request and wait for the reply; raises `HttpFailure`. Cancelling it gives the request up."""
        outcome: asyncio.Future[HttpReply] = self._loop.create_future()

        def settle(result: HttpReply | HttpFailure) -> None:
            if outcome.done():
                return
            if isinstance(result, HttpFailure):
                outcome.set_exception(result)
            else:
                outcome.set_result(result)

        exchange = self.send(request, timeout_s, settle)
        try:
            return await outcome
        except asyncio.CancelledError:
            exchange.cancel()
            raise

    @property
    def connection_count(self) -> int:
        """How many connections there are, busy and free."""
        return sum(origin.connection_count for origin in self._origins.values())

    def sweep(self) -> None:
        """Expire everything that is due. The timer calls this; so does a test that moves its own clock."""
        self._deadlines.sweep()

    async def close(self) -> None:
        """Close all connections. Requests in flight end with a failure of the kind "closed"."""
        self._closed = True
        self._deadlines.close()
        await asyncio.gather(*(origin.close() for origin in self._origins.values()))

    def _open(self, endpoint: Endpoint) -> Origin:
        origin = Origin(endpoint, self._shared, lambda: self._retire(endpoint), closed=self._closed)
        self._origins[endpoint] = origin
        return origin

    def _retire(self, endpoint: Endpoint) -> None:
        """Forget a host that nothing is connected to, so that hosts that were used once cost nothing for ever."""
        del self._origins[endpoint]
