"""How simulated nodes reach each other: the ports of the other engine, over the network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from everbell.core.cluster import Member
from everbell.core.request import Ask, Request
from everbell.errors import NotOwner
from tests.simulation.network import Network
from tests.simulation.processes import Process

A = TypeVar("A")
Find = Callable[[str], tuple[Process, Ask] | None]
"""The node of a name, if it runs."""


class RoughPeers:
    """All other nodes, as seen by one node. A member is reached by its name."""

    def __init__(self, network: Network, me: str, find: Find) -> None:
        self._network = network
        self._me = me
        self._find = find

    async def reach(self, member: Member) -> RoughPeer:
        if self._network.is_cut(self._me, member.name):
            raise NotOwner("the simulated node cannot be reached")
        return RoughPeer(self._network, self._me, member.name, self._find)


class RoughPeer:
    """Another node."""

    def __init__(self, network: Network, me: str, name: str, find: Find) -> None:
        self._network = network
        self._me = me
        self._name = name
        self._find = find

    def ask(self, request: Request[A], /) -> Awaitable[A]:
        assert request.for_peers, f"{request.tag} must not be sent to other nodes"
        return self._network.ask(self._me, self._name, self._process, lambda: self._serve(request), may_repeat=True)

    def _process(self) -> Process | None:
        found = self._find(self._name)
        return None if found is None else found[0]

    async def _serve(self, request: Request[A]) -> A:
        found = self._find(self._name)
        assert found is not None, "a process that serves a request must exist"
        return await found[1](request)
