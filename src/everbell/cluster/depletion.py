"""Depletion: a dead node that does not return is forgotten.

While the cluster expects a dead node back, the partitions that stand-ins run for it carry its name (`Placement.home`).
The cluster forgets the node when the last event that it left behind has ended, or after `forget_after_ms`. Then its
stand-ins are ordinary owners, and no trace of the node is left in the cluster value but the list of transitions.

One node checks: the owner of the first of these partitions. It needs no help from the others, because every node can
read every partition in the store. A node counts from the moment at which it became the checker, so a change of the
checker can only make the cluster wait longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from everbell.clock import Clock
from everbell.cluster.node import ClusterNode
from everbell.cluster.supervised_task import OnHalt, begin
from everbell.core.cluster import Forget, Value, member_named
from everbell.core.event import Event
from everbell.core.time import INSTANT_MAX, format_duration
from everbell.errors import StoreError
from everbell.stores.paging import last_of
from everbell.stores.port import Store

_log = logging.getLogger("everbell.cluster")

_LOOK_LEASES = 4
_PAGE = 500
# How many pages one look reads at most. The next look goes on from there.
_PAGES_MAX = 20


def homes_of(value: Value, me: str) -> dict[str, tuple[int, ...]]:
    """The dead members that `me` has to check on, each with the partitions that are run for it."""
    homes: dict[str, list[int]] = {}
    for number, part in enumerate(value.partitions):
        if part.home and member_named(value, part.home) is None:
            homes.setdefault(part.home, []).append(number)
    return {home: tuple(numbers) for home, numbers in homes.items() if value.partitions[numbers[0]].owner == me}


class Depletion:
    """Forgets dead nodes that this node has to check on."""

    def __init__(self, node: ClusterNode, store: Store, clock: Clock, on_halt: OnHalt) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._on_halt = on_halt
        self._checks: dict[str, _Check] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = begin(self._run(), "everbell-depletion", self._on_halt)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_LEASES * self._node.settings.lease_ms / 1_000)
            homes = homes_of(self._node.value, self._node.me) if self._node.is_member else {}
            self._checks = {home: check for home, check in self._checks.items() if home in homes}
            for home, partitions in homes.items():
                await self._look(home, partitions)

    async def _look(self, home: str, partitions: Sequence[int]) -> None:
        check = self._checks.setdefault(home, _Check(self._store, self._clock))
        after_ms = self._node.settings.forget_after_ms
        if self._clock.elapsed_ms() - check.since_ms >= after_ms:
            reason = f"it has not come back for {format_duration(after_ms)}"
        else:
            try:
                if not await check.is_depleted(partitions):
                    return
            except StoreError:
                return  # The next look asks again.
            reason = "the last of its events has ended"
        _log.info("node %s is forgotten: %s", home, reason)
        self._node.append(Forget(home))


class _Check:
    """Whether events that a dead node left behind are still unfinished.

    It remembers one such event. As long as that event lives, a look costs one read.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.since_ms = clock.elapsed_ms()
        self._began_at = clock.now()
        self._store = store
        self._witness: Event | None = None
        self._depleted: set[int] = set()
        self._after = -1

    async def is_depleted(self, partitions: Sequence[int]) -> bool:
        """Whether all events that are older than this check have ended. Raises `StoreError`."""
        witness = self._witness
        if witness is not None:
            if isinstance(await self._store.get(witness.tenant, witness.id), Event):
                return False
            self._witness, self._after = None, -1
        pages = 0
        for partition in partitions:
            while partition not in self._depleted:
                if pages == _PAGES_MAX:
                    return False
                pages += 1
                if not await self._read_on(partition):
                    return False
        return True

    async def _read_on(self, partition: int) -> bool:
        """Read the next page of a partition; False if an old event was found."""
        page = await self._store.page(partition, self._after, INSTANT_MAX, _PAGE)
        for event in page.events:
            if event.created_at < self._began_at:
                self._witness = event
                return False
        if page.more:
            self._after = last_of(page)
            return True
        self._after = -1
        if await self._store.blocked(partition, ("", ""), 1):
            return False  # Events that wait in the line of a blocked key may be old.
        self._depleted.add(partition)
        return True
