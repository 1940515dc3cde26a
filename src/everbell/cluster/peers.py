"""Node-to-node traffic: calls of the engine's ports over TCP, after a handshake, with TLS where it is set up.

There is one connection to each other node, made when it is needed. Whoever cannot prove to be of this cluster is cut
off before anything that it says is looked at.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

import msgspec

from everbell.cluster.handshake import NONCE_BYTES, Hello, Proof, is_proof, sign
from everbell.core.cluster import Member
from everbell.entropy import Entropy
from everbell.errors import NotOwner, Overloaded
from everbell.links.far import FarLeases, FarOperations
from everbell.links.link import EngineEnd, GatewayEnd, Serve

_log = logging.getLogger("everbell.cluster")

CALLS = frozenset(
    "schedule get replace change cancel ring redrive line lease acknowledge fail give_back extend played".split()
)
"""What one node may ask of another; everything else any node can do by itself."""

_GREETING_BYTES_MAX = 256
_HEAD_BYTES = 4
_CONNECT_S = 2.0
GREETING_S = 5.0
"""How long a connection may take to prove that it is a node's."""
_UNANSWERED_MS = 5_000
_HELLO = msgspec.msgpack.Decoder(Hello)
_PROOF = msgspec.msgpack.Decoder(Proof)


class CalledEnd(EngineEnd):
    """The end of the node that is called."""

    def __init__(self, serve: Serve, key: Callable[[], bytes], entropy: Entropy) -> None:
        super().__init__(_only(serve))
        self._key = key
        self._nonce = entropy.nonce() + entropy.nonce()
        self._caller_nonce: bytes | None = None
        self._trusts = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Whoever says nothing must not keep a place that costs it nothing.
        self._patience = asyncio.get_running_loop().call_later(GREETING_S, self._refuse, "it said nothing for too long")

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._wait_no_more()

    def data_received(self, data: bytes) -> None:
        if not self._trusts:
            head = (b"".join(self._pieces) + data)[:_HEAD_BYTES]
            if int.from_bytes(head.ljust(_HEAD_BYTES, b"\0")) > _GREETING_BYTES_MAX:
                self._refuse("it does not greet as a node does")
                return
        super().data_received(data)

    def frame(self, frame: memoryview) -> None:
        if self._trusts:
            super().frame(frame)
            return
        try:
            self._greet(frame)
        except msgspec.MsgspecError:
            self._refuse("it does not greet as a node does")

    def _greet(self, frame: memoryview) -> None:
        key = self._key()
        if self._caller_nonce is None:
            self._caller_nonce = caller_nonce = _HELLO.decode(frame).nonce
            self.send(Proof(sign(key, "called", caller_nonce, self._nonce), self._nonce))
            return
        proof = _PROOF.decode(frame)
        if is_proof(key, "caller", self._caller_nonce, self._nonce, proof.signature):
            self._trusts = True
            self._wait_no_more()
        else:
            self._refuse("it is not of this cluster, or has another cluster secret")

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _refuse(self, reason: str) -> None:
        if self.transport is not None and not self.transport.is_closing():
            _log.warning("refused a connection from %s: %s", self.transport.get_extra_info("peername"), reason)
            self.transport.abort()


class CallerEnd(GatewayEnd):
    """The end of the node that calls."""

    def __init__(self, key: bytes, entropy: Entropy) -> None:
        super().__init__()
        self.trusted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._trusts = False
        self._key = key
        self._nonce = (entropy.nonce() + entropy.nonce())[:NONCE_BYTES]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(Hello(self._nonce))

    def frame(self, frame: memoryview) -> None:
        if self._trusts:
            super().frame(frame)
            return
        assert self.transport is not None
        if self.trusted.done():
            self.transport.abort()  # Whoever wanted to call has given up.
            return
        proof = _decoded_proof(frame)
        if not is_proof(self._key, "called", self._nonce, proof.nonce, proof.signature):
            self.trusted.set_exception(NotOwner("the node that answers there is not of this cluster"))
            self.transport.abort()
            return
        self._trusts = True
        self.send(Proof(sign(self._key, "caller", self._nonce, proof.nonce)))
        self.trusted.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if not self.trusted.done():
            self.trusted.set_exception(NotOwner("the other node refused this one: check that both have one secret"))

    def give_up(self) -> None:
        """Let go of the connection, unless there is somebody at its other end whom we trust: a process that is stopped
        takes connections and says nothing.
        """
        if self.transport is not None and not self._trusts:
            self.transport.abort()


