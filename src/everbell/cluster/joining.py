"""The steps of a join that take time: waiting, checking which members are dead, asking again.

The log records the result of each step. Each step belongs to one incarnation of the node: when the node has become
another incarnation, or none, the step ends without doing anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Protocol

from everbell.cluster.backoff import Backoff
from everbell.cluster.heartbeat import is_renewed
from everbell.cluster.lease_watches import dead_among
from everbell.core.cluster import Command, Member, Value, inspected, next_try, report, withdrawn
from everbell.errors import ClusterError
from everbell.logs.port import Log

_JOIN_LEASES = 4
"""A join that is not complete after this number of lease times starts again."""


class NodePhase(Enum):
    """How far a node has come with joining the cluster."""

    OUT = auto()  # No incarnation and no lease; a new try to join follows.
    CUT_OFF = auto()  # The same, because the node could not reach the store: it joins when the store answers.
    JOINING = auto()  # The incarnation has a lease and asks to join.
    MEMBER = auto()  # The log says that it is a member.
    LEAVING = auto()  # The process stops: the node never joins again.


NEXT_PHASES: Mapping[NodePhase, frozenset[NodePhase]] = {
    NodePhase.OUT: frozenset({NodePhase.JOINING, NodePhase.LEAVING}),
    NodePhase.CUT_OFF: frozenset({NodePhase.JOINING, NodePhase.LEAVING}),
    NodePhase.JOINING: frozenset({NodePhase.MEMBER, NodePhase.OUT, NodePhase.CUT_OFF, NodePhase.LEAVING}),
    NodePhase.MEMBER: frozenset({NodePhase.OUT, NodePhase.CUT_OFF, NodePhase.LEAVING}),
    NodePhase.LEAVING: frozenset(),
}


class Joiner(Protocol):
    """The node that wants to join."""

    me: str

    @property
    def value(self) -> Value: ...

    @property
    def is_member(self) -> bool: ...

    def member(self) -> Member: ...

    def append(self, *commands: Command) -> None: ...


class Joining:
    """The work of a joining node between two log entries."""

    def __init__(
        self, node: Joiner, log: Log, lease_ms: int, backoff: Backoff, on_halt: Callable[[BaseException], None]
    ) -> None:
        self._node = node
        self._log = log
        self._lease_ms = lease_ms
        self._backoff = backoff
        self._on_halt = on_halt

    async def insist(self, me: str) -> None:
        """Start the join again when it takes too long: the node that has to accept it may be alive but idle."""
        node = self._node
        while True:
            await asyncio.sleep(_JOIN_LEASES * self._lease_ms / 1_000)
            if node.me != me or node.is_member:
                return
            node.append(*withdrawn(me))

    async def inspect(self, incarnations: tuple[str, ...]) -> None:
        """Report dead members that no watcher has reported, then try to join."""
        node = self._node
        me = node.me
        dead = await dead_among(self._log, incarnations)
        if node.me != me:
            return
        node.append(*inspected(node.value, node.member(), dead))

    async def join_later(self) -> None:
        """The cluster could not accept the join now: try again after a pause."""
        await asyncio.sleep(self._backoff.next_s())
        if self._node.me:
            self._node.append(*next_try(self._node.me))

    async def wait_for_name(self, incarnation: str) -> None:
        """Another incarnation has our name: our previous incarnation, until its lease ends, or a live node."""
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
            node.append(*next_try(node.me))
