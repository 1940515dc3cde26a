"""Many pending events: their memory, and the time to the first delivery after a crash."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from msgspec.structs import replace

from everbell.bench.delivery import received, started_receiver
from everbell.bench.figures import Figure
from everbell.bench.goals import MEMORY, RESTART
from everbell.bench.plans import ReceiverOrder
from everbell.bench.scene import HOUR_MS, Scene, batches, load_plan, now_ms, rest, rest_until, send
from everbell.bench.stage import BenchStage, Server
from everbell.clock import wall_ns

_LOADERS = 4
_LEAD_MS = 1_000


def pending(scene: Scene) -> list[Figure]:
    """Load a few events and measure, load many and measure, then kill the server and restart it."""
    few, many = scene.scale.pending_few, scene.scale.pending_many
    with BenchStage() as stage:
        directory = stage.directory()
        server, port = stage.server(directory, gateways=scene.few_gateways)
        count, size = batches(few)
        plan = load_plan(port, "queue:later", size, _LOADERS, due_from=now_ms() + HOUR_MS, due_span_ms=HOUR_MS)
        load = stage.load(plan)
        first = send(load, count, scene.progress("storing a few", few))
        with_few_mb = _idle_mb(server, scene)
        rest_count = max((many - few) // size, 1)
        second = send(load, rest_count, scene.progress("storing many", rest_count * size))
        loaded = server.usage()
        with_many_mb = _idle_mb(server, scene)
        events = first.events + second.events
        notes = (
            f"with {first.events:,} pending: {with_few_mb:.0f} MB",
            f"right after loading: {loaded.rss_bytes / 1e6:.0f} MB, peak {loaded.peak_bytes / 1e6:.0f} MB",
            f"taken in at {first.rate:,.0f}/s at first, at {second.rate:,.0f}/s up to {events:,} pending",
        )
        memory = Figure(MEMORY.titled(count=f"{events:,}"), with_many_mb, rss_mb=with_many_mb, notes=notes)
        return [memory, _restart(stage, scene, server, port, directory, events)]


def _idle_mb(server: Server, scene: Scene) -> float:
    rest(scene.scale.idle_s)
    return server.usage().rss_bytes / 1e6


def _restart(stage: BenchStage, scene: Scene, server: Server, port: int, directory: Path, events: int) -> Figure:
    """One event comes due while the server is dead; the figure is the time until its delivery."""
    receiver, receiver_port = started_receiver(stage, lateness=False)
    due = now_ms() + _LEAD_MS
    plan = load_plan(port, f"http://127.0.0.1:{receiver_port}/first", 1, 1, due_from=due)
    waiting = stage.load(replace(plan, prepared=1))
    send(waiting, 1, lambda done: None)
    server.kill()
    rest_until(due + _LEAD_MS)
    started_ns, started_s = wall_ns(), perf_counter()
    stage.server(directory, gateways=scene.few_gateways)
    ready_s = perf_counter() - started_s
    came = received(receiver, ReceiverOrder({"/first": 1}), scene, "waiting for the first delivery")["/first"]
    first_s = (came.first_ns - started_ns) / 1e9
    notes = (f"killed with -9, started again; ready for requests after {ready_s:.2f} s",)
    return Figure(RESTART.titled(count=f"{events:,}"), first_s, notes=notes)
