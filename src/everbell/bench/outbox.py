"""The outbox: transactions with and without an event in turns, the way from commit to delivery, and collecting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from time import perf_counter
from urllib.parse import urlsplit

import msgspec

from everbell.bench.delivery import received, started_receiver
from everbell.bench.dialogue import PATIENCE_S, BenchFailed, Partner
from everbell.bench.figures import Baseline, Figure, per_event_us
from everbell.bench.goals import OUTBOX_COLLECT, OUTBOX_LATE, OUTBOX_TRANSACTIONS
from everbell.bench.plans import OutboxOrder, OutboxPlan, ReceiverOrder, Sent
from everbell.bench.scene import Scene, rest
from everbell.bench.stage import BenchStage, Server

_DATABASE = "everbell_bench_outbox"
_CONNECTIONS = 16
_ROUNDS = 5
_LATE_PER_S = 200.0
_LATE_EVENTS_MAX = 3_000
_FILL_ROWS = 1_000
_LOOK_S = 0.02


def outbox(scene: Scene) -> list[Figure]:
    """In a database of its own, which is removed afterwards."""
    with _database(scene) as url, BenchStage() as stage:
        application = stage.partner("everbell.bench.outbox_load", OutboxPlan(url, _CONNECTIONS))
        rows = max(scene.scale.whole // _FILL_ROWS, 1) * _FILL_ROWS
        later = msgspec.json.encode({"to": "queue:bench", "in": "1h", "payload": "x" * 300}).decode()
        fill = OutboxOrder("fill", rows, later)
        _round(application, scene, "filling an outbox", fill)
        bare = _round(application, scene, "bare reading and removing", OutboxOrder("drain", rows))
        _round(application, scene, "filling an outbox", fill)
        receiver, port = started_receiver(stage, lateness=True)
        gateways = 1 if scene.gateways is None else scene.gateways
        server, server_port = stage.server(config=f'outbox = "{url}"\n', gateways=gateways)
        collecting = _collected(scene, server, server_port, rows, bare.rate, gateways)
        transactions = _transactions(scene, application, later)
        now = msgspec.json.encode({"to": f"http://127.0.0.1:{port}/bell", "in": 0, "payload": "x" * 300}).decode()
        count = min(scene.scale.late, _LATE_EVENTS_MAX)
        application.tell(OutboxOrder("schedule", count, now, _LATE_PER_S))
        came = received(receiver, ReceiverOrder({"/bell": count}), scene, "from commit to delivery")["/bell"]
        application.hear()
    if came.lateness is None:
        raise BenchFailed("no event with a known lateness arrived")
    notes = (f"{_LATE_PER_S:g} transactions/s; from the call in the transaction, so the commit is included",)
    late = Figure(OUTBOX_LATE, came.lateness.p99_ms, lateness=came.lateness, notes=notes)
    return [transactions, late, collecting]


def _transactions(scene: Scene, application: Partner, event: str) -> Figure:
    """The two kinds take turns, so that both have the same machine."""
    count = max(scene.scale.single // _ROUNDS, 1)
    seconds = {"plain": 0.0, "schedule": 0.0}
    for _ in range(_ROUNDS):
        for work in ("plain", "schedule"):
            order = OutboxOrder("schedule" if work == "schedule" else "plain", count, event)
            seconds[work] += _round(application, scene, f"transactions: {work}", order).seconds
    total = count * _ROUNDS
    baseline = Baseline("the same transactions without an event", total / seconds["plain"])
    notes = (f"{_CONNECTIONS} connections, Everbell collects meanwhile",)
    return Figure(OUTBOX_TRANSACTIONS, total / seconds["schedule"], (baseline,), notes=notes)


def _collected(scene: Scene, server: Server, port: int, rows: int, bare: float, gateways: int) -> Figure:
    tell = scene.progress("collecting", rows)
    first = done = _scheduled(port)
    start_s, cpu_s, changed_s = perf_counter(), server.usage().cpu_s, perf_counter()
    while done < rows:
        rest(_LOOK_S)
        before, done = done, _scheduled(port)
        if done != before:
            tell(done)
            changed_s = perf_counter()
            if (
                not first and done < rows
            ):  # A gateway's figures are up to a second old: count from the first that shows rows.
                first, start_s, cpu_s = done, changed_s, server.usage().cpu_s
        elif perf_counter() - changed_s > PATIENCE_S:
            raise BenchFailed(f"only {done} of {rows} rows were collected")
    events = max(rows - first, 1)
    usage = server.usage()
    cpu_us = per_event_us(usage.cpu_s - cpu_s, events)
    baseline = Baseline("bare reading and removing of the same rows", bare)
    rate = events / max(changed_s - start_s, 1e-9)
    return Figure(OUTBOX_COLLECT, rate, (baseline,), cpu_us, usage.rss_bytes / 1e6, notes=(f"--gateways {gateways}",))


def _round(application: Partner, scene: Scene, what: str, order: OutboxOrder) -> Sent:
    tell = scene.progress(what, order.count)
    application.tell(order)
    sent = Sent(**application.hear(patience_s=10 * PATIENCE_S))
    tell(order.count)
    return sent


def _scheduled(port: int) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except (OSError, HTTPException) as error:
        raise BenchFailed(f"the server does not answer: {error}") from error
    finally:
        connection.close()
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return int(numbers["everbell_scheduled_total"])


@contextmanager
def _database(scene: Scene) -> Iterator[str]:
    if scene.postgres is None:
        raise BenchFailed("name a PostgreSQL for it: --postgres URL")
    url = urlsplit(scene.postgres)._replace(query="").geturl()
    own = urlsplit(url)._replace(path=f"/{_DATABASE}").geturl()
    drop = f"DROP DATABASE IF EXISTS {_DATABASE} WITH (FORCE)"
    asyncio.run(_execute(url, drop, f"CREATE DATABASE {_DATABASE}"))
    try:
        asyncio.run(_execute(own, _install_script(), "CREATE TABLE orders (id bigserial PRIMARY KEY, note text)"))
        yield own
    finally:
        asyncio.run(_execute(url, drop))


def _install_script() -> str:
    from everbell.outbox.statements import install_script

    return install_script()


async def _execute(url: str, *statements: str) -> None:
    try:
        import asyncpg
    except ImportError as error:
        raise BenchFailed("PostgreSQL needs a driver: pip install 'everbell[postgres]'") from error
    try:
        connection = await asyncpg.connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BenchFailed(f"PostgreSQL cannot be used: {error}") from error
