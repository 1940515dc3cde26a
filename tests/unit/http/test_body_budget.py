"""The bodies of all requests under way are bounded together, and every byte that was counted is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from everbell.http.limits import ServerLimits
from everbell.http.message import LATER, HttpRequest, HttpResponse
from everbell.http.server_connection import ServerConnection
from tests.unit.http.fake_transport import Bench, bench

LIMITS = ServerLimits(body_bytes_max=100, bodies_bytes_max=200, pipelined_max=2)


def post(size: int, sent: int | None = None, path: str = "/") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n".encode()
    return head + b"x" * (size if sent is None else sent)


@contextmanager
def promising() -> Iterator[tuple[Bench, list[asyncio.Future[HttpResponse]]]]:
    """A handler that answers when the test says so."""
    futures: list[asyncio.Future[HttpResponse]] = []
    benches: list[Bench] = []

    def handler(request: HttpRequest) -> asyncio.Future[HttpResponse]:
        futures.append(benches[0].loop.create_future())
        return futures[-1]

    with bench(handler, LIMITS) as on:
        benches.append(on)
        yield on, futures


@pytest.mark.parametrize("pieces", [[post(40)], [post(40, 10), b"x" * 30]], ids=["whole", "in pieces"])
def test_a_body_is_held_until_its_request_is_answered(pieces: list[bytes]) -> None:
    with promising() as (on, futures):
        for _ in range(2):  # The second time, the head is known.
            for piece in pieces:
                on.send(piece)
            assert on.service.budget.bytes == 40
            futures[-1].set_result(HttpResponse(200))
            on.turn()
            assert on.service.budget.bytes == 0


def test_a_body_is_given_back_though_its_answer_waits_for_one_before() -> None:
    with promising() as (on, futures):
        on.send(post(30) + post(40))
        futures[1].set_result(HttpResponse(200))
        on.turn()
        assert on.service.budget.bytes == 30
        futures[0].set_result(HttpResponse(200))
        on.turn()
        assert on.service.budget.bytes == 0


def test_a_body_is_held_while_its_request_waits_for_those_before() -> None:
    slow: list[asyncio.Future[HttpResponse]] = []

    def handler(request: HttpRequest) -> HttpResponse | asyncio.Future[HttpResponse]:
        return slow[0] if request.path == "/slow" else LATER if request.is_behind else HttpResponse(200)

    with bench(handler, LIMITS) as on:
        slow.append(on.loop.create_future())
        on.send(post(30, path="/slow") + post(40))
        assert on.service.budget.bytes == 70
        slow[0].set_result(HttpResponse(200))
        on.turn()
        assert [answer.status for answer in on.answers()] == [200, 200]
        assert on.service.budget.bytes == 0


def test_an_answer_at_once_holds_nothing() -> None:
    with bench(lambda request: HttpResponse(200), LIMITS) as on:
        on.send(post(60) * 2)
        assert [answer.status for answer in on.answers()] == [200, 200]
        assert on.service.budget.bytes == 0


@pytest.mark.parametrize("known", [False, True])
def test_a_body_over_the_budget_is_refused_and_may_be_sent_again(known: bool) -> None:
    with promising() as (on, futures):
        if known:
            on.send(post(60))
            futures.pop().set_result(HttpResponse(200))
            on.turn()
        on.send(post(90))
        first = on.connection
        on.connect()
        on.send(post(60))
        (answer,) = on.answers()
        assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (503, "1", "close")
        assert on.service.budget.bytes == 90
        first.connection_lost(None)
        futures[0].set_result(HttpResponse(200))
        on.turn()
        on.connect()
        on.send(post(60))
        assert len(futures) == 2


def test_a_connection_may_hold_as_much_as_is_left_to_others() -> None:
    with promising() as (on, futures):
        on.send(post(60, path="/a") + post(40, path="/b"))
        assert len(futures) == 2
        assert on.service.budget.bytes == 100


def test_a_client_that_leaves_half_way_takes_its_body_along() -> None:
    with promising() as (on, futures):
        on.send(post(60, 30))
        assert on.service.budget.bytes == 30
        on.connection.connection_lost(None)
        assert on.service.budget.bytes == 0
        assert not futures


def test_a_body_is_held_for_its_handler_when_the_client_left() -> None:
    with promising() as (on, futures):
        on.send(post(30) + post(20) + post(10))  # Two with the handler, one that waits.
        assert on.service.budget.bytes == 60
        on.connection.connection_lost(None)
        assert on.service.budget.bytes == 50
        futures[1].set_result(HttpResponse(200))
        on.turn()
        assert on.service.budget.bytes == 30
        futures[0].set_result(HttpResponse(200))
        on.turn()
        assert on.service.budget.bytes == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n32\r\n" + b"x" * 50 + b"\r\nnonsense", 400),
        (b"POST http:/ HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + b"x" * 255 + b"\r\n", 503),
    ],
)
def test_a_refused_body_leaves_the_budget(data: bytes, status: int) -> None:
    with bench(lambda request: HttpResponse(200), LIMITS) as on:
        on.send(data)
        assert [answer.status for answer in on.answers()] == [status]
        assert on.service.budget.bytes == 0


def test_a_body_that_does_not_arrive_in_time_is_let_go() -> None:
    with bench(lambda request: HttpResponse(200), LIMITS) as on:
        on.send(post(60, 30))
        on.pass_time(31)
        assert [answer.status for answer in on.answers()] == [408]
        assert on.service.budget.bytes == 0


def test_a_request_after_the_last_is_not_held() -> None:
    with bench(lambda request: HttpResponse(200), LIMITS) as on:
        on.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" + post(30))
        on.connection.connection_lost(None)
        assert on.service.budget.bytes == 0


def test_a_connection_must_have_room_for_one_body() -> None:
    with pytest.raises(ValueError, match="bodies_bytes_max"):
        ServerLimits(body_bytes_max=10, bodies_bytes_max=19)


def test_bodies_that_do_not_end_leave_room_for_small_ones() -> None:
    # Given many clients that each send a large body without its last byte
    with bench(lambda request: HttpResponse(200), LIMITS) as on:
        for _ in range(50):
            on.connect()
            on.send(post(100, 99))
        # Then another client's body is accepted.
        on.connect()
        on.send(post(2, 1))
        on.send(b"x")
        assert [answer.status for answer in on.answers()] == [200]


def test_the_connections_of_one_access_key_share_what_it_may_hold() -> None:
    with bench(lambda request: HttpResponse(200), LIMITS, screen=lambda request: request.raw_path) as on:
        for _ in range(10):
            on.connect()
            on.send(post(20, 19, "/greedy"))
        assert on.service.budget.bytes <= 100
        on.connect()
        on.send(post(50, 49, "/modest") + b"x")
        assert [answer.status for answer in on.answers()] == [200]
        for connection in on.service.connections():
            cast(ServerConnection, connection).connection_lost(None)
        assert on.service.budget.bytes == 0
        assert not on.service.budget._keys


def test_a_body_without_access_is_refused_before_it_comes() -> None:
    asked: list[str] = []

    def screen(request: HttpRequest) -> HttpResponse | str:
        asked.append(request.raw_path)
        return HttpResponse(401, b"no")

    with bench(lambda request: HttpResponse(200), LIMITS, screen=screen) as on:
        on.send(post(90, 0))
        (answer,) = on.answers()
        assert (answer.status, answer.headers["connection"], answer.body) == (401, "close", b"no")
        on.send(b"x" * 90)
        assert on.service.budget.bytes == 0
        assert asked == ["/"]


def test_a_request_without_a_body_is_not_screened() -> None:
    with bench(lambda request: HttpResponse(200), LIMITS, screen=lambda request: HttpResponse(401)) as on:
        on.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert [answer.status for answer in on.answers()] == [200]
