"""Taking events in: batches and single events over HTTP, durable when answered, beside bare RocksDB and bare HTTP."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from everbell.bench.figures import Baseline, Figure, Goal, per_event_us
from everbell.bench.goals import INGEST, SINGLE
from everbell.bench.plans import BareHttpPlan, LoadPlan, Sent, StorePlan
from everbell.bench.scene import HOUR_MS, PATIENCE_S, Scene, batches, load_plan, now_ms, send
from everbell.bench.stage import Stage

_BULK_CONNECTIONS = 4
_FAR_CONNECTIONS = 8
"""To a store in another process: while it writes one group, the next comes in, for which there have to be enough."""
_SINGLE_CONNECTIONS = 64
_SINGLES_PREPARED = 1_000
_WARM_UP = 20
"""The first part in so many is sent before the clock starts: imports and caches are not what is measured."""


def ingest(scene: Scene) -> list[Figure]:
    """Bulk requests of a thousand events."""
    count, size = batches(scene.scale.ingest)
    tries = [_try(scene, gateways, count, size, _BULK_CONNECTIONS) for gateways in _choices(scene)]
    with Stage() as stage:
        bare = bare_store(stage, scene, count, size, finish=False)
    return [_better(tries, INGEST, (Baseline("bare RocksDB, the same rows, synced", bare.rate),))]


def ingest_into(scene: Scene, goal: Goal, store: str, baselines: tuple[Baseline, ...], count: int, size: int) -> Figure:
    """The same into another store, by a server without gateways unless told otherwise."""
    return _better([_try(scene, scene.few_gateways, count, size, _FAR_CONNECTIONS, store)], goal, baselines)


def single(scene: Scene) -> list[Figure]:
    """A POST an event."""
    count = scene.scale.single
    tries = [_try(scene, gateways, count, 1, _SINGLE_CONNECTIONS) for gateways in _choices(scene)]
    bare = Baseline("our HTTP server with a constant answer", _bare_http(scene, "server", count))
    least = Baseline("a minimal uvloop + httptools protocol", _bare_http(scene, "protocol", count))
    return [_better(tries, SINGLE, (bare, least))]


def bare_store(stage: Stage, scene: Scene, count: int, size: int, *, finish: bool) -> Sent:
    """The same rows into bare RocksDB."""
    directory = stage.directory()
    partner = stage.partner("everbell.bench.bare_store", StorePlan(str(directory / "bare"), count, size, finish))
    return Sent(**partner.hear(10 * PATIENCE_S, scene.progress("bare RocksDB", count * size)))


class _Try:
    """One way of running the server, and what it brought."""

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
    with Stage() as stage:
        server, port = stage.server(gateways=gateways, store=store)
        plan = load_plan(port, "queue:later", size, connections, due_from=now_ms() + HOUR_MS, due_span_ms=HOUR_MS)
        load = stage.partner("everbell.bench.load", _prepared(plan))
        load.hear(PATIENCE_S)
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
    with Stage() as stage:
        partner = stage.partner("everbell.bench.bare_http", BareHttpPlan(kind))
        port = partner.hear(PATIENCE_S)["port"]
        plan = load_plan(port, "queue:later", 1, _SINGLE_CONNECTIONS, due_from=now_ms(), due_span_ms=HOUR_MS)
        load = stage.partner("everbell.bench.load", _prepared(plan))
        load.hear(PATIENCE_S)
        sent = send(load, count, scene.progress(f"bare HTTP, {kind}", count))
    return sent.rate
