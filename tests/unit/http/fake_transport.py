"""One connection on a bench: a transport that keeps its output, and a loop with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from everbell.http.limits import ServerLimits
from everbell.http.message import HttpHandler, Screen
from everbell.http.server_connection import ServerConnection
from everbell.http.service import Service


class Answer(NamedTuple):
    """A response as a client reads it."""

    status: int
    headers: dict[str, str]
    body: bytes


class StandingLoop(asyncio.SelectorEventLoop):
    """A loop that a test moves through time by hand."""

    now_s = 1000.0

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now_s

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)


class FakeTransport(asyncio.Transport):
    """Keeps the written bytes, one entry per write.

    With a capacity it asks for a pause when more than that is unsent; if the client is `eager` it takes all of it at
    once, so that the pause ends inside the very write that began it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.connection: ServerConnection | None = None
        self.capacity_bytes: int | None = None
        self.unsent_bytes = 0
        self.eager = False
        self.reading = True
        self.closing = False
        self.aborted = False
        self.eof = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("192.0.2.7", 4711) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing, "written after close"
        assert not self.eof, "written after the end"
        self.writes.append(bytes(data))
        if self.capacity_bytes is not None:
            self.unsent_bytes += len(data)
            if self.unsent_bytes > self.capacity_bytes and self.connection is not None:
                self.connection.pause_writing()
                if self.eager:
                    self.unsent_bytes = 0
                    self.connection.resume_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


class Bench:
    """A connection, its service and both ends of its wire."""

    def __init__(self, loop: StandingLoop, handler: HttpHandler, limits: ServerLimits, screen: Screen) -> None:
        self.loop = loop
        self.service = Service(handler, limits, loop=loop, screen=screen)
        self.connect()

    def connect(self) -> None:
        """Put a new connection in the place of the one before."""
        self.transport = FakeTransport()
        self.connection = ServerConnection(self.service)
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def turn(self) -> None:
        """Let the loop run all ready callbacks."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def pass_time(self, seconds: float) -> None:
        self.loop.now_s += seconds
        self.connection.check(self.loop.now_s)

    @property
    def sent(self) -> bytes:
        return b"".join(self.transport.writes)

    def answers(self) -> list[Answer]:
        return read_answers(self.sent)


@contextmanager
def bench(
    handler: HttpHandler, limits: ServerLimits | None = None, screen: Screen = lambda request: ""
) -> Iterator[Bench]:
    """A connection at work; no callback of it may fail."""
    loop = StandingLoop()
    try:
        yield Bench(loop, handler, limits or ServerLimits(), screen)
        assert not loop.errors
    finally:
        loop.close()


def read_answers(data: bytes) -> list[Answer]:
    """Every response in `data`; fails if anything is left over. Not for answers to HEAD."""
    answers = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, f"an incomplete head: {head!r}"
        start, *lines = head.decode("latin-1").split("\r\n")
        protocol, status, _ = start.split(" ", 2)
        assert protocol == "HTTP/1.1"
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("content-length", "0"))
        assert len(data) >= length, "an incomplete body"
        answers.append(Answer(int(status), headers, data[:length]))
        data = data[length:]
    return answers
