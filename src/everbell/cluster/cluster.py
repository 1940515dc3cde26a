"""The parts that make an engine a node of a cluster: log, node, peers and router.

    Api ──► Cluster.ask ──► Router.ask ──┬──► Engine.ask of this node
                                         └──► RemoteEngine.ask ──► CalledEnd of another node ──► its Engine.ask

One machine is a cluster of one node: the same code, with a log beside the store and no peers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from everbell.clock import Clock
from everbell.cluster.depletion import Depletion
from everbell.cluster.follower import DocumentFollower, Follow
from everbell.cluster.handshake import key_of
from everbell.cluster.kills import ClusterKills
from everbell.cluster.members import ClusterMembers
from everbell.cluster.node import ClusterNode
from everbell.cluster.pauses import ClusterPauses
from everbell.cluster.peers import GREETING_S, CalledEnd, Callers, TcpPeers
from everbell.cluster.router import Router
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.store_watch import StoreWatch
from everbell.core.cluster import Command, Member
from everbell.core.cluster.view import ClusterView, view_of
from everbell.core.request import Ask, Handlers, Request
from everbell.engine.engine import Engine
from everbell.engine.request_routes import ClusterRequest
from everbell.engine.requests import LookAtCluster, OrderCluster, Played
from everbell.entropy import Entropy
from everbell.errors import EverbellError
from everbell.logs.port import Log
from everbell.replicas.node_views import NodeViews
from everbell.replicas.service import Replicas

A = TypeVar("A")

_log = logging.getLogger("everbell.cluster")

StartReplicas = Callable[[ClusterMembers, Ask], Awaitable[Replicas]]
"""Starts to hold events of replicas, given the members and the function that answers about stored events."""

_PLAYED_S = 5.0
_HEARD_S = 2.0


class Meeting(Struct, frozen=True):
    """The address at which this node listens for other nodes, and how nodes authenticate each other."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    """The address to tell other nodes, if it differs from the one that this node listens on."""
    secret: str = ""
    called_tls: ssl.SSLContext | None = None
    caller_tls: ssl.SSLContext | None = None


class Cluster:
    """A running node: `ask` serves the whole cluster."""

    def __init__(
        self,
        log: Log,
        engine: Engine,
        clock: Clock,
        node: ClusterNode,
        peers: TcpPeers,
        store_watch: StoreWatch,
        depletion: Depletion,
        server: asyncio.Server | None,
        router: Router,
        replicas: Replicas | None,
    ) -> None:
        self.node = node
        self.router = router
        self.replicas = replicas
        self._handlers = Handlers(
            LookAtCluster.by(lambda request: self.look()),
            OrderCluster.by(lambda request: self.order(request.command)),
            Played.by(lambda request: has_played(node, request)),
            *ClusterPauses(lambda: node.value.policies, self.write, clock, self.unheard).handlers(),
            *ClusterKills(lambda: node.value.policies, self.write, self.unheard).handlers(),
            complete=ClusterRequest,
            otherwise=router.ask if replicas is None else replicas.ask,
        )
        self._log = log
        self._engine = engine
        self._peers = peers
        self._store_watch = store_watch
        self._depletion = depletion
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
        http_url: str = "",
        hold: StartReplicas | None = None,
        follow: Follow = lambda documents: None,
    ) -> Cluster:
        """Join the cluster. Without a `meeting`, no other node can be in it. `hold` starts to hold events of replicas.
        `follow` is called with the documents in the log, before the engine starts a partition and at every change.

        Raises `LogError`, `ClusterError`, `StoreError` and `OSError`.
        """
        node: ClusterNode | None = None
        server: asyncio.Server | None = None
        addresses: tuple[str, ...] = ()
        secret = "" if meeting is None else meeting.secret

        def key() -> bytes:
            assert node is not None, "no peer calls before this node has published its address"
            return key_of(node.value.cluster, secret)

        router: Router | None = None

        def stored(request: Request[A]) -> Awaitable[A]:
            assert router is not None, "no user asks before this node has joined"
            return router.ask(request)

        callers = Callers()
        peers = TcpPeers(key, entropy, None if meeting is None else meeting.caller_tls)
        replicas: Replicas | None = None
        if hold is not None:
            members = ClusterMembers(settings.name, lambda: node, peers, lambda: answers.ask)
            replicas = await hold(members, stored)
        # Other nodes ask this engine alone: a request that was passed on once is never passed on again.
        own: Ask = engine.ask if replicas is None else NodeViews(replicas.holder, replicas.members, engine.ask).ask
        answers = Handlers(
            Played.by(lambda request: has_played(node, request)),
            *(() if replicas is None else replicas.peer_handlers),
            otherwise=own,
        )
        if meeting is not None:
            listener = socket.create_server((meeting.host, meeting.port), family=_family(meeting.host))
            server = await asyncio.get_running_loop().create_server(
                lambda: CalledEnd(answers.ask, key, entropy, callers),
                sock=listener,
                ssl=meeting.called_tls,
                ssl_handshake_timeout=None if meeting.called_tls is None else GREETING_S,
                start_serving=False,
            )
            addresses = (meeting.advertise or _address(listener), http_url)
        also = (follow,) if replicas is None else (follow, DocumentFollower(replicas.engine).follow)
        node = await ClusterNode.start(log, engine, clock, entropy, settings, addresses, on_halt, peers.keep_only, also)
        router = Router(node, engine, peers, clock, own)
        if server is not None:
            # Only now that there is a node: peers may call this address because of an earlier incarnation.
            await server.start_serving()
        store_watch = StoreWatch(node, engine, peers, clock, on_halt)
        store_watch.start()
        depletion = Depletion(node, engine.store, clock, on_halt)
        depletion.start()
        cluster = cls(log, engine, clock, node, peers, store_watch, depletion, server, router, replicas)
        if replicas is not None:
            replicas.begin()
        try:
            await node.ready()
        except BaseException:
            await cluster._close()
            raise
        return cluster

    def ask(self, request: Request[A], /) -> Awaitable[A]:
        """Answer a request about the cluster, or about events and queues anywhere in it."""
        return self._handlers.ask(request)

    async def look(self) -> ClusterView:
        """The cluster as this node sees it."""
        node = self.node
        view = view_of(
            node.value,
            node.me,
            node.settings.name,
            node.log_lag_ms,
            node.lease_left_ms,
            node.player.played_at,
            len(self._engine.pauses.on),
        )
        return view if self.replicas is None else replace(view, replicas=self.replicas.view())

    async def order(self, command: Command) -> ClusterView:
        """Append a command, and wait until this node has played it. Raises `LogError`."""
        await self.write(command)
        return await self.look()

    async def write(self, command: Command) -> int:
        """Append a command, wait until this node has played it, and return its index."""
        return await self.node.write(command)

    async def unheard(self, index: int) -> tuple[str, ...]:
        """Wait until all other nodes that may own partitions have played this entry.

        Returns the names of nodes that did not confirm in time. They play the entry when they read on, or lose their
        lease.
        """
        value, me = self.node.value, self.node.me
        others = [member for name, member in value.members.items() if name != me and not member.gateway]
        have = await asyncio.gather(*(self._has_played(member, index) for member in others))
        return tuple(sorted(member.name for member, has in zip(others, have, strict=True) if not has))

    async def _has_played(self, member: Member, index: int) -> bool:
        try:
            async with asyncio.timeout(_HEARD_S):
                return await (await self._peers.reach(member)).ask(Played(index))
        except (EverbellError, TimeoutError):
            return False

    async def stop(self, drain_s: float) -> bool:
        """Hand all partitions over, stop the engine, and leave; False when some attempts did not end in time."""
        await self._store_watch.stop()
        if self._engine.broken is not None:
            # Nothing can be handed over. The other nodes take over when the lease ends.
            await self._close()
            return await self._engine.stop()
        await self.node.drain(drain_s)
        if self.replicas is not None and not await self.replicas.stop(drain_s) and self.node.others():
            _log.warning("this node could not hand over all events that it holds; other replicas have them")
        is_clean = await self._engine.stop()
        await self.node.leave(is_clean=is_clean)
        await self._close()
        return is_clean

    async def _close(self) -> None:
        await self._store_watch.stop()
        await self._depletion.stop()
        await self.node.abandon()
        self._peers.close()
        if self._server is not None:
            self._server.close()
        await self._log.close()


async def has_played(node: ClusterNode | None, request: Played) -> bool:
    """Whether a node has played the log so far; it waits some seconds for that."""
    return node is not None and await node.player.saw(lambda value: value.index >= request.index, _PLAYED_S)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 -- a comparison, not a bind: other nodes cannot call this address
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
