"""The health of a node: each part is checked, and the worst part is the node's state.

Rules. Only a broken store, or an engine that starts no due event though it could, makes `/healthz` fail, because only
then a restart helps. An unavailable store, or a lost
place in the cluster, makes a node unready, because it would refuse every request. A full disk or a long backlog is
reported, but the node stays ready, because workers must still report their results. Health needs no access key, so it
names no tenants or targets, and secrets are removed from the messages of drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everbell.cluster.node import ClusterNode
from everbell.core.health import (
    BacklogHealth,
    ClusterHealth,
    DiskHealth,
    Health,
    KafkaHealth,
    OutboxHealth,
    QueuesHealth,
    StoreHealth,
)
from everbell.core.time import format_instant
from everbell.engine.engine import Engine
from everbell.errors import StoreFull
from everbell.log_lines import redacted
from everbell.stores.rocksdb.directory import free_bytes

# An event that has waited longer than this makes the backlog not ok.
OVERDUE_MS_MAX = 60_000


def diagnose(
    engine: Engine,
    node: ClusterNode,
    disk: DiskHealth | None,
    kafka: KafkaHealth | None,
    outbox: OutboxHealth | None,
    now: int,
    *,
    is_stopping: bool,
    held: Engine | None = None,
    has_store: bool = True,
) -> Health:
    """The state of a node that is in a cluster, with its parts. `held` is its engine of events of replicas.

    Without a store, all events are of replicas: then the node is of use without its place in the cluster.
    """
    engines = (engine,) if held is None else (engine, held)
    store = store_health(engine, now)
    cluster = cluster_health(engine, node)
    parts = (node.settings.name, store, disk, cluster, backlog_health(engines), kafka, queues_health(engines), outbox)
    if store.state == "broken":
        return Health("broken", store.reason, *parts)
    if is_stopping:
        in_flight = sum(each.dispatcher.in_flight for each in engines)
        return Health("stopping", f"waiting for {in_flight} attempts that are under way", *parts)
    if store.state == "away":
        return Health("away", f"the store cannot be used: {store.reason}", *parts)
    if has_store and not cluster.is_member:
        return Health("starting", cluster.reason, *parts)
    if has_store and not cluster.ok:
        return Health("away", cluster.reason, *parts)
    for each in engines:
        if (stall := each.stalls.look()) is not None:
            return Health("broken", stall, *parts)
    return Health("ready", None, *parts)


def store_health(engine: Engine, now: int) -> StoreHealth:
    """Whether the store can be used."""
    if engine.broken is not None:
        return StoreHealth("broken", redacted(str(engine.broken)))
    if engine.trouble is None:
        return StoreHealth("ok")
    why, for_ms = engine.trouble
    return StoreHealth(
        "full" if isinstance(why, StoreFull) else "away", redacted(str(why)), format_instant(now - for_ms)
    )


def cluster_health(engine: Engine, node: ClusterNode) -> ClusterHealth:
    """Whether this node is a member of the cluster, and may act."""
    reason = None
    if not node.is_member:
        reason = "this node lost its place in the cluster, and is joining again"
    elif not node.lease_left_ms:
        reason = "this node could not renew its lease, so it stands still"
    figures = (node.is_member, len(engine.epochs), node.lease_left_ms, node.log_lag_ms)
    return ClusterHealth(reason is None, *figures, reason)


def disk_health(store: str, reserve_bytes: int) -> DiskHealth | None:
    """The free space of an embedded store. None: the store is on a server."""
    scheme, _, path = store.partition(":")
    if scheme != "rocksdb":
        return None
    try:
        free = free_bytes(Path(path).expanduser())
    except OSError as wrong:
        return DiskHealth(False, 0, reserve_bytes, f"the directory of the store cannot be looked at: {wrong.strerror}")
    if free >= reserve_bytes:
        return DiskHealth(True, free, reserve_bytes)
    return DiskHealth(
        False, free, reserve_bytes, "new events are refused, so that stored ones can be finished: make room"
    )


def backlog_health(engines: Sequence[Engine]) -> BacklogHealth:
    """How late this node's due events are."""
    overdue_ms = max(engine.overdue_ms() for engine in engines)
    reason = None
    if overdue_ms > OVERDUE_MS_MAX:
        blamed = "a target is down or too slow, or a queue has no worker"
        reason = f"the oldest due event has been waiting for {overdue_ms // 1_000} s: {blamed}"
    starved = sum(len(engine.memory.starved) for engine in engines)
    in_flight = sum(engine.dispatcher.in_flight for engine in engines)
    return BacklogHealth(reason is None, overdue_ms, starved, in_flight, reason)


def queues_health(engines: Sequence[Engine]) -> QueuesHealth:
    """Whether workers call for the queues of this node that have due events."""
    count = len({queue for engine in engines for queue in engine.observer.stalled()})
    if not count:
        return QueuesHealth(True, 0)
    queues = "1 queue has" if count == 1 else f"{count} queues have"
    return QueuesHealth(
        False, count, f"{queues} due events, but no worker has called for a minute: see everbell queues"
    )
