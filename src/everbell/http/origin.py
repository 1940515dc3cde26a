"""All connections to one peer (scheme, host, port), and the exchanges that wait for one.

Rules:
- A free connection and a waiting exchange never exist side by side: a connection that becomes free takes the exchange
  that has waited longest.
- The number of attempts to connect is bounded by the free connection slots, by the waiting exchanges, and by the
  existing connections (but at least `DIALS_MIN`). Otherwise a hundred requests to a new peer would make a hundred
  connections before the first was used, although a few connections soon answer them all.
- An attempt to connect belongs to no exchange: its connection serves the exchange that has waited longest by then, and
  its failure ends that exchange. An attempt that takes too long is given up silently; the exchanges have their own
  deadlines.
- The connection that was used last is used next, so that surplus connections become idle and are closed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from everbell.core.url import authority_of
from everbell.http.client_connection import Exchange, HttpConnection
from everbell.http.client_message import HttpFailure
from everbell.http.deadlines import Deadlines, Expiring
from everbell.http.dial import Dialler
from everbell.http.sockets import Sockets

# An attempt to connect lasts as long as the exchange that caused it, within these bounds: a very short
# deadline should not prevent a connection for the next exchange, a very long one should not keep an attempt
# that got stuck.
DIAL_S_MIN = 1.0
DIAL_S_MAX = 10.0
DIALS_MIN = 8
"""How many attempts to connect may run at a time. With more connections than this, as many as connections."""

Endpoint = tuple[str, str, int]
"""Scheme, host and port."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Settings and components that all origins of a pool share."""

    loop: asyncio.AbstractEventLoop
    dialler: Dialler
    deadlines: Deadlines
    now: Callable[[], float]
    connections_max: int
    idle_s: float
    response_bytes_max: int
    sockets: Sockets


class _Dial(Expiring):
    """The deadline of one attempt to connect."""

    __slots__ = ("_task", "tenant")

    def __init__(self, task: asyncio.Task[HttpConnection], tenant: str) -> None:
        self._task = task
        self.tenant = tenant

    def expire(self) -> None:
        self._task.cancel()


