"""Keep-alive connections to one server for any number of threads, on the standard library's HTTP client.

A connection is used by one thread at a time, so there are as many as threads that called at once. An idle connection
is checked before it is used again: the server may have closed it long ago, and after a failed send it would be unknown
whether the server got the request.

A process that forks keeps its connections, and the child begins without any. Otherwise both would write to the same
socket, and each could read the answer to a request of the other.
"""

from __future__ import annotations

import os
import select
import ssl
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TypeVar
from weakref import WeakSet

from everbell.client.address import ServerAddress
from everbell.client.call import ANSWER_BYTES_MAX, Call, Lost, Reply

T = TypeVar("T")


class Connections:
    """A stack of free connections: the last used is the next used, so that those not needed grow old and are closed."""

    def __init__(self, address: ServerAddress, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._free: list[HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        _all.add(self)

    def exchange(self, call: Call[T], timeout_s: float) -> Reply | Lost:
        """Send a request and wait for the answer; `timeout_s` bounds each wait for the other side."""
        try:
            connection = self._take(timeout_s)
        except OSError as error:
            return Lost(_reason(error, timeout_s), sent=False, final=isinstance(error, TimeoutError))
        keep = False
        try:
            connection.request(call.method, self._address.target(call), call.body or None, self._address.headers(call))
            response = connection.getresponse()
            body = response.read(ANSWER_BYTES_MAX + 1)
            if len(body) > ANSWER_BYTES_MAX:
                return Lost(f"its answer is larger than {ANSWER_BYTES_MAX >> 20} MiB", sent=True, final=True)
            keep = not response.will_close
            return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)
        except (OSError, HTTPException) as error:
            return Lost(_reason(error, timeout_s), sent=True, final=isinstance(error, TimeoutError))
        finally:
            self._give_back(connection, keep)

    def close(self) -> None:
        """Close the free connections now, and those in use when their answer is there."""
        with self._lock:
            self._closed.set()
            free, self._free = self._free, []
        for connection in free:
            connection.close()

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait so long; whether they were closed by then."""
        return self._closed.wait(timeout_s)

    def begin_anew(self) -> None:
        """In a child process: leave the connections to the parent, and the locks to its threads, which are not here."""
        was_closed = self._closed.is_set()
        self._lock, self._closed = threading.Lock(), threading.Event()
        if was_closed:
            self._closed.set()
        free, self._free = self._free, []
        for connection in free:
            # This closes the descriptor only, without a word to the server: the parent's is as open as before.
            with suppress(OSError):
                connection.close()

    def _take(self, timeout_s: float) -> HTTPConnection:
        while True:
            with self._lock:
                connection = self._free.pop() if self._free else None
            if connection is None:
                return self._connect(timeout_s)
            if _is_alive(connection):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()

    def _connect(self, timeout_s: float) -> HTTPConnection:
        host, port = self._address.host, self._address.port
        if self._address.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
        else:
            connection = HTTPConnection(host, port, timeout=timeout_s)
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_back(self, connection: HTTPConnection, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed.is_set():
                self._free.append(connection)
                return
        with suppress(OSError):
            connection.close()


_all: WeakSet[Connections] = WeakSet()


def _begin_anew() -> None:
    for connections in _all:
        connections.begin_anew()


# Registered once, because a fork hook can never be removed.
os.register_at_fork(after_in_child=_begin_anew)


def _is_alive(connection: HTTPConnection) -> bool:
    """An idle connection has nothing to read: bytes or an end mean that the server is through with it."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
