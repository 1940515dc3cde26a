"""The sockets of all origins of a pool together: a process has a limited number of file descriptors.

A tenant may hold up to twice as many sockets as are free, so it never has all of them, however many hosts it names.
When no socket is free, the connection that has been idle longest is closed. An origin that gets no socket goes on when
one is given back.
"""

from __future__ import annotations

from typing import Protocol

_TRIED = 8  # How many waiting origins are asked when a socket is given back: some may be of a tenant that has enough.


class WaitingOrigin(Protocol):
    """An origin that wants to connect."""

    def go_on(self) -> None:
        """Try again to get a socket."""


class IdleConnection(Protocol):
    """A connection without a request."""

    def abandon(self) -> object: ...


class Sockets:
    """Counts sockets, also those of connections that are being made."""

    def __init__(self, sockets_max: int) -> None:
        self.used = 0
        self._max = sockets_max
        self._by_tenant: dict[str, int] = {}
        self._idle: dict[IdleConnection, None] = {}  # The longest idle first.
        self._waiting: dict[WaitingOrigin, None] = {}

    def take(self, origin: WaitingOrigin, tenant: str) -> bool:
        """Count one more socket. False: there is none now, and the origin will be told to go on."""
        held = self._by_tenant.get(tenant, 0)
        if held < 2 * (self._max - self.used):
            self._waiting.pop(origin, None)
            self._by_tenant[tenant] = held + 1
            self.used += 1
            return True
        self._waiting[origin] = None
        self._close_idle()
        return False

    def give_back(self, tenant: str) -> None:
        """A socket was closed."""
        self.used -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
        for origin in list(self._waiting)[:_TRIED]:
            self._waiting.pop(origin, None)
            origin.go_on()

    def is_waiting(self, origin: WaitingOrigin) -> bool:
        """Whether the origin wants a socket and has got none."""
        return origin in self._waiting

    def forget(self, origin: WaitingOrigin) -> None:
        """The origin wants no socket any more."""
        self._waiting.pop(origin, None)

    def became_idle(self, connection: IdleConnection) -> None:
        """Half of all sockets may be idle."""
        self._idle[connection] = None
        if len(self._idle) > self._max // 2 or self._waiting:
            self._close_idle()

    def became_busy(self, connection: IdleConnection) -> None:
        self._idle.pop(connection, None)

    def _close_idle(self) -> None:
        longest = next(iter(self._idle), None)
        if longest is not None:
            del self._idle[longest]
            longest.abandon()
