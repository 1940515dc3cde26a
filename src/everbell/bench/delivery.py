"""Delivery to pulling workers, and over HTTP one event and a hundred events at a time.

All events of a round are stored before the first is due, so the figures cover reading, delivering and finishing.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from everbell.bench.dialogue import BenchFailed, Partner
from everbell.bench.figures import Baseline, Figure, Goal, per_event_us
from everbell.bench.goals import PULL, PUSH, PUSH_BATCH
from everbell.bench.plans import Counted, LoadPlan, PullPlan, ReceiverOrder, ReceiverPlan, Sent
from everbell.bench.scene import TENANT, Scene, batches, load_plan, now_ms, rest_until, send
from everbell.bench.stage import BenchStage

_LOADERS = 4
_WORKERS = 4
_LEASE_EVENTS = 500
_BARE_CONNECTIONS = 64
_LOAD_EVENTS_S = 25_000  # A cautious estimate of ingest speed, so that events are stored before they are due.
_NS_A_MS = 1_000_000
_POLICIES = """\
[defaults]
batch = {batch}
in_flight = {in_flight}
"""


def pull(scene: Scene) -> list[Figure]:
    """Workers that lease 500 events and acknowledge them, over HTTP."""
    count, size = batches(scene.scale.pull)
    with BenchStage() as stage:
        server, port = stage.server(gateways=scene.few_gateways)
        load = stage.load(load_plan(port, "queue:work", size, _LOADERS, due_from=now_ms()))
        events = send(load, count, scene.progress("storing", count * size)).events
        path = f"/v1/tenants/{TENANT}/queues/work"
        workers = stage.partner("everbell.bench.pull", PullPlan("127.0.0.1", port, path, _WORKERS, _LEASE_EVENTS))
        workers.hear()
        before = server.usage()
        done = send(workers, events, scene.progress("pulling", events))
        after = server.usage()
    if done.events < events:
        raise BenchFailed(f"only {done.events} of {events} events were pulled")
    cpu_us = per_event_us(after.cpu_s - before.cpu_s, events)
    return [Figure(PULL, done.rate, cpu_us=cpu_us, rss_mb=after.rss_bytes / 1e6)]


def push(scene: Scene) -> list[Figure]:
    """POSTs to a receiver on loopback: one event each, then a hundred each."""
    return [
        _push(scene, PUSH, scene.scale.push, batch=1, in_flight=128),
        _push(scene, PUSH_BATCH, scene.scale.push_batch, batch=100, in_flight=32),
    ]


def started_receiver(stage: BenchStage, *, lateness: bool) -> tuple[Partner, int]:
    receiver = stage.partner("everbell.bench.receiver", ReceiverPlan(lateness))
    return receiver, receiver.hear()["port"]


def received(receiver: Partner, order: ReceiverOrder, scene: Scene, what: str) -> dict[str, Counted]:
    """Wait for the expected events; returns all arrivals by path."""
    receiver.tell(order)
    told = receiver.hear(scene.progress(what, sum(order.expect.values())))
    return msgspec.convert(told, dict[str, Counted])


def due_after_loading(events: int) -> int:
    """An instant at which `events` events will have been stored."""
    return now_ms() + 3_000 + events * 1_000 // _LOAD_EVENTS_S


def _push(scene: Scene, goal: Goal, wanted: int, *, batch: int, in_flight: int) -> Figure:
    count, size = batches(wanted)
    events = count * size
    with BenchStage() as stage:
        receiver, receiver_port = started_receiver(stage, lateness=False)
        server, port = stage.server(
            gateways=scene.few_gateways, config=_POLICIES.format(batch=batch, in_flight=in_flight)
        )
        due = due_after_loading(events)
        plan = load_plan(port, f"http://127.0.0.1:{receiver_port}/bell", size, _LOADERS, due_from=due)
        load = stage.load(replace(plan, prepared=4))
        send(load, count, scene.progress("storing", events))
        started_at = max(due, now_ms())
        rest_until(due)
        before = server.usage()
        came = received(receiver, ReceiverOrder({"/bell": events}), scene, f"delivering, {batch} a POST")["/bell"]
        after = server.usage()
    rate = events / max((came.last_ns / _NS_A_MS - started_at) / 1_000, 1e-3)
    notes = () if started_at == due else ("storing was slower than expected: part of it was delivered meanwhile",)
    cpu_us = per_event_us(after.cpu_s - before.cpu_s, events)
    baseline = Baseline(f"a bare client, {batch} a POST, same receiver", _bare_rate(scene, wanted, batch))
    return Figure(goal, rate, (baseline,), cpu_us, after.rss_bytes / 1e6, notes=notes)


def _bare_rate(scene: Scene, events: int, batch: int) -> float:
    with BenchStage() as stage:
        _, port = started_receiver(stage, lateness=False)
        plan = LoadPlan("127.0.0.1", port, "/bare", "", batch, _BARE_CONNECTIONS, 0, 1, as_delivery=True)
        load = stage.load(plan)
        sent: Sent = send(load, max(events // batch, 1), scene.progress(f"a bare client, {batch} a POST", events))
    return sent.rate
