"""An application with an outbox, Everbell, and a handler with effects in the application's own database.

The checker compares the application's tables with the deliveries: every order has exactly the effects that its last
committed transaction asked for.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import asyncpg
import psycopg

from everbell.outbox.install import install
from everbell.outbox.settings import read_outbox
from tests.acceptance.machine import Machine, until
from tests.acceptance.outbox_application import KEYS, TABLES
from tests.acceptance.processes import quiet_environment


def fetch(url: str, statement: str, *arguments: object) -> list[Any]:
    """Run one statement on a connection of its own."""

    async def run() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return list(await connection.fetch(statement, *arguments))
        finally:
            await connection.close()

    return asyncio.run(run())


def schedule(url: str, *events: dict[str, object]) -> None:
    """Schedule events, each in a transaction of its own."""
    for event in events:
        fetch(url, "SELECT everbell.schedule($1, 'shop')", json.dumps(event))


def with_outbox(url: str) -> str:
    """Install an outbox in a database."""
    install(read_outbox(url), None, None)
    return url


def rows_left(url: str) -> int:
    return int(fetch(url, "SELECT count(*) FROM everbell.outbox")[0][0])


class EffectServer:
    """A receiver with one effect for each event: it uses `everbell.once` of the application's database."""

    def __init__(self, database: str) -> None:
        handler = type("EffectHandler", (_EffectHandler,), {"database": database})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


class _EffectHandler(BaseHTTPRequestHandler):
    database = ""

    def do_POST(self) -> None:
        number = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            with psycopg.connect(self.database) as connection:
                first = connection.execute("SELECT everbell.once(%s, 1, 'shop')", (self.headers["ce-id"],)).fetchone()
                if first == (True,):
                    connection.execute("INSERT INTO effects (number) VALUES (%s)", (number,))
            self.send_response(204)
        except psycopg.Error:
            self.send_response(503)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Do not print."""


class Application:
    """The process of the application."""

    def __init__(self, database: str, target: str) -> None:
        self.database = database
        self._command = [sys.executable, "-m", "tests.acceptance.outbox_application", database, target]
        self._process: subprocess.Popen[bytes] | None = None
        fetch(database, "SELECT 1")
        psycopg.connect(database, autocommit=True).execute(TABLES).connection.close()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=quiet_environment(), stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def effects(self) -> list[int]:
        """The numbers of orders with an effect, in the order of effects."""
        return [number for (number,) in fetch(self.database, "SELECT number FROM effects ORDER BY position")]

    def until_more(self, count: int) -> None:
        """Wait until more orders have had their effects."""
        wanted = len(self.effects()) + count
        until(lambda: len(self.effects()) >= wanted, lambda: f"{wanted} effects: {len(self.effects())}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


def judge(application: Application, machine: Machine) -> int:
    """Wait until all orders are settled, and compare them with the effects; returns the number of orders."""
    orders: dict[int, str] = dict(fetch(application.database, "SELECT number, state FROM orders"))
    due = {number for number, state in orders.items() if number % 4 == 0 or state == "moved"}
    until(lambda: not rows_left(application.database), "all rows are collected")
    until(lambda: set(application.effects()) >= due, lambda: f"missing: {due - set(application.effects())}")
    effects = application.effects()
    assert sorted(effects) == sorted(due), "every order has the effects that its transactions asked for, and no other"
    for key in range(KEYS):
        line = [number for number in effects if number % 4 == 0 and number // 4 % KEYS == key]
        assert line == sorted(line), f"customer {key}: {line}"
    _compare_statuses(machine, orders)
    refused = fetch(application.database, "SELECT id, reason FROM everbell.outbox_refused")
    assert refused == []
    return len(orders)


def _compare_statuses(machine: Machine, orders: dict[int, str]) -> None:
    wanted = {"cancelled": "cancelled", "placed": "scheduled"}
    waiting = {f"order-{number}": state for number, state in orders.items() if number % 4 == 2 or state == "placed"}
    for id, state in waiting.items():
        if int(id.rpartition("-")[2]) % 4:
            assert machine.event(id)["status"] == wanted[state], id
