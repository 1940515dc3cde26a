"""What the holder of copies needs to know about the cluster, and how it asks other nodes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from everbell.core.replicas.placement import Roster
from everbell.core.request import Request

A = TypeVar("A")


class Members(Protocol):
    """The members of the cluster, by name, as this node last saw them. The log need not be reachable."""

    @property
    def me(self) -> str:
        """The name of this node."""

    @property
    def roster(self) -> Roster:
        """The members that can hold copies. The same object until they change."""

    @property
    def is_inside(self) -> bool:
        """Whether this node is one of the members. While it is not, it gives no copies away."""

    def ask(self, name: str, request: Request[A], /) -> Awaitable[A]:
        """Ask a member. Raises `EverbellError`: it cannot be reached, refuses, or gave no answer in time."""
