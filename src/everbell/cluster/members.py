"""The members of the cluster by name, for events that replicas hold.

The members are those of the cluster value as this node last saw it, so replicas go on while the log is unreachable and
while this node has no lease. A member that drains holds no copies: it hands them over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from everbell.cluster.node import ClusterNode
from everbell.cluster.port import Peers
from everbell.core.cluster import Member, Value
from everbell.core.replicas.placement import Roster
from everbell.core.request import Ask, Request
from everbell.errors import NotOwner, OutcomeUnknown

A = TypeVar("A")

_ANSWER_S = 2.0


class ClusterMembers:
    """Implements `replicas.port.Members`."""

    def __init__(self, me: str, node: Callable[[], ClusterNode | None], peers: Peers, own: Callable[[], Ask]) -> None:
        """`node` is None until the node has begun to join; `own` answers requests to this node itself."""
        self._me = me
        self._node = node
        self._peers = peers
        self._own = own
        self._members: dict[str, Member] | None = None
        self._roster = Roster({me: ""})
        self._by_name: dict[str, Member] = {}

    @property
    def me(self) -> str:
        return self._me

    @property
    def roster(self) -> Roster:
        self._follow()
        return self._roster

    @property
    def is_inside(self) -> bool:
        node = self._node()
        return node is not None and node.is_member

    async def ask(self, name: str, request: Request[A], /) -> A:
        if name == self._me:
            return await self._own()(request)
        self._follow()
        member = self._by_name.get(name)
        if member is None:
            raise NotOwner(f"node {name} is not in the cluster; nothing of this request was done")
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await (await self._peers.reach(member)).ask(request)
        except TimeoutError:
            raise OutcomeUnknown(f"node {name} did not answer in time") from None

    def _follow(self) -> None:
        """Take over the members of the present cluster value, if they have changed."""
        node = self._node()
        value = Value() if node is None else node.value
        if value.members is self._members or not value.members:
            return
        self._members = value.members
        # Two incarnations of one name are never members together.
        self._by_name = {member.name: member for member in value.members.values()}
        able = [member for member in value.members.values() if not member.gateway]
        staying = [member for member in able if not member.draining] or able
        self._roster = Roster({member.name: member.zone for member in staying} or {self._me: ""})
