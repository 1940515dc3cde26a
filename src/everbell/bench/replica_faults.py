"""One of three nodes is killed: how late its events are, and those of the others.

The events have ids of their own, so the measurement knows which node is the first in line for each, and gives each a
path by that node and by the time of the kill. The receiver counts by path.
"""

from __future__ import annotations

from everbell.bench.delivery import received, started_receiver
from everbell.bench.figures import Baseline, Figure, Lateness
from everbell.bench.goals import REPLICAS_KILLED
from everbell.bench.plans import Counted, ReceiverOrder
from everbell.bench.scene import Scene, now_ms, rest_until
from everbell.bench.stage import BenchStage
from everbell.bench.trio import NAMES, Trio, schedule_by_first
from everbell.core.replication import Replication

_VICTIM = 2
_BEFORE_MS = 3_000
_AFTER_MS = 9_000
_LEAD_MS = 4_000


def killed(scene: Scene, log: str) -> Figure:
    """The lateness of the latest event of the dead node."""
    with BenchStage() as stage:
        trio = Trio(stage, log)
        receiver, port = started_receiver(stage, lateness=True)
        events = scene.scale.replica_killed
        first_at = now_ms() + _LEAD_MS
        kill_at = first_at + _BEFORE_MS
        expected = schedule_by_first(
            trio,
            [first_at + number * (_BEFORE_MS + _AFTER_MS) // events for number in range(events)],
            lambda first, due_at: f"http://127.0.0.1:{port}/{first}/{'before' if due_at < kill_at else 'after'}",
        )
        is_ready = now_ms() < first_at
        rest_until(kill_at)
        trio.nodes[_VICTIM].kill()
        came = received(receiver, ReceiverOrder(expected), scene, "one of three nodes is dead")
    victim, others = f"/{NAMES[_VICTIM]}/after", [f"/{name}/after" for name in NAMES if name != NAMES[_VICTIM]]
    theirs = came[victim].lateness
    assert theirs is not None, "the events were received, so their lateness is known"
    skew_ms = Replication().skew_ms
    repeated = sum(counted.count - expected[path] for path, counted in came.items())
    notes: tuple[str, ...] = (
        f"of the dead node's {theirs.count:,} events, p50 {theirs.p50_ms:.0f} ms",
        f"the others' events meanwhile: {_worst(came, others)}",
        f"all events before: {_worst(came, [f'/{name}/before' for name in NAMES])}",
        f"{repeated} deliveries were repeated",
    )
    if not is_ready:
        notes += ("creating was slower than expected: some events were late for that reason",)
    baseline = Baseline("the skew", skew_ms)
    return Figure(REPLICAS_KILLED, theirs.max_ms, (baseline,), lateness=theirs, notes=notes)


def _worst(came: dict[str, Counted], paths: list[str]) -> str:
    """The latest p99 and the latest event of several paths."""
    seen: list[Lateness] = [late for path in paths if (late := came[path].lateness) is not None]
    return f"p99 {max(late.p99_ms for late in seen):.1f} ms, at most {max(late.max_ms for late in seen):.1f} ms"
