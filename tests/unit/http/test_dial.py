"""From a host name to a connection: names, addresses, the guard, TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from ipaddress import ip_network
from pathlib import Path

import pytest

from everbell.http.address_guard import Guard
from everbell.http.client import HttpFailure, HttpReply, OutgoingRequest
from everbell.http.client_connection import Exchange, HttpConnection
from everbell.http.dial import Dialler
from everbell.http.resolver import Resolve, resolve_by_system
from tests.unit.http.scripted_server import (
    OK,
    Play,
    asked,
    failure_of,
    on_both_loops,
    pool_of,
    scripted_server,
)

pytestmark = on_both_loops

# Self-signed, for the name shop.example.
CERTIFICATE = Path(__file__).with_name("shop_example.pem")
LOOPBACK = Guard([ip_network("127.0.0.0/8")])


def resolving(*addresses: str, log: list[str] | None = None) -> Resolve:
    """A resolver that gives these addresses for every host."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        if log is not None:
            log.append(host)
        return addresses

    return resolve


def request_to(host: str, port: int, scheme: str = "http") -> OutgoingRequest:
    return OutgoingRequest(scheme, host, port, "POST", "/", b"", b"{}")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections: it is taken, but no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def test_the_system_resolves_numbers_and_localhost(play: Play) -> None:
    async def scenario() -> None:
        assert await resolve_by_system("127.0.0.1", 80) == ["127.0.0.1"]
        assert await resolve_by_system("localhost", 80)

    play(scenario)


def test_a_refused_connection_is_reported(play: Play, closed_port: int) -> None:
    async def scenario() -> None:
        async with pool_of() as pool:
            failure = await failure_of(asked(pool, request_to("127.0.0.1", closed_port)))
            assert (failure.kind, failure.sent) == ("connect", False)
            assert "Connection refused" in failure.reason
            assert str(closed_port) in failure.reason

    play(scenario)


def test_every_waiting_request_hears_of_a_refused_connection(play: Play, closed_port: int) -> None:
    async def scenario() -> None:
        async with pool_of(connections_per_host_max=2) as pool:
            asking = [asked(pool, request_to("127.0.0.1", closed_port)) for _ in range(7)]
            assert {(await failure_of(task)).kind for task in asking} == {"connect"}

    play(scenario)


@pytest.mark.parametrize(
    "error",
    [socket.gaierror(-2, "Name or service not known"), OSError("no resolver"), UnicodeError("label too long"), None],
)
def test_a_host_without_an_address_is_reported(play: Play, error: Exception | None) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if error is not None:
            raise error
        return []

    async def scenario() -> None:
        async with pool_of(resolve=resolve) as pool:
            failure = await failure_of(asked(pool, request_to("nowhere.example", 80)))
            assert (failure.kind, failure.sent) == ("resolve", False)
            assert "nowhere.example" in failure.reason

    play(scenario)


def test_a_resolver_that_breaks_is_no_reason_to_hang(play: Play) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise LookupError("a bug")

    async def scenario() -> None:
        async with pool_of(resolve=resolve) as pool:
            failure = await failure_of(asked(pool, request_to("nowhere.example", 80)))
            assert failure.kind == "resolve"
            assert "a bug" in failure.reason

    play(scenario)


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:169.254.169.254"], ["2002:7f00:1::"]]
)
def test_a_name_with_one_closed_address_is_refused(play: Play, addresses: list[str]) -> None:
    async def scenario() -> None:
        async with pool_of(Guard(), resolve=resolving(*addresses)) as pool:
            failure = await failure_of(asked(pool, request_to("shop.example", 80)))
            assert (failure.kind, failure.sent) == ("refused-address", False)
            assert failure.reason.startswith("shop.example is refused: the address ")

    play(scenario)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::",
     "::169.254.169.254", "224.0.0.1", "ff02::1", "fe80::1", "0.0.0.0",
     # An event with such a target is refused; should one get here, the resolver reads it as the C library does.
     "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "0xa9.254.43518"],
)  # fmt: skip
def test_an_address_instead_of_a_name_is_checked_too(play: Play, host: str) -> None:
    async def scenario() -> None:
        async with pool_of(Guard()) as pool:
            assert (await failure_of(asked(pool, request_to(host, 80)))).kind == "refused-address"

    play(scenario)


def test_a_name_is_resolved_once_and_connected_where_it_was_checked(play: Play) -> None:
    """DNS rebinding: the second answer would be another one, but the name is not resolved a second time."""

    async def scenario() -> None:
        lookups: list[str] = []

        async def rebinding(host: str, port: int) -> Sequence[str]:
            lookups.append(host)
            return ["127.0.0.1"] if len(lookups) == 1 else ["10.0.0.1"]

        async with scripted_server() as server, pool_of(LOOPBACK, resolve=rebinding) as pool:
            asking = asked(pool, request_to("shop.example", server.port))
            peer = await server.accept()
            assert b"host: shop.example:%d\r\n" % server.port in await peer.request()
            peer.send(OK)
            assert (await asking).status == 200
        assert lookups == ["shop.example"]

    play(scenario)


