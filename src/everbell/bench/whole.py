"""The whole path: bulk in, stored, delivered to an async handler in process, finished; beside bare put and delete."""

from __future__ import annotations

import msgspec

from everbell.bench.dialogue import Partner
from everbell.bench.figures import Baseline, Figure, Goal, per_event_us
from everbell.bench.goals import WHOLE, WHOLE_HTTP
from everbell.bench.ingest import bare_rows
from everbell.bench.plans import Finished, ProgramOrder, ProgramPlan
from everbell.bench.scene import Scene, batches, load_plan, now_ms
from everbell.bench.stage import BenchStage
from everbell.bench.usage import usage_of

_CONNECTIONS = 4
# Divisor of the warm-up before the clock starts: a new program first has to read each of its partitions once.
_WARM_UP = 20


def whole(scene: Scene) -> list[Figure]:
    """Batches from the program itself, then batches over HTTP."""
    count, size = batches(scene.scale.whole)
    bare = bare_rows(scene, "RocksDB", count, size, finish=True)
    baseline = Baseline("bare RocksDB: put and delete, both synced", bare.rate)
    return [in_process(scene, WHOLE, count, size, baseline), _over_http(scene, count, size, baseline)]


def started_program(stage: BenchStage, store: str = "") -> tuple[Partner, int]:
    """A program with an engine, on RocksDB by default, and the port of its API."""
    store = store or f"rocksdb:{stage.directory() / 'data'}"
    program = stage.partner("everbell.bench.program", ProgramPlan(store))
    return program, program.hear()["port"]


def finished(program: Partner, scene: Scene, order: ProgramOrder, events: int) -> Finished:
    """Let the program carry out an order to its end."""
    program.tell(order)
    told = program.hear(scene.progress("delivering in process", events))
    return msgspec.convert(told, Finished)


def in_process(scene: Scene, goal: Goal, count: int, size: int, baseline: Baseline, store: str = "") -> Figure:
    """A program that schedules its own batches and handles them."""
    with BenchStage() as stage:
        program, _ = started_program(stage, store)
        warm_up = max(count // _WARM_UP, 1)
        finished(program, scene, ProgramOrder(batches=warm_up, size=size), warm_up * size)
        done = finished(program, scene, ProgramOrder(batches=count, size=size), count * size)
        return _figure(goal, done, program, baseline)


def _over_http(scene: Scene, count: int, size: int, baseline: Baseline) -> Figure:
    with BenchStage() as stage:
        program, port = started_program(stage)
        plan = load_plan(port, "handler:bench", size, _CONNECTIONS, due_from=now_ms())
        load = stage.load(plan)

        def carried_out(batches: int) -> Finished:
            program.tell(ProgramOrder(expect=batches * size))
            load.tell(batches)
            told = program.hear(scene.progress("in over HTTP, delivering in process", batches * size))
            load.hear()
            return msgspec.convert(told, Finished)

        carried_out(max(count // _WARM_UP, 1))
        return _figure(WHOLE_HTTP, carried_out(count), program, baseline)


def _figure(goal: Goal, done: Finished, program: Partner, baseline: Baseline) -> Figure:
    rate = done.events / done.seconds
    rss_mb = usage_of([program.pid]).rss_bytes / 1e6
    return Figure(goal, rate, (baseline,), per_event_us(done.cpu_s, done.events), rss_mb)
