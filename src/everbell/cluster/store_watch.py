"""A node that is the only one to have lost the store gives way to those who have not.

It may still reach the log, so nobody would take it for dead, and nothing of its partitions could be read or stored. So
while its store is away it asks the other owners about theirs. When somebody's has been well all the time that ours
was not, for some leases, the node leaves everything to the others, as if its lease were lost, and joins again when the
store answers it.

When the store is away for everybody, nobody gives way: there would be nothing to gain, and much to move when it is
back. Whoever cannot be asked at all counts as well, for it is alive by the log; one that is reached and does not
answer counts as ill, for that is what a store that hangs looks like.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.cluster.node import ClusterNode
from everbell.cluster.port import Peers
from everbell.core.cluster import Member
from everbell.core.cluster.pools import able
from everbell.engine.engine import Engine
from everbell.errors import EverbellError, NotFound, NotOwner, StoreUnavailable

GIVE_WAY_LEASES = 4
"""For so many leases it has to be the only one."""
_LOOKS_A_LEASE = 2
_ASK_S = 2.0
_NOBODYS = "default", "?"
"""A tenant, and an id that no event can have: to say that there is none, the store has to be asked."""


class StoreWatch:
    """Looks after one node."""

    def __init__(self, node: ClusterNode, engine: Engine, peers: Peers, clock: Clock) -> None:
        self._node = node
        self._engine = engine
        self._peers = peers
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-store-watch")

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
            if not self._is_ill() or not await self._is_somebody_well():
                alone_since_ms = None
                continue
            now_ms = self._clock.elapsed_ms()
            alone_since_ms = now_ms if alone_since_ms is None else alone_since_ms
            if now_ms - alone_since_ms >= GIVE_WAY_LEASES * lease_ms and self._is_ill():
                alone_since_ms = None
                self._node.give_way()

    def _is_ill(self) -> bool:
        """Whether this node owns something, and cannot reach the store."""
        trouble = self._engine.trouble
        return (
            trouble is not None
            and isinstance(trouble[0], StoreUnavailable)
            and self._node.is_member
            and any(part.owner == self._node.me for part in self._node.value.partitions)
        )

    async def _is_somebody_well(self) -> bool:
        """Of those who would own what this node does, were it gone; if none of them is well, of those who would if they
        gave way, too: in the end, that are those that drain.
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
        """Whether another node reaches the store; None: it cannot be asked."""
        try:
            peer = await self._peers.reach(member)
            async with asyncio.timeout(_ASK_S):
                await peer.operations.get(*_NOBODYS)
        except NotFound:
            return True
        except NotOwner:
            return None
        except (EverbellError, TimeoutError):
            return False
        return True
