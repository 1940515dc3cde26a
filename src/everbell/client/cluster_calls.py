"""Calls about the cluster, which belongs to no tenant."""

from __future__ import annotations

import msgspec

from everbell.client.call import Call
from everbell.client.event_json import encode_json
from everbell.core.cluster import Strategy
from everbell.core.cluster.view import ClusterView

_PATH = "/v1/cluster"


def cluster(tenant: str) -> Call[ClusterView]:
    """Members, ring, partitions, backups, the log, as the asked node sees them."""
    return Call("GET", _PATH, _view, repeatable=True)


def drain(tenant: str, node: str) -> Call[ClusterView]:
    """Move everything away from a node."""
    return _about(node, "drain")


def undrain(tenant: str, node: str) -> Call[ClusterView]:
    """Let a node own partitions again."""
    return _about(node, "undrain")


def forget(tenant: str, node: str) -> Call[ClusterView]:
    """Say that a dead node does not come back: who stands in for it keeps what it has."""
    return _about(node, "forget")


def set_strategy(tenant: str, strategy: Strategy) -> Call[ClusterView]:
    """Share out the partitions in another way, or with other weights."""
    return Call("PUT", _PATH + "/strategy", _view, encode_json({"strategy": strategy}), repeatable=True)


def _about(node: str, verb: str) -> Call[ClusterView]:
    return Call("POST", f"{_PATH}/{verb}", _view, encode_json({"node": node}), repeatable=True)


def _view(status: int, body: bytes) -> ClusterView:
    return msgspec.json.decode(body, type=ClusterView)
