"""How a node asks another: with the same verb as its own engine."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from everbell.core.cluster import Member
from everbell.core.request import Request

A = TypeVar("A")


class Peer(Protocol):
    """Another node."""

    def ask(self, request: Request[A], /) -> Awaitable[A]:
        """Raises `OutcomeUnknown` when the answer is lost. The request has to be `for_peers`."""
        ...


class Peers(Protocol):
    """All other nodes."""

    async def reach(self, member: Member) -> Peer:
        """Raises `NotOwner` when the member cannot be reached: then nothing was asked."""
        ...
