"""A million events in, then a million out, with each available store: the run that BigBen's makers published.

They had four machines of 8 cores and twelve of Cassandra: 52 s to take in a million events of 500 bytes, and 60 s to
deliver them. Here everything runs on one machine.
"""

from __future__ import annotations

from msgspec.structs import replace

from everbell.bench.cassandra import cassandra_stores
from everbell.bench.figures import Figure, per_event_us
from everbell.bench.goals import MILLION_IN, MILLION_OUT
from everbell.bench.plans import ProgramOrder
from everbell.bench.postgres import postgres_stores
from everbell.bench.scene import Scene, batches, load_plan, now_ms, rest_until, send
from everbell.bench.stage import BenchStage
from everbell.bench.usage import usage_of
from everbell.bench.whole import finished, started_program

_CONNECTIONS = 4
_PAYLOAD_BYTES = 500
_AHEAD_MS = 5_000
# A cautious estimate of each store's ingest in events a second: the events are due when all should be stored.
_EXPECTED_S = {"RocksDB": 60_000, "PostgreSQL": 30_000, "Cassandra": 3_000}


def million(scene: Scene) -> list[Figure]:
    """In over HTTP, a thousand a request; due at one time; out to a handler."""
    figures = _with("RocksDB", scene, "")
    for name, places, store in (
        ("PostgreSQL", scene.postgres, postgres_stores),
        ("Cassandra", scene.cassandra, cassandra_stores),
    ):
        if places is not None:
            with store(scene) as url:
                figures += _with(name, scene, url("million"))
    return figures


def _with(name: str, scene: Scene, store: str) -> list[Figure]:
    count, size = batches(scene.scale.million)
    events = count * size
    due = now_ms() + _AHEAD_MS + events * 1_000 // _EXPECTED_S[name]
    with BenchStage() as stage:
        program, port = started_program(stage, store)
        plan = load_plan(port, "handler:bench", size, _CONNECTIONS, due_from=due)
        load = stage.load(replace(plan, prepared=8, payload_bytes=_PAYLOAD_BYTES))
        sent = send(load, count, scene.progress(f"{name}: storing", events))
        in_time = now_ms() < due
        rest_until(due)
        done = finished(program, scene, ProgramOrder(expect=events), events)
        rss_mb = usage_of([program.pid]).rss_bytes / 1e6
    titles = {"store": name, "count": f"{events:,}"}
    taken_in, given_out = (goal.titled(**titles) for goal in (MILLION_IN, MILLION_OUT))
    notes = () if in_time else ("storing was slower than expected: part of it was delivered meanwhile",)
    cpu_us = per_event_us(done.cpu_s, events)
    return [Figure(taken_in, sent.seconds), Figure(given_out, done.seconds, (), cpu_us, rss_mb, notes=notes)]
