"""The holder: an engine over the copies of this node. It takes turns with the other replicas of each event.

The engine is the one that delivers stored events, so retries, recurrence, expiry, dead events, pauses, caps, breakers,
signatures and tracing are the same. It has no owner, no epoch and no lease: every replica has the event, and `turn_at`
decides which of them attempts it, and when.

Copies from other nodes are merged into those that are held here. If the other copy is later, the engine stores it as a
change, which also takes the event out of the agenda or the dispatcher. An attempt in flight here still counts unless
the event was changed, has ended, or is at its next occurrence by the other copy.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everbell.channels.port import Delivery
from everbell.clock import Clock
from everbell.core.event import Event, Record
from everbell.core.replicas.copies import REPLICA_FORMAT, Copy, delivered_twice, for_wire
from everbell.core.replicas.ids import ALL_BITS, make_replica_id, place_name
from everbell.core.replicas.placement import Roster
from everbell.core.replicas.turns import Busy, rank
from everbell.core.verdict import cancelled
from everbell.engine.entry import Entry
from everbell.engine.replica_requests import (
    ChangeCopies,
    CopyName,
    DropCopies,
    HoldCopies,
    HoldResult,
    NoteBusy,
)
from everbell.errors import Conflict, EverbellError, NotFound, Overloaded
from everbell.replicas.messenger import Messenger
from everbell.replicas.port import Members
from everbell.replicas.queues import make_token
from everbell.replicas.store import CopyStore
from everbell.replicas.turn_taking import TurnTaking
from everbell.stores.port import Change, Finish, Move

if TYPE_CHECKING:
    from everbell.engine.engine import Engine

# An attempt is announced to the other replicas if it is still in flight after this part of the skew.
_ANNOUNCE_PART = 4
# A receiver may use its whole deadline, and the outcome has to travel.
_DEADLINE_MS = 500
_NONCE_BYTES = 9
# Ranks are counted for people: of a sample, and at most once in a while. A placement takes some microseconds, and no
# event is delivered meanwhile.
_RANKED_MAX = 500
_RANKED_MS = 1_000
# The number of copies that are merged before other tasks run on the loop.
_MERGE_SLICE = 200


class _Stale(Exception):
    """The copy here is as late as the one that came, or its attempt in flight decides."""


class Holder:
    """The copies of this node, and their turns. It implements `engine.turns.Turns`."""

    def __init__(self, store: CopyStore, members: Members, messenger: Messenger, clock: Clock) -> None:
        self.store = store
        self.duplicates = 0
        """Occurrences that this node and another node delivered."""
        self.strays: dict[CopyName, None] = {}
        """Events of which this node was given a copy although it is no replica of them."""
        self.started_by_rank: Counter[int] = Counter()
        """Attempts that started on this node, by the number of replicas that came before it."""
        self._members = members
        self._messenger = messenger
        self._clock = clock
        self.turns = TurnTaking(store, members, clock)
        self._engine: Engine | None = None
        # Events that are being added, so that a second message about one waits for the first.
        self._adding: dict[CopyName, asyncio.Future[None]] = {}
        self._ranks: dict[int, int] = {}
        self._ranked_ms = -_RANKED_MS

    def use(self, engine: Engine) -> None:
        """Take the engine that was made with these turns."""
        self._engine = engine

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "the engine is made with the holder's turns"
        return self._engine

    # Turns

    def replicas_of(self, copy: Copy) -> tuple[str, ...]:
        """The members that hold an event, first in line first."""
        return self._members.roster.replicas_of(place_name(copy.id), copy.replication.count)

    def holders_of(self, copy: Copy) -> tuple[str, ...]:
        """The same members in any order, at no cost where all members hold all events."""
        names = self._members.roster.names
        return names if copy.replication.count >= len(names) else self.replicas_of(copy)

    def turn_at(self, event: Event) -> int:
        copy = self.store.copies.get((event.tenant, event.id))
        if copy is None:
            return event.run_at
        return self.turns.turn_at(event, copy, self.replicas_of(copy), self._group_of)

    def _group_of(self, event: Event) -> str:
        return self.engine.memory.flows.look_up(event).group

    def begun(self, entries: Sequence[Entry]) -> None:
        now = self._clock.now()
        loop = asyncio.get_running_loop()
        for entry in entries:
            copy = self.store.copies.get((entry.event.tenant, entry.event.id))
            if copy is None:
                continue
            replicas = self.replicas_of(copy)
            self.started_by_rank[rank(self._members.me, replicas, entry.event.attempt_count)] += 1
            if len(replicas) < 2 or entry.flow.channel.holds:
                continue  # A lease is announced by `leased`, which knows its deadline.
            grace_ms = copy.replication.skew_ms // _ANNOUNCE_PART
            if now >= entry.event.run_at + grace_ms:
                self._announce(entry, copy, replicas)
            else:
                # Most attempts end before any other replica has its turn: then the outcome is message enough.
                loop.call_later(grace_ms / 1_000, self._announce, entry, copy, replicas)

    def _announce(self, entry: Entry, copy: Copy, replicas: tuple[str, ...]) -> None:
        if entry.in_flight:
            self._messenger.tell_busy(replicas, _busy(entry))

    def in_flight_of(self, copies: Iterable[Copy]) -> list[Busy]:
        """The attempts of these events that are in flight here."""
        entries = self.engine.memory.entries
        found = (entries.get(copy.event.sequence) for copy in copies if copy.event is not None)
        return [_busy(entry) for entry in found if entry is not None and entry.in_flight]

    def make_token(self, nonce: str) -> str:
        return make_token(nonce, self._members.me)

    def leased(self, deliveries: Sequence[Delivery], until_at: int) -> None:
        for delivery in deliveries:
            event = delivery.event
            copy = self.store.copies.get((event.tenant, event.id))
            if copy is not None:
                busy = Busy(*copy.name, event.occurrence, delivery.attempt, until_at + _DEADLINE_MS)
                self._messenger.tell_busy(self.replicas_of(copy), busy)

    def make_ids(self, dues: Sequence[int], first: int, partitions: Sequence[int], nonces: bytes) -> list[str]:
        """Ids of dead letters and detached occurrences. Their filter matches all members, which is always right."""
        starts = range(0, len(dues) * _NONCE_BYTES, _NONCE_BYTES)
        return [
            make_replica_id(due_at, nonces[start : start + _NONCE_BYTES], ALL_BITS)
            for due_at, start in zip(dues, starts, strict=True)
        ]

    # Requests of other holders

    async def hold(self, request: HoldCopies) -> Sequence[HoldResult]:
        if request.format != REPLICA_FORMAT:
            raise Overloaded(
                f"this node holds copies in format {REPLICA_FORMAT}, not {request.format}: run one version on all nodes"
            )
        results: list[HoldResult] = []
        for start in range(0, len(request.copies), _MERGE_SLICE):
            if start:
                await asyncio.sleep(0)
            results += await self._hold_some(request.copies[start : start + _MERGE_SLICE], request.is_new)
        return results

    async def _hold_some(self, copies: Sequence[Copy], is_new: bool) -> list[HoldResult]:
        results: list[HoldResult] = ["held"] * len(copies)
        adding: dict[int, Copy] = {}
        known: list[int] = []
        names: set[CopyName] = set()
        for index, copy in enumerate(copies):
            if copy.event is not None and self._members.me not in self.holders_of(copy):
                self.strays[copy.name] = None
            if copy.name in self.store.copies or copy.name in names or copy.name in self._adding:
                known.append(index)
            elif copy.event is None:
                self.store.put_tombstone(copy)
            elif not self.store.reserve(copy):
                results[index] = "full"
            else:
                adding[index] = copy
                names.add(copy.name)
        if adding:
            try:
                for index, result in zip(adding, await self._add(list(adding.values())), strict=True):
                    results[index] = result
            finally:
                self.store.release(adding.values())
        for index in known:
            results[index] = await self._meet(copies[index], is_new)
        return results

    async def _add(self, copies: Sequence[Copy]) -> list[HoldResult]:
        added_all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for copy in copies:
            self.store.expect(copy.name, copy)
            self._adding[copy.name] = added_all
        try:
            return await self._add_now(copies)
        finally:
            for copy in copies:
                if self._adding.get(copy.name) is added_all:
                    del self._adding[copy.name]
            added_all.set_result(None)

    async def _add_now(self, copies: Sequence[Copy]) -> list[HoldResult]:
        events = [copy.event for copy in copies if copy.event is not None]
        results: list[HoldResult] = []
        for copy, added in zip(copies, await self.engine.adoption.add(events), strict=True):
            if isinstance(added, Event):
                results.append("held")
                continue
            self.store.expect_no_more(copy.name)
            # Another message brought the event in the meantime, or there was no room for it.
            results.append(await self.merge(copy) if copy.name in self.store.copies else "full")
        return results

    async def _meet(self, copy: Copy, is_new: bool) -> HoldResult:
        """Merge a copy of an event that is known here. A new event of a user is never merged into another one."""
        while (adding := self._adding.get(copy.name)) is not None:
            await asyncio.shield(adding)
        existing = self.store.copies.get(copy.name)
        if existing is None:
            # It could not be added a moment ago, or it was dropped since: this message is like the first about it.
            return (await self._hold_some([copy], is_new))[0]
        if not is_new:
            return await self.merge(copy)
        if existing.stamp != copy.stamp:
            return for_wire(existing)
        merged = await self.merge(copy)
        return "held" if isinstance(merged, Copy) else merged  # The event has got further since it was made.

    async def merge(self, copy: Copy) -> HoldResult:
        """Merge a copy from another node into the one that is held here."""
        name = copy.name
        existing = self.store.copies[name]
        self.duplicates += delivered_twice(existing, copy)
        if copy.order <= existing.order:
            return "held" if copy.order == existing.order else for_wire(existing)
        if existing.event is None:
            return await self._revive(copy)

        def edit(event: Event) -> Change:
            current = self.store.copies[name]
            if copy.order <= current.order or self._is_decided_here(event, copy):
                raise _Stale
            self.store.expect(name, copy)
            return self._change_to(event, current, copy)

        try:
            await self.engine.adoption.change(*name, edit)
            self.turns.busy.pop(name, None)
        except (_Stale, Conflict, NotFound):
            pass  # The event has ended here in the meantime, or this node's own attempt decides.
        except EverbellError:
            self.store.expect_no_more(name)
            return "full"
        return "held"

    async def _revive(self, copy: Copy) -> HoldResult:
        """An event that ended here was changed by a user on the other side of a split: the change wins."""
        if copy.event is None:
            self.store.put_tombstone(copy)
            return "held"
        self.store.reopen(copy.event)
        return (await self._add([copy]))[0]

    def _is_decided_here(self, event: Event, copy: Copy) -> bool:
        """Whether an attempt in flight here counts for more than the copy, which only tells of another attempt."""
        current = self.store.copies[event.tenant, event.id]
        return self.is_in_flight(event) and copy.order[:4] == current.order[:4]

    def is_in_flight(self, event: Event) -> bool:
        entry = self.engine.memory.entries.get(event.sequence)
        return entry is not None and entry.in_flight

    def _change_to(self, event: Event, current: Copy, copy: Copy) -> Change:
        keep_until_at = self._clock.now() + self.engine.tenants.policy(event.tenant).retention_ms
        after = copy.event
        if after is not None:
            after = replace(after, partition=event.partition, sequence=event.sequence)
        if copy.record is None or (after is not None and copy.record == current.record):
            assert after is not None, "a copy has an event, or the record of its end"
            return Move(event, after)
        return Finish(event, copy.record, keep_until_at, after)

    async def drop(self, request: DropCopies) -> None:
        for copy in request.copies:
            current = self.store.copies.get(copy.name)
            if current is not None and current.touched == copy.touched:
                await self.forget(copy.name, current)

    async def forget(self, name: CopyName, before: Copy, roster: Roster | None = None) -> bool:
        """Drop a copy without a trace: other nodes hold it, or it was never acknowledged. A later copy stays.
        Returns whether it was dropped.

        With a `roster`, it stays as well if the members have changed since: this node may be a replica again, and has
        perhaps told another node so.
        """

        def edit(event: Event) -> Change:
            if self.store.copies.get(name) is not before or self.is_in_flight(event):
                raise _Stale  # It has changed since the others confirmed it.
            if roster is not None and roster is not self._members.roster:
                raise _Stale
            self.store.expect(name, None)
            return Finish(event, cancelled(event, 0), 0)

        try:
            await self.engine.adoption.change(*name, edit)
            self.turns.busy.pop(name, None)
        except (_Stale, Conflict, NotFound):
            return False
        except EverbellError:
            self.store.expect_no_more(name)
            return False
        return True

    async def note_busy(self, request: NoteBusy) -> None:
        self.turns.note_busy(request.busy, lambda tenant: self.engine.tenants.policy(tenant).timeout_ms + _DEADLINE_MS)

    async def change(self, request: ChangeCopies) -> Sequence[bool]:
        if request.roster != self._members.roster.digest:
            await self.hold(HoldCopies(request.copies, False))
            return [False] * len(request.copies)
        # A node that is no replica has nothing to change, unless it still has a copy.
        ours = [index for index, copy in enumerate(request.copies) if self._is_concerned(copy)]
        results = await self.hold(HoldCopies([request.copies[index] for index in ours], False))
        missed = {index for index, result in zip(ours, results, strict=True) if result != "held"}
        return [index not in missed for index in range(len(request.copies))]

    def _is_concerned(self, copy: Copy) -> bool:
        is_known = copy.name in self.store.copies or copy.name in self._adding
        return copy.event is None or is_known or self._members.me in self.replicas_of(copy)

    async def take(self, copies: Sequence[Copy]) -> None:
        """Take over later copies of another node."""
        await self.hold(HoldCopies(copies, False))

    # For users

    def held_by_rank(self) -> dict[int, int]:
        """The number of live copies, by the number of replicas that come before this node. It is an estimate if there
        are many, and made at most once a second.
        """
        now = self._clock.elapsed_ms()
        if now >= self._ranked_ms + _RANKED_MS:
            me = self._members.me
            ranks = (
                rank(me, self.replicas_of(copy), copy.event.attempt_count)
                for copy in islice(self.store.live(), _RANKED_MAX)
                if copy.event is not None
            )
            sample = Counter(ranks)
            share = max((self.store.pending + self.store.dead) / max(sample.total(), 1), 1.0)
            self._ranks = {place: round(count * share) for place, count in sorted(sample.items())}
            self._ranked_ms = now
        return self._ranks

    def lists(self, event: Event | Record, among: Sequence[str]) -> bool:
        """Whether this node, of all these, lists the event in a search: only the first in line does."""
        copy = self.store.copies.get((event.tenant, event.id))
        if copy is None:
            return True  # The record of an occurrence of an event that is no longer held.
        listing = next((name for name in self.replicas_of(copy) if name in among), self._members.me)
        return listing == self._members.me

    def lines(self) -> list[tuple[str, str]]:
        """The tenants and targets of which due events wait in line here."""
        flows = self.engine.memory.flows.all()
        ready = [
            (flow.tenant.name, flow.group)
            for flow in flows
            if flow.ready and (flow.breaker is None or flow.breaker.state == "closed")
        ]
        return [*ready, *((tenant, f"queue:{name}") for tenant, name in self.engine.observer.waiting_queues())]


def _busy(entry: Entry) -> Busy:
    event, tenant = entry.event, entry.tenant
    patience_ms = tenant.lease_ms if event.to.startswith("queue:") else tenant.timeout_ms
    until_at = entry.started_at + patience_ms + _DEADLINE_MS
    return Busy(event.tenant, event.id, event.occurrence, entry.attempt, until_at)
