"""Many events in memory: their cost, their memory, and the refilling of a node that was killed and starts again."""

from __future__ import annotations

from time import perf_counter

from msgspec.structs import replace

from everbell.bench.delivery import received, started_receiver
from everbell.bench.dialogue import Partner
from everbell.bench.figures import Baseline, Figure, Lateness, per_event_us
from everbell.bench.goals import REPLICAS_COST, REPLICAS_MEMORY, REPLICAS_RESYNC, REPLICAS_RESYNC_LATE
from everbell.bench.plans import ReceiverOrder, Sent
from everbell.bench.scene import BATCH, HOUR_MS, Scene, batches, now_ms, rest, send
from everbell.bench.stage import BenchStage
from everbell.bench.trio import NAMES, Trio, schedule_by_first

_CONNECTIONS = 6
_KILLED = 2
_STAYS = 0
_CALM_S = 500
_CALM_LEAD_MS = 10_000
_CALM_BEFORE_MS = 3_000
_LOOK_S = 0.1
_NOWHERE = "http://127.0.0.1:1/bell"


def numbers(scene: Scene, log: str) -> list[Figure]:
    """Few events, then more, then a restart of one node, then many."""
    scale = scene.scale
    with BenchStage() as stage:
        trio = Trio(stage, log)
        plan = trio.load(_NOWHERE, BATCH, _CONNECTIONS, due_from=now_ms() + HOUR_MS, due_span_ms=HOUR_MS)
        load = stage.load(plan)
        _create(scene, trio, load, scale.replica_few)
        trio.settle()
        rss = trio.usage().rss_bytes
        few, few_us = _create(scene, trio, load, scale.replica_sample)
        held = scale.replica_few + few.events
        more, _ = _create(scene, trio, load, max(scale.replica_resync - held, BATCH))
        rest(scale.idle_s)
        grown = (trio.usage().rss_bytes - rss) / (few.events + more.events) / len(NAMES)
        resynced = _resync(scene, stage, trio, held + more.events)
        load = stage.load(replace(plan, port=trio.ports[0], more_ports=tuple(trio.ports[1:])))
        _create(scene, trio, load, max(scale.replica_many - held - more.events, BATCH))
        trio.settle()
        many, many_us = _create(scene, trio, load, scale.replica_sample)
    cost = REPLICAS_COST.titled(count=f"{scale.replica_many:,}")
    notes = (f"created at {few.rate:,.0f}/s with few events held, at {many.rate:,.0f}/s with many",)
    baseline = Baseline(f"with {scale.replica_few:,} events held", few_us)
    return [
        Figure(REPLICAS_MEMORY, grown, notes=(f"growth of {few.events + more.events:,} events on three nodes, RSS",)),
        *resynced,
        Figure(cost, many_us, (baseline,), notes=notes),
    ]


def _create(scene: Scene, trio: Trio, load: Partner, events: int) -> tuple[Sent, float]:
    """Create events; returns also the CPU time of all nodes for one."""
    count, size = batches(events)
    before = trio.usage()
    sent = send(load, count, scene.progress("creating", count * size))
    return sent, per_event_us(trio.usage().cpu_s - before.cpu_s, sent.events)


def _resync(scene: Scene, stage: BenchStage, trio: Trio, events: int) -> list[Figure]:
    """Kill a node, start it again, and wait until it holds all events again; others come due meanwhile."""
    receiver, port = started_receiver(stage, lateness=True)
    first_at = now_ms() + _CALM_LEAD_MS
    dues = [first_at + number * 1_000 // _CALM_S for number in range(_CALM_S * scene.scale.replica_calm_s)]
    schedule_by_first(trio, dues, lambda first, _: f"http://127.0.0.1:{port}/{_group(first)}")
    rest(max(first_at + _CALM_BEFORE_MS - now_ms(), 0) / 1_000)
    before = _lateness(scene, receiver)["/others"]
    killed_s = perf_counter()
    trio.nodes[_KILLED].kill()
    trio.restart(_KILLED)
    started_s = perf_counter()
    progress = scene.progress("refilling a node", events)
    while (held := trio.held(_KILLED)["held"]) < trio.held(_STAYS)["held"] - _CALM_S:
        progress(held)
        rest(_LOOK_S)
    seconds = perf_counter() - started_s
    came = _lateness(scene, receiver)
    meanwhile = came["/others"]
    notes = (
        f"ready {started_s - killed_s:.1f} s after the kill",
        f"peak memory of the refilled node {trio.nodes[_KILLED].usage().peak_bytes / 1e6:.0f} MB",
    )
    late_notes = (
        f"before: {_late(before)}",
        f"the events of which the restarted node is the first in line: {_late(came['/restarted'])}",
    )
    return [
        Figure(REPLICAS_RESYNC.titled(count=f"{events:,}"), seconds, notes=notes),
        Figure(
            REPLICAS_RESYNC_LATE,
            meanwhile.p99_ms,
            (Baseline("before", before.p99_ms),),
            lateness=meanwhile,
            notes=late_notes,
        ),
    ]


def _group(first: str) -> str:
    return "restarted" if first == NAMES[_KILLED] else "others"


def _lateness(scene: Scene, receiver: Partner) -> dict[str, Lateness]:
    """The lateness of the events that arrived since the last question, by path."""
    order = ReceiverOrder({"/others": 1, "/restarted": 1})
    came = received(receiver, order, scene, "other events")
    return {path: counted.lateness for path, counted in came.items() if counted.lateness is not None}


def _late(lateness: Lateness) -> str:
    return f"p50 {lateness.p50_ms:.1f}, p99 {lateness.p99_ms:.1f}, at most {lateness.max_ms:.1f} ms"
