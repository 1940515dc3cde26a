"""The server on real sockets, on both event loops, as a client sees it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from everbell.http.server import HttpHandler, HttpRequest, HttpResponse, HttpServer, ServerLimits, problem
from tests.unit.http.fake_transport import Answer, read_answers

Run = Callable[[Coroutine[Any, Any, None]], None]

HOST = "127.0.0.1"
GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_on_loop(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main)

    return run_on_loop


def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, request.path.encode() + b" " + request.body, "text/plain")


class Client:
    """A client that writes and reads bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> Answer:
        self.writer.write(data)
        return await self.answer()

    async def answer(self) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
        (answer,) = read_answers(head + await self.reader.readexactly(length))
        return answer

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):  # The server may have been quicker.
            await self.writer.wait_closed()


@asynccontextmanager
async def connected(server: HttpServer) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection(HOST, server.port))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def serving(
    handler: HttpHandler, limits: ServerLimits | None = None, where: socket.socket | None = None
) -> AsyncIterator[HttpServer]:
    server = HttpServer(handler, limits=limits or ServerLimits())
    await server.start(where or (HOST, 0))
    try:
        yield server
    finally:
        await server.stop(0)


def test_requests_are_served_and_the_connection_is_kept(run: Run) -> None:
    async def main() -> None:
        async with serving(echo) as server, connected(server) as client:
            assert (await client.ask(GET)).body == b"/a "
            post = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
            assert (await client.ask(post)).body == b"/b body"
            chunked = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            assert (await client.ask(chunked)).body == b"/c abc"
            assert (await client.ask(LAST)).headers["connection"] == "close"
            assert await client.reader.read() == b""

    run(main())


def test_a_large_body_arrives_whole(run: Run) -> None:
    body = bytes(range(256)) * 16_000

    async def main() -> None:
        async with serving(lambda request: HttpResponse(200, request.body)) as server, connected(server) as client:
            head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
            for _ in range(2):
                assert (await client.ask(head + body)).body == body

    run(main())


def test_the_peer_is_the_clients_address(run: Run) -> None:
    async def main() -> None:
        async with serving(lambda r: HttpResponse(200, r.peer.encode())) as server, connected(server) as client:
            assert (await client.ask(GET)).body == b"127.0.0.1"

    run(main())


def test_a_head_request_gets_no_body(run: Run) -> None:
    async def main() -> None:
        async with serving(echo) as server, connected(server) as client:
            client.writer.write(GET.replace(b"GET", b"HEAD") + LAST)
            first, last = (await client.reader.read()).split(b"\r\n\r\n", 1)
            assert first.endswith(b"content-length: 3")
            assert last.endswith(b"/last ")

    run(main())


def test_a_client_that_waits_is_told_to_go_on(run: Run) -> None:
    async def main() -> None:
        async with serving(echo) as server, connected(server) as client:
            head = b"PUT /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
            assert (await client.ask(head)).status == 100
            assert (await client.ask(b"ok")).body == b"/a ok"

    run(main())


def test_futures_and_coroutines_are_answered_in_the_order_of_their_requests(run: Run) -> None:
    async def main() -> None:
        futures: list[asyncio.Future[HttpResponse]] = []

        async def later(request: HttpRequest) -> HttpResponse:
            futures[0].set_result(HttpResponse(200, b"future"))
            return HttpResponse(200, b"coroutine")

        def handler(request: HttpRequest) -> Any:
            match request.path:
                case "/future":
                    futures.append(asyncio.get_running_loop().create_future())
                    return futures[0]
                case "/coroutine":
                    return later(request)
                case _:
                    return HttpResponse(200, b"response")

        async with serving(handler) as server, connected(server) as client:
            paths = (b"/future", b"/coroutine", b"/response")
            client.writer.write(b"".join(GET.replace(b"/a", path) for path in paths))
            assert [(await client.answer()).body for _ in paths] == [b"future", b"coroutine", b"response"]

    run(main())


