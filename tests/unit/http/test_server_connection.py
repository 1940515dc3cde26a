"""One connection on a bench: order, back-pressure, time limits and ends, without a socket and without waiting."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from everbell.http.limits import ServerLimits
from everbell.http.message import LATER, HttpRequest, HttpResponse
from everbell.http.server_connection import LINGER_S, SLICE_BYTES
from tests.unit.http.fake_transport import Bench, StandingLoop, bench

LIMITS = ServerLimits(read_timeout_s=30, idle_timeout_s=75, pipelined_max=4, body_bytes_max=1000)


def get(*names: str, extra: str = "") -> bytes:
    return b"".join(f"GET /{name} HTTP/1.1\r\nHost: h\r\n{extra}\r\n".encode() for name in names)


def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, request.path.encode(), "text/plain")


class Promises:
    """A handler that answers each request when the test says so."""

    def __init__(self, loop: StandingLoop) -> None:
        self.loop = loop
        self.futures: dict[str, asyncio.Future[HttpResponse]] = {}
        self.requests: dict[str, HttpRequest] = {}
        self.in_turn: set[str] = set()

    def __call__(self, request: HttpRequest) -> HttpResponse | asyncio.Future[HttpResponse]:
        name = request.path[1:]
        if name in self.in_turn and request.is_behind:
            return LATER
        self.requests[name] = request
        self.futures[name] = self.loop.create_future()
        return self.futures[name]

    def keep(self, *names: str, size: int = 0) -> None:
        for name in names:
            self.futures[name].set_result(HttpResponse(200, name.encode().ljust(size, b"x")))


@contextmanager
def promising(limits: ServerLimits = LIMITS) -> Iterator[tuple[Bench, Promises]]:
    handlers: list[Promises] = []
    with bench(lambda request: handlers[0](request), limits) as on:
        handlers.append(Promises(on.loop))
        yield on, handlers[0]


def bodies(on: Bench) -> list[bytes]:
    return [answer.body for answer in on.answers()]


# Answers, and their order.


def test_a_response_is_written_at_once() -> None:
    with bench(echo) as on:
        on.send(get("a"))
        assert on.transport.writes == [
            b"HTTP/1.1 200 OK\r\nserver: everbell\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n/a"
        ]


def test_answers_to_requests_of_one_read_go_out_together() -> None:
    with bench(echo) as on:
        on.send(get("a", "b", "c"))
        assert bodies(on) == [b"/a", b"/b", b"/c"]
        assert len(on.transport.writes) == 1


def test_bytes_may_come_one_by_one() -> None:
    with bench(echo) as on:
        for byte in get("a", "b"):
            on.send(bytes((byte,)))
        assert bodies(on) == [b"/a", b"/b"]


def test_futures_kept_out_of_order_are_answered_in_order() -> None:
    with promising() as (on, promises):
        on.send(get("a", "b", "c"))
        promises.keep("c", "b")
        on.turn()
        assert on.sent == b""
        promises.keep("a")
        on.turn()
        assert bodies(on) == [b"a", b"b", b"c"]
        assert len(on.transport.writes) == 1


def test_a_response_waits_for_the_future_before_it() -> None:
    promised: list[asyncio.Future[HttpResponse]] = []

    def handler(request: HttpRequest) -> HttpResponse | asyncio.Future[HttpResponse]:
        return promised[0] if request.path == "/slow" else echo(request)

    with bench(handler) as on:
        promised.append(on.loop.create_future())
        on.send(get("slow", "quick"))
        assert on.sent == b""
        promised[0].set_result(HttpResponse(200, b"slow"))
        on.turn()
        assert bodies(on) == [b"slow", b"/quick"]


def test_a_future_that_is_done_needs_no_turn_of_the_loop() -> None:
    promised: list[asyncio.Future[HttpResponse]] = []
    with bench(lambda request: promised[0]) as on:
        promised.append(on.loop.create_future())
        promised[0].set_result(HttpResponse(200, b"done"))
        on.send(get("a"))
        assert bodies(on) == [b"done"]


def test_a_coroutine_is_run() -> None:
    async def handler(request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(0)
        return echo(request)

    with bench(handler) as on:
        on.send(get("a", "b"))
        assert on.sent == b""
        on.turn()
        on.turn()
        on.turn()
        assert bodies(on) == [b"/a", b"/b"]


def test_a_head_request_gets_a_head() -> None:
    with bench(echo) as on:
        on.send(get("a").replace(b"GET", b"HEAD"))
        assert on.sent.endswith(b"content-length: 2\r\n\r\n")


# Failures of the handler.


def raise_error(request: HttpRequest) -> HttpResponse:
    raise LookupError("the secret")


async def raise_later(request: HttpRequest) -> HttpResponse:
    raise LookupError("the secret")


def forget(request: HttpRequest) -> HttpResponse:
    return None  # type: ignore[return-value]


async def forget_later(request: HttpRequest) -> HttpResponse:
    return None  # type: ignore[return-value]


def inject(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, headers=(("location", "/\r\nset-cookie: the secret"),))


@pytest.mark.parametrize("handler", [raise_error, raise_later, forget, forget_later, inject])
def test_a_failure_is_logged_and_hidden(
    handler: Callable[[HttpRequest], HttpResponse], caplog: pytest.LogCaptureFixture
) -> None:
    with bench(handler) as on:
        on.send(get("a%0Ab"))
        on.turn()
        on.turn()
        (answer,) = on.answers()
        assert answer.status == 500
        assert answer.headers["content-type"] == "application/problem+json"
        assert json.loads(answer.body)["status"] == 500
        assert b"secret" not in on.sent
        assert not on.transport.closing, "the connection is as good as before"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "/a%0Ab" in record.getMessage()


def test_a_cancelled_future_asks_to_try_again() -> None:
    with promising() as (on, promises):
        on.send(get("a"))
        promises.futures["a"].cancel()
        on.turn()
        assert [answer.status for answer in on.answers()] == [503]


def test_a_failure_after_the_client_left_is_still_logged(caplog: pytest.LogCaptureFixture) -> None:
    with promising() as (on, promises):
        on.send(get("a"))
        on.connection.connection_lost(None)
        promises.futures["a"].set_exception(LookupError("oops"))
        on.turn()
        assert on.sent == b""
    assert len(caplog.records) == 1


def test_an_answer_after_the_client_left_is_dropped() -> None:
    with promising() as (on, promises):
        on.send(get("a", "b"))
        on.connection.connection_lost(None)
        assert promises.requests["a"].abandoned
        promises.keep("a", "b")
        on.turn()
        assert on.sent == b""


def test_an_answer_to_a_closing_transport_is_dropped() -> None:
    with promising() as (on, promises):
        on.send(get("a"))
        on.transport.close()
        promises.keep("a")
        on.turn()
        assert on.sent == b""


# Keeping alive and ending.


def test_a_client_that_asks_to_close_is_closed_after_its_answer() -> None:
    with promising() as (on, promises):
        on.send(get("a") + get("b", extra="Connection: close\r\n") + get("never"))
        on.send(get("never"))
        promises.keep("a", "b")
        on.turn()
        assert [answer.headers.get("connection") for answer in on.answers()] == [None, "close"]
        assert on.transport.closing
        assert set(promises.requests) == {"a", "b"}


def test_nothing_is_read_after_the_request_that_closes_even_if_it_is_known() -> None:
    with promising() as (on, promises):
        on.send(get("a"))
        on.send(get("b", extra="Connection: close\r\n"))
        on.send(get("a"))
        promises.keep("a", "b")
        on.turn()
        assert bodies(on) == [b"a", b"b"]


def test_http_1_0_closes_unless_it_asks_not_to() -> None:
    with bench(echo) as on:
        on.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert on.answers()[0].headers["connection"] == "keep-alive"
        assert not on.transport.closing
        on.send(b"GET /b HTTP/1.0\r\n\r\n")
        assert on.answers()[1].headers["connection"] == "close"
        assert on.transport.closing


def test_a_client_that_closes_its_side_still_gets_its_answers() -> None:
    with promising() as (on, promises):
        on.send(get("a", "b"))
        assert on.connection.eof_received()
        assert promises.requests["a"].abandoned
        promises.keep("a")
        on.turn()
        assert not on.transport.closing
        promises.keep("b")
        on.turn()
        assert bodies(on) == [b"a", b"b"]
        assert on.transport.closing


def test_a_client_that_closes_its_side_with_nothing_to_come_is_done() -> None:
    with bench(echo) as on:
        on.send(get("a") + b"GET /half")
        assert not on.connection.eof_received()


# Refusals.


def test_a_refusal_comes_after_the_answers_before_it() -> None:
    with promising() as (on, promises):
        on.send(get("a") + b"nonsense\r\n\r\n" + get("never"))
        on.send(get("never"))
        assert on.sent == b""
        promises.keep("a")
        on.turn()
        good, bad = on.answers()
        assert good.body == b"a"
        assert bad.status == 400
        assert bad.headers["content-type"] == "application/problem+json"
        assert bad.headers["connection"] == "close"


def test_a_refused_client_may_finish_talking() -> None:
    with bench(echo, LIMITS) as on:
        on.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n")
        assert [answer.status for answer in on.answers()] == [413]
        assert on.transport.eof
        assert not on.transport.closing, "a reset would destroy the answer"
        on.send(b"x" * 1001)
        assert not on.connection.eof_received()


def test_a_refused_client_may_not_talk_for_ever() -> None:
    with bench(echo, LIMITS) as on:
        on.send(b"nonsense\r\n\r\n")
        on.pass_time(LINGER_S - 0.1)
        assert not on.transport.closing
        on.pass_time(0.1)
        assert on.transport.aborted


def test_a_refusal_waits_behind_requests_that_wait() -> None:
    with promising() as (on, promises):
        on.send(get("a", "b", "c", "d", "e") + b"nonsense\r\n\r\n")
        assert set(promises.requests) == {"a", "b", "c", "d"}
        promises.keep("a", "b", "c", "d")
        on.turn()
        promises.keep("e")
        on.turn()
        assert [answer.status for answer in on.answers()] == [200] * 5 + [400]


# Expectations.

EXPECTING = b"PUT /big HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_a_client_that_waits_is_told_to_go_on() -> None:
    with bench(echo) as on:
        on.send(EXPECTING)
        assert on.sent == GO_ON
        on.send(b"abc")
        assert on.transport.writes[1].endswith(b"/big")


def test_a_client_that_did_not_wait_is_told_nothing() -> None:
    with bench(echo) as on:
        on.send(EXPECTING + b"abc")
        assert bodies(on) == [b"/big"]


def test_a_client_is_told_to_go_on_after_the_answers_before() -> None:
    with promising() as (on, promises):
        on.send(get("a") + EXPECTING)
        assert on.sent == b""
        promises.keep("a")
        on.turn()
        assert on.sent.endswith(b"\r\n\r\na" + GO_ON)


def test_a_body_too_large_is_refused_before_it_is_sent() -> None:
    with bench(echo, LIMITS) as on:
        on.send(EXPECTING.replace(b"3", b"5000"))
        assert [answer.status for answer in on.answers()] == [413]


# Back-pressure.


def test_beyond_the_limit_requests_wait_and_reading_stops() -> None:
    with promising() as (on, promises):
        names = [f"r{number}" for number in range(10)]
        on.send(get(*names))
        assert list(promises.requests) == names[:4]
        assert not on.transport.reading
        promises.keep("r0", "r1")
        on.turn()
        assert list(promises.requests) == names[:6]
        assert not on.transport.reading
        for name in names[2:]:
            promises.keep(name)
            on.turn()
        assert bodies(on) == [name.encode() for name in names]
        assert on.transport.reading


def test_a_read_full_of_requests_is_parsed_in_slices() -> None:
    one = get("x")
    count = 10 * SLICE_BYTES // len(one)
    with promising() as (on, promises):
        on.send(one * count)
        assert len(on.connection._waiting) < 2 * SLICE_BYTES // len(one)
        on.send(one)  # A transport may still deliver bytes that it has read.
        answered = 0
        while on.connection._pending:
            future = on.connection._pending[0][0]
            assert isinstance(future, asyncio.Future)
            future.set_result(HttpResponse(204))
            on.turn()
            answered += 1
        assert answered == count + 1
        assert on.transport.reading
        assert promises.requests["x"].path == "/x"


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    asked: list[str] = []

    def handler(request: HttpRequest) -> HttpResponse:
        asked.append(request.path)
        return HttpResponse(200, b"x" * 100_000)

    with bench(handler, LIMITS) as on:
        on.transport.capacity_bytes = 150_000
        on.send(get(*map(str, range(50))))
        assert asked == ["/0", "/1"]
        assert not on.transport.reading
        on.transport.unsent_bytes = 0
        on.connection.resume_writing()
        assert asked == ["/0", "/1", "/2", "/3"]
        on.transport.capacity_bytes = None
        on.connection.resume_writing()
        assert len(on.answers()) == 50
        assert on.transport.reading


def test_behind_a_slow_answer_a_limited_number_of_bytes_is_made_ready() -> None:
    asked: list[str] = []
    slow: list[asyncio.Future[HttpResponse]] = []

    def handler(request: HttpRequest) -> HttpResponse | asyncio.Future[HttpResponse]:
        asked.append(request.path[1:])
        return slow[0] if request.path == "/slow" else HttpResponse(200, request.path.encode() + b"x" * 400)

    names = [f"r{number}" for number in range(9)]
    with bench(handler, ServerLimits(ready_bytes_max=1_000)) as on:
        slow.append(on.loop.create_future())
        on.send(get("slow", *names))
        assert asked == ["slow", "r0", "r1", "r2"]
        assert not on.transport.reading
        slow[0].set_result(HttpResponse(200, b"slow"))
        on.turn()
        assert [body.rstrip(b"x") for body in bodies(on)] == [b"slow", *(f"/{name}".encode() for name in names)]
        assert on.transport.reading


def test_answers_that_come_out_of_order_count_until_their_turn() -> None:
    with promising(ServerLimits(ready_bytes_max=1_000)) as (on, promises):
        on.send(get("a", "b", "c"))
        promises.keep("c", size=999)
        on.turn()
        on.send(get("d"))
        assert "d" in promises.requests
        promises.keep("d", size=1)
        on.turn()
        on.send(get("e", "f"))
        assert "e" not in promises.requests
        assert not on.transport.reading
        promises.keep("a")
        on.turn()
        assert bodies(on) == [b"a"]
        assert "e" not in promises.requests
        promises.keep("b")
        on.turn()
        assert {"e", "f"} < set(promises.requests)
        promises.keep("e", "f")
        on.turn()
        assert [body.strip(b"x") for body in bodies(on)] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert on.transport.reading


def test_a_failure_out_of_order_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with promising() as (on, promises):
        on.send(get("a", "b", "c"))
        promises.futures["b"].set_exception(LookupError("oops"))
        on.turn()
        promises.futures["c"].set_exception(LookupError("oops"))
        promises.keep("a")
        on.turn()
        assert [answer.status for answer in on.answers()] == [200, 500, 500]
    assert [record.getMessage().partition("path=")[2] for record in caplog.records] == ["'/b'", "'/c'"]


def test_a_handler_may_have_a_request_wait_for_those_before_it() -> None:
    with promising() as (on, promises):
        promises.in_turn = {"large", "larger"}
        on.send(get("a", "b", "large", "larger", "c"))
        assert set(promises.requests) == {"a", "b"}
        assert not on.transport.reading
        promises.keep("a")
        on.turn()
        assert set(promises.requests) == {"a", "b"}
        promises.keep("b")
        on.turn()
        assert set(promises.requests) == {"a", "b", "large"}
        promises.keep("large")
        on.turn()
        assert set(promises.requests) == {"a", "b", "large", "larger", "c"}, "later requests need not wait"
        promises.keep("larger", "c")
        on.turn()
        assert bodies(on) == [b"a", b"b", b"large", b"larger", b"c"]
        assert on.transport.reading


def test_a_client_that_does_not_read_gets_one_large_response() -> None:
    with promising() as (on, promises):
        promises.in_turn = {"a", "b", "c"}
        on.transport.capacity_bytes = 10
        on.send(get("a", "b", "c"))
        promises.keep("a", size=100_000)
        on.turn()
        assert set(promises.requests) == {"a"}
        on.transport.unsent_bytes = 0
        on.connection.resume_writing()
        assert set(promises.requests) == {"a", "b"}


def test_a_handler_cannot_have_the_first_request_wait() -> None:
    with bench(lambda request: LATER) as on:
        on.send(get("a"))
        assert [answer.status for answer in on.answers()] == [503]


def test_a_pause_that_ends_inside_a_write_disturbs_nothing() -> None:
    def handler(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, request.path.encode() + b"x" * 100_000)

    with bench(handler, LIMITS) as on:
        on.transport.capacity_bytes = 10
        on.transport.eager = True
        requests = get(*map(str, range(50)), extra=f"X-Pad: {'x' * 1000}\r\n")
        assert len(requests) > SLICE_BYTES
        on.send(requests)
        assert [body.rstrip(b"x") for body in bodies(on)] == [b"/%d" % number for number in range(50)]
        assert on.transport.reading


def test_a_refusal_waits_until_a_stalled_client_reads() -> None:
    with bench(lambda request: HttpResponse(200, b"x" * 100_000), LIMITS) as on:
        on.transport.capacity_bytes = 10
        on.send(get("a", "b") + b"nonsense\r\n\r\n")
        assert [answer.status for answer in on.answers()] == [200]
        on.transport.capacity_bytes = None
        on.connection.resume_writing()
        assert [answer.status for answer in on.answers()] == [200, 200, 400]


def test_a_stalled_client_is_cut_off() -> None:
    with bench(lambda request: HttpResponse(200, b"x" * 1000), LIMITS) as on:
        on.transport.capacity_bytes = 10
        on.send(get("a"))
        on.pass_time(29)
        assert not on.transport.closing
        on.pass_time(1)
        assert on.transport.aborted


def test_a_slow_client_is_not_cut_off() -> None:
    with bench(lambda request: HttpResponse(200, b"x" * 1000), LIMITS) as on:
        on.transport.capacity_bytes = 10
        on.send(get("a"))
        for _ in range(5):
            on.pass_time(29)
            on.transport.unsent_bytes -= 1
        on.pass_time(29)
        assert not on.transport.closing
        on.pass_time(30)
        assert on.transport.aborted


def test_a_closed_connection_is_cut_off_when_its_client_does_not_read() -> None:
    with bench(echo, LIMITS) as on:
        on.transport.capacity_bytes = 1_000_000
        on.send(get("a", extra="Connection: close\r\n"))
        assert on.transport.closing
        on.pass_time(29)
        assert not on.transport.aborted
        on.pass_time(1)
        assert on.transport.aborted


# Time limits.


def test_a_request_that_drips_in_times_out() -> None:
    with bench(echo, LIMITS) as on:
        for byte in get("a")[:25]:
            on.send(bytes((byte,)))
            on.pass_time(1)
        on.pass_time(4)
        assert on.sent == b""
        on.pass_time(1)
        assert [answer.status for answer in on.answers()] == [408]
        assert on.transport.eof


def test_a_body_that_drips_in_times_out() -> None:
    with bench(echo, LIMITS) as on:
        on.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n")
        on.pass_time(20)
        on.send(b"x")
        on.pass_time(10)
        assert [answer.status for answer in on.answers()] == [408]


def test_a_request_that_drips_behind_another_times_out_in_its_turn() -> None:
    with promising() as (on, promises):
        on.send(get("a") + b"GET")
        on.pass_time(30)
        assert on.sent == b""
        promises.keep("a")
        on.turn()
        assert [answer.status for answer in on.answers()] == [200, 408]


def test_time_in_which_nothing_was_read_is_not_the_clients() -> None:
    with promising() as (on, promises):
        on.send(get("a", "b", "c", "d") + b"GET /e HTTP/1.1\r\n")
        on.pass_time(1000)
        assert not on.transport.reading
        promises.keep("a")
        on.turn()
        on.pass_time(29)
        on.send(b"Host: h\r\n\r\n")
        promises.keep("b", "c", "d", "e")
        on.turn()
        assert [answer.status for answer in on.answers()] == [200] * 5


def test_a_handler_may_take_its_time() -> None:
    with promising() as (on, promises):
        on.send(get("a"))
        on.pass_time(10_000)
        promises.keep("a")
        on.turn()
        assert bodies(on) == [b"a"]
        on.pass_time(74)
        assert not on.transport.closing, "idle time counts from the answer"


@pytest.mark.parametrize("before", [b"", b"\r\n", get("a")])
def test_an_idle_connection_is_closed(before: bytes) -> None:
    with bench(echo, LIMITS) as on:
        if before:
            on.send(before)
        sent = on.sent
        on.pass_time(74)
        on.send(b"\r\n")
        assert not on.transport.closing
        on.pass_time(1)
        assert on.sent == sent, "without a word"
        assert on.transport.closing


# Stopping.


def test_an_idle_connection_is_drained_at_once() -> None:
    with bench(echo) as on:
        on.send(get("a"))
        on.service.draining = True
        on.connection.drain()
        assert on.transport.closing


def test_a_busy_connection_is_drained_with_its_last_answer() -> None:
    with promising() as (on, promises):
        on.send(get("a", "b"))
        on.service.draining = True
        on.connection.drain()
        promises.keep("a")
        on.turn()
        assert not on.transport.closing
        promises.keep("b")
        on.turn()
        assert [answer.headers.get("connection") for answer in on.answers()] == [None, "close"]
        assert on.transport.closing


def test_nothing_follows_the_answer_that_closes() -> None:
    with bench(echo) as on:
        on.service.draining = True
        on.send(get("a", "b"))
        assert [(answer.body, answer.headers["connection"]) for answer in on.answers()] == [(b"/a", "close")]


def test_a_request_on_its_way_is_drained_with_its_answer() -> None:
    with bench(echo) as on:
        data = get("a")
        on.send(data[:10])
        on.service.draining = True
        on.connection.drain()
        assert not on.transport.closing
        on.send(data[10:])
        assert on.answers()[0].headers["connection"] == "close"
        assert on.transport.closing


def test_requests_that_wait_are_drained_too() -> None:
    with promising() as (on, promises):
        on.send(get("a", "b", "c", "d", "e"))
        on.service.draining = True
        on.connection.drain()
        promises.keep("a", "b", "c", "d")
        on.turn()
        promises.keep("e")
        on.turn()
        assert bodies(on) == [b"a", b"b", b"c", b"d", b"e"]
        assert on.answers()[-1].headers["connection"] == "close"


def test_a_connection_that_comes_too_late_is_closed() -> None:
    with bench(echo) as on:
        on.service.draining = True
        on.connect()
        assert on.transport.closing
