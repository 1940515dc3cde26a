"""The steps of a join that take time: waiting, looking who is dead, asking again. What each leads to is in the log.

All of it is done for one incarnation: when the node has become another, or nobody, it ends without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from everbell.cluster.backoff import Backoff
from everbell.cluster.heartbeat import is_renewed
from everbell.cluster.watches import dead_among
from everbell.core.cluster import AbortJoin, Command, Member, PeerGc, PrepareJoin, Value, report
from everbell.errors import ClusterError
from everbell.logs.port import Log

_JOIN_LEASES = 4
"""After so many leases a join is begun anew."""


class Joiner(Protocol):
    """The node that wants to join."""

    me: str

    @property
    def value(self) -> Value: ...

    @property
    def is_member(self) -> bool: ...

    def member(self) -> Member: ...

    def append(self, *commands: Command) -> None: ...


class Entrance:
    """What a joiner does between two entries of the log."""

    def __init__(
        self, node: Joiner, log: Log, lease_ms: int, backoff: Backoff, on_halt: Callable[[BaseException], None]
    ) -> None:
        self._node = node
        self._log = log
        self._lease_ms = lease_ms
        self._backoff = backoff
        self._on_halt = on_halt

    async def insist(self, me: str) -> None:
        """A join has an end: whoever has to accept it may be alive and do nothing, and an answer may be skipped."""
        node = self._node
        while True:
            await asyncio.sleep(_JOIN_LEASES * self._lease_ms / 1_000)
            if node.me != me or node.is_member:
                return
            node.append(AbortJoin(me, "it took too long"), PeerGc(me))

    async def inspect(self, incarnations: tuple[str, ...]) -> None:
        """Clear away who is dead without anybody having said so, then try to join."""
        node = self._node
        me = node.me
        dead = await dead_among(self._log, incarnations)
        if node.me != me:
            return
        node.append(*(report(me, each) for each in dead if each in node.value.members or each in node.value.joins))
        if not node.is_member:
            node.append(PrepareJoin(node.member()))

    async def join_later(self) -> None:
        """There was no place."""
        await asyncio.sleep(self._backoff.next_s())
        if self._node.me:
            self._node.append(PeerGc(self._node.me))

    async def wait_for_name(self, incarnation: str) -> None:
        """Our name is taken: by our own past, whose lease runs out, or by somebody who lives."""
        node = self._node
        name = node.member().name
        if await is_renewed(self._log, incarnation, self._lease_ms):
            self._on_halt(
                ClusterError(f"another node that is alive has the name {name!r}: give this one another with --node")
            )
            return
        if node.me:
            if incarnation in node.value.members or incarnation in node.value.joins:
                node.append(report(node.me, incarnation))
            node.append(PeerGc(node.me))
