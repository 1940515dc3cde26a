"""Queues in a cluster: a worker asks any node, and gets due events of all nodes.

Each node holds the due events of its own partitions. A token begins with its partition, so an acknowledgement finds
the node that gave the lease while that node owns the partition. After a move the lease is lost, and the event is
leased again.
"""

from __future__ import annotations

from functools import partial

from everbell.channels.queue import Lease, partition_in
from everbell.cluster.node import ClusterNode
from everbell.cluster.port import Peers
from everbell.core.request import Ask, Handler
from everbell.engine.lease_race import LeaseRace, ask_each
from everbell.engine.request_routes import ByToken
from everbell.engine.requests import LeaseEvents
from everbell.errors import NotOwner


class LeaseRouter:
    """Answers requests about queues for the whole cluster."""

    def __init__(self, node: ClusterNode, own: Ask, peers: Peers) -> None:
        self._node = node
        self._own = own
        self._peers = peers
        self._race = LeaseRace(self._by_token)

    def handlers(self) -> tuple[Handler, ...]:
        """The requests about queues."""
        return LeaseEvents.by(self._lease), ByToken.by(self._by_token)

    async def _lease(self, request: LeaseEvents) -> list[Lease]:
        others = self._others()
        if not others:
            return await self._own(request)
        return await self._race.run([partial(self._lease_at, owner) for owner in (self._node.me, *others)], request)

    def _others(self) -> list[str]:
        """The other nodes that own partitions."""
        value, me = self._node.value, self._node.me
        if len(value.members) < 2:
            return []
        return sorted({part.owner for part in value.partitions} - {me, ""})

    async def _lease_at(self, owner: str, request: LeaseEvents) -> list[Lease]:
        return await (await self._reach(owner))(request)

    async def _by_token(self, request: ByToken) -> list[str]:
        """Ask every owner about its own tokens, and return the lost ones, as `ask_each`."""
        value = self._node.value
        found: dict[str, list[str]] = {}
        lost: list[str] = []
        for token in request.tokens_asked():
            partition = partition_in(token)
            if partition is None or not 0 <= partition < len(value.partitions) or not value.partitions[partition].owner:
                lost.append(token)
            else:
                found.setdefault(value.partitions[partition].owner, []).append(token)
        return lost + await ask_each(request, found, self._settle_at)

    async def _settle_at(self, owner: str, request: ByToken) -> list[str]:
        return await (await self._reach(owner))(request)

    async def _reach(self, owner: str) -> Ask:
        if owner == self._node.me:
            return self._own
        member = self._node.value.members.get(owner)
        if member is None:
            raise NotOwner("the node that gave the lease is gone")
        return (await self._peers.reach(member)).ask
