"""The PostgreSQL store with a database that is lost, killed, frozen, out of connections or read-only.

Each test compares the answers of the store with its content: an apply that returned was stored, once, and one that
raised was not stored and never will be.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

import asyncpg
import pytest

from everbell.core.event import Event
from everbell.errors import EverbellError, Fenced, StoreUnavailable, StoreUnusable
from everbell.stores.port import Add, Change
from everbell.stores.postgres import schema as postgres_schema
from everbell.stores.postgres.address import read_address
from everbell.stores.postgres.connection import connect
from everbell.stores.postgres.leftovers import TURN_OPERATIONS
from everbell.stores.postgres.store import PostgresStore
from everbell.stores.postgres.write import COPIED_MIN, Operation, copy
from everbell.stores.table_writes import TableWrites
from everbell.stores.write_path import WritePath
from tests.conformance.stores import NOW, PARTITIONS, event, finish, page_all
from tests.services import shared
from tests.services.fates import Fate, FatefulProxy
from tests.services.postgres import PASSWORD, PostgresServer

T = TypeVar("T")

FAR = NOW + 10**12
LARGE = COPIED_MIN + 50
"""Enough events for COPY, so that BEGIN, COPY and COMMIT are separate requests."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that may be stopped and killed; every test leaves it running."""
    with shared.had(PostgresServer) as started:
        yield started


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    # In a thread, because a proxy may have to answer meanwhile.
    store = await asyncio.to_thread(PostgresStore, url, partitions=PARTITIONS)
    try:
        yield store
    finally:
        await store.close()


async def owning(store: PostgresStore) -> dict[int, int]:
    """Take all partitions."""
    epochs = dict.fromkeys(range(PARTITIONS), store.epoch + 1)
    await store.raise_fence(epochs)
    return epochs


def some(first: int, count: int = 1) -> list[Change]:
    return [Add(event(sequence)) for sequence in range(first, first + count)]


async def stored(store: PostgresStore) -> set[int]:
    """The sequences of all stored events."""
    found: list[Event] = []
    for partition in range(PARTITIONS):
        found += (await page_all(store, partition, FAR, 1_000))[0]
    sequences = {event.sequence for event in found}
    assert len(sequences) == len(found)
    return sequences


PATIENCE_S = 60


