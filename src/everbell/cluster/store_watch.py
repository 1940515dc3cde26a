"""A node that alone cannot reach the store gives its partitions to the nodes that can.

Such a node may still reach the log, so the others do not take it for dead, although it can neither read nor store its
events. While its store is away, the node asks the other owners about theirs. If another owner has reached the store
for several lease times during which this node has not, this node leaves its partitions to the others, as if it had
lost its lease, and joins again when the store answers.

If no node can reach the store, none gives way: that would gain nothing and move many partitions when the store is
back. A node that cannot be asked counts as well, because by the log it is alive. A node that is reached but does not
answer counts as ill, because a hanging store looks like that.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.cluster.node import ClusterNode
from everbell.cluster.port import Peers
from everbell.cluster.supervised_task import OnHalt, begin
from everbell.core.cluster import Member
from everbell.core.cluster.pools import able
from everbell.engine.engine import Engine
from everbell.engine.requests import Get
from everbell.errors import EverbellError, NotFound, NotOwner, StoreUnavailable

GIVE_WAY_LEASES = 4
"""A node gives way after it has been the only ill one for this number of lease times."""
_LOOKS_A_LEASE = 2
_ASK_S = 2.0
_ABSENT = Get("default", "?")
"""No event can have this id: to say that there is none, the other node has to ask its store."""


class StoreWatch:
    """Watches the store of one node."""

    def __init__(self, node: ClusterNode, engine: Engine, peers: Peers, clock: Clock, on_halt: OnHalt) -> None:
        self._node = node
        self._engine = engine
        self._peers = peers
        self._clock = clock
        self._on_halt = on_halt
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = begin(self._run(), "everbell-store-watch", self._on_halt)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        lease_ms = self._node.settings.lease_ms
        alone_since_ms: int | None = None
        while True:
            await asyncio.sleep(lease_ms / _LOOKS_A_LEASE / 1_000)
            if not self._is_ill() or not await self._is_another_well():
                alone_since_ms = None
                continue
            now_ms = self._clock.elapsed_ms()
            alone_since_ms = now_ms if alone_since_ms is None else alone_since_ms
            if now_ms - alone_since_ms >= GIVE_WAY_LEASES * lease_ms and self._is_ill():
                alone_since_ms = None
                self._node.give_way()

    def _is_ill(self) -> bool:
        """Whether this node owns partitions and cannot reach the store."""
        trouble = self._engine.trouble
        return (
            trouble is not None
            and isinstance(trouble[0], StoreUnavailable)
            and self._node.is_member
            and any(part.owner == self._node.me for part in self._node.value.partitions)
        )

    async def _is_another_well(self) -> bool:
        """Whether a node that would get the partitions of this one can reach the store.

        If none of these nodes is well, the question goes to the nodes that would get the partitions if those gave way
        too; in the end, these are the draining nodes.
        """
        value, me = self._node.value, self._node.me
        members = {incarnation: member for incarnation, member in value.members.items() if incarnation != me}
        while heirs := able(replace(value, members=members)):
            answers = await asyncio.gather(*map(self._ask, heirs))
            if True in answers or (None in answers and False not in answers):
                return True
            for heir in heirs:
                del members[heir.incarnation]
        return False

    async def _ask(self, member: Member) -> bool | None:
        """Whether another node reaches the store; None if it cannot be asked."""
        try:
            peer = await self._peers.reach(member)
            async with asyncio.timeout(_ASK_S):
                await peer.ask(_ABSENT)
        except NotFound:
            return True
        except NotOwner:
            return None
        except (EverbellError, TimeoutError):
            return False
        return True