class Origin(Expiring):
    """The pool's view of one peer. It expires when its oldest free connection does."""

    __slots__ = (
        "_closed",
        "_connections",
        "_dials",
        "_empty",
        "_endpoint",
        "_idle",
        "_idle_s",
        "_now",
        "_retire",
        "_shared",
        "_waiting",
        "authority",
        "peer",
        "response_bytes_max",
    )

    def __init__(self, endpoint: Endpoint, shared: Surroundings, retire: Callable[[], None], *, closed: bool) -> None:
        self.authority = authority_of(*endpoint)
        self.peer = f"{endpoint[0]}://{self.authority}"
        self.response_bytes_max = shared.response_bytes_max
        self._endpoint = endpoint
        self._shared = shared
        self._now = shared.now
        self._idle_s = shared.idle_s
        self._retire = retire
        self._connections: dict[HttpConnection, str] = {}  # With the tenant that the socket counts for.
        self._idle: list[HttpConnection] = []  # The longest idle first.
        self._waiting: OrderedDict[Exchange, None] = OrderedDict()
        self._dials: dict[asyncio.Task[HttpConnection], _Dial] = {}
        self._closed = closed
        self._empty = asyncio.Event()
        shared.deadlines.add(self, shared.now() + shared.idle_s)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def submit(self, exchange: Exchange, now_s: float) -> None:
        """Send at once over a free connection, or wait for one."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            self._shared.sockets.became_busy(connection)
            if not connection.is_closing() and connection.idle_since_s + self._idle_s > now_s:
                connection.start(exchange)
                return
            connection.abandon()
        if self._closed:
            self._shared.loop.call_soon(exchange.finish, _closed("before the request was sent"))
        else:
            self._waiting[exchange] = None
            self._grow(exchange.timeout_s)

    def released(self, connection: HttpConnection) -> None:
        if self._waiting:
            connection.start(self._waiting.popitem(last=False)[0])
        else:
            connection.idle_since_s = self._now()
            self._idle.append(connection)
            self._shared.sockets.became_idle(connection)

    def lost(self, connection: HttpConnection) -> None:
        tenant = self._connections.pop(connection, None)  # An idle one stays in `_idle`: `submit` skips closed ones.
        self._shared.sockets.became_busy(connection)
        if tenant is not None:
            self._shared.sockets.give_back(tenant)
        self._replace()

    def withdraw(self, exchange: Exchange) -> HttpFailure:
        self._waiting.pop(exchange, None)
        if not self._waiting:
            self._shared.sockets.forget(self)
        if not self._connections and self._has_no_turn():
            return HttpFailure("no-turn", f"{self.peer} waits for others: too many hosts are being connected to")
        if self._dials:
            reason = f"no connection to {self.peer} could be made within {exchange.timeout_s:g} s"
        else:
            reason = f"all {len(self._connections)} connections to {self.peer} stayed busy for {exchange.timeout_s:g} s"
        return HttpFailure("timeout", reason)

    def _has_no_turn(self) -> bool:
        """Whether nothing was tried, because the name, or a socket, waits for its turn."""
        shared = self._shared
        return shared.dialler.is_waiting(self._endpoint[1]) or (not self._dials and shared.sockets.is_waiting(self))

    def go_on(self) -> None:
        """See `WaitingOrigin`."""
        self._replace()

    def expire(self) -> None:
        now_s, idle_s = self._now(), self._idle_s
        while self._idle and self._idle[0].idle_since_s + idle_s <= now_s:
            connection = self._idle.pop(0)
            self._shared.sockets.became_busy(connection)
            connection.abandon()
        if self._connections or self._dials or self._waiting:
            since_s = self._idle[0].idle_since_s if self._idle else now_s
            self._shared.deadlines.add(self, since_s + idle_s)
        else:
            self._retire()

    async def close(self) -> None:
        """End everything that is under way and wait until no connection is left."""
        self._closed = True
        while self._waiting:
            self._fail_one(_closed("before the request was sent"))
        for task in self._dials:
            task.cancel()
        for connection in list(self._connections):
            connection.fail(_closed(f"before {self.peer} answered", sent=True))
        self._replace()
        await self._empty.wait()

    def _grow(self, timeout_s: float) -> None:
        """Start as many attempts to connect as there are exchanges waiting, if there may be as many."""
        shared, connected = self._shared, len(self._connections)
        wanted = min(len(self._waiting), shared.connections_max - connected, max(DIALS_MIN, connected))
        for _ in range(wanted - len(self._dials)):
            tenant = next(iter(self._waiting)).tenant
            if not shared.sockets.take(self, tenant):
                return
            task = shared.loop.create_task(shared.dialler.dial(*self._endpoint, lambda: HttpConnection(self), tenant))
            self._dials[task] = dial = _Dial(task, tenant)
            shared.deadlines.add(dial, shared.now() + min(max(timeout_s, DIAL_S_MIN), DIAL_S_MAX))
            task.add_done_callback(self._dialled)

    def _dialled(self, task: asyncio.Task[HttpConnection]) -> None:
        dial = self._dials.pop(task)
        dial.bucket.pop(dial, None)
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and error is None:
            self._adopt(task.result(), dial.tenant)
        else:
            self._shared.sockets.give_back(dial.tenant)
        if isinstance(error, HttpFailure):
            # A copy: several attempts may share the failure of one lookup, and its traceback keeps them in memory.
            self._fail_one(HttpFailure(error.kind, error.reason))
        elif error is not None:
            self._fail_one(HttpFailure("connect", f"cannot connect to {self.peer}: {error!r}"))
        self._replace()

    def _adopt(self, connection: HttpConnection, tenant: str) -> None:
        if connection.is_closing():
            self._shared.sockets.give_back(tenant)
            self._fail_one(HttpFailure("connect", f"{self.peer} closed the connection as soon as it was made"))
            return
        self._connections[connection] = tenant
        if self._closed:
            connection.abandon()
        else:
            self.released(connection)

    def _fail_one(self, failure: HttpFailure) -> None:
        if self._waiting:
            self._waiting.popitem(last=False)[0].finish(failure)

    def _replace(self) -> None:
        """Replace a connection or an attempt that ended, if exchanges still wait."""
        if self._closed:
            if not self._connections and not self._dials:
                self._empty.set()
        elif self._waiting:
            self._grow(next(iter(self._waiting)).timeout_s)


def _closed(when: str, *, sent: bool = False) -> HttpFailure:
    return HttpFailure("closed", f"the HTTP client was closed {when}", sent=sent)
