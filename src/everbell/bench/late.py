"""Lateness at 10,000 due events a second, by the receiver's clock: a handler in process, a receiver over HTTP.

The figure of a bare timer, measured right before, shows how much of it a shared machine adds.

Over HTTP the same rate begins half a second before: a hundred connections to the receiver are made then, and the
lateness of that time is reported separately.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from everbell.bench.delivery import due_after_loading, received, started_receiver
from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Baseline, Figure, Goal, Lateness, per_event_us
from everbell.bench.goals import LATE_HANDLER, LATE_HTTP
from everbell.bench.plans import LoadPlan, ProgramOrder, ReceiverOrder, TimersPlan
from everbell.bench.scene import Scene, batches, load_plan, rest_until, send
from everbell.bench.stage import BenchStage
from everbell.bench.usage import usage_of
from everbell.bench.whole import finished, started_program

_RATE_S = 10_000
_LOADERS = 4
_BUILD_MS = 3_000
_BARE_MS = 5_000
_WARM_UP_MS = 500


def late(scene: Scene) -> list[Figure]:
    """All events are scheduled ahead, evenly spread, ten to each millisecond."""
    return [_in_process(scene), _over_http(scene)]


def _in_process(scene: Scene) -> Figure:
    count, size = batches(scene.scale.late)
    bare = _bare(scene)
    with BenchStage() as stage:
        program, port = started_program(stage)
        plan = _plan(port, "handler:bench", count, size)
        load = stage.load(plan)
        send(load, count, scene.progress("storing", count * size))
        rest_until(plan.due_from)
        before = usage_of([program.pid])
        done = finished(program, scene, ProgramOrder(expect=count * size), count * size)
        after = usage_of([program.pid])
    cpu_us = per_event_us(after.cpu_s - before.cpu_s, count * size)
    return _figure(LATE_HANDLER, done.lateness, bare, cpu_us, after.rss_bytes)


def _over_http(scene: Scene) -> Figure:
    count, size = batches(scene.scale.late)
    events = count * size
    bare = _bare(scene)
    with BenchStage() as stage:
        receiver, receiver_port = started_receiver(stage, lateness=True)
        server, port = stage.server(gateways=scene.few_gateways)
        plan = _plan(port, f"http://127.0.0.1:{receiver_port}/bell", count, size)
        few, few_size = batches(min(_RATE_S * _WARM_UP_MS // 1_000, events))
        first = replace(
            _plan(port, f"http://127.0.0.1:{receiver_port}/first", few, few_size),
            due_from=plan.due_from - few * few_size * 1_000 // _RATE_S,
        )
        for loaded, requests in ((first, few), (plan, count)):
            load = stage.load(loaded)
            send(load, requests, scene.progress("storing", requests * loaded.batch))
        rest_until(plan.due_from)
        before = server.usage()
        came = received(receiver, ReceiverOrder({"/bell": events}), scene, "delivering over HTTP")
        after = server.usage()
    cpu_us = per_event_us(after.cpu_s - before.cpu_s, events)
    figure = _figure(LATE_HTTP, came["/bell"].lateness, bare, cpu_us, after.rss_bytes)
    return replace(figure, notes=(*figure.notes, *_notes_of(came["/first"].lateness)))


def _bare(scene: Scene) -> Lateness:
    milliseconds = min(_BARE_MS, scene.scale.late)
    with BenchStage() as stage:
        timers = stage.partner("everbell.bench.bare_timers", TimersPlan(milliseconds))
        return msgspec.convert(timers.hear(scene.progress("bare timers", milliseconds)), Lateness)


def _plan(port: int, to: str, count: int, size: int) -> LoadPlan:
    events = count * size
    due_from = due_after_loading(events) + _BUILD_MS
    plan = load_plan(port, to, size, _LOADERS, due_from=due_from, due_span_ms=max(events * 1_000 // _RATE_S, 1))
    return replace(plan, in_order=True, prepared=count)


def _figure(goal: Goal, lateness: Lateness | None, bare: Lateness, cpu_us: float, rss_bytes: int) -> Figure:
    if lateness is None:
        raise BenchFailed("no event with a known lateness arrived")
    notes = (
        f"{lateness.count:,} events, {_earliness(lateness)}",
        f"bare timers: p50 {bare.p50_ms:.2f} ms, at most {bare.max_ms:.1f} ms",
    )
    baseline = Baseline("p99 of a bare timer for each millisecond", bare.p99_ms)
    return Figure(goal, lateness.p99_ms, (baseline,), cpu_us, rss_bytes / 1e6, lateness, notes)


def _notes_of(first: Lateness | None) -> tuple[str, ...]:
    if first is None:
        return ()
    times = f"p50 {first.p50_ms:.2f} ms, p99 {first.p99_ms:.2f} ms, at most {first.max_ms:.1f} ms"
    return (f"the {first.count:,} before them, while connections were made: {times}, {_earliness(first)}",)


def _earliness(lateness: Lateness) -> str:
    return "none was early" if lateness.earliest_ms >= 0 else f"ONE WAS EARLY by {-lateness.earliest_ms:.3f} ms"
