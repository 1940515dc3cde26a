"""The cluster settings of one node."""

from __future__ import annotations

from msgspec import Struct

from everbell.core.time import DAY_MS


class ClusterSettings(Struct, frozen=True):
    """Names, times and sizes. All nodes of a cluster should have the same lease time."""

    name: str = "everbell"
    """Unique in the cluster, and the same after a restart."""
    zone: str = ""
    capacity: int = 1
    gateway: bool = False
    """Take requests, but own no partitions."""
    lease_ms: int = 2_500
    """How long the others take a silent node for alive. The partitions of a dead node wait for about this long."""
    handover_ms: int = 5_000
    """How long the hand-over of a partition waits for attempts in flight."""
    forget_after_ms: int = DAY_MS
    """How long a dead node may be away before the cluster forgets it, even if events that it left are unfinished."""
    snapshot_entries: int = 200
    """A node saves a snapshot after this number of entries; the log keeps as many entries before it."""

    @property
    def renew_ms(self) -> int:
        """How often the lease is renewed."""
        return self.lease_ms // 5

    @property
    def margin_ms(self) -> int:
        """How long before the end of its lease a node stops, because clocks run at slightly different speeds."""
        return self.lease_ms // 10
