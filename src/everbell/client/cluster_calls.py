"""The calls on the cluster, which belongs to no tenant."""

from __future__ import annotations

from everbell.client.call import Call, decoded
from everbell.client.event_json import encode_json
from everbell.client.operation import Calls, operation
from everbell.core.cluster import Strategy
from everbell.core.cluster.view import ClusterView

_PATH = "/v1/cluster"


class ClusterCalls(Calls):
    """Operations on the cluster."""

    @operation
    def cluster(self) -> Call[ClusterView]:
        """Members, ring, partitions, backups, the log, as the asked node sees them."""
        return Call("GET", _PATH, _view, repeatable=True)

    @operation
    def drain(self, node: str) -> Call[ClusterView]:
        """Move all partitions away from a node."""
        return _about(node, "drain")

    @operation
    def undrain(self, node: str) -> Call[ClusterView]:
        """Let a node own partitions again."""
        return _about(node, "undrain")

    @operation
    def forget(self, node: str) -> Call[ClusterView]:
        """Declare that a dead node does not come back: the nodes that stand in for it keep its partitions."""
        return _about(node, "forget")

    @operation
    def set_strategy(self, strategy: Strategy) -> Call[ClusterView]:
        """Change how partitions are shared out, or their weights."""
        return Call("PUT", _PATH + "/strategy", _view, encode_json({"strategy": strategy}), repeatable=True)


def _about(node: str, verb: str) -> Call[ClusterView]:
    return Call("POST", f"{_PATH}/{verb}", _view, encode_json({"node": node}), repeatable=True)


_view = decoded(ClusterView)
