"""The answers of peers, and the outcomes that they lead to."""

from __future__ import annotations

import asyncio

import pytest

from everbell.http.client import HttpReply
from everbell.http.client_connection import HEAD_BYTES_MAX, READ_FACTOR, HttpConnection
from everbell.http.client_message import _HeaderCollector
from tests.garbage import garbage
from tests.unit.http.scripted_server import (
    OK,
    Clock,
    Play,
    asked,
    failure_of,
    on_both_loops,
    pool_of,
    scripted_server,
    until,
)

pytestmark = on_both_loops


async def answered(answer: bytes, method: str = "POST", *, close: bool = False, keep_max: int = 65_536) -> HttpReply:
    """The reply to a request on a new connection; the peer closes it after its answer if it is told so."""
    async with scripted_server() as server, pool_of(response_bytes_max=keep_max) as pool:
        asking = asked(pool, server.request(method))
        peer = await server.accept()
        await peer.request()
        peer.send(answer)
        if close:
            peer.close()
        return await asking


async def refused(answer: bytes, *, close: bool = False) -> tuple[str, str]:
    """Kind and reason of the failure that this answer leads to."""
    async with scripted_server() as server, pool_of() as pool:
        asking = asked(pool, server.request())
        peer = await server.accept()
        await peer.request()
        peer.send(answer)
        if close:
            peer.close()
        failure = await failure_of(asking)
        await peer.left()
        assert failure.sent
        return failure.kind, failure.reason


def test_the_request_arrives_as_it_was_given(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request(target="/a?b=c", body=b"hello"))
            peer = await server.accept()
            assert await peer.request() == (
                b"POST /a?b=c HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-length: 5\r\nx-test: 1\r\n\r\nhello"
                % server.port
            )
            peer.send(OK)
            await asking

    play(scenario)


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n", 201, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n", 304, b""),
        (b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1/\r\ncontent-length: 0\r\n\r\n", 302, b""),
        (b"HTTP/1.1 503 Busy\r\nretry-after: 3\r\ncontent-length: 4\r\n\r\nbusy", 503, b"busy"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", 200, b"abc"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nc\r\n0\r\nx: 1\r\ny: 2\r\n\r\n", 200, b"c"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 102 Wait\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 200 OK\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nok", 200, b"ok"),
    ],
)
def test_an_answer_is_read_and_the_connection_used_again(play: Play, answer: bytes, status: int, body: bytes) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            for size in (len(answer), 1):  # In one piece, then byte by byte.
                await peer.request()
                for start in range(0, len(answer), size):
                    peer.send(answer[start : start + size])
                    await asyncio.sleep(0)
                reply = await asking
                assert (reply.status, reply.body, reply.truncated) == (status, body, False)
                asking = asked(pool, server.request())
            await peer.request()
            peer.send(OK)
            await asking
            assert server.accepted_count == 1

    play(scenario)


def test_headers_of_interim_answers_and_trailers_are_not_mixed_in(play: Play) -> None:
    async def scenario() -> None:
        reply = await answered(
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nX-Real: yes\r\ntransfer-encoding: chunked\r\n\r\n1\r\nc\r\n0\r\nx-trailer: 1\r\n\r\n"
        )
        assert reply.headers == {"x-real": "yes", "transfer-encoding": "chunked"}

    play(scenario)


