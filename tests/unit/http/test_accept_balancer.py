"""Servers that share a listening socket share its connections, too."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop

from everbell.http.accept_balancer import AcceptBalancer, ConnectionCounts, OwnCount, open_counts
from everbell.http.server import HttpRequest, HttpResponse, HttpServer, ServerLimits

RUNS: list[Callable[..., Any]] = [asyncio.run, uvloop.run]


def test_a_board_is_seen_by_all() -> None:
    board = ConnectionCounts(open_counts(3), 3)
    one, two, three = (OwnCount(ConnectionCounts(os.dup(board.file), 3), number) for number in range(3))
    one.write(2)
    assert one.is_fewest(), "the others are not there yet"
    two.write(1)
    three.write(1)
    assert [place.is_fewest() for place in (one, two, three)] == [False, True, True]
    two.write(4)
    assert [place.is_fewest() for place in (one, two, three)] == [False, False, True]
    board.remove(2)
    assert [place.is_fewest() for place in (one, two, three)] == [True, False, False]
    for each in (board, one.counts, two.counts, three.counts):
        each.close()


class Sharing:
    """Some servers behind one address. Each answers with its number."""

    def __init__(self, servers: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self._board = ConnectionCounts(open_counts(servers), servers)
        self.places = [OwnCount(self._board, number) for number in range(servers)]
        self.left: list[asyncio.Event] = []
        """Set when a connection of each has been closed."""
        self.servers = [HttpServer(_saying(number), limits=ServerLimits()) for number in range(servers)]

    def open(self) -> None:
        for server, place in zip(self.servers, self.places, strict=True):
            server.share(self.listener.dup(), place)
            self.left.append(_told_of_leaving(server))

    async def close(self) -> None:
        for server in self.servers:
            await server.stop(0)
        self.listener.close()
        self._board.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[str]:
        """The server that answers on a new connection."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        yield (await reader.readexactly(1)).decode()
        writer.close()
        await writer.wait_closed()


def _told_of_leaving(server: HttpServer) -> asyncio.Event:
    service, left = server._service, asyncio.Event()
    assert service is not None
    counted = service._on_leave

    def leave() -> None:
        counted()
        left.set()

    service._on_leave = leave
    return left


def _saying(number: int) -> Callable[[HttpRequest], HttpResponse]:
    return lambda request: HttpResponse(200, str(number).encode(), "text/plain")


def sharing(servers: int, test: Callable[[Sharing], Any], run: Callable[..., Any] = asyncio.run) -> None:
    async def main() -> None:
        shared = Sharing(servers)
        shared.open()
        try:
            await asyncio.wait_for(test(shared), 30)
        finally:
            await shared.close()

    run(main())


@pytest.mark.parametrize("run", RUNS)
def test_each_connection_goes_to_the_server_with_the_fewest(run: Callable[..., Any]) -> None:
    async def test(shared: Sharing) -> None:
        async with AsyncExitStack() as open_ones:
            said = [await open_ones.enter_async_context(shared.connection()) for _ in range(12)]
        assert sorted(said) == ["0"] * 4 + ["1"] * 4 + ["2"] * 4

    sharing(3, test, run)


def test_connections_that_are_closed_count_no_more() -> None:
    async def test(shared: Sharing) -> None:
        async with shared.connection() as first:
            async with shared.connection() as second:
                assert first != second
            await asyncio.wait_for(shared.left[int(second)].wait(), 30)
            async with shared.connection() as third:
                assert third == second

    sharing(2, test)


def test_a_connection_left_to_an_absent_server_is_accepted_all_the_same() -> None:
    async def test(shared: Sharing) -> None:
        shared.places[1].write(-1)  # It has fewest of all, and is not there.
        async with shared.connection() as one, shared.connection() as other:
            assert (one, other) == ("0", "0")

    async def main() -> None:
        shared = Sharing(2)
        shared.servers[0].share(shared.listener.dup(), shared.places[0])
        try:
            await asyncio.wait_for(test(shared), 30)
        finally:
            await shared.close()

    asyncio.run(main())


def test_a_server_that_stops_leaves_connections_to_the_others() -> None:
    async def test(shared: Sharing) -> None:
        async with shared.connection(), shared.connection():
            await shared.servers[0].stop(0)
            await asyncio.wait_for(shared.left[0].wait(), 30)
            assert not shared.places[0].is_fewest()
            async with shared.connection() as one, shared.connection() as other:
                assert (one, other) == ("1", "1")

    sharing(2, test)


class Crowded(socket.socket):
    """A listening socket of a process that has no room for another file, once."""

    refusals = 1

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_process_without_room_tries_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.http.accept_balancer._NO_FILES_S", 0.001)

    async def main() -> None:
        listener = Crowded(fileno=socket.create_server(("127.0.0.1", 0)).detach())
        made = asyncio.get_running_loop().create_future()

        class Guest(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.close()
                made.set_result(None)

        board = ConnectionCounts(open_counts(1), 1)
        door = AcceptBalancer(listener, OwnCount(board, 0), Guest, {})
        door.open()
        with socket.create_connection(listener.getsockname()):
            await asyncio.wait_for(made, 30)
        door.close()
        board.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "Too many open files" in caplog.text
