"""Logs on real servers, while servers, connections and nodes fail."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from kazoo.client import KazooClient

from everbell.errors import LogUnavailable, LogUncertain, LogUnusable
from everbell.logs.port import Log, Snapshot
from everbell.logs.url import open_log
from everbell.stores.url import open_store
from tests.acceptance.processes import quiet_environment
from tests.conformance.logs import read_all
from tests.services import shared
from tests.services.postgres import PostgresServer
from tests.services.proxy import Proxy
from tests.services.zookeeper import ZookeeperServer

T = TypeVar("T")
Server = PostgresServer | ZookeeperServer

PATIENCE_S = 60
ANSWER_S = 1.0
"""The limit that these tests set for an answer of a frozen server."""
MEMBER = "node/1"
WRITER = (sys.executable, "-m", "tests.acceptance.log_writer")
HOLDER = (sys.executable, "-m", "tests.acceptance.lease_holder")


@pytest.fixture(params=[PostgresServer, ZookeeperServer])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A private server that the test may stop, kill or freeze."""
    with shared.had(request.param) as started:
        yield started


@pytest.fixture(params=["postgres", "zookeeper"])
def url(request: pytest.FixtureRequest) -> str:
    """A new log on a healthy server."""
    if request.param == "postgres":
        return shared.postgres().fresh_schema()
    return shared.zookeeper().fresh_path()


def run(scenario: Awaitable[None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario

    asyncio.run(main())


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Log]:
    log = await open_log(url, timeout_s=ANSWER_S)
    try:
        yield log
    finally:
        await log.close()


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the log is back, with a pause in between, as a node does, up to a limit."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except (LogUnavailable, LogUncertain):
                await asyncio.sleep(0.02)  # Only an answer shows that the log is back.


# Servers


def test_a_log_survives_a_kill_of_its_server(server: Server) -> None:
    async def scenario() -> None:
        async with opened(server.url) as log, opened(server.url) as other:
            acknowledged = [await log.append(b"%d" % number) for number in range(20)]
            await log.save(Snapshot(10, b"state"), keep=10)
            await log.renew(MEMBER, 60_000)
            told = asyncio.create_task(other.wait(acknowledged[-1], PATIENCE_S))
            ended = asyncio.create_task(other.ended(MEMBER))
            await asyncio.sleep(0)
            server.kill()
            with pytest.raises((LogUnavailable, LogUncertain)):
                await log.append(b"lost")
            with pytest.raises(LogUnavailable):
                await log.read(0, 1)
            server.start()
            index = await insist(lambda: log.append(b"back"))
            await told
            entries = await insist(lambda: read_all(other))
            assert [entry.data for entry in entries[:20]] == [b"%d" % number for number in range(20)]
            assert entries[index - 1].data == b"back"
            assert await insist(other.load) == Snapshot(10, b"state")
            assert not ended.done(), "the end of the lease cannot be known while the log is unavailable"
            await insist(lambda: log.release(MEMBER))
            await ended

    run(scenario())


def test_a_frozen_server_leaves_the_outcome_unknown(server: Server) -> None:
    async def scenario() -> None:
        async with opened(server.url) as log:
            await log.append(b"before")
            server.pause()
            with pytest.raises(LogUncertain, match="repeat"):
                await log.append(b"unknown")
            with pytest.raises(LogUnavailable):
                await log.lives(MEMBER)
            await log.wait(1, 0.01)
            server.resume()
            index = await insist(lambda: log.append(b"after"))
            data = [entry.data for entry in await insist(lambda: read_all(log))]
            assert data[0] == b"before"
            assert data[index - 1] == b"after"
            assert set(data) <= {b"before", b"unknown", b"after"}

    run(scenario())


def test_a_lost_answer_leaves_the_outcome_unknown(url: str) -> None:
    async def scenario() -> None:
        shared_server = shared.postgres() if url.startswith("postgres") else shared.zookeeper()
        async with Proxy(shared_server.port) as proxy:
            through = url.replace(f":{shared_server.port}", f":{proxy.port}")
            async with opened(url) as direct, opened(through) as log:
                assert await log.append(b"one") == 1
                proxy.swallow_answers()
                with pytest.raises(LogUncertain):
                    await log.append(b"two")
                assert proxy.swallowed
                proxy.heal()
                # The entry is stored, although its writer got no answer.
                await direct.wait(1, PATIENCE_S)
                assert [entry.data for entry in await read_all(direct)] == [b"one", b"two"]
                assert await insist(lambda: log.append(b"three")) == 3

    run(scenario())


def test_a_follower_gets_new_entries_after_its_connection_was_cut(url: str) -> None:
    async def scenario() -> None:
        shared_server = shared.postgres() if url.startswith("postgres") else shared.zookeeper()
        async with Proxy(shared_server.port) as proxy:
            through = url.replace(f":{shared_server.port}", f":{proxy.port}")
            async with opened(url) as direct, opened(through) as log:
                await direct.renew(MEMBER, 60_000)
                told, ended = asyncio.create_task(log.wait(0, PATIENCE_S)), asyncio.create_task(log.ended(MEMBER))
                assert await insist(lambda: log.lives(MEMBER))
                proxy.cut()
                await direct.append(b"said into the silence")
                await direct.release(MEMBER)
                await told
                await ended

    run(scenario())


# Nodes


async def held(url: str, ttl_ms: int, *options: str) -> asyncio.subprocess.Process:
    """Another process that has renewed its lease at least once."""
    holder = await asyncio.create_subprocess_exec(
        *HOLDER, url, MEMBER, str(ttl_ms), *options, stdout=subprocess.PIPE, env=quiet_environment()
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"renewed\n"
    return holder


def test_the_lease_of_a_killed_node_ends(url: str) -> None:
    async def scenario() -> None:
        async with opened(url) as log:
            holder = await held(url, 2_000)
            try:
                assert await log.lives(MEMBER)
            finally:
                holder.kill()
                await holder.wait()
            await log.ended(MEMBER)

    run(scenario())


def test_the_lease_of_a_node_with_a_blocked_loop_ends(url: str) -> None:
    async def scenario() -> None:
        async with opened(url) as log:
            holder = await held(url, 2_000, "stuck")
            try:
                await log.ended(MEMBER)
                assert holder.returncode is None
            finally:
                holder.kill()
                await holder.wait()

    run(scenario())


def test_logs_and_stores_can_open_one_schema_at_the_same_time() -> None:
    url = shared.postgres().fresh_schema()

    async def scenario() -> None:
        logs = asyncio.gather(*[open_log(url) for _ in range(3)])
        stores = asyncio.gather(*[asyncio.to_thread(open_store, url, partitions=4) for _ in range(3)])
        for log in await logs:
            await log.close()
        for store in await stores:
            await store.close()

    run(scenario())


def test_the_local_log_of_a_killed_process_has_all_acknowledged_entries(tmp_path: Path) -> None:
    url = f"rocksdb:{tmp_path}"

    async def scenario() -> None:
        writer = await asyncio.create_subprocess_exec(*WRITER, url, stdout=subprocess.PIPE, env=quiet_environment())
        assert writer.stdout is not None
        for _ in range(30):
            await writer.stdout.readline()
        writer.kill()
        acknowledged = 30 + len((await writer.stdout.read()).splitlines())
        await writer.wait()
        async with opened(url) as log:
            entries = await read_all(log)
            # One more entry may have been in flight.
            assert acknowledged <= len(entries) <= acknowledged + 1
            assert [entry.data for entry in entries] == [b"%d" % entry.index for entry in entries]
            assert await log.append(b"back") == len(entries) + 1

    run(scenario())


# Messages


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda server: server.database_url("postgres", password="wr0ng"), "password"),
        (lambda server: server.database_url("nowhere"), "CREATE DATABASE"),
        (lambda server: server.url + "?schema=x&nonsense=1", "from the URL"),
    ],
)
def test_an_unusable_postgresql_is_reported_with_advice(change: Callable[[PostgresServer], str], advice: str) -> None:
    with pytest.raises(LogUnusable, match=advice) as refused:
        run(_open_and_close(change(shared.postgres())))
    assert "wr0ng" not in str(refused.value)


