"""How a node reaches another: the same ports that its own engine has, at the other end."""

from __future__ import annotations

from typing import Protocol

from everbell.core.cluster import Member
from everbell.engine.port import LeasesPort, OperationsPort


class Peer(Protocol):
    """Another node's engine. Calls raise `OutcomeUnknown` when the answer is lost."""

    @property
    def operations(self) -> OperationsPort: ...

    @property
    def leases(self) -> LeasesPort: ...


class Peers(Protocol):
    """All other nodes."""

    async def reach(self, member: Member) -> Peer:
        """The engine of a member. Raises `NotOwner` when it cannot be reached: then nothing was asked."""
        ...
