"""Metrics of the cluster, as one node sees it."""

from __future__ import annotations

from collections import Counter

from everbell.cluster.cluster import Cluster
from everbell.core.cluster import stand_ins, watcher_of
from everbell.core.exposition import labelled, metric


def render_cluster(cluster: Cluster) -> list[str]:
    """The metrics of one node's place in the cluster."""
    node = cluster.node
    value = node.value
    names = {incarnation: member.name for incarnation, member in value.members.items()}
    owned = Counter(part.owner for part in value.partitions)
    states: dict[str, int] = {"owned": 0, "moving": 0, "unowned": 0, **Counter(part.state for part in value.partitions)}
    standing_in = sum(len(parts) for at_work in stand_ins(value).values() for parts in at_work.values())
    backed_up = Counter(value.backups.values())
    last_at = node.player.played_at.get(value.transitions[-1].index, 0) if value.transitions else 0
    return [
        *metric("everbell_cluster_members", "gauge", "Members of the cluster.", len(value.members)),
        *metric("everbell_cluster_joining", "gauge", "Nodes on their way into the cluster.", len(value.joins)),
        *metric("everbell_cluster_is_member", "gauge", "1 while this node is a member.", int(node.is_member)),
        *labelled("everbell_cluster_partitions", "gauge", "Partitions by state.", "state", states),
        *labelled(
            "everbell_cluster_owned_partitions",
            "gauge",
            "Partitions by owner.",
            "node",
            {name: owned[incarnation] for incarnation, name in names.items()},
        ),
        *labelled(
            "everbell_cluster_watchers",
            "gauge",
            "By member: how many others watch its lease, as the ring has it.",
            "node",
            {name: int(watcher_of(value, incarnation) != incarnation) for incarnation, name in names.items()},
        ),
        *labelled(
            "everbell_cluster_backed_up_nodes",
            "gauge",
            "By member: for how many others it is first in line.",
            "node",
            {name: backed_up[incarnation] for incarnation, name in names.items()},
        ),
        *metric("everbell_cluster_stand_in_partitions", "gauge", "Partitions run for a dead node.", standing_in),
        *metric("everbell_cluster_log_index", "gauge", "The last entry of the log that was played.", value.index),
        *metric(
            "everbell_cluster_log_lag_seconds",
            "gauge",
            "How long ago the end of the log was seen.",
            node.log_lag_ms / 1_000,
        ),
        *metric(
            "everbell_cluster_lease_left_seconds",
            "gauge",
            "How long this node may act without another renewal.",
            node.lease_left_ms / 1_000,
        ),
        *labelled(
            "everbell_cluster_transitions_total",
            "counter",
            "What was done to the cluster, by kind: join, leave, remove, release and others.",
            "kind",
            node.transitions,
        ),
        *metric(
            "everbell_cluster_last_transition_timestamp_seconds",
            "gauge",
            "When this node played the last of them.",
            last_at / 1_000,
        ),
        *metric("everbell_cluster_takeovers_total", "counter", "Partitions taken from dead nodes.", node.takeovers),
        *metric("everbell_forwarded_total", "counter", "Requests handed on to other nodes.", cluster.router.forwarded),
    ]