def test_connections_made_at_the_same_time_share_a_lookup(play: Play) -> None:
    async def scenario() -> None:
        lookups: list[str] = []
        async with scripted_server() as server, pool_of(resolve=resolving("127.0.0.1", log=lookups)) as pool:
            asking = [asked(pool, request_to("shop.example", server.port)) for _ in range(3)]
            for _ in asking:
                peer = await server.accept()
                await peer.request()
                peer.send(OK)
            await asyncio.gather(*asking)
            assert lookups == ["shop.example"]

    play(scenario)


def test_the_next_address_is_tried_when_one_refuses(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(resolve=resolving("127.0.0.2", "127.0.0.1")) as pool:
            asking = asked(pool, request_to("shop.example", server.port))  # No server listens at 127.0.0.2.
            peer = await server.accept()
            await peer.request()
            peer.send(OK)
            assert (await asking).status == 200

    play(scenario)


def test_when_all_addresses_refuse_the_first_is_named(play: Play, closed_port: int) -> None:
    async def scenario() -> None:
        async with pool_of(resolve=resolving("127.0.0.2", "127.0.0.1")) as pool:
            failure = await failure_of(asked(pool, request_to("shop.example", closed_port)))
            assert failure.kind == "connect"
            assert "127.0.0.2" in failure.reason

    play(scenario)


class NobodysConnections:
    """The owner of connections that are only made."""

    peer = "http://shop.example"
    response_bytes_max = 100

    def released(self, connection: HttpConnection) -> None: ...

    def lost(self, connection: HttpConnection) -> None: ...

    def withdraw(self, exchange: Exchange) -> HttpFailure:
        raise AssertionError


def test_the_next_address_is_tried_beside_one_that_is_silent(play: Play) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as silent, socket.socket() as filler:
            # A backlog that is full: further attempts to connect are neither accepted nor refused.
            silent.bind(("127.0.0.2", 0))
            silent.listen(0)
            port = silent.getsockname()[1]
            filler.setblocking(False)
            await loop.sock_connect(filler, ("127.0.0.2", port))
            server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
            dialler = Dialler(None, resolving("127.0.0.2", "127.0.0.1"), None, stagger_s=0.0)
            connection = await dialler.dial("http", "shop.example", port, lambda: HttpConnection(NobodysConnections()))
            assert connection._transport.get_extra_info("peername")[0] == "127.0.0.1"
            connection.abandon()
            server.close()
            await server.wait_closed()

    play(scenario)


async def fetch_securely(host: str, trusted: bool, answer: bytes = OK, *, close: bool = False) -> HttpReply:
    context = ssl.create_default_context(cafile=str(CERTIFICATE) if trusted else None)
    async with (
        scripted_server(server_context()) as server,
        pool_of(LOOPBACK, resolve=resolving("127.0.0.1"), ssl_context=context) as pool,
    ):
        asking = asked(pool, request_to(host, server.port, "https"))
        accepting = asyncio.create_task(server.accept())
        await asyncio.wait([asking, accepting], return_when=asyncio.FIRST_COMPLETED)
        if accepting.done():
            peer = accepting.result()
            await peer.request()
            peer.send(answer)
            if close:
                peer.close()
        accepting.cancel()
        return await asking


def test_a_verified_peer_is_talked_to_over_tls(play: Play) -> None:
    async def scenario() -> None:
        assert (await fetch_securely("shop.example", trusted=True)).body == b"ok"

    play(scenario)


def test_a_trailing_dot_is_no_part_of_the_name_in_a_certificate(play: Play) -> None:
    async def scenario() -> None:
        assert (await fetch_securely("shop.example.", trusted=True)).body == b"ok"

    play(scenario)


def test_an_answer_without_a_length_ends_with_the_tls_connection(play: Play) -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.1 200 OK\r\n\r\nall of it"
        reply = await fetch_securely("shop.example", trusted=True, answer=answer, close=True)
        assert reply.body == b"all of it"

    play(scenario)


@pytest.mark.parametrize(("host", "trusted"), [("shop.example", False), ("other.example", True)])
def test_a_certificate_that_proves_nothing_is_refused(play: Play, host: str, trusted: bool) -> None:
    async def scenario() -> None:
        with pytest.raises(HttpFailure) as raised:
            await fetch_securely(host, trusted)
        assert (raised.value.kind, raised.value.sent) == ("tls", False)
        assert "certificate is not valid" in raised.value.reason

    play(scenario)


def test_a_peer_that_does_not_speak_tls_is_reported(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(resolve=resolving("127.0.0.1")) as pool:
            asking = asked(pool, request_to("shop.example", server.port, "https"))
            peer = await server.accept()
            peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            failure = await failure_of(asking)
            assert failure.kind == "tls"
            assert "handshake failed" in failure.reason

    play(scenario)
