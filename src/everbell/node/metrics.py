"""The metrics of the engine, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from everbell.cluster.cluster import Cluster
from everbell.core.exposition import labelled, metric
from everbell.core.health import DiskHealth
from everbell.core.pause import What
from everbell.engine.engine import Engine
from everbell.engine.tally import CANCELLED, DEAD, DELIVERED, EXPIRED, RETRIED, SCHEDULED
from everbell.node.attempt_metrics import render_attempts
from everbell.node.cluster_metrics import render_cluster

# Only the tenants with the most events have metrics of their own: a series for each tenant would be too many.
_TENANTS_MAX = 100
_COUNTERS = {
    "scheduled": SCHEDULED,
    "delivered": DELIVERED,
    "retried": RETRIED,
    "dead": DEAD,
    "expired": EXPIRED,
    "cancelled": CANCELLED,
}


def render_disk(disk: DiskHealth | None) -> list[str]:
    """The disk of an embedded store; nothing for a store on a server."""
    if disk is None:
        return []
    return [
        *metric("everbell_disk_free_bytes", "gauge", "Free space where the store is.", disk.free_bytes),
        *metric(
            "everbell_disk_reserve_bytes", "gauge", "Free space below which new events are refused.", disk.reserve_bytes
        ),
    ]


def render(engine: Engine, cluster: Cluster | None = None, more: Sequence[str] = ()) -> str:
    """All metrics of one engine and of its place in the cluster, and `more` metrics of other components."""
    meter = engine.meter
    lines: list[str] = []
    total = meter.tallies.total()
    for name, counter in _COUNTERS.items():
        lines += metric(f"everbell_{name}_total", "counter", f"Events {name} since the start.", total[counter])
    for name, meaning, counts in (
        ("missed", "should have rung and did not", meter.missed),
        ("skipped", "were not to ring", meter.skipped),
    ):
        lines += labelled(
            f"everbell_{name}_occurrences_total",
            "counter",
            f"Occurrences of recurring events that {meaning}, by reason, since the start.",
            "reason",
            counts,
        )
    most = sorted(engine.observer.history.counts.items(), key=lambda item: -item[1].pending)[:_TENANTS_MAX]
    for name, meaning in (("pending", "neither finished nor dead"), ("dead", "dead")):
        lines += labelled(
            f"everbell_{name}_events",
            "gauge",
            f"Events that are {meaning}, by tenant, in the whole store.",
            "tenant",
            {tenant: getattr(of_tenant, name) for tenant, of_tenant in sorted(most)},
        )
    budget = engine.memory.budget
    lines += metric("everbell_in_flight", "gauge", "Attempts under way.", engine.dispatcher.in_flight)
    lines += metric("everbell_in_memory_events", "gauge", "Events in memory.", len(engine.memory.entries))
    used = budget.total_bytes - budget.free_bytes
    lines += metric("everbell_in_memory_bytes", "gauge", "What events in memory are counted as.", used)
    lines += metric(
        "everbell_starved_flows", "gauge", "Targets with due events left in the store.", len(engine.memory.starved)
    )
    broken = sum(flow.breaker is not None and flow.breaker.state != "closed" for flow in engine.memory.flows.all())
    lines += metric(
        "everbell_breakers_open", "gauge", "Targets that failed so often that they are only probed.", broken
    )
    paused = Counter(pause.what for pause in engine.pauses.on)
    lines += labelled(
        "everbell_pauses",
        "gauge",
        "Tenants, keys, targets and queues that are paused.",
        "what",
        {what: paused[what] for what in get_args(What)},
    )
    ended = sum(engine.kills.ended.values())
    lines += metric("everbell_killed_events", "gauge", "Events that the kills in force have ended here.", ended)
    late_s = engine.overdue_ms() / 1_000
    lines += metric("everbell_oldest_overdue_seconds", "gauge", "How long the oldest due event has waited.", late_s)
    stalled = engine.stalls.look() is not None
    help_text = "Whether events are due and could start, but none has started for ten seconds."
    lines += metric("everbell_stalled", "gauge", help_text, stalled)
    highest = max(engine.epochs.values(), default=0)
    lines += metric("everbell_epoch", "gauge", "The highest epoch of the partitions that are owned here.", highest)
    lines += render_attempts(engine)
    if cluster is not None:
        lines += render_cluster(cluster)
    lines += more
    return "\n".join(lines) + "\n"
