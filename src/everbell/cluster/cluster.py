"""Everything that makes an engine a node of a cluster, put together: log, node, peers, and the routed ports.

    Api ──► RoutedOperations ──┬──► Operations of this engine
                               └──► TcpPeers ──► CalledEnd of another node ──► Operations of its engine

One machine is a cluster of one: the same code, with a log beside the store and nobody to talk to.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from everbell.clock import Clock
from everbell.cluster.handshake import key_of
from everbell.cluster.node import ClusterNode
from everbell.cluster.pauses import ClusterPauses
from everbell.cluster.peers import GREETING_S, CalledEnd, TcpPeers
from everbell.cluster.router import RoutedOperations
from everbell.cluster.router_leases import RoutedLeases
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.store_watch import StoreWatch
from everbell.core.cluster import Command, Member
from everbell.core.cluster.view import ClusterView, view_of
from everbell.engine.engine import Engine
from everbell.entropy import Entropy
from everbell.errors import EverbellError
from everbell.links.link import Serve
from everbell.logs.port import Log

_PLAYED_S = 5.0
_HEARD_S = 2.0


class Meeting(Struct, frozen=True):
    """Where nodes meet: where this one listens for the others, and how they know each other."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    """What to tell the others, where it is not what this node sees of itself."""
    secret: str = ""
    called_tls: ssl.SSLContext | None = None
    caller_tls: ssl.SSLContext | None = None


class Cluster:
    """A node that runs: `operations` and `leases` are those of the whole cluster."""

    def __init__(
        self,
        log: Log,
        engine: Engine,
        clock: Clock,
        node: ClusterNode,
        peers: TcpPeers,
        store_watch: StoreWatch,
        server: asyncio.Server | None,
    ) -> None:
        self.node = node
        self.operations = RoutedOperations(node, engine.operations, peers)
        self.leases = RoutedLeases(node, engine.leases, peers)
        self.pauses = ClusterPauses(lambda: node.value.policies, self.write, clock, self.unheard)
        self._log = log
        self._engine = engine
        self._peers = peers
        self._store_watch = store_watch
        self._server = server

    @classmethod
    async def start(
        cls,
        log: Log,
        engine: Engine,
        clock: Clock,
        entropy: Entropy,
        settings: ClusterSettings,
        on_halt: Callable[[BaseException], None],
        *,
        meeting: Meeting | None = None,
        serve: Serve | None = None,
        http_url: str = "",
    ) -> Cluster:
        """Join. Without a `meeting` nobody else can be in the cluster. Raises `LogError`, `ClusterError`, `StoreError`
        and `OSError`.
        """
        node: ClusterNode | None = None
        server: asyncio.Server | None = None
        addresses: tuple[str, ...] = ()
        secret = "" if meeting is None else meeting.secret

        def key() -> bytes:
            assert node is not None, "nobody calls before the node has told where it listens"
            return key_of(node.value.cluster, secret)

        async def served(method: str, arguments: tuple[Any, ...]) -> Any:
            if method != "played":
                assert serve is not None, "whoever meets others serves them"
                return await serve(method, arguments)
            return node is not None and await node.player.saw(lambda value: value.index >= arguments[0], _PLAYED_S)

        peers = TcpPeers(key, entropy, None if meeting is None else meeting.caller_tls)
        if meeting is not None and serve is not None:
            listener = socket.create_server((meeting.host, meeting.port), family=_family(meeting.host))
            server = await asyncio.get_running_loop().create_server(
                lambda: CalledEnd(served, key, entropy),
                sock=listener,
                ssl=meeting.called_tls,
                ssl_handshake_timeout=None if meeting.called_tls is None else GREETING_S,
                start_serving=False,
            )
            addresses = (meeting.advertise or _address(listener), http_url)
        node = await ClusterNode.start(log, engine, clock, entropy, settings, addresses, on_halt)
        if server is not None:
            # Not before there is a node: others may call at this address because of its last life.
            await server.start_serving()
        node.on_members = peers.keep_only
        store_watch = StoreWatch(node, engine, peers, clock)
        store_watch.start()
        cluster = cls(log, engine, clock, node, peers, store_watch, server)
        try:
            await node.ready()
        except BaseException:
            await cluster._close()
            raise
        return cluster

    async def look(self) -> ClusterView:
        """The cluster as this node sees it."""
        node = self.node
        return view_of(
            node.value,
            node.me,
            node.settings.name,
            node.log_lag_ms,
            node.lease_left_ms,
            node.player.played_at,
            len(self._engine.pauses.on),
        )

    async def order(self, command: Command) -> ClusterView:
        """Append a command, and wait until it was played here. Raises `LogError`."""
        await self.write(command)
        return await self.look()

    async def write(self, command: Command) -> int:
        """The same, for who wants to know the index of the entry."""
        return await self.node.write(command)

    async def unheard(self, index: int) -> tuple[str, ...]:
        """Wait until all other nodes that may own something have played this entry; returns the names of those that do
        not say so in time. They learn of it as soon as they read on, or lose their lease."""
        value, me = self.node.value, self.node.me
        others = [member for name, member in value.members.items() if name != me and not member.gateway]
        have = await asyncio.gather(*(self._has_played(member, index) for member in others))
        return tuple(sorted(member.name for member, has in zip(others, have, strict=True) if not has))

    async def _has_played(self, member: Member, index: int) -> bool:
        try:
            async with asyncio.timeout(_HEARD_S):
                return await (await self._peers.reach(member)).played(index)
        except (EverbellError, TimeoutError):
            return False

    async def stop(self, drain_s: float) -> bool:
        """Hand everything over, stop the engine, and leave; False when attempts had to be given up."""
        await self._store_watch.stop()
        await self.node.drain(drain_s)
        is_clean = await self._engine.stop()
        await self.node.leave(is_clean=is_clean)
        await self._close()
        return is_clean

    async def _close(self) -> None:
        await self._store_watch.stop()
        await self.node.abandon()
        self._peers.close()
        if self._server is not None:
            self._server.close()
        await self._log.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 -- not bound here, only recognised: the others cannot call it
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