def test_a_log_of_a_newer_version_is_refused(url: str) -> None:
    async def scenario() -> None:
        async with opened(url):
            pass
        if url.startswith("postgres"):
            shared.postgres().execute(f"UPDATE {url.rpartition('=')[2]}.log_head SET format = 99")
        else:
            await asyncio.to_thread(_write_node, f"/{url.rpartition('/')[2]}/format", b"99")
        with pytest.raises(LogUnusable, match=r"99.*install"):
            await _open_and_close(url)

    run(scenario())


def _write_node(path: str, content: bytes) -> None:
    client = KazooClient(shared.zookeeper().address)
    client.start()
    client.set(path, content)
    client.stop()
    client.close()


def test_a_zookeeper_log_with_a_password_refuses_other_users() -> None:
    url = shared.zookeeper().fresh_path()
    host = url.removeprefix("zookeeper://")

    async def scenario() -> None:
        async with opened(f"zookeeper://ring:open@{host}") as log:
            assert await log.append(b"x") == 1
            await log.renew(MEMBER, 60_000)
            for stranger in (url, f"zookeeper://ring:wr0ng@{host}"):
                with pytest.raises(LogUnusable, match="user and password") as refused:
                    await _open_and_close(stranger)
                assert "wr0ng" not in str(refused.value)

    run(scenario())


@pytest.mark.parametrize("kind", ["postgres", "zookeeper"])
def test_passwords_are_not_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    if kind == "postgres":
        url, secret = shared.postgres().fresh_schema(), "pass/word"
    else:
        url = shared.zookeeper().fresh_path().replace("://", "://ring:s3cr3t@")
        secret = "s3cr3t"

    async def scenario() -> None:
        async with opened(url) as log:
            await log.append(b"x")
            await log.renew(MEMBER, 60_000)

    with caplog.at_level(logging.NOTSET):
        run(scenario())
    assert secret not in caplog.text


async def _open_and_close(url: str) -> None:
    async with opened(url):
        pass
