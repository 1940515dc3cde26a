"""Events without a database, on three nodes that share the machine with the load generator and the receiver.

The bare work beside bulk creates: a loop that sends the same bytes to three processes and waits for two of them.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from everbell.bench.delivery import received, started_receiver
from everbell.bench.dialogue import BenchFailed, Partner
from everbell.bench.figures import Baseline, Figure, Lateness, per_event_us
from everbell.bench.goals import REPLICAS_BULK, REPLICAS_LATE, REPLICAS_SINGLE
from everbell.bench.plans import Paced, PacePlan, ReceiverOrder
from everbell.bench.postgres import postgres_stores
from everbell.bench.replica_faults import killed
from everbell.bench.replica_numbers import numbers
from everbell.bench.scene import HOUR_MS, TENANT, Scene, batches, now_ms, rest_until, send
from everbell.bench.stage import BenchStage
from everbell.bench.trio import Trio, started_bare_holders

_CONNECTIONS = 6
_WARM_UP = 20
_SINGLES_S = 1_000
_SINGLE_CONNECTIONS = 48
_DUE_S = 2_000
_BUILD_MS = 2_000
_LOAD_S = 8_000
"""A cautious estimate, so that events are held before they are due."""
_NOWHERE = "http://127.0.0.1:1/bell"


def replicas(scene: Scene) -> list[Figure]:
    """Short measurements on a cluster for each; then those with many events, on one."""
    with postgres_stores(scene) as log:
        url = log("replicas")
        return [
            *_on_new_nodes(scene, url, "1"),
            killed(scene, url + "2"),
            *numbers(scene, url + "3"),
        ]


def _on_new_nodes(scene: Scene, url: str, suffix: str) -> list[Figure]:
    with BenchStage() as stage:
        trio = Trio(stage, url + suffix)
        late = _late(scene, stage, trio)
        single = _single(scene, stage, trio)
        bulk = _bulk(scene, stage, trio)
    return [bulk, single, late]


def _bulk(scene: Scene, stage: BenchStage, trio: Trio) -> Figure:
    count, size = batches(scene.scale.replicas)
    plan = trio.load(_NOWHERE, size, _CONNECTIONS, due_from=now_ms() + HOUR_MS, due_span_ms=HOUR_MS)
    load = stage.load(plan)
    send(load, max(count // _WARM_UP, 1), lambda done: None)
    before = trio.usage()
    sent = send(load, count, scene.progress("creating", count * size))
    after = trio.usage()
    baselines = (
        Baseline("the same bytes to three processes, waiting for two", _bare(scene, count, size, reads=False)),
        Baseline("the same, and each process reads the events", _bare(scene, count, size, reads=True)),
    )
    cpu_us = per_event_us(after.cpu_s - before.cpu_s, sent.events)
    load_us = per_event_us(sent.cpu_s, sent.events)
    notes = (f"CPU time is of all three nodes; the load generator took {load_us:.1f} µs an event",)
    return Figure(REPLICAS_BULK, sent.rate, baselines, cpu_us, after.rss_bytes / 1e6, notes=notes)


def _bare(scene: Scene, count: int, size: int, *, reads: bool) -> float:
    with BenchStage() as stage:
        loop = started_bare_holders(stage, size, reads=reads)
        return send(loop, count, scene.progress("bare holders", count * size)).rate


def _single(scene: Scene, stage: BenchStage, trio: Trio) -> Figure:
    count = scene.scale.replica_singles
    ahead = now_ms() + HOUR_MS
    path = f"/v1/tenants/{TENANT}/events"
    plan = PacePlan(tuple(trio.ports), path, _NOWHERE, _SINGLE_CONNECTIONS, _SINGLES_S, ahead, HOUR_MS)
    pace = stage.partner("everbell.bench.pace", plan)
    pace.hear()
    _paced(scene, pace, _SINGLES_S)  # One second to warm up.
    before = trio.usage()
    took = _paced(scene, pace, count)
    after = trio.usage()
    cpu_us = per_event_us(after.cpu_s - before.cpu_s, count)
    return Figure(REPLICAS_SINGLE, took.p99_ms, cpu_us=cpu_us, lateness=took)


def _paced(scene: Scene, pace: Partner, count: int) -> Lateness:
    """How long after their times the answers came."""
    pace.tell(count)
    paced = msgspec.convert(pace.hear(scene.progress("single creates", count)), Paced)
    if paced.failed:
        raise BenchFailed(f"{paced.failed} creates failed: {paced.first_failure}")
    return paced.took


def _late(scene: Scene, stage: BenchStage, trio: Trio) -> Figure:
    count, size = batches(scene.scale.replica_late)
    events = count * size
    receiver, port = started_receiver(stage, lateness=True)
    due_from = now_ms() + _BUILD_MS + 2_000 + events * 1_000 // _LOAD_S
    span_ms = max(events * 1_000 // _DUE_S, 1)
    to = f"http://127.0.0.1:{port}/bell"
    plan = trio.load(to, size, _CONNECTIONS, due_from=due_from, due_span_ms=span_ms)
    load = stage.load(replace(plan, in_order=True, prepared=count))
    send(load, count, scene.progress("creating", events))
    notes: tuple[str, ...] = ()
    if now_ms() > due_from:
        notes = ("creating was slower than expected: some events were late for that reason",)
    rest_until(due_from)
    before = trio.usage()
    came = received(receiver, ReceiverOrder({"/bell": events}), scene, "delivering")["/bell"]
    after = trio.usage()
    if came.lateness is None:
        raise BenchFailed("no event with a known lateness arrived")
    if came.count > events:
        notes += (f"{came.count - events} deliveries were repeated",)
    cpu_us = per_event_us(after.cpu_s - before.cpu_s, events)
    return Figure(REPLICAS_LATE, came.lateness.p99_ms, cpu_us=cpu_us, lateness=came.lateness, notes=notes)
