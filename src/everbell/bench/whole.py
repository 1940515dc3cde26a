"""The whole path: bulk in, stored, delivered to an async handler in process, finished; beside bare put and delete."""

from __future__ import annotations

import msgspec

from everbell.bench.dialogue import Partner
from everbell.bench.figures import Baseline, Figure, Goal, per_event_us
from everbell.bench.goals import WHOLE, WHOLE_HTTP
from everbell.bench.ingest import bare_store
from everbell.bench.plans import Finished, ProgramOrder, ProgramPlan
from everbell.bench.scene import PATIENCE_S, Scene, batches, load_plan, now_ms
from everbell.bench.stage import Stage
from everbell.bench.usage import usage_of

_CONNECTIONS = 4
_WARM_UP = 20
"""One part in so many goes the whole path before the clock starts: a program that has just been started has to read
each of its partitions once, and what came in before that with it."""


def whole(scene: Scene) -> list[Figure]:
    """Batches that come from the program itself, then batches over HTTP."""
    count, size = batches(scene.scale.whole)
    with Stage() as stage:
        bare = bare_store(stage, scene, count, size, finish=True)
    baseline = Baseline("bare RocksDB: put and delete, both synced", bare.rate)
    return [in_process(scene, WHOLE, count, size, baseline), _over_http(scene, count, size, baseline)]


def started_program(stage: Stage, store: str = "") -> tuple[Partner, int]:
    """A program with an engine in it, on RocksDB unless told otherwise, and the port of its API."""
    store = store or f"rocksdb:{stage.directory() / 'data'}"
    program = stage.partner("everbell.bench.program", ProgramPlan(store))
    return program, program.hear(PATIENCE_S)["port"]


def finished(program: Partner, scene: Scene, order: ProgramOrder, events: int) -> Finished:
    """Let the program carry out an order to its end."""
    program.tell(order)
    told = program.hear(PATIENCE_S, scene.progress("delivering in process", events))
    return msgspec.convert(told, Finished)


def in_process(scene: Scene, goal: Goal, count: int, size: int, baseline: Baseline, store: str = "") -> Figure:
    """A program that takes in batches of its own and handles them."""
    with Stage() as stage:
        program, _ = started_program(stage, store)
        warm_up = max(count // _WARM_UP, 1)
        finished(program, scene, ProgramOrder(batches=warm_up, size=size), warm_up * size)
        done = finished(program, scene, ProgramOrder(batches=count, size=size), count * size)
        return _figure(goal, done, program, baseline)


def _over_http(scene: Scene, count: int, size: int, baseline: Baseline) -> Figure:
    with Stage() as stage:
        program, port = started_program(stage)
        plan = load_plan(port, "handler:bench", size, _CONNECTIONS, due_from=now_ms())
        load = stage.partner("everbell.bench.load", plan)
        load.hear(PATIENCE_S)

        def carried_out(batches: int) -> Finished:
            program.tell(ProgramOrder(expect=batches * size))
            load.tell(batches)
            told = program.hear(PATIENCE_S, scene.progress("in over HTTP, delivering in process", batches * size))
            load.hear(PATIENCE_S)
            return msgspec.convert(told, Finished)

        carried_out(max(count // _WARM_UP, 1))
        return _figure(WHOLE_HTTP, carried_out(count), program, baseline)


def _figure(goal: Goal, done: Finished, program: Partner, baseline: Baseline) -> Figure:
    rate = done.events / done.seconds
    rss_mb = usage_of([program.pid]).rss_bytes / 1e6
    return Figure(goal, rate, (baseline,), per_event_us(done.cpu_s, done.events), rss_mb)
