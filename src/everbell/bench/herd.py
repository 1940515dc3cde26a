"""A herd: very many events of one tenant due in the same second, while another tenant continues as usual."""

from __future__ import annotations

from msgspec.structs import replace

from everbell.bench.delivery import due_after_loading, received, started_receiver
from everbell.bench.figures import Baseline, Figure, Lateness, per_event_us
from everbell.bench.goals import CALM, HERD
from everbell.bench.plans import LoadPlan, ReceiverOrder
from everbell.bench.scene import Scene, batches, load_plan, now_ms, rest_until, send
from everbell.bench.stage import BenchStage
from everbell.bench.usage import family_of, forget_peak

_LOADERS = 4
_CALM_A_SECOND = 200
_CALM_BEFORE_MS = 3_000
# A cautious estimate of the herd's delivery speed, which decides for how long the other tenant has events.
_DELIVERED_S = 20_000
_NS_A_MS = 1_000_000
_POLICIES = """\
[tenants.herd]
batch = 100
in_flight = 16
"""


def herd(scene: Scene) -> list[Figure]:
    """The other tenant's events arrive by single POSTs, 200 a second, before the herd and during it."""
    count, size = batches(scene.scale.herd)
    events = count * size
    with BenchStage() as stage:
        crowded, crowded_port = started_receiver(stage, lateness=False)
        receiver, receiver_port = started_receiver(stage, lateness=True)
        server, port = stage.server(gateways=scene.few_gateways, config=_POLICIES)
        url = f"http://127.0.0.1:{receiver_port}"
        due = due_after_loading(events) + _CALM_BEFORE_MS + 2_000
        to = f"http://127.0.0.1:{crowded_port}/herd"
        plan = load_plan(port, to, size, _LOADERS, tenant="herd", due_from=due, due_span_ms=1_000)
        load = stage.load(replace(plan, prepared=8))
        send(load, count, scene.progress("storing the herd", events))
        before_from = max(due - _CALM_BEFORE_MS, 0)
        before_count = _schedule_calm(stage, port, f"{url}/before", before_from, _CALM_BEFORE_MS)
        meanwhile_ms = 1_000 + events * 1_000 // _DELIVERED_S
        _schedule_calm(stage, port, f"{url}/meanwhile", due, meanwhile_ms)
        spare_ms = due - now_ms()
        rest_until(due)
        forget_peak(family_of(server.process.pid))
        used = server.usage()
        came = received(crowded, ReceiverOrder({"/herd": events}), scene, "delivering the herd")["/herd"]
        after = server.usage()
        calm = received(receiver, ReceiverOrder({"/before": before_count}, came.last_ns), scene, "the other tenant")
    seconds = max((came.last_ns / _NS_A_MS - due) / 1_000, 1e-3)
    before, meanwhile = calm["/before"].lateness, calm["/meanwhile"].lateness
    assert before is not None, "the other tenant's events were received, so their lateness is known"
    assert meanwhile is not None, "the other tenant had events during the herd"
    notes: tuple[str, ...] = (
        f"all {came.count:,} delivered {seconds:.1f} s after the second began",
        f"peak memory {after.peak_bytes / 1e6:.0f} MB",
    )
    if spare_ms < _CALM_BEFORE_MS:
        notes += ("storing was slower than expected: the other tenant's events were not all stored in time",)
    goal = HERD.titled(count=f"{events:,}")
    cpu_us = per_event_us(after.cpu_s - used.cpu_s, events)
    return [
        Figure(goal, events / seconds, (), cpu_us, after.peak_bytes / 1e6, notes=notes),
        _calm_figure(before, meanwhile),
    ]


def _calm_figure(before: Lateness, meanwhile: Lateness) -> Figure:
    notes = (f"without the herd: p50 {before.p50_ms:.1f}, p99 {before.p99_ms:.1f}, max {before.max_ms:.1f} ms",)
    baseline = Baseline("the same tenant's p99 before the herd", before.p99_ms)
    return Figure(CALM, meanwhile.p99_ms, (baseline,), lateness=meanwhile, notes=notes)


def _schedule_calm(stage: BenchStage, port: int, to: str, due_from: int, span_ms: int) -> int:
    count = max(span_ms * _CALM_A_SECOND // 1_000, 1)
    plan: LoadPlan = load_plan(port, to, count, 1, tenant="calm", due_from=due_from, due_span_ms=span_ms)
    load = stage.load(replace(plan, in_order=True, prepared=1))
    send(load, 1, lambda done: None)
    return count
