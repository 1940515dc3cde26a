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
from everbell.node.replica_metrics import render_replicas

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
    """All metrics of one node and of its place in the cluster, and `more` metrics of other components."""
    replicas = None if cluster is None else cluster.replicas
    engines = (engine,) if replicas is None else (engine, replicas.engine)
    lines: list[str] = []
    total = [sum(column) for column in zip(*(each.meter.tallies.total() for each in engines), strict=True)]
    for name, counter in _COUNTERS.items():
        lines += metric(f"everbell_{name}_total", "counter", f"Events {name} since the start.", total[counter])
    for name, meaning, counts in (
        ("missed", "should have rung and did not", [each.meter.missed for each in engines]),
        ("skipped", "were not to ring", [each.meter.skipped for each in engines]),
    ):
        lines += labelled(
            f"everbell_{name}_occurrences_total",
            "counter",
            f"Occurrences of recurring events that {meaning}, by reason, since the start.",
            "reason",
            {reason: sum(each[reason] for each in counts) for reason in counts[0]},
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
    in_flight = sum(each.dispatcher.in_flight for each in engines)
    lines += metric("everbell_in_flight", "gauge", "Attempts under way.", in_flight)
    entries = sum(len(each.memory.entries) for each in engines)
    lines += metric("everbell_in_memory_events", "gauge", "Events in memory.", entries)
    used = sum(each.memory.budget.total_bytes - each.memory.budget.free_bytes for each in engines)
    lines += metric("everbell_in_memory_bytes", "gauge", "What events in memory are counted as.", used)
    lines += metric(
        "everbell_starved_flows", "gauge", "Targets with due events left in the store.", len(engine.memory.starved)
    )
    flows = [flow for each in engines for flow in each.memory.flows.all()]
    broken = sum(flow.breaker is not None and flow.breaker.state != "closed" for flow in flows)
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
    ended = sum(sum(each.kills.ended.values()) for each in engines)
    lines += metric("everbell_killed_events", "gauge", "Events that the kills in force have ended here.", ended)
    late_s = max(each.overdue_ms() for each in engines) / 1_000
    lines += metric("everbell_oldest_overdue_seconds", "gauge", "How long the oldest due event has waited.", late_s)
    stalled = engine.stalls.look() is not None
    help_text = "Whether events are due and could start, but none has started for ten seconds."
    lines += metric("everbell_stalled", "gauge", help_text, stalled)
    highest = max(engine.epochs.values(), default=0)
    lines += metric("everbell_epoch", "gauge", "The highest epoch of the partitions that are owned here.", highest)
    lines += render_attempts(engines)
    if cluster is not None:
        lines += render_cluster(cluster)
    if replicas is not None:
        lines += render_replicas(replicas.view())
    lines += more
    return "\n".join(lines) + "\n"