class TcpPeer:
    """Another node."""

    def __init__(self, link: CallerEnd) -> None:
        self.link = link
        self.operations = FarOperations(link)
        self.leases = FarLeases(link)

    async def played(self, index: int) -> bool:
        """Whether it has played the log up to here; it waits for that, for a while."""
        has: bool = await self.link.call("played", index)
        return has


class TcpPeers:
    """All other nodes, by incarnation."""

    def __init__(self, key: Callable[[], bytes], entropy: Entropy, tls: ssl.SSLContext | None) -> None:
        self._key = key
        self._entropy = entropy
        self._tls = tls
        self._connecting: dict[str, asyncio.Task[TcpPeer]] = {}

    async def reach(self, member: Member) -> TcpPeer:
        """See the port. Whoever asks while a connection is being made waits for the same one."""
        task = self._connecting.get(member.incarnation)
        if task is None or _is_over(task):
            task = asyncio.get_running_loop().create_task(self._connect(member))
            self._connecting[member.incarnation] = task
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                # It is the connection that was given up, and not whoever waits for it.
                raise NotOwner(f"node {member.name} is gone; nothing of this request was done") from None
            raise

    def keep_only(self, incarnations: set[str]) -> None:
        """Forget nodes that are gone."""
        for incarnation in [name for name in self._connecting if name not in incarnations]:
            self._close(self._connecting.pop(incarnation))

    def close(self) -> None:
        self.keep_only(set())

    def _close(self, task: asyncio.Task[TcpPeer]) -> None:
        task.cancel()
        if task.done() and not task.cancelled() and task.exception() is None:
            transport = task.result().link.transport
            if transport is not None:
                transport.close()

    async def _connect(self, member: Member) -> TcpPeer:
        if not member.addresses:
            # A node that is alone has none. After a lost lease its last life is the owner until the next has joined.
            raise NotOwner(f"node {member.name} is not back yet; nothing of this request was done; try again")
        host, _, port = member.addresses[0].rpartition(":")
        loop = asyncio.get_running_loop()
        link = CallerEnd(self._key(), self._entropy)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.create_connection(lambda: link, host.strip("[]"), int(port), ssl=self._tls)
                await link.trusted
        except (OSError, TimeoutError, ValueError) as error:  # The last one: what it told is no address.
            raise NotOwner(f"node {member.name} cannot be reached; nothing of this request was done") from error
        finally:
            link.give_up()
        _give_up_soon(link)
        return TcpPeer(link)


def _decoded_proof(frame: memoryview) -> Proof:
    """The proof in a frame; one that proves nothing, where there is something else in it."""
    try:
        return _PROOF.decode(frame)
    except msgspec.MsgspecError:
        return Proof(b"")


def _give_up_soon(link: CallerEnd) -> None:
    """A node that is cut off does not even acknowledge: then the connection must not hang for a quarter of an hour."""
    assert link.transport is not None
    connection = link.transport.get_extra_info("socket")
    if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


def _is_over(task: asyncio.Task[TcpPeer]) -> bool:
    if not task.done():
        return False
    return task.cancelled() or task.exception() is not None or task.result().link.lost.done()


def _only(serve: Serve) -> Serve:
    """Serves what nodes may ask, and nothing else."""

    async def allowed(method: str, arguments: tuple[Any, ...]) -> Any:
        if method not in CALLS:
            raise Overloaded(f"{method} is not for other nodes")
        return await serve(method, arguments)

    return allowed
