"""The routes of the cluster."""

from __future__ import annotations

from everbell.core.cluster.view import ClusterView
from everbell.server.cluster_api import ClusterApi, NodeSpec, StrategySpec
from everbell.server.route import Answer, Route

CLUSTER = "/v1/cluster"

_SEEN = Answer(200, "the cluster as it is now", (ClusterView,))


def cluster_routes(cluster: ClusterApi) -> tuple[Route, ...]:
    """Nodes, partitions, the log."""
    refused = (404, 415, 422)
    return (
        Route(
            "GET",
            CLUSTER,
            cluster.show,
            "show_cluster",
            "Members, ring, partitions, backups, the log",
            (_SEEN,),
            access="read",
        ),
        Route(
            "POST",
            CLUSTER + "/drain",
            cluster.drain,
            "drain_node",
            "Move everything away from a node",
            (_SEEN,),
            refused,
            body=NodeSpec,
            access="admin",
        ),
        Route(
            "POST",
            CLUSTER + "/undrain",
            cluster.undrain,
            "undrain_node",
            "Let a node own partitions again",
            (_SEEN,),
            refused,
            body=NodeSpec,
            access="admin",
        ),
        Route(
            "POST",
            CLUSTER + "/forget",
            cluster.forget,
            "forget_node",
            "Say that a dead node does not come back",
            (_SEEN,),
            refused,
            body=NodeSpec,
            access="admin",
        ),
        Route(
            "PUT",
            CLUSTER + "/strategy",
            cluster.set_strategy,
            "set_strategy",
            "Share out the partitions in another way",
            (_SEEN,),
            refused,
            body=StrategySpec,
            access="admin",
        ),
    )
