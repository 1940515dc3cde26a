"""The store as one node sees it, and the store's own records of its writers.

Over a network a write may be lost before it arrives, which the store reports. Or the write was done and the answer is
lost: then the store finds out the outcome, so the answer takes as long as the network is cut. A write may be done after
its writer has died.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from everbell.core.event import Event, Record
from everbell.errors import Fenced, StoreFull, StoreUnavailable
from everbell.stores.fence_checks import partitions_of
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import (
    Add,
    Block,
    Change,
    Counts,
    Filter,
    Finish,
    Found,
    Move,
    Page,
    Poison,
    PreparedRows,
    Refusal,
    Unblock,
)
from tests.simulation.network import Network
from tests.simulation.processes import Process, ProcessLoop, finished

T = TypeVar("T")

STORE = "store"
GROUP_CHANGES = 6
"""A small number, so that groups queue up, and one is prepared while another is written."""


@dataclass
class StoreServer:
    """The one store; it records the writer and epoch of each write."""

    inner: MemoryStore
    loop: ProcessLoop
    dice: random.Random
    full: float = 0.0
    partial: float = 0.0
    violations: list[str] = field(default_factory=list)
    ended: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By (name, occurrence): when its end was committed, in true milliseconds, and in which epoch."""
    fenced: int = 0
    refused: int = 0
    unmet: int = 0
    takers: dict[tuple[int, int], str] = field(default_factory=dict)
    taken_ms: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (partition, epoch): when it was put in force, in true milliseconds."""
    on_taken: Callable[[Mapping[int, int]], None] = lambda epochs: None
    _written: dict[int, int] = field(default_factory=dict)

    def apply(self, changes: Sequence[Change], epochs: Mapping[int, int], writer: str) -> Mapping[int, Refusal]:
        if self.full and self.dice.random() < self.full:
            raise StoreFull("the simulated disk is full")
        if self.partial and self.dice.random() < self.partial:
            return self._apply_partly(changes, epochs, writer)
        try:
            refused = finished(self.inner.apply(changes, epochs))
        except Fenced:
            self.fenced += 1
            raise
        self.refused += sum(refusal.existing is None for refusal in refused.values())
        now_ms = int(self.loop.true_s * 1_000)
        for index, change in enumerate(changes):
            (partition,) = partitions_of([change])
            self._check_epoch(partition, epochs.get(partition, 0), writer)
            if isinstance(change, Finish) and index not in refused:
                name = change.before.payload.decode()
                self.ended[name, change.record.occurrence] = now_ms, epochs.get(partition, 0)
        return refused

    def _apply_partly(self, changes: Sequence[Change], epochs: Mapping[int, int], writer: str) -> Mapping[int, Refusal]:
        """Refuse some of the users' changes, and make the others; the changes of one event or key stay together."""
        named = Counter(name for change in changes for name in _names_of(change))
        out = {
            index
            for index, change in enumerate(changes)
            if is_asked(change) and max(named[name] for name in _names_of(change)) == 1 and self.dice.random() < 0.5
        }
        kept = [index for index in range(len(changes)) if index not in out]
        partial, self.partial = self.partial, 0.0
        try:
            made = self.apply([changes[index] for index in kept], epochs, writer)
        finally:
            self.partial = partial
        self.unmet += len(out)
        refused = dict.fromkeys(out, Refusal(None, "the simulated level cannot be met"))
        return refused | {kept[index]: refusal for index, refusal in made.items()}

    def raise_fence(self, epochs: Mapping[int, int], taker: str) -> int:
        sequence = finished(self.inner.raise_fence(epochs))
        for partition, epoch in epochs.items():
            self._check_epoch(partition, epoch, taker)
            self.taken_ms[partition, epoch] = int(self.loop.true_s * 1_000)
        self.on_taken(epochs)
        return sequence

    def _check_epoch(self, partition: int, epoch: int, writer: str) -> None:
        if epoch < self._written.get(partition, 0):
            self.violations.append(
                f"epoch: {writer} wrote to partition {partition} in epoch {epoch}, after a higher one"
            )
        self._written[partition] = max(epoch, self._written.get(partition, 0))
        taker = self.takers.setdefault((partition, epoch), writer)
        if taker != writer:
            self.violations.append(f"owner: {taker} and {writer} both own partition {partition} in epoch {epoch}")


def is_asked(change: Change) -> bool:
    """Whether a user asked for the change, so that it may be refused."""
    return isinstance(change, Add) or (isinstance(change, (Move, Finish)) and change.guarded)


def _names_of(change: Change) -> list[tuple[str, str]]:
    """The event that a change is about, and its key."""
    if isinstance(change, (Block, Unblock)):
        return [(change.tenant, f"key {change.key}")]
    assert not isinstance(change, PreparedRows), "a shared store has no row maker"
    event = change.event if isinstance(change, Add) else change.before
    return [(event.tenant, event.id), *([] if event.key is None else [(event.tenant, f"key {event.key}")])]


class RoughStore:
    """A node's connection to the store."""

    def __init__(self, server: StoreServer, network: Network, process: Process, writer: str) -> None:
        self.partitions = server.inner.partitions
        self.epoch = server.inner.epoch
        self.group_changes = GROUP_CHANGES
        self.preparer = self
        self.row_maker = None  # As in all stores that many nodes share.
        self._server = server
        self._inner = server.inner
        self._network = network
        self._process = process
        self._writer = writer

    async def claim(self, cluster: str) -> int:
        return await self._read(lambda: finished(self._inner.claim(cluster)))

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        claimed = dict(epochs)
        return await self._write(lambda: self._server.raise_fence(claimed, self._writer))

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        claimed = dict(epochs)
        return await self._write(lambda: self._server.apply(changes, claimed, self._writer))

    async def prepare(self, changes: Sequence[Change]) -> None:
        await asyncio.sleep(0)

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        return await self._read(lambda: finished(self._inner.page(partition, after, until_at, limit, without)))

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        return await self._read(lambda: finished(self._inner.waiting(partition, tenant, key, after, limit)))

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        return await self._read(lambda: finished(self._inner.heads(partition, keys)))

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        return await self._read(lambda: finished(self._inner.blocked(partition, after, limit)))

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        return await self._read(lambda: finished(self._inner.get(tenant, event_id)))

    async def get_many(self, tenant: str, event_ids: Sequence[str]) -> Sequence[Event | Record | None]:
        return await self._read(lambda: finished(self._inner.get_many(tenant, event_ids)))

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        return await self._read(lambda: finished(self._inner.find(filter, cursor, limit)))

    async def counts(self) -> Mapping[str, Counts]:
        return await self._read(lambda: finished(self._inner.counts()))

    async def bury(self, poison: Poison) -> None:
        await self._read(lambda: finished(self._inner.bury(poison)))

    async def sweep(self, now: int, limit: int) -> int:
        return await self._read(lambda: finished(self._inner.sweep(now, limit)))

    async def backup(self, path: str) -> None:
        raise AssertionError("no test asks for a backup here")

    async def close(self) -> None:
        pass

    async def _read(self, serve: Callable[[], T]) -> T:
        return await self._network.call(self._process.name, STORE, serve, lost=_away, unheard=_away)

    async def _write(self, serve: Callable[[], T]) -> T:
        return await self._network.call(self._process.name, STORE, serve, lost=_away, unheard=None)


def _away() -> StoreUnavailable:
    return StoreUnavailable("the simulated store is away")
