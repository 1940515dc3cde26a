"""What a node has to know about its place in the cluster."""

from __future__ import annotations

from msgspec import Struct


class ClusterSettings(Struct, frozen=True):
    """Times and numbers of one node. All nodes of a cluster should have the same lease."""

    name: str = "everbell"
    """Unique in the cluster, and the same after a restart."""
    zone: str = ""
    capacity: int = 1
    gateway: bool = False
    """Take requests, own nothing."""
    lease_ms: int = 2_500
    """How long a node that says nothing is taken for alive. A node that dies is missed for about this long."""
    handover_ms: int = 5_000
    """How long a partition that moves waits for attempts that are under way."""
    quiet_ms: int = 10_000
    """How long the requests of a node that died may still be on their way: the longest deadline of an attempt."""
    snapshot_entries: int = 200
    """A snapshot is saved after so many entries, and as many are kept behind it."""

    @property
    def renew_ms(self) -> int:
        """How often the lease is renewed."""
        return self.lease_ms // 5

    @property
    def margin_ms(self) -> int:
        """How long before the end of its lease a node stops: clocks of different machines run at different speeds."""
        return self.lease_ms // 10