def test_the_answer_to_head_has_no_body_despite_its_content_length(play: Play) -> None:
    async def scenario() -> None:
        reply = await answered(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", "HEAD")
        assert (reply.status, reply.body, reply.headers) == (200, b"", {"content-length": "1000"})

    play(scenario)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n"],
)
def test_an_answer_without_a_length_ends_with_the_connection(play: Play, head: bytes) -> None:
    async def scenario() -> None:
        reply = await answered(head + b"all of it", close=True)
        assert (reply.status, reply.body, reply.truncated) == (200, b"all of it", False)

    play(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + OK,
        OK + b"HT",
        OK + b"garbage",
    ],
)
def test_after_such_an_answer_the_connection_is_closed(play: Play, answer: bytes) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(connections_per_host_max=1) as pool:
            first, second = asked(pool, server.request(target="/1")), asked(pool, server.request(target="/2"))
            peer = await server.accept()
            await peer.request()
            peer.send(answer)
            assert (await first).body == b"ok"
            await peer.left()

            other = await server.accept()
            assert (await other.request()).startswith(b"POST /2 ")
            other.send(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            assert (await second).status == 202

    play(scenario)


def test_unexpected_bytes_close_a_free_connection(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            peer.send(OK)
            await asking
            peer.send(OK)
            await peer.left()
            await until(lambda: pool.connection_count == 0)

            asking = asked(pool, server.request())
            other = await server.accept()
            await other.request()
            other.send(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            assert (await asking).status == 202

    play(scenario)


def test_a_long_body_is_cut_and_its_connection_kept(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(response_bytes_max=10) as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            for _ in range(2):
                await peer.request()
                peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"0123456789" * 10)
                reply = await asking
                assert (reply.body, reply.truncated) == (b"0123456789", True)
                asking = asked(pool, server.request())
            await peer.request()
            peer.send(OK)
            assert (await asking).truncated is False
            assert server.accepted_count == 1

    play(scenario)


def test_a_body_of_exactly_the_cap_is_whole(play: Play) -> None:
    async def scenario() -> None:
        reply = await answered(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789", keep_max=10)
        assert (reply.body, reply.truncated) == (b"0123456789", False)

    play(scenario)


def test_long_headers_do_not_count_as_body(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(response_bytes_max=100) as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            for piece in (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 500, b"content-length: 6\r\n\r\n", b"two", b"two"):
                peer.send(piece)
                await asyncio.sleep(0)  # The client reads each piece for itself.
            reply = await asking
            assert (reply.body, reply.truncated) == (b"twotwo", False)

    play(scenario)


def test_an_endless_body_is_given_up(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(response_bytes_max=1_000) as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            sent = 0
            while not asking.done():
                peer.send(b"64\r\n" + b"x" * 100 + b"\r\n")
                sent += 1
                await asyncio.sleep(0)
            reply = await asking
            assert (reply.status, reply.body, reply.truncated) == (200, b"x" * 1_000, True)
            assert sent * 100 > 1_000 * (READ_FACTOR - 1)
            await peer.left()

    play(scenario)


def test_endless_headers_are_not_http(play: Play) -> None:
    async def scenario() -> None:
        kind, reason = await refused(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (HEAD_BYTES_MAX // 6 + 1))
        assert kind == "protocol"
        assert "headers" in reason

    play(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2xx OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a size\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ],
)
def test_garbage_is_reported_as_such(play: Play, answer: bytes) -> None:
    async def scenario() -> None:
        kind, reason = await refused(answer)
        assert kind == "protocol"
        assert "127.0.0.1" in reason

    play(scenario)


@pytest.mark.parametrize(
    ("answer", "when"),
    [
        (b"", "before it answered"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "before it answered"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "before it answered"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", "in the middle of its answer (200)"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "in the middle of its answer (200)"),
    ],
)
def test_a_peer_that_closes_too_early_leaves_the_outcome_unknown(play: Play, answer: bytes, when: str) -> None:
    async def scenario() -> None:
        kind, reason = await refused(answer, close=True)
        assert kind == "closed"
        assert when in reason
        assert "unknown" in reason

    play(scenario)


def test_a_reset_in_an_answer_without_a_length_is_not_its_end(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            peer.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
            peer.reset()
            assert (await failure_of(asking)).kind == "closed"

    play(scenario)


def test_a_connection_that_was_closed_while_free_is_not_used(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            peer.send(OK)
            await asking
            peer.close()
            await until(lambda: pool.connection_count == 0)

            asking = asked(pool, server.request())
            other = await server.accept()
            await other.request()
            other.send(OK)
            assert (await asking).status == 200

    play(scenario)


def test_a_connection_that_is_closed_as_the_request_goes_out_leaves_the_outcome_unknown(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            peer.send(OK)
            await asking
            peer.close()  # The client has not heard of it when it sends.
            failure = await failure_of(asked(pool, server.request()))
            assert (failure.kind, failure.sent) == ("closed", True)

    play(scenario)


def test_a_drip_fed_answer_ends_with_the_deadline(play: Play) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with scripted_server() as server, pool_of(now=clock) as pool:
            asking = asked(pool, server.request(), timeout_s=5)
            peer = await server.accept()
            await peer.request()
            for byte in OK[:10]:
                peer.send(bytes([byte]))
                clock.now_s += 0.45
                pool.sweep()
                await asyncio.sleep(0)
                assert not asking.done()
            clock.now_s += 0.52
            pool.sweep()
            failure = await failure_of(asking)
            assert (failure.kind, failure.sent) == ("timeout", True)
            assert "within 5 s" in failure.reason
            await peer.left()

    play(scenario)


def test_an_answer_to_half_a_request_ends_the_connection(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request(body=b"x" * 50_000_000))
            peer = await server.accept()
            await peer.beginning()
            peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
            assert (await asking).status == 413
            await until(lambda: pool.connection_count == 0)

    play(scenario)


@pytest.mark.parametrize("answer", [OK, b"HTTP/1.1 503 Busy\r\nretry-after: 3\r\n\r\nbusy", b""])
def test_a_connection_that_ended_is_freed_at_once(play: Play, answer: bytes) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            with garbage() as left:
                asking = asked(pool, server.request())
                peer = await server.accept()
                await peer.request()
                peer.send(answer)
                peer.close()
                if answer:
                    assert (await asking).headers
                else:
                    await failure_of(asking)
                await peer.left()
                await until(lambda: not pool.connection_count)
            assert not [thing for thing in left if isinstance(thing, (HttpConnection, _HeaderCollector))]

    play(scenario)
