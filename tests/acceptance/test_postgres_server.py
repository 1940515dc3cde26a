"""A server on PostgreSQL with an unavailable database: users are told to retry, and no acknowledged event is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import PATIENCE_S, Answer, Machine, until
from tests.acceptance.receiver import Receiver
from tests.services import shared
from tests.services.postgres import PASSWORD, PostgresServer

EVENTS = 600


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with shared.had(PostgresServer) as started:
        yield started


def ask(machine: Machine, receiver: Receiver) -> Answer:
    event = {"to": receiver.url("/ok"), "in": 0, "payload": 1}
    return machine.call("POST", "/v1/tenants/shop/events", event)


def test_while_the_database_is_unavailable_requests_get_a_retry_after(tmp_path: Path, server: PostgresServer) -> None:
    with Receiver() as receiver, Machine(tmp_path, "--store", server.fresh_schema()) as machine:
        assert ask(machine, receiver).status == 201
        server.stop()
        refused = until(lambda: (answer := ask(machine, receiver)).status == 503 and answer, "refused")
        assert isinstance(refused, Answer)
        assert int(refused.headers["retry-after"]) >= 1
        assert PASSWORD not in refused.body.decode()
        server.start()
        accepted = until(lambda: (answer := ask(machine, receiver)).status == 201 and answer, "accepted again")
        assert isinstance(accepted, Answer)
        machine.until_status(accepted.json["id"], "delivered")
        assert machine.stop() == 0
        assert not any(secret in machine.log for secret in (PASSWORD, quote(PASSWORD, safe="")))


def test_while_the_database_does_not_answer_only_requests_that_need_it_wait(
    tmp_path: Path, server: PostgresServer
) -> None:
    with Receiver() as receiver, Machine(tmp_path, "--store", server.fresh_schema()) as machine:
        assert ask(machine, receiver).status == 201
        server.pause()
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(ask, machine, receiver) for _ in range(4)]
            refused = next(as_completed(asked)).result()
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
            server.resume()
            assert {each.result().status for each in asked} <= {201, 503}
        until(lambda: ask(machine, receiver).status == 201, "accepted again")
        assert machine.stop() == 0


@pytest.mark.parametrize("harm", ["restart", "kill", "pause"])
def test_acknowledged_events_arrive_despite_any_fault_of_the_database(
    tmp_path: Path, server: PostgresServer, harm: str
) -> None:
    with Receiver(1) as receiver, Machine(tmp_path, "--store", server.fresh_schema()) as machine:
        load = Load(machine, receiver, Shape(EVENTS), 1)
        load.start()
        for moment in (EVENTS // 10,) if harm == "kill" else (EVENTS // 10, EVENTS // 2):
            load.until_acknowledged(moment)
            if harm == "restart":
                server.restart()
            elif harm == "kill":
                server.kill()
                server.start()
            else:
                server.pause()
                server.resume()
        load.finish()
        load.drain()
        # The log is in the same database: a node whose lease could not be renewed meanwhile hands over to itself.
        assert [wrong for wrong in load.violations() if not wrong.endswith("epochs")] == []
        assert machine.stop() == 0


def test_a_killed_node_continues_after_a_restart(tmp_path: Path) -> None:
    with Receiver(2) as receiver, Machine(tmp_path, "--store", shared.postgres().fresh_schema()) as machine:
        load = Load(machine, receiver, Shape(EVENTS), 2)
        load.start()
        load.until_acknowledged(EVENTS // 4)
        machine.kill()
        machine.start()
        load.finish()
        load.drain()
        assert load.violations() == []
        assert machine.stop() == 0


def test_in_the_steady_state_no_event_is_read_back(tmp_path: Path) -> None:
    """By PostgreSQL's own statistics: an index finds only rows that are deleted, and the first row of the next page."""
    server, count = shared.postgres(), 1_000
    url = server.fresh_schema()
    with Receiver() as receiver, Machine(tmp_path, "--store", url) as machine:
        for _ in range(count // 100):
            machine.schedule_many([{"to": receiver.url("/ok"), "in": "200ms"}] * 100)
        until(lambda: len(receiver.received) == count, "all delivered")
        assert machine.stop() == 0
    tables = asyncio.run(_statistics(server, url.rpartition("=")[2], count))
    assert tables["scheduled"]["idx_tup_fetch"] <= tables["scheduled"]["n_tup_del"] + 100
    for name in ("records", "ids", "waiting", "dead", "heads"):
        assert tables[name]["idx_tup_fetch"] == 0, name


async def _statistics(server: PostgresServer, schema: str, count: int) -> dict[str, Any]:
    """The server's statistics, as soon as they include `count` events that were stored and deleted."""
    administrator = await asyncpg.connect(server.url)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            rows = await administrator.fetch("SELECT * FROM pg_stat_user_tables WHERE schemaname = $1", schema)
            tables = {row["relname"]: row for row in rows}
            if tables["scheduled"]["n_tup_del"] == tables["records"]["n_tup_ins"] == count:
                await administrator.close()
                return tables
