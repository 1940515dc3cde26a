"""An answered request leaves nothing behind that only the garbage collector would free.

The collector of a server runs seldom, and a body has up to sixteen megabytes.
"""

from __future__ import annotations

import gc
from types import FrameType

import pytest

from everbell.core.request import Handlers
from everbell.engine.requests import Schedule
from everbell.errors import EverbellError, Overloaded, StoreFull
from everbell.http.request_reader import RequestReader
from everbell.http.server_connection import ServerConnection
from tests.garbage import garbage
from tests.unit.api.api_caller import EVENTS, SOON, Caller, called
from tests.unit.api.test_batches import lines
from tests.unit.http.fake_transport import bench
from tests.unit.http.test_server_connection import echo

BATCH = EVENTS + "/batch"
GOOD = lines({"at": "2030-01-01T00:00:00Z", "to": "queue:work"})
AWAY = {"to": "nowhere", "at": "2030-01-01T00:00:00Z"}


def frames_in(left: list[object]) -> list[str]:
    return [thing.f_code.co_qualname for thing in left if isinstance(thing, FrameType)]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (BATCH, GOOD, 201),
        (BATCH, GOOD + b"\n" + lines(AWAY), 207),
        (BATCH, lines(AWAY), 422),
        (BATCH, GOOD + b"\n{", 207),
        (BATCH, GOOD + b'\n{"unheard of": 1}', 207),
        (BATCH, b"[{}]", 422),
        (BATCH, b"[", 400),
        (EVENTS, b"{", 400),
        (EVENTS, lines(AWAY), 422),
        ("/v1/nothing", b"", 404),
    ],
)
def test_an_answered_request(path: str, body: bytes, status: int) -> None:
    async def test(caller: Caller) -> None:
        with garbage() as left:
            assert (await caller.call("POST", path, body)).status == status
        assert not frames_in(left)

    called(test)


class Refusing:
    """An engine that stores nothing. It raises one and the same error each time."""

    def __init__(self, error: EverbellError, *, raises: bool) -> None:
        self._error = error
        self._raises = raises

    async def schedule(self, request: Schedule) -> list[EverbellError]:
        if self._raises:
            raise self._error
        return [self._error] * len(request.body)


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize(("path", "body"), [(BATCH, GOOD), (EVENTS, GOOD)])
def test_a_request_that_cannot_be_stored(path: str, body: bytes, raises: bool) -> None:
    async def test(caller: Caller) -> None:
        error = Overloaded("come back later")
        handlers = Handlers(Schedule.by(Refusing(error, raises=raises).schedule))
        refusing = Caller(caller.engine, caller.clock, handlers.ask)
        with garbage() as left:
            for _ in range(2):
                assert (await refusing.call("POST", path, body)).status == 503
        assert not frames_in(left)
        assert error.__traceback__ is None

    called(test)


def test_a_full_store_remembers_no_request() -> None:
    async def test(caller: Caller) -> None:
        writer = caller.engine._writer
        writer._fail(full := StoreFull("no room"), float("inf"))
        with garbage() as left:
            for _ in range(3):
                assert (await caller.call("POST", EVENTS, SOON)).status == 507
        assert not frames_in(left)
        assert full.__traceback__ is None
        writer._full = None

    called(test)


def test_a_connection_that_was_closed() -> None:
    with garbage() as left, bench(echo) as on:
        on.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab")
        on.send(b"c")
        on.connection.connection_lost(None)
        on.transport.connection = None
        del on
    assert not [thing for thing in left if isinstance(thing, (ServerConnection, RequestReader))]


def test_a_connection_that_stays_keeps_no_body() -> None:
    with bench(echo) as on:
        on.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 70000\r\n\r\n")
        on.send(b"x" * 70_000)
        assert on.answers()
        kept = gc.get_referents(on.connection._reader)
        assert not [thing for thing in kept if isinstance(thing, (bytes, bytearray)) and len(thing) > 10_000]
