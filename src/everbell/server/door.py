"""The door that several processes share: each new connection goes to the one that has the fewest.

All of them wait for the same listening socket, and the kernel wakes whom it likes, mostly the same one again and again:
eight connections that were made one after the other all went to one of two gateways. So each writes down how many it
has, in memory that all of them see, and who has more than another leaves the next one to that: for a moment only, as
the other may be busy, or gone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tempfile
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import IO, Any

LEAVE_S = 0.002
"""How long a connection is left to others who have fewer."""
_NO_FILES_S = 1.0
"""How long to wait when the system has no room for another one."""

_COUNT = Struct("=q")

_log = logging.getLogger("everbell.server")


class Board:
    """How many connections each of some processes has, where all of them see it. Every process writes its own number
    only, and a look at the others' may be a moment old."""

    def __init__(self, file: int, number: int, processes: int) -> None:
        self._counts = mmap(file, _COUNT.size * processes)
        self._offset = _COUNT.size * number

    def write(self, count: int) -> None:
        """So many connections are here."""
        _COUNT.pack_into(self._counts, self._offset, count)

    def is_fewest(self) -> bool:
        """Whether nobody has fewer."""
        counts: list[int] = [count for (count,) in _COUNT.iter_unpack(self._counts)]
        return counts[self._offset // _COUNT.size] == min(counts)


def open_board(processes: int) -> IO[bytes]:
    """A file for the boards of so many processes, which has no name: it goes when the last of them does."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked for it closes it, when its processes have ended
    file.truncate(_COUNT.size * processes)
    return file


class Door:
    """Lets connections in, when it is this process's turn."""

    def __init__(
        self,
        listener: socket.socket,
        board: Board,
        make: Callable[[], asyncio.Protocol],
        tls: dict[str, Any],
    ) -> None:
        """`tls` has what `loop.connect_accepted_socket` needs for it."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._board = board
        self._make = make
        self._tls = tls
        self._here = 0
        self._later: asyncio.TimerHandle | None = None
        # The loop holds tasks weakly.
        self._entering: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Begin."""
        self._listener.setblocking(False)
        self._count(0)
        self._watch()

    def close(self) -> None:
        """Let nobody in any more. The others have the door to themselves."""
        self._loop.remove_reader(self._listener)
        if self._later is not None:
            self._later.cancel()
        self._board.write(1 << 62)
        self._listener.close()

    def left(self) -> None:
        """One of those who are here has gone."""
        self._count(-1)

    def _count(self, more: int) -> None:
        self._here += more
        self._board.write(self._here)

    def _watch(self) -> None:
        self._loop.add_reader(self._listener, self._knocked)

    def _wait(self, pause_s: float) -> None:
        self._loop.remove_reader(self._listener)
        self._later = self._loop.call_later(pause_s, self._take_what_is_left)

    def _take_what_is_left(self) -> None:
        self._watch()
        self._take()

    def _knocked(self) -> None:
        if self._board.is_fewest():
            self._take()
        else:
            self._wait(LEAVE_S)

    def _take(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # Somebody else was quicker, or it has gone.
        except OSError as error:
            _log.error("cannot take in a connection now: %s", error.strerror or error)
            self._wait(_NO_FILES_S)
            return
        self._count(+1)
        connection.setblocking(False)
        task = self._loop.create_task(self._let_in(connection))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _let_in(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection, **self._tls)
        except (OSError, ssl.SSLError) as error:
            # As servers do: it went away, or what it said was no TLS.
            _log.debug("a connection came to nothing: %s", error)
            self.left()
