"""Metrics of queues and attempts, by tenant and queue.

The number of series is bounded: only the busiest queues have series of their own. The other targets of a tenant share
one series, with an empty queue, and so do the tenants that have no tally of their own, with an empty tenant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import nlargest

from everbell.core.exposition import histogram, metric, of_queues
from everbell.engine.engine import Engine
from everbell.engine.observer import QUEUE
from everbell.engine.tally import BOUNDS_MS, DURATIONS, LATE_MS, LATENESS, SIZE, TOOK_MS

QUEUES_MAX = 50
TENANTS_MAX = 50


def render_attempts(engines: Sequence[Engine]) -> list[str]:
    """The histograms of lateness and duration, and the gauges of queues, of all engines of a node."""
    rows = _rows(engines)
    bounds_s = [bound_ms / 1_000 for bound_ms in BOUNDS_MS]
    lines: list[str] = []
    for name, help, first, end, sum_ms in (
        ("lateness", "How late first attempts began.", LATENESS, DURATIONS, LATE_MS),
        ("attempt", "How long attempts took.", DURATIONS, SIZE, TOOK_MS),
    ):
        samples = {queue: (row[first:end], row[sum_ms] / 1_000) for queue, row in rows.items()}
        lines += histogram(f"everbell_{name}_seconds", help, bounds_s, samples)
    return lines + _of_queues(engines)


def _rows(engines: Sequence[Engine]) -> dict[tuple[str, str], list[int]]:
    """The counters of the busiest tenants and queues, and of the rest of each."""
    tallies = [each for engine in engines for each in engine.meter.tallies.items()]
    own = [(tenant, group, tally) for tenant, group, tally in tallies if group.startswith(QUEUE)]
    busiest = nlargest(QUEUES_MAX, own, key=lambda each: sum(each[2].counts[DURATIONS:]))
    queues = {(tenant, group) for tenant, group, _ in busiest}
    by_tenant: defaultdict[str, int] = defaultdict(int)
    for tenant, _, tally in tallies:
        by_tenant[tenant] += sum(tally.counts[DURATIONS:])
    tenants = set(nlargest(TENANTS_MAX, by_tenant, key=by_tenant.__getitem__))
    rows: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * SIZE)
    for tenant, group, tally in tallies:
        shown = (tenant, group.removeprefix(QUEUE)) if (tenant, group) in queues else (tenant, "")
        row = rows[shown if tenant in tenants else ("", "")]
        for index, count in enumerate(tally.counts):
            row[index] += count
    return dict(sorted(rows.items()))


def _of_queues(engines: Sequence[Engine]) -> list[str]:
    waiting: defaultdict[tuple[str, str], float] = defaultdict(float)
    oldest: defaultdict[tuple[str, str], float] = defaultdict(float)
    flows = [(engine.observer, flow) for engine in engines for flow in engine.memory.flows.all()]
    for observer, flow in flows:
        if flow.group.startswith(QUEUE):
            queue = (flow.tenant.name, flow.group.removeprefix(QUEUE))
            count, oldest_ms = observer.waiting_of(flow)
            waiting[queue] += count
            oldest[queue] = max(oldest[queue], (oldest_ms or 0) / 1_000)
    most = sorted(nlargest(QUEUES_MAX, waiting, key=waiting.__getitem__))
    return [
        *metric(
            "everbell_queues_without_worker",
            "gauge",
            "Queues with due events for which no worker has called for a minute.",
            len({queue for engine in engines for queue in engine.observer.stalled()}),
        ),
        *of_queues(
            "everbell_queue_waiting_events",
            "Due events in memory that wait for a worker, of the longest queues.",
            {queue: waiting[queue] for queue in most},
        ),
        *of_queues(
            "everbell_queue_oldest_wait_seconds",
            "How long the oldest event of the queue has been due.",
            {queue: oldest[queue] for queue in most},
        ),
    ]
