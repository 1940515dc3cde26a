"""Intake: checked drafts become events with an id, a sequence and a partition. Callers are answered after the events
are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import repeat
from sys import intern
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.allotment import RUN_BITS, Allotment
from everbell.core.dead_letter import letter_of
from everbell.core.event import Event, Record
from everbell.core.ids import Slices, make_ids, partition_in
from everbell.core.recurrence import detached
from everbell.core.spec import Draft, event_of
from everbell.engine.kills_in_force import KillsInForce
from everbell.engine.meter import Meter
from everbell.engine.partition import Partition
from everbell.engine.quotas import Quotas
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import GROUP_CHANGES_MAX, StoreWriter
from everbell.entropy import Entropy
from everbell.errors import EverbellError, NotOwner, StoreError, StoreUnavailable, TooLarge
from everbell.stores.port import SEQUENCES_AT_ONCE, Add, PreparedRows, Refusal, RowMaker

if TYPE_CHECKING:
    from everbell.tracing import Tracing


MakeIds = Callable[[Sequence[int], int, Sequence[int], bytes], list[str]]
"""Makes ids from due times, the first sequence, partitions and nonces, like `core.ids.make_ids`."""


class Taken(Exception):
    """The id of a draft is in use."""

    def __init__(self, existing: Event | Record) -> None:
        super().__init__(existing.id)
        self.existing = existing


class Intake:
    """Gives events their place and stores them in groups."""

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        writer: StoreWriter,
        memory: WorkingSet,
        meter: Meter,
        partitions: Sequence[Partition],
        quotas: Quotas,
        row_maker: RowMaker | None,
        tracing: Tracing | None,
        make_ids: MakeIds = make_ids,
        kills: KillsInForce | None = None,
    ) -> None:
        self._clock = clock
        self._nonces = entropy.nonces
        self._writer = writer
        self._memory = memory
        self._meter = meter
        self._partitions = partitions
        self.quotas = quotas
        self._row_maker = row_maker
        self._tracing = tracing
        self._make_ids = make_ids
        self._kills = KillsInForce() if kills is None else kills
        self._owned: Sequence[Partition] = ()
        self._sequence = 0
        self._sequence_max = 0
        self.slices: Slices = {}
        """The partitions that are reserved for some tenants."""

    def own(self, owned: Sequence[Partition]) -> None:
        """Use the partitions that this node owns now."""
        self._owned = owned

    def count_from(self, sequence: int) -> None:
        """Give new events sequences above this one, which the store has reserved for this node."""
        self._sequence = max(self._sequence, sequence)
        self._sequence_max = max(self._sequence_max, sequence + SEQUENCES_AT_ONCE)

    @property
    def is_owner(self) -> bool:
        """Whether this node owns any partition."""
        return bool(self._owned)

    @property
    def needs_sequences(self) -> bool:
        """Whether to reserve more sequences in the store."""
        return self._sequence_max - self._sequence < SEQUENCES_AT_ONCE // 2

    def allot(self, count: int) -> Allotment | None:
        """Reserve places for new simple events. None: the events must be sent as drafts."""
        if self._row_maker is None or self.slices or self._tracing is not None or not self._owned:
            return None
        first = self._sequence + 1
        self._sequence += count
        return Allotment(first, count, tuple(partition.index for partition in self._owned), self._row_maker.format)

    async def take_in(self, rows: PreparedRows) -> bool:
        """Store events at places that were allotted. Raises `StoreError`, `Overloaded`.

        Returns False if nothing was stored, because the owner or the settings have changed since. Then the events must
        be sent as drafts.
        """
        row_maker = self._row_maker
        if row_maker is None or self.slices or self._tracing is not None:
            return False
        if self.quotas.bind(rows.tenant) or self._kills.concern(rows.tenant) or not self._owns_all(rows):
            return False
        future: asyncio.Future[bool | StoreError] = asyncio.get_running_loop().create_future()

        def stored(refused: Mapping[int, Refusal] | StoreError) -> None:
            if not refused:
                self._meter.count_scheduled(rows.tenant, rows.count)
                self._memory.arrive_prepared(rows, row_maker)
            if not future.done():
                future.set_result(refused if isinstance(refused, StoreError) else not refused)

        self._writer.take_in([rows], stored)
        result = await future
        if isinstance(result, StoreError):
            raise result.as_value()
        return result

    def _owns_all(self, rows: PreparedRows) -> bool:
        return all(self._partitions[run.partition].epoch for run in rows.runs)

    def place_all(self, tenant: str, drafts: Sequence[Draft], now: int) -> list[Event]:
        """Make the events of drafts. Their sequences are used up even if storing fails. Gaps do not matter.

        Raises `NotOwner`.
        """
        first = self._sequence + 1
        self._sequence += len(drafts)
        sequences = range(first, first + len(drafts))
        partitions = list(map(self._partition_of, repeat(tenant), drafts, sequences))
        # Drafts with an id need no new one, but leaving them out costs more than it saves.
        made = self._make_ids([draft.due_at for draft in drafts], first, partitions, self._nonces(len(drafts)))
        return [
            event_of(draft, draft.id or made_id, tenant, partition, sequence, now)
            for draft, made_id, partition, sequence in zip(drafts, made, partitions, sequences, strict=True)
        ]

    def place_beside(self, event: Event, now: int) -> Event:
        """Make an occurrence of a recurring event an event of its own, in the same partition."""
        self._sequence += 1
        (made_id,) = self._make_ids([event.due_at], self._sequence, [event.partition], self._nonces(1))
        return detached(event, made_id, self._sequence, now)

    def place_letter(self, dead: Event, to: str, now: int) -> Event:
        """Make the dead letter of an event, in the same partition."""
        self._sequence += 1
        (made_id,) = self._make_ids([now], self._sequence, [dead.partition], self._nonces(1))
        return letter_of(dead, to, made_id, self._sequence, now)

    def adopt(self, events: Sequence[Event]) -> asyncio.Future[list[Event | Taken | EverbellError]]:
        """Store events that another node made and counted, each at a place of its own here. Raises `NotOwner`."""
        placed = []
        for event in events:
            self._sequence += 1
            # The events stay in memory, and have these values in common: each is kept once.
            tenant, to = intern(event.tenant), intern(event.to)
            run_at = event.due_at if event.run_at == event.due_at else event.run_at
            partition = self._owned_one(tenant, event.id)
            placed.append(
                replace(event, tenant=tenant, to=to, run_at=run_at, partition=partition, sequence=self._sequence)
            )
        return self._store(placed, is_counted=True)

    def _partition_of(self, tenant: str, draft: Draft, sequence: int) -> int:
        if draft.key is not None:
            return self._owned_one(tenant, draft.key)
        if draft.id is not None:
            return self._owned_one(tenant, draft.id)
        if owned := self._owned_by(tenant) if self.slices else self._owned:
            return owned[(sequence >> RUN_BITS) % len(owned)].index
        raise NotOwner("this node owns no partition at the moment; nothing of this request was stored")

    def _owned_by(self, tenant: str) -> Sequence[Partition]:
        """The partitions for an event of the tenant without key and id: the tenant's own, if it has reserved ones."""
        if tenant not in self.slices:
            return self._owned
        first, count = self.slices[tenant]
        return [partition for partition in self._owned if first <= partition.index < first + count]

    def partition_of_key(self, tenant: str, key: str) -> int:
        """The partition of a key. Raises `NotOwner`."""
        return self._owned_one(tenant, key)

    def _owned_one(self, tenant: str, name: str) -> int:
        partition = partition_in(self.slices, tenant, name, len(self._partitions))
        if not self._partitions[partition].epoch:
            raise not_owner(partition)
        return partition

    async def schedule(
        self, tenant: str, drafts: Sequence[Draft], reused: Collection[str] = ()
    ) -> list[Event | Taken | EverbellError]:
        """Store drafts. Returns for each draft, in order, the event or the reason why it was not stored.

        `reused`: ids that new events take over from records.
        """
        if not self.quotas.bind(tenant):
            return await self._take_in(tenant, drafts, reused)
        room, refusal = await self.quotas.room(tenant, len(drafts))
        if refusal is None:
            return await self._take_in(tenant, drafts, reused)
        taken = await self._take_in(tenant, drafts[:room], reused) if room else []
        return [*taken, *[refusal] * (len(drafts) - room)]

    async def _take_in(
        self, tenant: str, drafts: Sequence[Draft], reused: Collection[str]
    ) -> list[Event | Taken | EverbellError]:
        if self._tracing is None:
            return await self._store_all(tenant, drafts, reused)
        traced, spans = self._tracing.schedule(tenant, drafts)
        results = await self._store_all(tenant, traced, reused)
        self._tracing.scheduled(spans, results)
        return results

    async def _store_all(
        self, tenant: str, drafts: Sequence[Draft], reused: Collection[str]
    ) -> list[Event | Taken | EverbellError]:
        try:
            events = self.place_all(tenant, drafts, self._clock.now())
        except NotOwner as elsewhere:
            # The sender does not know the current owners. It sends all drafts to the right nodes, in order.
            return [elsewhere.as_value()] * len(drafts)
        if len(events) <= GROUP_CHANGES_MAX:
            return await self._store(events, reused)
        parts = [events[i : i + GROUP_CHANGES_MAX] for i in range(0, len(events), GROUP_CHANGES_MAX)]
        results: list[Event | Taken | EverbellError] = []
        for stored in await asyncio.gather(*(self._store(part, reused) for part in parts)):
            results.extend(stored)
        return results

    def _store(
        self, events: list[Event], reused: Collection[str] = (), *, is_counted: bool = False
    ) -> asyncio.Future[list[Event | Taken | EverbellError]]:
        future: asyncio.Future[list[Event | Taken | EverbellError]] = asyncio.get_running_loop().create_future()

        def stored(refused: Mapping[int, Refusal] | StoreError) -> None:
            results = self._arrived(events, refused, is_counted=is_counted)
            if not future.done():
                future.set_result(results)

        try:
            # Mostly none is reused, and then this loop does nothing else.
            added = [Add(event, reuses=event.id in reused) for event in events] if reused else list(map(Add, events))
            self._writer.take_in(added, stored)
        except EverbellError as refused:
            future.set_result([refused.as_value()] * len(events))
        return future

    def _arrived(
        self, events: list[Event], refused: Mapping[int, Refusal] | StoreError, *, is_counted: bool
    ) -> list[Event | Taken | EverbellError]:
        if isinstance(refused, StoreError):
            return [refused] * len(events)
        if len(events) > len(refused) and not is_counted:
            self._meter.count_scheduled(events[0].tenant, len(events) - len(refused))
        if not refused:
            self._memory.arrive_all(events)
            return list(events)
        return [self._made_or_taken(event, refused.get(index)) for index, event in enumerate(events)]

    def _made_or_taken(self, event: Event, refusal: Refusal | None) -> Event | Taken | EverbellError:
        if refusal is None:
            self._memory.arrive(event)
            return event
        if refusal.unmet:
            return unmet(refusal)
        return not_owner(event.partition) if refusal.existing is None else Taken(refusal.existing)


def unmet(refusal: Refusal) -> TooLarge | StoreUnavailable:
    """The error for a change that the store refused."""
    return TooLarge(refusal.unmet, "payload") if refusal.is_for_good else StoreUnavailable(refusal.unmet)


def not_owner(partition: int) -> NotOwner:
    """The error for an event whose partition another node owns."""
    return NotOwner(f"partition {partition} is moving to another node; nothing of this request was stored")
