"""The helpers with the real libraries: commit and rollback, cancel, reschedule, and one effect for two deliveries."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from everbell import AsyncOutbox, Occurrence, Outbox, once
from everbell.outbox.install import install
from everbell.outbox.settings import read_outbox
from tests.services import shared

OCCURRENCE = Occurrence("e", 1, 1, "shop", 0, 1, b"1")


@pytest.fixture(scope="module")
def url() -> str:
    url = shared.postgres().fresh_database()
    install(read_outbox(url), None, None)
    asyncio.run(_execute(url, "CREATE TABLE effects (number int)"))
    return url


@pytest.fixture(autouse=True)
def _empty(url: str) -> None:
    asyncio.run(_execute(url, "TRUNCATE everbell.outbox, everbell.once_done, effects"))


async def _execute(url: str, statement: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()


def rows(url: str) -> list[tuple[Any, ...]]:
    """The rows of the outbox."""
    found = asyncio.run(_execute(url, "SELECT kind::text, tenant, id, body FROM everbell.outbox ORDER BY seq"))
    return [(kind, tenant, id, None if body is None else json.loads(body)) for kind, tenant, id, body in found]


def effects(url: str) -> int:
    return len(asyncio.run(_execute(url, "SELECT * FROM effects")))


def assert_scheduled(url: str, id: str) -> None:
    event = {"payload": {"order": 7}, "to": "queue:mail", "in": "1200000ms", "key": "order-7"}
    assert rows(url) == [
        ("s", "shop", id, event),
        ("r", "shop", id, {"by": "2h"}),
        ("c", "shop", "other", None),
    ]


def act(outbox: Outbox) -> str:
    from datetime import timedelta

    id = outbox.schedule({"order": 7}, to="queue:mail", in_=timedelta(minutes=20), key="order-7")
    outbox.reschedule(id, by="2h")
    outbox.cancel("other")
    return id


async def act_async(outbox: AsyncOutbox) -> str:
    from datetime import timedelta

    id = await outbox.schedule({"order": 7}, to="queue:mail", in_=timedelta(minutes=20), key="order-7")
    await outbox.reschedule(id, by="2h")
    await outbox.cancel("other")
    return id


INSERT = "INSERT INTO effects VALUES (1)"


class Rollback(Exception):
    """Raised inside a transaction."""


# Each library: how to open something that has transactions, how to begin one, and how to execute a statement.


def with_psycopg(url: str, work: Callable[[Any, Any, Callable[[], Any]], None]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        work(connection, connection.transaction, lambda: connection.execute(INSERT))


def with_sqlalchemy_session(url: str, work: Callable[[Any, Any, Callable[[], Any]], None]) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        work(session, session.begin, lambda: session.execute(sqlalchemy.text(INSERT)))
    engine.dispose()


def with_sqlalchemy_connection(url: str, work: Callable[[Any, Any, Callable[[], Any]], None]) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        work(connection, connection.begin, lambda: connection.execute(sqlalchemy.text(INSERT)))
    engine.dispose()


def with_django(url: str, work: Callable[[Any, Any, Callable[[], Any]], None]) -> None:
    import django
    from django.conf import settings
    from django.db import connection, connections, transaction

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}})
        django.setup()
    connections.databases["default"] |= django_database(url)

    def insert() -> None:
        with connection.cursor() as cursor:
            cursor.execute(INSERT)

    try:
        work(connection, transaction.atomic, insert)
    finally:
        connection.close()


def django_database(url: str) -> dict[str, Any]:
    parts = sqlalchemy.make_url(url)
    names = {"NAME": parts.database, "USER": parts.username, "PASSWORD": parts.password}
    return names | {"HOST": parts.host, "PORT": str(parts.port)}


SYNC = [with_psycopg, with_sqlalchemy_session, with_sqlalchemy_connection, with_django]


@pytest.mark.parametrize("library", SYNC, ids=lambda library: library.__name__)
def test_events_of_a_committed_transaction_exist_and_of_another_do_not(url: str, library: Any) -> None:
    ids: list[str] = []

    def work(connection: Any, begin: Any, insert: Callable[[], Any]) -> None:
        def undo() -> None:
            with begin():
                act(Outbox(connection))
                raise Rollback

        with pytest.raises(Rollback):
            undo()
        with begin():
            ids.append(act(Outbox(connection, "shop")))

    library(url, work)
    assert_scheduled(url, ids[0])


@pytest.mark.parametrize("library", SYNC, ids=lambda library: library.__name__)
def test_repeated_deliveries_have_one_effect(url: str, library: Any) -> None:
    firsts: list[bool] = []

    def work(connection: Any, begin: Any, insert: Callable[[], Any]) -> None:
        def handle(*, fails: bool = False) -> None:
            with once(connection, OCCURRENCE) as first:
                firsts.append(first)
                if first:
                    insert()
                if fails:
                    raise Rollback

        with pytest.raises(Rollback):
            handle(fails=True)
        handle()
        handle()
        with begin():
            handle()

    library(url, work)
    assert firsts == [True, True, False, False]
    assert effects(url) == 1


async def with_asyncpg(url: str, work: Callable[[Any, Any, Callable[[], Awaitable[Any]]], Awaitable[None]]) -> None:
    connection = await asyncpg.connect(url)
    # An application may have an encoder of its own for JSON.
    await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await work(connection, connection.transaction, lambda: connection.execute(INSERT))
    await connection.close()


async def with_async_psycopg(url: str, work: Any) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await work(connection, connection.transaction, lambda: connection.execute(INSERT))


async def with_async_session(url: str, work: Any) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session:
        await work(session, session.begin, lambda: session.execute(sqlalchemy.text(INSERT)))
    await engine.dispose()


async def with_async_sqlalchemy_connection(url: str, work: Any) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    async with engine.connect() as connection:
        await work(connection, connection.begin, lambda: connection.execute(sqlalchemy.text(INSERT)))
    await engine.dispose()


ASYNC = [with_asyncpg, with_async_psycopg, with_async_session, with_async_sqlalchemy_connection]


@pytest.mark.parametrize("library", ASYNC, ids=lambda library: library.__name__)
def test_the_same_for_connections_that_await(url: str, library: Any) -> None:
    ids: list[str] = []
    firsts: list[bool] = []

    async def work(connection: Any, begin: Any, insert: Callable[[], Awaitable[Any]]) -> None:
        async def handle(*, fails: bool = False) -> None:
            async with once(connection, OCCURRENCE) as first:
                firsts.append(first)
                if first:
                    await insert()
                if fails:
                    raise Rollback

        async def undo() -> None:
            async with begin():
                await act_async(AsyncOutbox(connection))
                raise Rollback

        with pytest.raises(Rollback):
            await undo()
        async with begin():
            ids.append(await act_async(AsyncOutbox(connection, "shop")))
        with pytest.raises(Rollback):
            await handle(fails=True)
        await handle()
        await handle()

    asyncio.run(library(url, work))
    assert_scheduled(url, ids[0])
    assert firsts == [True, True, False]
    assert effects(url) == 1


def test_an_unknown_connection_is_refused() -> None:
    with (
        pytest.raises(TypeError, match="it knows psycopg 3, asyncpg, SQLAlchemy and Django"),
        once(object(), OCCURRENCE),
    ):
        pass


def test_the_programs_of_the_documentation_run(url: str) -> None:
    text = Path("docs/outbox.md").read_text()
    asyncio.run(_run_script(url, "CREATE TABLE orders (id int, state text); CREATE TABLE reminders (number int)"))
    for script in re.findall(r"^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        asyncio.run(_run_script(url, script))
    names: dict[str, Any] = {}
    for program in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(program, names)
    assert names["place_order"](url, 8) == "remind-8"
    asyncio.run(names["pay_order"](url, 8))
    assert [(kind, tenant, id) for kind, tenant, id, _ in rows(url)] == [
        ("s", None, "remind-7"),
        ("c", None, "remind-7"),
        ("s", "shop", "remind-8"),
        ("c", "shop", "remind-8"),
    ]

    async def remind_twice() -> None:
        connection = await asyncpg.connect(url)
        for _ in range(2):
            await names["remind"](connection, Occurrence("r", 1, 1, "shop", 0, 1, b'{"order": 8}'))
        await connection.close()

    asyncio.run(remind_twice())
    assert len(asyncio.run(_execute(url, "SELECT * FROM reminders"))) == 1


async def _run_script(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(script)
    await connection.close()