@pytest.mark.parametrize(
    ("limits", "data", "status"),
    [
        (ServerLimits(), b"nonsense\r\n\r\n", 400),
        (ServerLimits(body_bytes_max=9), b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n", 413),
        (ServerLimits(request_line_bytes_max=9), b"GET /234567890 HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (ServerLimits(header_bytes_max=9), b"GET / HTTP/1.1\r\nHost: h\r\nAccept: text/plain\r\n\r\n", 431),
    ],
)
def test_a_refusal_reaches_a_client_that_goes_on_sending(
    run: Run, limits: ServerLimits, data: bytes, status: int
) -> None:
    async def main() -> None:
        async with serving(echo, limits) as server, connected(server) as client:
            answer = await client.ask(data + b"x" * 10_000_000)
            assert answer.status == status
            assert answer.headers["connection"] == "close"
            assert json.loads(answer.body)["status"] == status
            assert await client.reader.read() == b""

    run(main())


def test_one_connection_too_many_is_asked_to_come_back(run: Run) -> None:
    async def main() -> None:
        async with serving(echo, ServerLimits(connections_max=1)) as server:
            async with connected(server) as first:
                await first.ask(GET)
                async with connected(server) as second:
                    answer = await second.ask(GET)
                    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                    assert await second.reader.read() == b""
                assert (await first.ask(LAST)).status == 200
                assert await first.reader.read() == b""
            async with connected(server) as third:
                assert (await third.ask(GET)).status == 200

    run(main())


def test_a_flood_of_connections_does_not_hold_sockets(run: Run) -> None:
    async def main() -> None:
        async with serving(echo, ServerLimits(connections_max=1)) as server, connected(server) as first:
            await first.ask(GET)
            flood = []
            for _ in range(ServerLimits().turned_away_max):
                flood.append(Client(*await asyncio.open_connection(HOST, server.port)))
                assert (await flood[-1].answer()).status == 503
            one_more = Client(*await asyncio.open_connection(HOST, server.port))
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await one_more.answer()
            for client in (*flood, one_more):
                await client.close()

    run(main())


def test_the_server_makes_the_problems_it_is_told_to(run: Run) -> None:
    def terse(status: int, detail: str) -> HttpResponse:
        return HttpResponse(status, b"no", "text/plain")

    async def main() -> None:
        server = HttpServer(echo, limits=ServerLimits(), on_problem=terse)
        await server.start((HOST, 0))
        async with connected(server) as client:
            assert (await client.ask(b"nonsense\r\n\r\n")).body == b"no"
        await server.stop(0)

    run(main())


def test_a_client_that_reads_slowly_gets_a_bounded_number_of_responses(run: Run) -> None:
    body = b"x" * 300_000
    count = 100

    async def main() -> None:
        unsent: list[int] = []
        server = HttpServer(lambda request: handler(request), limits=ServerLimits(pipelined_max=8))

        def handler(request: HttpRequest) -> HttpResponse:
            assert server._service is not None
            (connection,) = server._service.connections()
            unsent.append(connection._transport.get_write_buffer_size())  # type: ignore[attr-defined]
            return HttpResponse(200, body)

        await server.start((HOST, 0))
        reader, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
        client = Client(reader, writer)
        writer.write(GET * (count - 1) + LAST)
        for _ in range(count):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"content-length: 300000" in head
            assert await reader.readexactly(len(body)) == body
        assert await reader.read() == b""
        assert len(unsent) == count
        assert max(unsent) < 2 * len(body), "at most one response beyond the buffer of the transport"
        await client.close()
        await server.stop(0)

    run(main())


def test_a_half_closed_client_gets_its_answer(run: Run) -> None:
    async def main() -> None:
        asked = asyncio.Event()
        promise: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()

        def handler(request: HttpRequest) -> asyncio.Future[HttpResponse]:
            asked.set()
            return promise

        async with serving(handler) as server, connected(server) as client:
            client.writer.write(GET)
            client.writer.write_eof()
            await asked.wait()
            promise.set_result(HttpResponse(200, b"here"))
            assert (await client.answer()).body == b"here"
            assert await client.reader.read() == b""

    run(main())


# Listening and stopping.


def test_it_serves_on_a_socket_that_was_bound_before(run: Run) -> None:
    async def main() -> None:
        bound = socket.create_server((HOST, 0))
        port = bound.getsockname()[1]
        inherited = bound.dup()
        async with serving(echo, where=inherited) as server, connected(server) as client:
            assert server.port == port
            assert (await client.ask(GET)).status == 200
        # Another process that shares the socket goes on.
        async with serving(echo, where=bound) as server, connected(server) as client:
            assert (await client.ask(GET)).status == 200

    run(main())


def test_stopping_closes_idle_connections_and_finishes_busy_ones(run: Run) -> None:
    async def main() -> None:
        asked = asyncio.Event()
        promise: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()

        def handler(request: HttpRequest) -> HttpResponse | asyncio.Future[HttpResponse]:
            if request.path == "/a":
                return echo(request)
            asked.set()
            return promise

        server = HttpServer(handler, limits=ServerLimits())
        await server.start((HOST, 0))
        port = server.port
        async with connected(server) as idle, connected(server) as busy:
            await idle.ask(GET)
            busy.writer.write(GET.replace(b"/a", b"/b"))
            await asked.wait()
            stopping = asyncio.ensure_future(server.stop(60))
            assert await idle.reader.read() == b""
            with pytest.raises(ConnectionError):
                await asyncio.open_connection(HOST, port)
            assert not stopping.done()
            promise.set_result(HttpResponse(200, b"late"))
            answer = await busy.answer()
            assert (answer.body, answer.headers["connection"]) == (b"late", "close")
            assert await busy.reader.read() == b""
            await stopping

    run(main())


def test_stopping_ends_requests_that_outlast_the_grace(run: Run) -> None:
    async def main() -> None:
        asked, cancelled = asyncio.Event(), asyncio.Event()

        async def handler(request: HttpRequest) -> HttpResponse:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return HttpResponse(200)

        server = HttpServer(handler, limits=ServerLimits())
        await server.start((HOST, 0))
        async with connected(server) as client:
            client.writer.write(GET)
            await asked.wait()
            await server.stop(0)
            assert cancelled.is_set()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.answer()

    run(main())


def test_stopping_waits_for_a_request_after_its_client_left(run: Run) -> None:
    async def main() -> None:
        asked, left, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handler(request: HttpRequest) -> HttpResponse:
            asked.set()
            await left.wait()
            finished.set()
            return HttpResponse(200)

        server = HttpServer(handler, limits=ServerLimits())
        await server.start((HOST, 0))
        async with connected(server) as client:
            client.writer.write(GET)
            await asked.wait()
        stopping = asyncio.ensure_future(server.stop(60))
        left.set()
        await stopping
        assert finished.is_set()

    run(main())


def test_stopping_a_server_that_was_never_started_does_nothing(run: Run) -> None:
    async def main() -> None:
        server = HttpServer(echo, limits=ServerLimits())
        await server.stop(0)
        with pytest.raises(RuntimeError):
            _ = server.port

    run(main())


def test_a_server_starts_once(run: Run) -> None:
    async def main() -> None:
        async with serving(echo) as server:
            with pytest.raises(RuntimeError):
                await server.start((HOST, 0))

    run(main())


def test_connections_are_checked_by_the_servers_timer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.http.server.CHECK_INTERVAL_S", 0.001)

    async def main() -> None:
        # Two servers: one that closes idle connections so soon might not wait for the first byte of a request.
        async with serving(echo, ServerLimits(idle_timeout_s=0.001)) as server, connected(server) as idle:
            assert await idle.reader.read() == b""
        async with serving(echo, ServerLimits(read_timeout_s=0.02)) as server, connected(server) as dripping:
            dripping.writer.write(b"GET")
            assert (await dripping.answer()).status == 408

    run(main())


def test_limits_must_leave_room() -> None:
    with pytest.raises(ValueError, match="body_bytes_max"):
        ServerLimits(body_bytes_max=0)


def test_the_default_problem_is_a_problem() -> None:
    assert problem(400, "No.").content_type == "application/problem+json"
