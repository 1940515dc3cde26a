"""The pool as its callers see it: callbacks, awaiting, cancelling, closing."""

from __future__ import annotations

import asyncio
from typing import Any

from everbell.http.client import HttpFailure, HttpReply
from tests.unit.http.scripted_server import (
    LONG_S,
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


def test_the_callback_gets_the_outcome_once_and_later(play: Play) -> None:
    async def scenario() -> None:
        outcomes: list[HttpReply | HttpFailure] = []
        async with scripted_server() as server, pool_of() as pool:
            pool.send(server.request(), LONG_S, outcomes.append)
            assert outcomes == []
            peer = await server.accept()
            await peer.request()
            peer.send(OK)
            await until(lambda: bool(outcomes))
        (reply,) = outcomes
        assert isinstance(reply, HttpReply)
        assert reply.status == 200

    play(scenario)


def test_a_callback_may_send_the_next_request(play: Play) -> None:
    async def scenario() -> None:
        finished = asyncio.Event()
        async with scripted_server() as server, pool_of(connections_per_host_max=1) as pool:

            def send(left: int) -> None:
                pool.send(
                    server.request(target=f"/{left}"), LONG_S, lambda _: send(left - 1) if left else finished.set()
                )

            send(3)
            peer = await server.accept()
            for left in (3, 2, 1, 0):
                assert (await peer.request()).startswith(b"POST /%d " % left)
                peer.send(OK)
            await finished.wait()

    play(scenario)


def test_a_callback_that_fails_harms_no_other_request(play: Play) -> None:
    async def scenario() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with scripted_server() as server, pool_of(connections_per_host_max=1) as pool:
            pool.send(server.request(target="/bad"), LONG_S, lambda _: [].pop())
            good = asked(pool, server.request(target="/good"))
            peer = await server.accept()
            for _ in range(2):
                await peer.request()
                peer.send(OK)
            assert (await good).status == 200
        assert [type(complaint["exception"]) for complaint in complaints] == [IndexError]

    play(scenario)


def test_a_cancelled_request_leaves_the_queue(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(connections_per_host_max=1) as pool:
            first = asked(pool, server.request(target="/first"))
            peer = await server.accept()
            await peer.request()
            cancelled, last = asked(pool, server.request()), asked(pool, server.request(target="/last"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            peer.send(OK)
            await first
            assert (await peer.request()).startswith(b"POST /last ")
            peer.send(OK)
            assert (await last).status == 200

    play(scenario)


def test_a_cancelled_request_that_was_sent_closes_its_connection(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            await peer.left()

    play(scenario)


def test_cancelling_a_finished_exchange_has_no_effect(play: Play) -> None:
    async def scenario() -> None:
        outcomes: list[HttpReply | HttpFailure] = []
        async with scripted_server() as server, pool_of() as pool:
            ended = pool.send(server.request(), LONG_S, outcomes.append)
            peer = await server.accept()
            await peer.request()
            peer.send(OK)
            await until(lambda: bool(outcomes))

            asking = asked(pool, server.request())  # On the same connection.
            await peer.request()
            ended.cancel()
            peer.send(OK)
            assert (await asking).status == 200

    play(scenario)


def test_an_outcome_that_comes_while_its_request_is_cancelled_is_dropped(play: Play) -> None:
    async def scenario() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        clock = Clock()
        async with scripted_server() as server, pool_of(now=clock) as pool:
            asking = asked(pool, server.request(), timeout_s=1)
            peer = await server.accept()
            await peer.request()
            asking.cancel()
            clock.now_s += 2
            pool.sweep()  # Ends the exchange before the task has heard of its cancellation.
            await asyncio.wait([asking])
            assert asking.cancelled()
        assert complaints == []

    play(scenario)


def test_closing_ends_everything_that_is_under_way(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(connections_per_host_max=1) as pool:
            sent, waiting = asked(pool, server.request()), asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            await pool.close()
            failures = [await failure_of(sent), await failure_of(waiting)]
            assert [(failure.kind, failure.sent) for failure in failures] == [("closed", True), ("closed", False)]
            await peer.left()
            assert pool.connection_count == 0

    play(scenario)


def test_a_closed_pool_sends_nothing(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            await peer.request()
            peer.send(OK)
            await asking
            await pool.close()
            for request in (server.request(), server.request()):
                failure = await failure_of(asked(pool, request))
                assert (failure.kind, failure.sent) == ("closed", False)
            assert server.accepted_count == 1

    play(scenario)


def test_closing_a_pool_that_was_never_used(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            await pool.close()
            failure = await failure_of(asked(pool, server.request()))
            assert failure.kind == "closed"

    play(scenario)


def test_closing_gives_up_connecting(play: Play) -> None:
    async def scenario() -> None:
        asked_for = asyncio.Event()

        async def never(host: str, port: int) -> list[str]:
            asked_for.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with scripted_server() as server, pool_of(resolve=never) as pool:
            request = server.request()
            asking = asked(pool, type(request)("http", "slow.example", 80, "GET", "/"))
            await asked_for.wait()
            await pool.close()
            assert (await failure_of(asking)).kind == "closed"

    play(scenario)
