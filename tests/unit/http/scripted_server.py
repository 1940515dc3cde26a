"""A server of raw bytes for tests of the HTTP client: the test itself is the peer, and sends bytes when it likes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from everbell.http.address_guard import Guard
from everbell.http.client import HttpFailure, HttpPool, HttpReply, OutgoingRequest

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LONG_S = 3_600.0
"""A deadline that never comes in a test."""
HUNG_S = 30.0
"""A test that takes so long waits for something that never happens."""

Scenario = Callable[[], Coroutine[Any, Any, None]]


def _on(run: Callable[[Coroutine[Any, Any, None]], None]) -> Callable[[Scenario], None]:
    return lambda scenario: run(asyncio.wait_for(scenario(), HUNG_S))


on_both_loops = pytest.mark.parametrize("play", [_on(asyncio.run), _on(uvloop.run)], ids=["asyncio", "uvloop"])
"""Gives a test `play`, which runs its scenario on the one loop and then on the other."""

Play = Callable[[Scenario], None]


class Clock:
    """Time that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self) -> bytes:
        """The next request, with its body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return head + await self._reader.readexactly(length)

    async def beginning(self) -> bytes:
        """The first byte of a request; the rest is left unread."""
        return await self._reader.readexactly(1)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Close without an orderly end."""
        now = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        self._writer.transport.abort()

    async def left(self) -> None:
        """Wait until the client has closed the connection."""
        with suppress(ConnectionError):
            while await self._reader.read(65_536):
                pass

    async def gone(self) -> None:
        self._writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()


class ScriptedServer:
    """Hands every new connection to the test."""

    def __init__(self) -> None:
        self.port = 0
        self._arrivals: asyncio.Queue[Peer] = asyncio.Queue()
        self._peers: list[Peer] = []

    async def accept(self) -> Peer:
        return await self._arrivals.get()

    @property
    def accepted_count(self) -> int:
        return len(self._peers)

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._peers.append(peer)
        self._arrivals.put_nowait(peer)

    async def close(self) -> None:
        for peer in self._peers:
            await peer.gone()

    def request(self, method: str = "POST", target: str = "/hook", body: bytes = b"{}") -> OutgoingRequest:
        return OutgoingRequest("http", "127.0.0.1", self.port, method, target, b"x-test: 1\r\n", body)


@asynccontextmanager
async def scripted_server(context: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedServer]:
    script = ScriptedServer()
    server = await asyncio.start_server(script._arrived, "127.0.0.1", 0, ssl=context)
    script.port = server.sockets[0].getsockname()[1]
    try:
        yield script
    finally:
        server.close()
        await script.close()


@asynccontextmanager
async def pool_of(guard: Guard | None = None, **options: Any) -> AsyncIterator[HttpPool]:
    pool = HttpPool(guard=guard, **options)
    try:
        yield pool
    finally:
        await pool.close()


def asked(pool: HttpPool, request: OutgoingRequest, timeout_s: float = LONG_S) -> asyncio.Task[HttpReply]:
    """A request under way."""
    return asyncio.create_task(pool.fetch(request, timeout_s))


async def failure_of(asking: asyncio.Task[HttpReply]) -> HttpFailure:
    with pytest.raises(HttpFailure) as raised:
        await asking
    return raised.value


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds that has no event to wait for."""
    while not condition():  # noqa: ASYNC110  # There is no event to wait for, and none is added for tests.
        await asyncio.sleep(0)
