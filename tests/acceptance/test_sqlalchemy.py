"""SQLAlchemy: the programs of the guide, with a real database, server, worker and web server."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from everbell import AsyncOutbox, Outbox
from everbell.client.blocking import Client
from tests.acceptance.guide_stage import GuideApplication, call, database_variables, write_files
from tests.acceptance.machine import until
from tests.acceptance.outbox_stage import fetch, rows_left, with_outbox
from tests.acceptance.processes import CommandLine, ServerProcess
from tests.services import shared

GUIDE = Path(__file__).parents[2] / "docs/sqlalchemy.md"

# The web server of the guide's asynchronous program: a free port, and a line that names it.
_SERVE = """
import asyncio, sys
sys.path.insert(0, "")
import uvicorn
from async_orders import app
server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
async def main():
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await running
asyncio.run(main())
"""


@dataclass
class Shop:
    """The programs of the guide, their database, and a server that collects from it."""

    application: GuideApplication
    database: str
    client: Client
    url: str


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("sqlalchemy")
    database = with_outbox(shared.postgres().fresh_database())
    assert write_files(GUIDE, folder, {}) == ["orders.py", "async_orders.py"]
    place = tmp_path_factory.mktemp("everbell")
    with ServerProcess(place, "--outbox", f"{database}?tenant=shop") as server, Client(server.url, "shop") as client:
        yield Shop(GuideApplication(folder, database_variables(database)), database, client, server.url)


def reminders(shop: Shop, number: int) -> int:
    return int(fetch(shop.database, "SELECT reminders FROM orders WHERE number = $1", number)[0][0])


def test_the_programs_of_the_guide_run(shop: Shop) -> None:
    placed = shop.application.run("orders.py", "7")
    assert (placed.code, placed.out) == (0, "remind-7\n"), placed
    worker = ("-m", "everbell", "worker", "orders:app", "--server", shop.url, "--tenant", "shop")
    with shop.application.begin(*worker):
        until(lambda: reminders(shop, 7) == 1, "the task has run")
    assert shop.application.run("orders.py", "7").code == 1, "the number is taken: the transaction is rolled back"
    with shop.application.begin("-c", _SERVE) as web:
        port = web.line()
        assert call(port, "/orders/8") == (201, {"id": "remind-8"})
        until(lambda: rows_left(shop.database) == 0, "the rows are collected")
        assert shop.client.get("remind-8").status == "scheduled"
        assert call(port, "/orders/8/paid")[1] == {"state": "paid"}
        until(lambda: shop.client.get("remind-8").status == "cancelled", "it is cancelled")


def test_scoped_sessions_and_savepoints(shop: Shop) -> None:
    blocking = sqlalchemy.create_engine(shop.database.replace("postgresql://", "postgresql+psycopg://"))
    session = scoped_session(sessionmaker(blocking))
    kept = Outbox(session).schedule(1, to="queue:none", in_="1h", id="kept")
    savepoint = session.begin_nested()
    Outbox(session).schedule(1, to="queue:none", in_="1h", id="undone")
    savepoint.rollback()
    session.commit()
    session.remove()
    blocking.dispose()
    asyncio.run(_schedule_async(shop.database))
    until(lambda: rows_left(shop.database) == 0, "the rows are collected")
    assert {event.id for event in shop.client.list(to="queue:none")} == {kept, "awaited"}


async def _schedule_async(database: str) -> None:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    session: Any = async_scoped_session[AsyncSession](async_sessionmaker(engine), asyncio.current_task)
    await AsyncOutbox(session).schedule(1, to="queue:none", in_="1h", id="awaited")
    await session.commit()
    await AsyncOutbox(session).schedule(1, to="queue:none", in_="1h", id="never")
    await session.rollback()
    await session.remove()
    await engine.dispose()


def test_the_migration_of_the_guide_installs_the_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared.postgres()
    url = server.fresh_database()
    for role in ("shop", "everbell"):
        server.execute(f"DO $$BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN END$$")
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    [program] = [text for text in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "alembic" in text]
    with engine.begin() as connection:
        alembic = ModuleType("alembic")
        alembic.__dict__["op"] = SimpleNamespace(get_bind=lambda: connection)
        monkeypatch.setitem(sys.modules, "alembic", alembic)
        names: dict[str, Any] = {}
        exec(program, names)
        names["upgrade"]()
    engine.dispose()
    with psycopg.connect(url) as connection:
        assert connection.execute(
            """SELECT everbell.schedule('{"to": "queue:a", "in": "1h", "id": "x"}')"""
        ).fetchone() == ("x",)
    assert CommandLine()("outbox", "install", url).code == 0, "the command finds it installed"
