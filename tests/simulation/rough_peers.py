"""How simulated nodes reach each other: the ports of the other engine, over the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everbell.core.cluster import Member
from everbell.engine.engine import Engine
from everbell.engine.port import LeasesPort, OperationsPort
from everbell.errors import NotOwner
from tests.simulation.network import Network
from tests.simulation.processes import Process

Find = Callable[[str], tuple[Process, Engine] | None]
"""The node of a name, if it runs."""


class RoughPeers:
    """All other nodes, as one of them sees them. A member is reached by its name."""

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
        self.operations: OperationsPort = _Far(network, me, name, find, "operations")
        self.leases: LeasesPort = _Far(network, me, name, find, "leases")


class _Far:
    """Any port of another engine: every method is a request."""

    def __init__(self, network: Network, me: str, name: str, find: Find, port: str) -> None:
        self._network = network
        self._me = me
        self._name = name
        self._find = find
        self._port = port

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            return self._network.ask(self._me, self._name, self._process, lambda: self._serve(method, args))

        return ask

    def _process(self) -> Process | None:
        found = self._find(self._name)
        return None if found is None else found[0]

    async def _serve(self, method: str, args: tuple[Any, ...]) -> Any:
        found = self._find(self._name)
        assert found is not None, "a process that runs something is there"
        return await getattr(getattr(found[1], self._port), method)(*args)
