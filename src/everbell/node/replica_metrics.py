"""Metrics of the events that this node holds in memory together with other nodes."""

from __future__ import annotations

from everbell.core.cluster.view import ReplicasView
from everbell.core.exposition import labelled, metric


def render_replicas(view: ReplicasView) -> list[str]:
    """The metrics of the copies on one node. A rank is the number of replicas that come before it."""
    return [
        *labelled(
            "everbell_replicas_held_events",
            "gauge",
            "Events of replicas that this node holds, by rank.",
            "rank",
            {str(rank): count for rank, count in view.held_by_rank.items()},
        ),
        *labelled(
            "everbell_replicas_started_total",
            "counter",
            "Attempts that this node started at events of replicas, by rank.",
            "rank",
            {str(rank): count for rank, count in view.started_by_rank.items()},
        ),
        *metric(
            "everbell_replicas_duplicates_total",
            "counter",
            "Occurrences that this node and another node delivered.",
            view.duplicates,
        ),
        *metric("everbell_replicas_tombstones", "gauge", "Ends of events that are remembered.", view.tombstones),
        *metric(
            "everbell_replicas_forgotten_early_total",
            "counter",
            "Ends that were forgotten although a node may bring their events back.",
            view.forgotten_early,
        ),
        *metric("everbell_replicas_bytes", "gauge", "Memory that the events are counted as.", view.held_bytes),
        *metric("everbell_replicas_bytes_max", "gauge", "Memory beyond which new events are refused.", view.cap_bytes),
        *metric(
            "everbell_replicas_resync_left_events",
            "gauge",
            "Events that the present resync has not compared yet.",
            view.resync_left,
        ),
        *metric(
            "everbell_replicas_resync_seconds",
            "gauge",
            "For how long the present resync has been running; 0 if none is.",
            view.resync_ms / 1_000,
        ),
        *metric(
            "everbell_replicas_resync_sent_total",
            "counter",
            "Events that were sent to other nodes because these lacked them.",
            view.resync_sent,
        ),
        *metric(
            "everbell_replicas_given_away_total",
            "counter",
            "Events that were dropped here after other nodes had confirmed theirs.",
            view.given_away,
        ),
        *metric("everbell_replicas_nodes_behind", "gauge", "Nodes that missed messages of this one.", len(view.behind)),
        *metric(
            "everbell_replicas_settled", "gauge", "1 while all replicas have this node's events.", int(view.settled)
        ),
        *metric(
            "everbell_replicas_refilled",
            "gauge",
            "1 when the other nodes have given this node its events since it started.",
            int(view.refilled),
        ),
    ]
