"""Ingest: batches and single events over HTTP, durable when answered, beside bare RocksDB and bare HTTP."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from everbell.bench.dialogue import PATIENCE_S
from everbell.bench.figures import Baseline, Figure, Goal, per_event_us
from everbell.bench.goals import INGEST, SINGLE
from everbell.bench.plans import BareHttpPlan, LoadPlan, RowsPlan, Sent
from everbell.bench.scene import HOUR_MS, Scene, batches, load_plan, now_ms, send
from everbell.bench.stage import BenchStage

_BULK_CONNECTIONS = 4
# For a store in another process: enough requests must be in flight for the next group while one is written.
_FAR_CONNECTIONS = 8
_SINGLE_CONNECTIONS = 64
_SINGLES_PREPARED = 1_000
# Divisor of the warm-up before the clock starts, which excludes imports and empty caches from the figure.
_WARM_UP = 20

_BARE = {
    "RocksDB": "everbell.bench.bare_store",
    "PostgreSQL": "everbell.bench.bare_postgres",
    "Cassandra": "everbell.bench.bare_cassandra",
}


def ingest(scene: Scene) -> list[Figure]:
    """Bulk requests of a thousand events."""
    count, size = batches(scene.scale.ingest)
    tries = [_try(scene, gateways, count, size, _BULK_CONNECTIONS) for gateways in _choices(scene)]
    bare = bare_rows(scene, "RocksDB", count, size, finish=False)
    return [_better(tries, INGEST, (Baseline("bare RocksDB, the same rows, synced", bare.rate),))]


def ingest_into(scene: Scene, goal: Goal, store: str, baselines: tuple[Baseline, ...], count: int, size: int) -> Figure:
    """Ingest into another store, by a server without gateways by default."""
    return _better([_try(scene, scene.few_gateways, count, size, _FAR_CONNECTIONS, store)], goal, baselines)


def single(scene: Scene) -> list[Figure]:
    count = scene.scale.single
    tries = [_try(scene, gateways, count, 1, _SINGLE_CONNECTIONS) for gateways in _choices(scene)]
    bare = Baseline("our HTTP server with a constant answer", _bare_http(scene, "server", count))
    least = Baseline("a minimal uvloop + httptools protocol", _bare_http(scene, "protocol", count))
    return [_better(tries, SINGLE, (bare, least))]


def bare_rows(scene: Scene, name: str, count: int, size: int, *, finish: bool, url: str = "") -> Sent:
    """The same rows, written by a bare driver into a new RocksDB or at the URL of a server."""
    with BenchStage() as stage:
        plan = RowsPlan(url or str(stage.directory() / "bare"), count, size, finish)
        partner = stage.partner(_BARE[name], plan)
        return Sent(**partner.hear(scene.progress(f"bare {name}", count * size), 10 * PATIENCE_S))


class _Try:
    """One configuration of the server, and its result."""

    def __init__(self, gateways: int, sent: Sent, cpu_us: float, rss_mb: float) -> None:
        self.gateways = gateways
        self.sent = sent
        self.cpu_us = cpu_us
        self.rss_mb = rss_mb

    def note(self) -> str:
        load_us = per_event_us(self.sent.cpu_s, self.sent.events)
        return (
            f"--gateways {self.gateways}: {self.sent.rate:,.0f}/s, {self.cpu_us:.1f} µs CPU an event"
            f" (the load generator: {load_us:.1f} µs)"
        )


def _choices(scene: Scene) -> list[int]:
    return [0, 1] if scene.gateways is None else [scene.gateways]


def _try(scene: Scene, gateways: int, count: int, size: int, connections: int, store: str = "") -> _Try:
    with BenchStage() as stage:
        server, port = stage.server(gateways=gateways, store=store)
        plan = load_plan(port, "queue:later", size, connections, due_from=now_ms() + HOUR_MS, due_span_ms=HOUR_MS)
        load = stage.load(_prepared(plan))
        send(load, max(count // _WARM_UP, 1), lambda done: None)
        before = server.usage()
        sent = send(load, count, scene.progress(f"{size} a request, {gateways} gateways", count * size))
        after = server.usage()
    return _Try(gateways, sent, per_event_us(after.cpu_s - before.cpu_s, sent.events), after.rss_bytes / 1e6)


def _prepared(plan: LoadPlan) -> LoadPlan:
    return replace(plan, prepared=_SINGLES_PREPARED) if plan.batch == 1 else plan


def _better(tries: list[_Try], goal: Goal, baselines: tuple[Baseline, ...]) -> Figure:
    best = max(tries, key=lambda a_try: a_try.sent.rate)
    notes = tuple(a_try.note() for a_try in tries)
    return Figure(goal, best.sent.rate, baselines, best.cpu_us, best.rss_mb, notes=notes)


def _bare_http(scene: Scene, kind: Literal["server", "protocol"], count: int) -> float:
    with BenchStage() as stage:
        partner = stage.partner("everbell.bench.bare_http", BareHttpPlan(kind))
        port = partner.hear()["port"]
        plan = load_plan(port, "queue:later", 1, _SINGLE_CONNECTIONS, due_from=now_ms(), due_span_ms=HOUR_MS)
        load = stage.load(_prepared(plan))
        sent = send(load, count, scene.progress(f"bare HTTP, {kind}", count))
    return sent.rate
