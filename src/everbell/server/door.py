"""The door that several processes share: each new connection goes to the one that has the fewest.

All of them wait for the same listening socket, and the kernel wakes whom it likes, mostly the same one again and again:
eight connections that were made one after the other all went to one of two gateways. So each writes down how many it
has, in memory that all of them see, and who has more than another leaves the next one to that: for a moment only, as
the other may be busy, or gone.
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
"""How long a connection is left to others who have fewer."""
_NO_FILES_S = 1.0
"""How long to wait when the system has no room for another one."""

_LEFT_MAX = 16
"""How many are taken at a time of those that nobody else took."""

_COUNT = Struct("=q")
_AWAY = 1 << 62
"""The count of a process that is not there: nobody waits for it."""

_log = logging.getLogger("everbell.server")


class Board:
    """How many connections each of some processes has, where all of them see it. Every process writes its own number
    only, and a look at the others' may be a moment old."""

    def __init__(self, file: int, processes: int) -> None:
        self.file = file
        self._counts = mmap(file, _COUNT.size * processes)

    def write(self, number: int, count: int) -> None:
        """A process has so many."""
        _COUNT.pack_into(self._counts, _COUNT.size * number, count)

    def strike_out(self, number: int) -> None:
        """A process is gone: nothing is to be left to it."""
        self.write(number, _AWAY)

    def is_fewest(self, number: int) -> bool:
        """Whether nobody has fewer than a process."""
        counts: list[int] = [count for (count,) in _COUNT.iter_unpack(self._counts)]
        return counts[number] == min(counts)

    def close(self) -> None:
        """Let go of it here."""
        self._counts.close()
        os.close(self.file)


class Place(NamedTuple):
    """The place of one process on the board."""

    board: Board
    number: int

    def write(self, count: int) -> None:
        self.board.write(self.number, count)

    def strike_out(self) -> None:
        self.board.strike_out(self.number)

    def is_fewest(self) -> bool:
        return self.board.is_fewest(self.number)


def open_board(processes: int) -> int:
    """A file for the board of so many processes, all of them still away. It has no name, and goes when the last of them
    does."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("everbell-gateways")
    else:
        file, path = tempfile.mkstemp()
        os.unlink(path)
    os.write(file, _COUNT.pack(_AWAY) * processes)
    return file


class Door:
    """Lets connections in, when it is this process's turn."""

    def __init__(
        self,
        listener: socket.socket,
        place: Place,
        make: Callable[[], asyncio.Protocol],
        tls: dict[str, Any],
    ) -> None:
        """`tls` has what `loop.connect_accepted_socket` needs for it."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._place = place
        self._make = make
        self._tls = tls
        self._here = 0
        self._is_open = False
        self._later: asyncio.TimerHandle | None = None
        # The loop holds tasks weakly.
        self._entering: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Begin."""
        self._listener.setblocking(False)
        self._is_open = True
        self._count(0)
        self._watch()

    def close(self) -> None:
        """Let nobody in any more. The others have the door to themselves."""
        self._loop.remove_reader(self._listener)
        if self._later is not None:
            self._later.cancel()
        self._is_open = False
        self._place.strike_out()
        self._listener.close()

    def left(self) -> None:
        """One of those who are here has gone."""
        self._count(-1)

    def _count(self, more: int) -> None:
        self._here += more
        if self._is_open:
            self._place.write(self._here)

    def _watch(self) -> None:
        self._loop.add_reader(self._listener, self._knocked)

    def _wait(self, pause_s: float) -> None:
        self._loop.remove_reader(self._listener)
        self._later = self._loop.call_later(pause_s, self._take_what_is_left)

    def _take_what_is_left(self) -> None:
        self._watch()
        for _ in range(_LEFT_MAX):
            if not self._take():
                return

    def _knocked(self) -> None:
        if self._place.is_fewest():
            self._take()
        else:
            self._wait(LEAVE_S)

    def _take(self) -> bool:
        """Let one in; False when there is none, or no room for it."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False  # Somebody else was quicker, or it has gone.
        except OSError as error:
            _log.error("cannot take in a connection now: %s", error.strerror or error)
            self._wait(_NO_FILES_S)
            return False
        self._count(+1)
        connection.setblocking(False)
        task = self._loop.create_task(self._let_in(connection))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)
        return True

    async def _let_in(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection, **self._tls)
        except (OSError, ssl.SSLError) as error:
            # As servers do: it went away, or what it said was no TLS.
            _log.debug("a connection came to nothing: %s", error)
            self.left()