async def eventually(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the store is back, with a pause in between, as a client does, up to a limit."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(0.02)  # Only an answer shows that the store is back.


def through(url: str, server: PostgresServer, proxy: FatefulProxy) -> str:
    return url.replace(f":{server.port}/", f":{proxy.port}/")


# Opening


def test_many_stores_may_open_an_empty_database_at_once() -> None:
    url = shared.postgres().fresh_schema()
    with ThreadPoolExecutor(6) as threads:
        stores = list(threads.map(lambda _: PostgresStore(url, partitions=PARTITIONS), range(6)))
    assert {(store.partitions, store.epoch) for store in stores} == {(PARTITIONS, 0)}


def test_a_store_keeps_its_number_of_partitions() -> None:
    url = shared.postgres().fresh_schema()
    PostgresStore(url, partitions=8)
    assert PostgresStore(url).partitions == 8
    with pytest.raises(StoreUnusable, match="made with 8 partitions"):
        PostgresStore(url, partitions=16)


def test_the_first_store_that_opens_an_older_format_upgrades_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    url = shared.postgres().fresh_schema()
    PostgresStore(url, partitions=PARTITIONS)
    script = postgres_schema._script
    steps = {
        2: "CREATE TABLE novelty (number int); INSERT INTO novelty VALUES (2)",
        3: "INSERT INTO novelty VALUES (3)",
    }
    monkeypatch.setattr(postgres_schema, "_script", lambda number: steps.get(number) or script(number))
    monkeypatch.setattr(postgres_schema, "FORMAT", 3)
    with ThreadPoolExecutor(6) as threads:
        stores = list(threads.map(lambda _: PostgresStore(url), range(6)))
    assert {store.partitions for store in stores} == {PARTITIONS}
    assert asyncio.run(_rows(url, "SELECT number FROM novelty ORDER BY number")) == [2, 3]
    new = shared.postgres().fresh_schema()
    PostgresStore(new, partitions=PARTITIONS)
    assert asyncio.run(_rows(new, "SELECT number FROM novelty ORDER BY number")) == [2, 3]
    monkeypatch.setattr(postgres_schema, "FORMAT", 1)
    with pytest.raises(StoreUnusable, match="newer Everbell"):
        PostgresStore(url)


async def _rows(url: str, question: str) -> list[int]:
    connection = await connect(read_address(url))
    try:
        return [row[0] for row in await connection.fetch(question)]
    finally:
        await connection.close()


def test_a_newer_format_is_refused() -> None:
    url = shared.postgres().fresh_schema()
    PostgresStore(url, partitions=PARTITIONS)
    shared.postgres().execute(f"UPDATE {url.rpartition('=')[2]}.store SET format = 99")
    with pytest.raises(StoreUnusable, match="newer Everbell"):
        PostgresStore(url)


def test_a_failed_open_says_why_and_reveals_no_password(port: int) -> None:
    server = shared.postgres()
    wrong = {
        server.database_url("postgres", password="mistaken"): "correct the password",
        server.database_url("missing"): "CREATE DATABASE",
        server.url.replace(f":{server.port}/", f":{port}/"): "check that it runs",
        server.url + "?colour=red": "remove this option",
        server.url + "?sslmode=nonsense": "URL or the environment",
    }
    for url, advice in wrong.items():
        with pytest.raises(EverbellError, match=advice) as refused:
            PostgresStore(url, patience_s=0)
        for secret in (PASSWORD, "pass%2Fword", "mistaken"):
            assert secret not in str(refused.value)


def test_a_user_without_permission_to_create_a_schema_learns_the_missing_grant() -> None:
    server = shared.postgres()
    server.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    url = f"postgresql://guest:guest@127.0.0.1:{server.port}/postgres?schema=of_guest"
    with pytest.raises(StoreUnusable, match="GRANT CREATE ON DATABASE"):
        PostgresStore(url)
    server.execute("CREATE SCHEMA of_guest AUTHORIZATION guest")
    assert PostgresStore(url, partitions=PARTITIONS).partitions == PARTITIONS


def test_a_store_waits_for_a_database_that_starts_later(server: PostgresServer) -> None:
    url = server.fresh_schema()
    server.stop()
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(PostgresStore, url, partitions=PARTITIONS, patience_s=60)
        server.start()
        assert opening.result().partitions == PARTITIONS


def test_of_several_hosts_the_one_that_answers_is_used(port: int) -> None:
    server = shared.postgres()
    url = server.fresh_schema().replace("127.0.0.1:", f"127.0.0.1:{port},127.0.0.1:")
    assert PostgresStore(url, partitions=PARTITIONS).partitions == PARTITIONS


# Owners


def test_a_replaced_owner_is_refused_and_learns_the_partition() -> None:
    async def scenario() -> None:
        url = shared.postgres().fresh_schema()
        async with opened(url) as old, opened(url) as new:
            epochs = await owning(old)
            await old.apply(some(1, 8), epochs)
            taken = {1: 7, 2: 7}
            sequence = await new.raise_fence(taken)
            assert sequence >= 1 << 32, "the sequence must be higher than any that the old owner may still use"
            for count in (1, LARGE):
                with pytest.raises(Fenced) as refused:
                    await old.apply([Add(event(9 + n, partition=2)) for n in range(count)], epochs)
                assert refused.value.partitions == (2,)
            await old.apply([Add(event(100, partition=3))], epochs)
            await new.apply([Add(event(101, partition=2))], taken)
            with pytest.raises(Fenced):
                await old.raise_fence({2: 7})
            assert await stored(new) == {*range(1, 9), 100, 101}

    asyncio.run(scenario())


def test_a_client_that_is_cut_off_inside_a_transaction_does_not_keep_its_partitions() -> None:
    """The client is cut off between the last change and the COMMIT, and the server does not notice."""

    async def scenario() -> None:
        server = shared.postgres()
        url = server.fresh_schema()
        async with FatefulProxy(server.port) as proxy, opened(through(url, server, proxy)) as old, opened(url) as new:
            epochs = await owning(old)
            holds = proxy.once(Fate.HOLD, b"COMMIT")
            apply = asyncio.create_task(old.apply(some(1, LARGE), epochs))
            # If the partitions were taken before the transaction began, it would be refused, and the test would prove
            # nothing.
            await asyncio.wait_for(holds.wait(), PATIENCE_S)
            await new.raise_fence(dict.fromkeys(range(PARTITIONS), 9))
            with pytest.raises(Fenced):
                await apply
            await proxy.release()
            assert await stored(new) == set()

    asyncio.run(scenario())


def test_taking_partitions_waits_for_running_transactions_of_the_old_owner() -> None:
    async def scenario() -> None:
        url = shared.postgres().fresh_schema()
        async with opened(url) as old, opened(url) as new:
            epochs = await owning(old)
            path = WritePath(some(1), TableWrites({}, {}))
            path.make(0, 1)
            connection = await connect(read_address(url))
            await copy(connection, path.layout, Operation(1, 1, epochs, is_relaxed=False))
            taking = asyncio.create_task(new.raise_fence(dict.fromkeys(range(PARTITIONS), 9)))
            waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            administrator = await asyncpg.connect(shared.postgres().url)
            while not await administrator.fetchval(waiting):
                assert not taking.done()
            await connection.execute("COMMIT")
            await taking
            assert await stored(new) == {1}
            await connection.close()
            await administrator.close()

    asyncio.run(scenario())


def test_two_nodes_cannot_store_the_same_id() -> None:
    async def scenario() -> None:
        url = shared.postgres().fresh_schema()
        async with opened(url) as one, opened(url) as other:
            await one.raise_fence({0: 1, 1: 1})
            await other.raise_fence({2: 2, 3: 2})
            refused = []
            for number in range(30):
                mine = event(1 + 2 * number, id=f"order-{number}", partition=0)
                theirs = event(2 + 2 * number, id=f"order-{number}", partition=3)
                answers = await asyncio.gather(
                    one.apply([Add(mine)], {0: 1, 1: 1}), other.apply([Add(theirs)], {2: 2, 3: 2})
                )
                assert sum(map(len, answers)) == 1, "exactly one of the two must be refused"
                winner = theirs if answers[0] else mine
                refused += [refusal.existing for answer in answers for refusal in answer.values()]
                assert refused[-1] == winner
            assert len(await stored(one)) == 30
            assert (await one.counts())["shop"].pending == 30

    asyncio.run(scenario())


# Lost connections


@pytest.mark.parametrize(("count", "marker"), [(1, b""), (LARGE, b"COMMIT")])
def test_a_lost_answer_is_looked_up(count: int, marker: bytes) -> None:
    async def scenario() -> None:
        server = shared.postgres()
        async with FatefulProxy(server.port) as proxy, opened(through(server.fresh_schema(), server, proxy)) as store:
            epochs = await owning(store)
            await store.apply(some(1), epochs)
            proxy.once(Fate.DEAFEN, marker)
            assert await store.apply(some(2, count), epochs) == {}
            assert proxy.fates == [Fate.DEAFEN]
            assert await stored(store) == set(range(1, 2 + count))
            assert (await store.counts())["shop"].pending == 1 + count

    asyncio.run(scenario())


@pytest.mark.parametrize(("count", "marker"), [(1, b""), (LARGE, b"BEGIN"), (LARGE, b"COPY"), (LARGE, b"COMMIT")])
def test_a_lost_request_is_sent_again_at_once(count: int, marker: bytes) -> None:
    async def scenario() -> None:
        server = shared.postgres()
        async with FatefulProxy(server.port) as proxy, opened(through(server.fresh_schema(), server, proxy)) as store:
            epochs = await owning(store)
            await store.apply(some(1), epochs)
            proxy.once(Fate.CUT, marker)
            assert await store.apply(some(2, count), epochs) == {}
            assert proxy.fates == [Fate.CUT]
            assert await stored(store) == set(range(1, 2 + count))
            assert (await store.counts())["shop"].pending == 1 + count

    asyncio.run(scenario())


@pytest.mark.parametrize(("count", "marker"), [(1, b""), (LARGE, b"COMMIT")])
def test_a_request_that_arrives_after_it_was_sent_again_is_not_stored_twice(count: int, marker: bytes) -> None:
    async def scenario() -> None:
        server = shared.postgres()
        async with FatefulProxy(server.port) as proxy, opened(through(server.fresh_schema(), server, proxy)) as store:
            epochs = await owning(store)
            await store.apply(some(1), epochs)
            proxy.once(Fate.HOLD, marker)
            await store.apply(some(2, count), epochs)
            # The event is over, so a second copy would be stored without a conflict.
            await store.apply([finish(event(2))], epochs)
            for number in range(2 * TURN_OPERATIONS):
                await store.apply(some(1_000 + number), epochs)
            await proxy.release()
            assert await stored(store) == {1, *range(3, 2 + count), *range(1_000, 1_000 + 2 * TURN_OPERATIONS)}

    asyncio.run(scenario())


def test_a_lost_answer_to_taking_partitions_is_looked_up() -> None:
    async def scenario() -> None:
        server = shared.postgres()
        async with FatefulProxy(server.port) as proxy, opened(through(server.fresh_schema(), server, proxy)) as store:
            first = await store.raise_fence({0: 1})
            for number, fate in enumerate((Fate.DEAFEN, Fate.CUT)):
                proxy.once(fate)
                sequence = await store.raise_fence({0: 2 + number})
                assert sequence == first + (1 + number << 32)
            assert store.epoch == 3

    asyncio.run(scenario())


_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'everbell'"


@pytest.mark.parametrize("count", [1, LARGE])
def test_callers_do_not_notice_that_an_administrator_ends_sessions(count: int) -> None:
    """A stream of kills: each hits the sessions at another moment of a write or a read, or between two."""

    async def scenario() -> None:
        server = shared.postgres()
        moments = random.Random(17)
        async with opened(server.fresh_schema()) as store:
            epochs = await owning(store)
            administrator = await asyncpg.connect(server.url)

            async def end_sessions() -> int:
                await asyncio.sleep(moments.choice((0, 0.002, 0.005, 0.01, 0.02)))
                return len(await administrator.fetch(_END_SESSIONS))

            ended = 0
            for number in range(30):
                ending = asyncio.create_task(end_sessions())
                assert await store.apply(some(1 + number * count, count), epochs) == {}
                assert (await store.counts())["shop"].pending == (number + 1) * count
                ended += await ending
            assert ended >= 30
            await administrator.close()
            assert await stored(store) == set(range(1, 1 + 30 * count))

    asyncio.run(scenario())


_VERSIONS = """
    SELECT max(versions) FROM (
        SELECT count(*) AS versions
        FROM generate_series(0, pg_relation_size($1::text::regclass) / 8192 - 1) AS page,
            heap_page_items(get_raw_page($1, page::int)) AS item
        WHERE t_data IS NOT NULL GROUP BY substring(t_data FOR 16)
    ) AS rows
"""
"""The most versions of a row, by the 16 bytes that begin with its primary key."""


def test_rows_that_every_write_updates_do_not_gather_dead_versions() -> None:
    """While a transaction keeps the server from removing dead versions, no row has more than one turn's of them."""

    async def scenario() -> None:
        server = shared.postgres()
        url = server.fresh_schema()
        async with opened(url) as store:
            epochs = await owning(store)
            await store.apply(some(1), epochs)
            schema = read_address(url).schema
            watcher = await asyncpg.connect(read_address(url).dsn, server_settings={"search_path": schema})
            holder = watcher.transaction(isolation="repeatable_read")
            await holder.start()
            await watcher.fetch("SELECT * FROM store")
            for number in range(2, 4 * TURN_OPERATIONS):
                await store.apply(some(number), epochs)
            administrator = await asyncpg.connect(server.url, server_settings={"search_path": f"{schema}, public"})
            await administrator.execute("CREATE EXTENSION IF NOT EXISTS pageinspect SCHEMA public")
            assert await administrator.fetchval(_VERSIONS, "writers") <= TURN_OPERATIONS
            assert await administrator.fetchval(_VERSIONS, "counts") <= TURN_OPERATIONS
            await administrator.close()
            await holder.rollback()
            await watcher.close()
            assert (await store.counts())["shop"].pending == 4 * TURN_OPERATIONS - 1
        # The next process that opens the store adds up all rows.
        async with opened(url) as store:
            assert (await store.counts())["shop"].pending == 4 * TURN_OPERATIONS - 1

    asyncio.run(scenario())


# A server that goes away under load


async def _write_through(server: PostgresServer, harm: Callable[[], object], count: int) -> None:
    """Write while the server is disturbed, and compare the answers with the stored events."""
    async with opened(server.fresh_schema()) as store:
        epochs = await owning(store)
        made: set[int] = set()
        refusals = 0
        sequence = 0
        harming: asyncio.Future[object] | None = None
        deadline_s = monotonic() + PATIENCE_S
        while harming is None or not harming.done() or len(made) < 50 * count:
            if harming is None and len(made) >= 20 * count:
                harming = asyncio.get_running_loop().run_in_executor(None, harm)
            group = some(sequence + 1, count)
            sequence += count
            try:
                await store.apply(group, epochs)
                made |= set(range(sequence - count + 1, sequence + 1))
            except StoreUnavailable:
                refusals += 1
                assert monotonic() < deadline_s, f"{len(made)} stored, and {refusals} refusals in {PATIENCE_S} s"
                # Do not spin while the database is unavailable; the next write shows when it is back.
                await asyncio.sleep(0.01)
        await harming
        assert await eventually(lambda: stored(store)) == made
        assert (await eventually(store.counts))["shop"].pending == len(made)


@pytest.mark.parametrize("count", [1, LARGE])
def test_a_restart_under_load_loses_nothing(server: PostgresServer, count: int) -> None:
    asyncio.run(_write_through(server, server.restart, count))


@pytest.mark.parametrize("count", [1, LARGE])
def test_a_kill_under_load_loses_nothing(server: PostgresServer, count: int) -> None:
    def harm() -> None:
        server.kill()
        server.start()

    asyncio.run(_write_through(server, harm, count))


@pytest.mark.parametrize("count", [1, LARGE])
def test_a_store_leaves_a_server_that_does_not_answer_and_returns_to_it(
    server: PostgresServer, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(server.fresh_schema()) as store:
            epochs = await owning(store)
            await store.apply(some(1), epochs)
            server.pause()
            # Only from now on: before this, a slow answer on a busy machine must still count as an answer.
            monkeypatch.setattr("everbell.stores.postgres.operation.ANSWER_S", 0.1)
            apply = asyncio.create_task(store.apply(some(2, count), epochs))
            if count == 1:
                await asyncio.wait([apply], timeout=0.3)
                assert not apply.done(), "the outcome cannot be known before the server is back"
            else:
                with pytest.raises(StoreUnavailable):
                    await apply  # There was no COMMIT, so the outcome is certain.
            monkeypatch.undo()
            server.resume()
            try:
                await apply
                expected = set(range(1, 2 + count))
            except StoreUnavailable:
                expected = {1}
            assert await eventually(lambda: stored(store)) == expected

    asyncio.run(scenario())


# A server that answers, and refuses


def test_a_store_without_free_connections_waits_and_recovers() -> None:
    async def scenario() -> None:
        server = shared.postgres()
        server.execute("CREATE ROLE narrow LOGIN PASSWORD 'narrow' CONNECTION LIMIT 1")
        server.execute("CREATE SCHEMA of_narrow AUTHORIZATION narrow")
        url = f"postgresql://narrow:narrow@127.0.0.1:{server.port}/postgres?schema=of_narrow"
        async with opened(url) as store:
            epochs = await owning(store)
            await store.apply(some(1), epochs)
            with pytest.raises(StoreUnavailable, match="too many connections"):
                await store.counts()
            await store.apply(some(2), epochs)
            server.execute("ALTER ROLE narrow CONNECTION LIMIT 5")
            assert (await eventually(store.counts))["shop"].pending == 2

    asyncio.run(scenario())


def test_a_store_waits_while_its_server_is_read_only(server: PostgresServer) -> None:
    async def scenario() -> None:
        administrator = await asyncpg.connect(server.url)
        await administrator.execute("SET default_transaction_read_only = off")
        async with opened(server.fresh_schema()) as store:
            epochs = await owning(store)
            await administrator.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            await administrator.execute("SELECT pg_reload_conf()")
            try:
                made = await until_refused(store, epochs)
                for _ in range(3):
                    with pytest.raises(StoreUnavailable):
                        await store.apply(some(1_000), epochs)
            finally:
                await administrator.execute("ALTER SYSTEM RESET default_transaction_read_only")
                await administrator.execute("SELECT pg_reload_conf()")
            await eventually(lambda: store.apply(some(1_000), epochs))
            assert await stored(store) == made | {1_000}
        await administrator.close()

    asyncio.run(scenario())


async def until_refused(store: PostgresStore, epochs: dict[int, int]) -> set[int]:
    """Write until the store refuses, because a session notices new settings late. Returns the stored sequences."""
    made: set[int] = set()
    while True:
        try:
            await store.apply(some(len(made) + 1), epochs)
        except StoreUnavailable:
            return made
        made.add(len(made) + 1)


def test_only_tenants_that_accept_the_risk_do_not_wait_for_the_disk(server: PostgresServer) -> None:
    """A synchronous standby that does not exist delays every commit that waits for a standby."""

    async def scenario() -> None:
        url = server.fresh_schema()
        store = PostgresStore(url, partitions=PARTITIONS, relaxed=lambda tenant: tenant == "easy")
        epochs = await owning(store)
        administrator = await asyncpg.connect(server.url)
        await administrator.execute("SET synchronous_commit = off")
        await administrator.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        await administrator.execute("SELECT pg_reload_conf()")
        try:
            await store.apply([Add(event(1, tenant="easy"))], epochs)
            await store.apply([Add(event(2 + n, tenant="easy")) for n in range(LARGE)], epochs)
            mixed = asyncio.create_task(store.apply([Add(event(1_000, tenant="easy")), Add(event(1_001))], epochs))
            while not await administrator.fetchval("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
                await asyncio.sleep(0)
                assert not mixed.done()
        finally:
            await administrator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await administrator.execute("SELECT pg_reload_conf()")
        assert await mixed == {}
        await administrator.close()
        await store.close()

    asyncio.run(scenario())


# Reads


def test_generated_ids_are_never_looked_up() -> None:
    """By PostgreSQL's own statistics: an index finds only those rows that are deleted."""

    async def scenario() -> None:
        server = shared.postgres()
        url = server.fresh_schema()
        async with opened(url) as store:
            epochs = await owning(store)
            for start in (1, 1_001):
                events = [event(sequence) for sequence in range(start, start + 1_000)]
                await store.apply([Add(each) for each in events[:10]], epochs)
                await store.apply([Add(each) for each in events[10:]], epochs)
                await store.apply([finish(each) for each in events[:10]], epochs)
                await store.apply([finish(each) for each in events[10:]], epochs)
        administrator = await asyncpg.connect(server.url)
        statistics = (
            "SELECT relname, seq_scan, idx_scan, idx_tup_fetch, n_tup_ins, n_tup_del "
            "FROM pg_stat_user_tables WHERE schemaname = $1"
        )
        tables: dict[str, Any] = {"records": {"n_tup_ins": 0}}
        async with asyncio.timeout(PATIENCE_S):
            while tables["records"]["n_tup_ins"] != 2_000:  # The server publishes its statistics with a delay.
                tables = {row["relname"]: row for row in await administrator.fetch(statistics, url.rpartition("=")[2])}
        assert tables["scheduled"]["idx_scan"] == tables["scheduled"]["n_tup_del"] == 2_000
        for name in ("records", "ids", "waiting", "dead", "heads"):
            assert tables[name]["idx_tup_fetch"] == 0, name
        await administrator.close()

    asyncio.run(scenario())


def test_a_table_that_was_analysed_while_empty_is_still_read_by_its_index() -> None:
    """By PostgreSQL's own statistics: outdated estimates of the table must not make it compare all rows with all."""

    async def scenario() -> None:
        server = shared.postgres()
        url = server.fresh_schema()
        events = [event(sequence) for sequence in range(1, 4_001)]
        administrator = await asyncpg.connect(server.url)
        schema = url.rpartition("=")[2]
        async with opened(url) as store:
            epochs = await owning(store)
            await store.apply([Add(each) for each in events[:1_000]], epochs)
            await store.apply([finish(each) for each in events[:1_000]], epochs)
            await administrator.execute(f"ANALYZE {schema}.scheduled")
            await store.apply([Add(each) for each in events[1_000:]], epochs)
            for start in range(1_000, 4_000, 1_000):
                await store.apply([finish(each) for each in events[start : start + 1_000]], epochs)
        statistics = (
            "SELECT idx_scan, n_tup_del FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'scheduled'"
        )
        row: Any = {"n_tup_del": 0}
        async with asyncio.timeout(PATIENCE_S):
            while row["n_tup_del"] != 4_000:  # The server publishes its statistics with a delay.
                row = await administrator.fetchrow(statistics, schema)
        assert row["idx_scan"] == 4_000
        await administrator.close()

    asyncio.run(scenario())
