"""Node-to-node traffic: requests over TCP, after a handshake, with TLS where it is set up.

There is one connection to each other node, made when it is needed. A caller that does not prove to be a node of this
cluster is disconnected, and none of its requests is read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from everbell.cluster.handshake import NONCE_BYTES, Hello, Proof, is_proof, sign
from everbell.core.cluster import Member
from everbell.core.request import Ask
from everbell.entropy import Entropy
from everbell.errors import NotOwner
from everbell.links.link_client import LinkClient
from everbell.links.link_server import LinkServer
from everbell.links.remote_engine import RemoteEngine

_log = logging.getLogger("everbell.cluster")

_GREETING_BYTES_MAX = 256
_HEAD_BYTES = 4
_CONNECT_S = 2.0
GREETING_S = 5.0
"""How long a caller may take to prove that it is a node."""
GREETING_MAX = 64
"""How many callers may be about to prove that they are nodes."""
NODES_MAX = 1_024
"""How many connections other nodes may have to this one. Each needs one."""
_UNANSWERED_MS = 5_000
_HELLO = msgspec.msgpack.Decoder(Hello)
_PROOF = msgspec.msgpack.Decoder(Proof)


class HandshakePhase(Enum):
    """The message that this end of a handshake waits for next, or `TRUSTED` when requests may follow.

    The called end goes through all three phases. The caller sends the hello, so it begins with `PROOF`.
    """

    HELLO = auto()
    PROOF = auto()
    TRUSTED = auto()


class Callers:
    """The connections that other nodes have made to this one. Their number has a limit.

    Of callers that have not proved to be nodes, a new one replaces the oldest: a handshake takes milliseconds, so
    strangers that keep connections open cannot keep nodes out.
    """

    def __init__(self) -> None:
        self._greeting: dict[CalledEnd, None] = {}
        self._trusted: set[CalledEnd] = set()

    def add(self, caller: CalledEnd) -> None:
        """Add a connection that was made now."""
        if len(self._trusted) >= NODES_MAX:
            caller.refuse("there are too many connections of nodes")
            return
        if len(self._greeting) >= GREETING_MAX:
            oldest = next(iter(self._greeting))
            self._greeting.pop(oldest)
            oldest.refuse("too many others connect, and it has not greeted yet")
        self._greeting[caller] = None

    def trust(self, caller: CalledEnd) -> None:
        """Note that the caller is a node."""
        self._greeting.pop(caller, None)
        self._trusted.add(caller)

    def remove(self, caller: CalledEnd) -> None:
        """Remove a connection that is lost."""
        self._greeting.pop(caller, None)
        self._trusted.discard(caller)


class CalledEnd(LinkServer):
    """The end of the node that is called."""

    def __init__(self, ask: Ask, key: Callable[[], bytes], entropy: Entropy, callers: Callers) -> None:
        super().__init__(ask, for_peers=True)
        self._callers = callers
        self._key = key
        self._nonce = entropy.nonce() + entropy.nonce()
        self._caller_nonce = b""
        self._phase = HandshakePhase.HELLO
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._callers.add(self)
        # A silent caller must not occupy a connection for ever.
        self._patience = asyncio.get_running_loop().call_later(GREETING_S, self.refuse, "it did not greet in time")

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._callers.remove(self)
        self._wait_no_more()

    def data_received(self, data: bytes) -> None:
        if self._phase is not HandshakePhase.TRUSTED:
            head = (b"".join(self._pieces) + data)[:_HEAD_BYTES]
            if int.from_bytes(head.ljust(_HEAD_BYTES, b"\0")) > _GREETING_BYTES_MAX:
                self.refuse("it does not greet as a node does")
                return
        super().data_received(data)

    def frame(self, frame: memoryview) -> None:
        if self._phase is HandshakePhase.TRUSTED:
            super().frame(frame)
            return
        try:
            self._greet(frame)
        except msgspec.MsgspecError:
            self.refuse("it does not greet as a node does")

    def _greet(self, frame: memoryview) -> None:
        key = self._key()
        if self._phase is HandshakePhase.HELLO:
            self._caller_nonce = _HELLO.decode(frame).nonce
            self.send(Proof(sign(key, "called", self._caller_nonce, self._nonce), self._nonce))
            self._phase = HandshakePhase.PROOF
            return
        proof = _PROOF.decode(frame)
        if is_proof(key, "caller", self._caller_nonce, self._nonce, proof.signature):
            self._phase = HandshakePhase.TRUSTED
            self._callers.trust(self)
            self._wait_no_more()
        else:
            self.refuse("it is not of this cluster, or has another cluster secret")

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def refuse(self, reason: str) -> None:
        """Drop the connection."""
        if self.transport is not None and not self.transport.is_closing():
            _log.warning("refused a connection from %s: %s", self.transport.get_extra_info("peername"), reason)
            self.transport.abort()


class CallerEnd(LinkClient):
    """The end of the node that calls."""

    def __init__(self, key: bytes, entropy: Entropy) -> None:
        super().__init__()
        self.trusted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._phase = HandshakePhase.PROOF
        self._key = key
        self._nonce = (entropy.nonce() + entropy.nonce())[:NONCE_BYTES]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(Hello(self._nonce))

    def frame(self, frame: memoryview) -> None:
        if self._phase is HandshakePhase.TRUSTED:
            super().frame(frame)
            return
        assert self.transport is not None
        if self.trusted.done():
            self.transport.abort()  # The caller has given up.
            return
        proof = _decoded_proof(frame)
        if not is_proof(self._key, "called", self._nonce, proof.nonce, proof.signature):
            self.trusted.set_exception(NotOwner("the node that answers there is not of this cluster"))
            self.transport.abort()
            return
        self._phase = HandshakePhase.TRUSTED
        self.send(Proof(sign(self._key, "caller", self._nonce, proof.nonce)))
        self.trusted.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if not self.trusted.done():
            self.trusted.set_exception(NotOwner("the other node refused this one: check that both have one secret"))

    def give_up(self) -> None:
        """Close the connection unless its handshake is done: a suspended process accepts one and never answers."""
        if self.transport is not None and self._phase is not HandshakePhase.TRUSTED:
            self.transport.abort()


class TcpPeers:
    """All other nodes, by incarnation."""

    def __init__(self, key: Callable[[], bytes], entropy: Entropy, tls: ssl.SSLContext | None) -> None:
        self._key = key
        self._entropy = entropy
        self._tls = tls
        self._connecting: dict[str, asyncio.Task[RemoteEngine]] = {}

    async def reach(self, member: Member) -> RemoteEngine:
        """See the port. Concurrent callers share one connection attempt."""
        task = self._connecting.get(member.incarnation)
        if task is None or _is_over(task):
            task = asyncio.get_running_loop().create_task(self._connect(member))
            self._connecting[member.incarnation] = task
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                # The attempt to connect was cancelled, and not this caller.
                raise NotOwner(f"node {member.name} is gone; nothing of this request was done") from None
            raise

    def keep_only(self, incarnations: set[str]) -> None:
        """Forget nodes that are gone."""
        for incarnation in [name for name in self._connecting if name not in incarnations]:
            self._close(self._connecting.pop(incarnation))

    def close(self) -> None:
        self.keep_only(set())

    def _close(self, task: asyncio.Task[RemoteEngine]) -> None:
        task.cancel()
        if task.done() and not task.cancelled() and task.exception() is None:
            transport = task.result().link.transport
            if transport is not None:
                transport.close()

    async def _connect(self, member: Member) -> RemoteEngine:
        if not member.addresses:
            # A node that is alone has none. After a lost lease, its old incarnation is the owner until it joins again.
            raise NotOwner(f"node {member.name} is not back yet; nothing of this request was done; try again")
        host, _, port = member.addresses[0].rpartition(":")
        loop = asyncio.get_running_loop()
        link = CallerEnd(self._key(), self._entropy)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.create_connection(lambda: link, host.strip("[]"), int(port), ssl=self._tls)
                await link.trusted
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: the address of the member is invalid.
            raise NotOwner(f"node {member.name} cannot be reached; nothing of this request was done") from error
        finally:
            link.give_up()
        _give_up_soon(link)
        return RemoteEngine(link)


def _decoded_proof(frame: memoryview) -> Proof:
    """The proof in a frame, or an invalid proof if the frame has none."""
    try:
        return _PROOF.decode(frame)
    except msgspec.MsgspecError:
        return Proof(b"")


def _give_up_soon(link: CallerEnd) -> None:
    """Without this option, TCP waits a quarter of an hour for the acknowledgement of a node that is cut off."""
    assert link.transport is not None
    connection = link.transport.get_extra_info("socket")
    if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


def _is_over(task: asyncio.Task[RemoteEngine]) -> bool:
    if not task.done():
        return False
    return task.cancelled() or task.exception() is not None or task.result().link.lost.done()
