"""Answers that clients do not read are bounded together, and the client that has read least lately pays."""

from __future__ import annotations

from everbell.http.limits import ServerLimits
from everbell.http.message import HttpResponse
from everbell.http.server_connection import ServerConnection
from tests.unit.http.fake_transport import Bench, FakeTransport, bench

LIMITS = ServerLimits(unsent_bytes_max=10_000)
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def ask_without_reading(on: Bench) -> tuple[ServerConnection, FakeTransport]:
    on.connect()
    on.transport.capacity_bytes = 100
    on.send(GET)
    return on.connection, on.transport


def test_clients_that_do_not_read_are_cut_off_the_oldest_first() -> None:
    with bench(lambda request: HttpResponse(200, b"x" * 2_900), LIMITS) as on:
        clients = []
        for _ in range(150):
            clients.append(ask_without_reading(on))
            on.loop.now_s += 1
            assert on.service.unsent.bytes <= 10_000
        assert [transport.aborted for _, transport in clients] == [True] * 147 + [False] * 3


def test_a_client_that_reads_slowly_is_kept() -> None:
    with bench(lambda request: HttpResponse(200, b"x" * 2_900), LIMITS) as on:
        slow, slow_transport = ask_without_reading(on)
        for _ in range(10):
            on.loop.now_s += 1
            ask_without_reading(on)
            slow_transport.unsent_bytes -= 1
            slow.check(on.loop.now_s)
        assert not slow_transport.aborted


def test_what_was_read_or_dropped_no_longer_counts() -> None:
    with bench(lambda request: HttpResponse(200, b"x" * 2_900), LIMITS) as on:
        first, transport = ask_without_reading(on)
        second, _ = ask_without_reading(on)
        assert on.service.unsent.bytes > 5_000
        transport.unsent_bytes = 0
        first.resume_writing()
        second.connection_lost(None)
        assert on.service.unsent.bytes == 0


def test_an_answer_counts_as_a_whole_while_a_byte_of_it_is_unsent() -> None:
    """A transport keeps all of it: 150 clients that read all but a little of 4 MB would take 600 MB."""
    with bench(lambda request: HttpResponse(200, b"x" * 2_900), LIMITS) as on:
        connection, transport = ask_without_reading(on)
        whole = on.service.unsent.bytes
        transport.unsent_bytes = 1
        connection.check(on.loop.now_s)
        assert 2_900 <= on.service.unsent.bytes <= whole
        transport.unsent_bytes = 0
        connection.resume_writing()
        assert on.service.unsent.bytes == 0
