"""Balances the connections of one listening socket between gateways: each new one goes to the gateway with the fewest.

All gateways wait for the same listening socket, and the kernel mostly wakes the same one: of eight connections made in
turn, all went to one of two gateways. So each gateway writes its number of connections into memory that all of them
share. A gateway that has more than another leaves the next connection to that one, but only for 2 ms: the other
gateway may be busy or gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import tempfile
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import Any, NamedTuple

LEAVE_S = 0.002
"""How long a gateway leaves a new connection to gateways that have fewer."""
# How long to wait when the system has no file descriptor for another connection.
_NO_FILES_S = 1.0

# How many waiting connections a gateway accepts at a time after it has left them to others.
_LEFT_MAX = 16

_COUNT = Struct("=q")
# The count of a process that is not running: no gateway leaves connections to it.
_AWAY = 1 << 62

_log = logging.getLogger("everbell.server")


class ConnectionCounts:
    """The number of connections of each process, in memory that all of them share.

    Each process writes only its own number, and may read slightly old numbers of the others.
    """

    def __init__(self, file: int, processes: int) -> None:
        self.file = file
        self._counts = mmap(file, _COUNT.size * processes)

    def write(self, number: int, count: int) -> None:
        """Set the number of connections of one process."""
        _COUNT.pack_into(self._counts, _COUNT.size * number, count)

    def remove(self, number: int) -> None:
        """A process is gone: no gateway leaves connections to it any more."""
        self.write(number, _AWAY)

    def is_fewest(self, number: int) -> bool:
        """Whether no process has fewer connections than this one."""
        counts: list[int] = [count for (count,) in _COUNT.iter_unpack(self._counts)]
        return counts[number] == min(counts)

    def close(self) -> None:
        """Unmap the memory in this process."""
        self._counts.close()
        os.close(self.file)


class OwnCount(NamedTuple):
    """The number of connections of this process, among those of all."""

    counts: ConnectionCounts
    number: int

    def write(self, count: int) -> None:
        self.counts.write(self.number, count)

    def remove(self) -> None:
        self.counts.remove(self.number)

    def is_fewest(self) -> bool:
        return self.counts.is_fewest(self.number)


def open_counts(processes: int) -> int:
    """A file for the counts of some processes, none of which runs yet.

    The file has no name, and disappears with the last process that has it open.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("everbell-gateways")
    else:
        file, path = tempfile.mkstemp()
        os.unlink(path)
    os.write(file, _COUNT.pack(_AWAY) * processes)
    return file


class AcceptBalancer:
    """Accepts connections when it is this process's turn."""

    def __init__(
        self,
        listener: socket.socket,
        own: OwnCount,
        make: Callable[[], asyncio.Protocol],
        tls: dict[str, Any],
    ) -> None:
        """`tls` has the TLS arguments of `loop.connect_accepted_socket`."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._own = own
        self._make = make
        self._tls = tls
        self._connections = 0
        self._is_open = False
        self._later: asyncio.TimerHandle | None = None
        # The loop holds tasks weakly.
        self._starting: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        self._listener.setblocking(False)
        self._is_open = True
        self._count(0)
        self._listen()

    def close(self) -> None:
        """Accept no more connections; the other processes accept them all."""
        self._loop.remove_reader(self._listener)
        if self._later is not None:
            self._later.cancel()
        self._is_open = False
        self._own.remove()
        self._listener.close()

    def left(self) -> None:
        """One connection of this process was closed."""
        self._count(-1)

    def _count(self, more: int) -> None:
        self._connections += more
        if self._is_open:
            self._own.write(self._connections)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._on_incoming)

    def _wait(self, pause_s: float) -> None:
        self._loop.remove_reader(self._listener)
        self._later = self._loop.call_later(pause_s, self._accept_leftovers)

    def _accept_leftovers(self) -> None:
        self._listen()
        for _ in range(_LEFT_MAX):
            if not self._accept():
                return

    def _on_incoming(self) -> None:
        if self._own.is_fewest():
            self._accept()
        else:
            self._wait(LEAVE_S)

    def _accept(self) -> bool:
        """Accept one connection; False when none is waiting, or when the system has no room for it."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False  # Another process accepted it first, or the client has gone.
        except OSError as error:
            _log.error("cannot accept a connection now: %s", error.strerror or error)
            self._wait(_NO_FILES_S)
            return False
        self._count(+1)
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return True

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection, **self._tls)
        except (OSError, ssl.SSLError) as error:
            # The client went away, or does not speak TLS: normal for a server.
            _log.debug("an accepted connection failed: %s", error)
            self.left()
