"""How connections to one host are shared, queued for, and given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from everbell.http.client import HttpFailure, HttpReply, OutgoingRequest
from everbell.http.client_connection import Exchange, HttpConnection
from everbell.http.deadlines import Deadlines
from everbell.http.dial import Dialler
from everbell.http.origin import DIAL_S_MAX, Origin, Surroundings
from everbell.http.resolver import resolve_by_system
from everbell.http.sockets import Sockets
from tests.unit.http.scripted_server import (
    LONG_S,
    OK,
    Clock,
    Peer,
    Play,
    asked,
    failure_of,
    on_both_loops,
    pool_of,
    scripted_server,
    until,
)

pytestmark = on_both_loops


async def answer(peer: Peer) -> bytes:
    """Answers one request, and says which it was."""
    request = await peer.request()
    peer.send(OK)
    return request.split(b" ")[1]


def test_a_connection_is_used_again_and_again(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = asked(pool, server.request())
            peer = await server.accept()
            for _ in range(10):
                await answer(peer)
                assert (await asking).body == b"ok"
                asking = asked(pool, server.request())
            await answer(peer)
            await asking
            assert (server.accepted_count, pool.connection_count) == (1, 1)

    play(scenario)


def test_requests_to_one_host_run_side_by_side(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of() as pool:
            asking = [asked(pool, server.request()) for _ in range(5)]
            peers = [await server.accept() for _ in range(5)]
            for peer in peers:
                await peer.request()  # All five have arrived before the first is answered.
            for peer in peers:
                peer.send(OK)
            assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 5

    play(scenario)


def test_requests_beyond_the_connections_wait_in_order(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server, pool_of(connections_per_host_max=2) as pool:
            finished: list[int] = []
            everything = asyncio.Event()

            def done(number: int) -> None:
                finished.append(number)
                if len(finished) == 6:
                    everything.set()

            for number in range(6):
                pool.send(server.request(target=f"/{number}"), LONG_S, lambda _, number=number: done(number))  # type: ignore[misc]
            peers = [await server.accept(), await server.accept()]
            seen = [{await answer(peer) for peer in peers} for _ in range(3)]
            assert seen == [{b"/0", b"/1"}, {b"/2", b"/3"}, {b"/4", b"/5"}]
            await everything.wait()
            assert sorted(finished) == list(range(6))
            assert server.accepted_count == 2

    play(scenario)


def test_hosts_do_not_share_connections_or_queues(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as slow, scripted_server() as quick, pool_of(connections_per_host_max=1) as pool:
            stuck = [asked(pool, slow.request()) for _ in range(3)]
            await (await slow.accept()).request()
            asking = asked(pool, quick.request())
            await answer(await quick.accept())
            assert (await asking).status == 200
            assert not any(task.done() for task in stuck)
            for task in stuck:
                task.cancel()
            await asyncio.wait(stuck)

    play(scenario)


def test_the_deadline_counts_while_waiting_for_a_connection(play: Play) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with scripted_server() as server, pool_of(now=clock, connections_per_host_max=1) as pool:
            first = asked(pool, server.request(target="/first"), timeout_s=60)
            peer = await server.accept()
            await peer.request()
            second = asked(pool, server.request(target="/second"), timeout_s=1)
            third = asked(pool, server.request(target="/third"), timeout_s=60)
            await asyncio.sleep(0)
            clock.now_s += 1.02
            pool.sweep()
            failure = await failure_of(second)
            assert (failure.kind, failure.sent) == ("timeout", False)
            assert "all 1 connections" in failure.reason

            peer.send(OK)
            assert (await first).status == 200
            assert await answer(peer) == b"/third"
            assert (await third).status == 200

    play(scenario)


def test_the_deadline_counts_while_a_host_is_resolved(play: Play) -> None:
    async def scenario() -> None:
        clock, asked_for = Clock(), asyncio.Event()

        async def never(host: str, port: int) -> Sequence[str]:
            asked_for.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with pool_of(now=clock, resolve=never) as pool:
            asking = asked(pool, OutgoingRequest("http", "slow.example", 80, "POST", "/"), timeout_s=3)
            await asked_for.wait()
            clock.now_s += 3.02
            pool.sweep()
            failure = await failure_of(asking)
            assert (failure.kind, failure.sent) == ("timeout", False)
            assert "no connection to http://slow.example" in failure.reason

    play(scenario)


class StuckAtFirst(Dialler):
    """Its first attempt to connect never ends."""

    def __init__(self) -> None:
        super().__init__(None, resolve_by_system, None)
        self.stuck = asyncio.Event()

    async def dial(
        self, scheme: str, host: str, port: int, make: Callable[[], HttpConnection], tenant: str = ""
    ) -> HttpConnection:
        if not self.stuck.is_set():
            self.stuck.set()
            await asyncio.Event().wait()
        return await super().dial(scheme, host, port, make)


class Announcing(Dialler):
    """Tells when a connection is made, before it is handed over."""

    def __init__(self) -> None:
        super().__init__(None, resolve_by_system, None)
        self.made = asyncio.Event()

    async def dial(
        self, scheme: str, host: str, port: int, make: Callable[[], HttpConnection], tenant: str = ""
    ) -> HttpConnection:
        connection = await super().dial(scheme, host, port, make)
        self.made.set()
        return connection


class Counting(Dialler):
    """Lets attempts to connect go on when told, and counts those that wait."""

    def __init__(self) -> None:
        super().__init__(None, resolve_by_system, None)
        self.waiting: list[asyncio.Future[None]] = []

    async def dial(
        self, scheme: str, host: str, port: int, make: Callable[[], HttpConnection], tenant: str = ""
    ) -> HttpConnection:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(told)
        await told
        return await super().dial(scheme, host, port, make)


class Bench:
    """An origin outside of a pool, with a dialler of its own."""

    def __init__(self, dialler: Dialler, port: int, connections_max: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.clock = Clock()
        self.deadlines = Deadlines(loop, self.clock)
        self.outcome: asyncio.Future[HttpReply | HttpFailure] = loop.create_future()
        shared = Surroundings(loop, dialler, self.deadlines, self.clock, connections_max, 30, 100, Sockets(10_000))
        self.origin = Origin(("http", "127.0.0.1", port), shared, retire=lambda: None, closed=False)

    def submit(self) -> None:
        exchange = Exchange(self.origin, b"GET / HTTP/1.1\r\n\r\n", LONG_S, self.outcome.set_result)
        self.deadlines.add(exchange, self.clock() + LONG_S)
        self.origin.submit(exchange, self.clock())

    async def close(self) -> None:
        self.deadlines.close()
        await self.origin.close()


def test_an_attempt_to_connect_that_is_stuck_is_replaced(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            dialler = StuckAtFirst()
            bench = Bench(dialler, server.port)
            bench.submit()
            await dialler.stuck.wait()
            bench.clock.now_s += DIAL_S_MAX + 0.02
            bench.deadlines.sweep()
            await answer(await server.accept())
            assert isinstance(await bench.outcome, HttpReply)
            await bench.close()

    play(scenario)


def test_a_connection_that_is_made_while_closing_is_closed_too(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            dialler = Announcing()
            bench = Bench(dialler, server.port)
            bench.submit()
            await dialler.made.wait()
            await bench.close()
            assert isinstance(await bench.outcome, HttpFailure)
            await (await server.accept()).left()

    play(scenario)


def test_connections_to_a_new_peer_come_a_few_at_a_time_and_then_faster(play: Play) -> None:
    async def scenario() -> None:
        async with scripted_server() as server:
            dialler = Counting()
            bench = Bench(dialler, server.port, connections_max=100)
            for _ in range(80):
                exchange = Exchange(bench.origin, b"GET / HTTP/1.1\r\n\r\n", LONG_S, lambda outcome: None)
                bench.deadlines.add(exchange, bench.clock() + LONG_S)
                bench.origin.submit(exchange, bench.clock())
            sizes: list[int] = []

            def all_wait() -> bool:
                return bench.origin.connection_count == sum(sizes) and len(dialler.waiting) == len(bench.origin._dials)

            while sum(sizes) < 80:
                await until(all_wait)
                waiting, dialler.waiting = dialler.waiting, []
                sizes.append(len(waiting))
                for told in waiting:
                    told.set_result(None)
            assert sizes == [8, 8, 16, 32, 16], "as many as there are, once there are more than a few"
            await bench.close()

    play(scenario)


async def answer_all(peer: Peer) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            await answer(peer)


def test_a_free_connection_is_closed_when_it_was_idle_long_enough(play: Play) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with scripted_server() as server, pool_of(now=clock, idle_s=30) as pool:
            both = [asked(pool, server.request()), asked(pool, server.request())]
            served = [asyncio.create_task(answer_all(await server.accept())) for _ in both]
            await asyncio.gather(*both)

            clock.now_s += 20
            pool.sweep()
            await pool.fetch(server.request(), LONG_S)  # Keeps one of the two young.
            clock.now_s += 10.02
            pool.sweep()
            await until(lambda: pool.connection_count == 1)
            clock.now_s += 20.02
            pool.sweep()
            await until(lambda: pool.connection_count == 0)
            await asyncio.gather(*served)

    play(scenario)


def test_a_connection_that_grew_old_unnoticed_is_not_used(play: Play) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with scripted_server() as server, pool_of(now=clock, idle_s=30) as pool:
            asking = asked(pool, server.request())
            await answer(await server.accept())
            await asking
            clock.now_s += 31  # No sweep in between.
            asking = asked(pool, server.request())
            await answer(await server.accept())
            assert (await asking).status == 200
            assert server.accepted_count == 2

    play(scenario)


def test_a_host_that_is_not_used_any_more_is_forgotten(play: Play) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with scripted_server() as server, pool_of(now=clock, idle_s=30) as pool:
            asking = asked(pool, server.request())
            await answer(await server.accept())
            await asking
            clock.now_s += 31
            pool.sweep()
            await until(lambda: pool.connection_count == 0)
            clock.now_s += 31
            pool.sweep()
            assert pool._origins == {}

    play(scenario)


def test_a_host_that_waits_for_its_turn_has_had_no_attempt(play: Play) -> None:
    async def scenario() -> None:
        # Given as many names that never resolve as one tenant may look up at a time
        clock = Clock()
        never = asyncio.Event()

        async def resolve(host: str, port: int) -> list[str]:
            await never.wait()
            return []

        async with pool_of(resolve=resolve, now=clock) as pool:
            asking = [
                asked(pool, OutgoingRequest("http", f"h{n}.example", 80, "GET", "/", tenant="t")) for n in range(60)
            ]
            await until(lambda: pool._shared.dialler.is_waiting("h59.example"))
            clock.now_s += LONG_S + 1
            pool.sweep()
            kinds = [(await failure_of(one)).kind for one in asking]
            # Then the names that were looked up timed out, and those behind them have not been tried.
            assert kinds[0] == "timeout"
            assert kinds[-1] == "no-turn"
            never.set()

    play(scenario)
