"""Lanes: the events of one key go one at a time, in (due time, acceptance) order.

A lane is in memory only while an event of its key is due. Only its head may be attempted. The rest of the line is in
memory up to the lane's `horizon`. Beyond the horizon it is in the store (state `waiting`), in the same order.

A head that fails leaves memory like any other event: it comes back for its next attempt, or it is dead. A mark in the
store (`Block`) makes its followers wait. The mark is written together with the failure, so it survives restarts, and it
costs no memory even if many keys are blocked. A Bloom filter tells which keys may be marked. The store is asked only
about those keys.

    no lane ──due──► open ──head ends, line empty──► no lane
       │               │ head fails, or the line is too long
       │ may be        ▼
       │ marked     marked in the store; the line waits there ──► no lane, until the head or a follower is due again
       ▼
    asking ──not marked──► open          ──marked for this event──► open, with the line in the store
           └─marked for another event──► the event joins the line in the store

`engine/lane.py` has the phases of a lane.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Sequence

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.engine.agenda import Agenda
from everbell.engine.changing import Changing
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase
from everbell.engine.lane import Lane, LanePhase, order_of, to_line
from everbell.engine.loader import bury
from everbell.engine.marks import NO_HEAD, Marks
from everbell.engine.orphaned_lines import OrphanedLines
from everbell.engine.partition import Partition
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import StoreWriter
from everbell.stores.port import Block, Change, Page, Store

LINE_IN_MEMORY = 64

_NOTHING = -1  # An order below that of any event.


class Lanes:
    """All lanes of a node."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        writer: StoreWriter,
        dispatcher: Dispatcher,
        memory: WorkingSet,
        agenda: Agenda,
        partitions: Sequence[Partition],
    ) -> None:
        self._store = store
        self._clock = clock
        self._partitions = partitions
        self._writer = writer
        self._dispatcher = dispatcher
        self._memory = memory
        self._agenda = agenda
        self._changing = Changing(clock)
        self._lanes: dict[tuple[str, str], Lane] = {}
        self.marks = Marks(store, writer)
        self._orphaned = OrphanedLines(clock, memory, partitions)
        self._paused: frozenset[tuple[str, str]] = frozenset()

    async def recover(self, partition: int) -> None:
        """Read which keys are marked, and which lines have no head. Runs as a read of the store writer."""
        self._orphaned.forget((partition,))
        for tenant, key in await self.marks.recover(partition):
            self._orphaned.add(partition, tenant, key)

    def drop(self, partitions: Container[int]) -> None:
        """Forget the lanes of partitions that leave this node."""
        for name in [name for name, lane in self._lanes.items() if lane.partition in partitions]:
            del self._lanes[name]
        self._orphaned.forget(partitions)
        self._changing.forget(partitions)

    def resume_orphaned(self) -> bool:
        """Start lines that were found without a head. Returns whether more lines may start soon."""
        for index, tenant, key in self._orphaned.take_ready():
            if (tenant, key) not in self._lanes:
                # The mark is read again: an event of the key may have become due and started the line meanwhile.
                lane = self._lanes[tenant, key] = Lane(index, tenant, key)
                self._ask(lane)
        return self._orphaned.is_soon

    def enter(self, entry: Entry) -> None:
        """Line up an entry that the agenda rings. It is dispatched when all earlier events of its key have ended."""
        self._line_up(entry, is_first=not (self._changing and self._changing.has_before(entry.event)))

    def enter_late(self, entry: Entry) -> None:
        """Line up an entry that is due but that the agenda does not ring."""
        self._line_up(entry, is_first=False)

    def _line_up(self, entry: Entry, *, is_first: bool) -> None:
        """`is_first`: all earlier events of the key are in its lane, or in its line in the store."""
        event = entry.event
        assert event.key is not None, "only events with a key have a lane"
        lane = self._lanes.get((event.tenant, event.key))
        if lane is None:
            lane = self._lanes[event.tenant, event.key] = Lane(event.partition, event.tenant, event.key)
            if self.marks.perhaps(event.tenant, event.key):
                self._ask(lane)
            elif is_first:
                self._lead(lane, entry)
                return
        if lane.is_reading or lane.horizon is None or event.order <= lane.horizon:
            insort(lane.line, entry, key=order_of)
            if len(lane.line) > self._line_max(lane) and not lane.is_reading:
                self._mark_crowded(lane)
        else:
            self._spill(lane, entry)
        self._go_on(lane)

    def failed(self, entry: Entry) -> tuple[list[Change], list[Entry]]:
        """Return the changes that make a key wait for its failed head, and the followers that they move to the store.

        They must be in one write with the failure: no lane would ever read followers from a store's line without a
        mark. The lane leaves memory now; the followers leave memory when the write is stored.
        """
        event = entry.event
        assert event.key is not None, "only events with a key have a lane"
        self.marks.expect(event.tenant, event.key)
        lane = self._lanes.pop((event.tenant, event.key), None)
        changes: list[Change] = [Block(event.partition, event.tenant, event.key, event.sequence)]
        line = [] if lane is None else lane.line  # None: the partition is being handed over to another node.
        for follower in line:
            follower.phase = Phase.SETTLING
            if follower.event.state != "waiting":
                changes.append(to_line(follower.event))
        return changes, line

    def ended(self, entry: Entry) -> None:
        """Start the next event of the key. The entry's end is stored, and no attempt of it is in flight."""
        lane = self._lane_of(entry)
        if lane is not None and lane.head is entry:
            lane.head, lane.phase = None, LanePhase.OPEN
            self._advance(lane)

    def begin_change(self, entry: Entry) -> None:
        """Take an entry that a user changes or cancels out of its line. The caller must call `end_change` afterwards.

        The entry keeps its place in its key until then: later events wait. A dead event has no place. If its key waits
        for a dead event, the store has a mark.
        """
        if entry.in_flight or entry.event.state == "dead":
            return
        self._changing.add(entry)
        lane = self._lane_of(entry)
        if lane is not None and entry in lane.line:
            lane.line.remove(entry)

    def end_change(self, entry: Entry, event: Event | None) -> None:
        """End the change of an entry: it takes its place again as `event`, or, for None, the key goes on without it."""
        self._changing.remove(entry)
        lane = self._lane_of(entry)
        if event is not None and lane is None and self._memory.is_behind_skipped(event):
            # The line went back to the store during the change, because an earlier event had no room in memory.
            if event.state == "scheduled":
                self._memory.arrive(event)
            return
        fresh = None
        if event is not None and self._partitions[event.partition].is_open:
            fresh = self._memory.admit_to_lane(event)
        if lane is not None and lane.head is entry:
            lane.head, lane.phase = None, LanePhase.OPEN
            if fresh is not None:
                fresh.blocks_key = entry.blocks_key
                self._lead(lane, fresh)
                return
        if fresh is not None:
            self.enter_late(fresh)
        elif lane is not None:
            self._go_on(lane)

    def summary(self, tenant: str, key: str) -> tuple[Event | None, int]:
        """The head of a key in memory, and the number of events that are in line in memory but not in the store."""
        lane = self._lanes.get((tenant, key))
        head, only_here = (None, 0) if lane is None else lane.summary()
        changing = (entry.event for entry in self._changing.due(tenant, key))
        return head, only_here + sum(event.state != "waiting" and event is not head for event in changing)

    def resume(self, partition: int, tenant: str, key: str) -> None:
        """Start the line of a key whose mark was lifted, unless the key has a lane already."""
        if not self._partitions[partition].is_open:
            return  # The partition is being handed over. The next owner finds the mark.
        self.marks.expect(tenant, key)
        lane = self._lanes.get((tenant, key))
        if lane is not None:
            if lane.phase is LanePhase.ASKING:
                lane.phase = LanePhase.FREED
            return
        lane = self._lanes[tenant, key] = Lane(partition, tenant, key)
        lane.horizon = _NOTHING
        lane.marked = True
        self._advance(lane)

    def pause(self, keys: frozenset[tuple[str, str]]) -> None:
        """Pause these keys, and resume all others. A paused key has its head in memory, and its line in the store."""
        before, self._paused = self._paused, keys
        for lane in filter(None, map(self._lanes.get, sorted(keys - before))):
            if lane.head is not None and self._dispatcher.withdraw(lane.head):
                lane.phase = LanePhase.HELD_BACK
            if lane.line and not lane.is_reading:
                self._mark_crowded(lane)
        for lane in filter(None, map(self._lanes.get, sorted(before - keys))):
            if lane.phase is LanePhase.HELD_BACK and lane.head is not None:
                self._lead(lane, lane.head)

    def holds_back(self, entry: Entry) -> bool:
        """Whether an entry must wait because its key is paused. A head is held back until the pause ends."""
        if (entry.event.tenant, entry.event.key) not in self._paused:
            return False
        if (lane := self._lane_of(entry)) is not None and lane.head is entry:
            lane.phase = LanePhase.HELD_BACK
        return True

    def return_to_store(self, entry: Entry) -> None:
        """Send the entry's lane back to the store, if its head's target is paused and the lane is only in memory."""
        lane = self._lane_of(entry)
        if lane is None or self._changing.has(lane.tenant, lane.key):
            return
        if lane.head is not None and lane.head.flow.paused and lane.is_only_here:
            del self._lanes[lane.tenant, lane.key]
            for each in (lane.head, *lane.line):
                self._memory.return_to_store(each, lane.head.flow)

    def sending(self, partitions: Container[int]) -> list[Entry]:
        """The heads whose attempts are in flight, also those that were cancelled and have left memory."""
        heads = (lane.head for lane in self._lanes.values() if lane.partition in partitions)
        return [head for head in heads if head is not None and head.in_flight]

    def _line_max(self, lane: Lane) -> int:
        return 0 if self._paused and (lane.tenant, lane.key) in self._paused else LINE_IN_MEMORY

    def _lane_of(self, entry: Entry) -> Lane | None:
        event = entry.event
        return None if event.key is None else self._lanes.get((event.tenant, event.key))

    def _lead(self, lane: Lane, entry: Entry) -> None:
        lane.head, lane.phase = entry, LanePhase.LED
        self._dispatch(entry)

    def _dispatch(self, entry: Entry) -> None:
        """Dispatch the head of a lane, now or as soon as it may start."""
        if self._paused and self.holds_back(entry):
            return
        wait_ms = self._partitions[entry.event.partition].wait_ms(entry.event, self._clock)
        if wait_ms <= 0:
            self._dispatcher.enqueue(entry)
        else:
            # At most a second at a time: the wall clock may be set meanwhile.
            self._dispatcher.supervisor.call_later(min(wait_ms, 1_000) / 1_000, self._dispatch, entry)

    def _advance(self, lane: Lane) -> None:
        """Give an open lane its next head, unless an earlier event comes first. That event starts the line later."""
        if lane.line:
            first = lane.line[0]
            if self._changing and self._changing.has_before(first.event):
                return
            if self._agenda.rings_before(first):
                self._agenda.after_ringing(lane, lambda: self._go_on(lane))
            elif not self._yields_to_stored(lane):
                self._lead(lane, lane.line.pop(0))
        elif self._changing and any(self._changing.due(lane.tenant, lane.key)):
            return
        elif lane.horizon is not None:
            self._read_on(lane)
        else:
            del self._lanes[lane.tenant, lane.key]
            self.marks.lift(lane)

    def _yields_to_stored(self, lane: Lane) -> bool:
        """Send the line back to the store if an earlier event of the key may be only in the store. Returns whether.

        The earlier event may be the next occurrence of the last head: it was due immediately and found no room in
        memory, or the loader has not read it since this node took the partition.
        """
        first = lane.line[0].event
        if not self._memory.is_behind_stored(first):
            return False
        del self._lanes[lane.tenant, lane.key]
        line, lane.line = lane.line, []  # A callback that still holds the lane must not dispatch these entries.
        for entry in line:
            if entry.event.state == "waiting" or not self._memory.yield_to_skipped(entry):
                self.marks.mark(lane)
                self._spill(lane, entry)
        if lane.marked:
            # The earlier event starts the line when it is due. If a user cancels that event, this starts the line.
            self._orphaned.add(lane.partition, lane.tenant, lane.key, first.run_at)
        return True

    def _mark_crowded(self, lane: Lane) -> None:
        """Mark the key and send its line to the store, because the line is too long for memory."""
        self.marks.mark(lane)
        lane.horizon = _NOTHING
        self._spill_line(lane)

    def _spill_line(self, lane: Lane) -> None:
        line, lane.line = lane.line, []
        for entry in line:
            self._spill(lane, entry)

    def _spill_beyond(self, lane: Lane) -> None:
        """Send entries that arrived during a read, and that come after events in the store, to the store's line."""
        for entry in lane.cut():
            self._spill(lane, entry)

    def _spill(self, lane: Lane, entry: Entry) -> None:
        """Send an entry to the store's line. The entry leaves memory."""
        lane.spills += 1
        event = entry.event
        if event.state == "waiting":
            self._memory.forget(entry)
            return
        entry.phase = Phase.SETTLING
        self._writer.submit([to_line(event)], lambda _: self._memory.forget(entry), must=True)

    def _ask(self, lane: Lane) -> None:
        """Ask the store whether the key is marked, and for which event."""
        lane.phase = LanePhase.ASKING

        async def operation() -> None:
            heads = await self._store.heads(lane.partition, [(lane.tenant, lane.key)])
            was_freed, lane.phase = lane.phase is LanePhase.FREED, LanePhase.OPEN
            if self._lanes.get((lane.tenant, lane.key)) is lane:
                self._answered(lane, heads[0], was_freed)

        self._writer.read(operation)

    def _answered(self, lane: Lane, head: int | None, was_freed: bool) -> None:
        own = next((entry for entry in lane.line if entry.event.sequence == head), None)
        if head is None:
            self._advance(lane)
            if len(lane.line) > self._line_max(lane):
                self._mark_crowded(lane)
        elif own is not None:
            lane.line.remove(own)
            lane.horizon = _NOTHING
            lane.marked = own.blocks_key = True
            self._spill_line(lane)
            self._lead(lane, own)
        else:
            del self._lanes[lane.tenant, lane.key]
            self._spill_line(lane)
            if head == NO_HEAD or was_freed:
                self.resume(lane.partition, lane.tenant, lane.key)

    def _read_on(self, lane: Lane) -> None:
        """Read the next page of the line from the store.

        Entries that become due during the read line up in memory. `_read` sends them to the store if they come later.
        """
        lane.phase = LanePhase.READING
        before = lane.spills

        async def operation() -> None:
            limit = max(self._line_max(lane), 1)
            page = await self._store.waiting(lane.partition, lane.tenant, lane.key, _NOTHING, limit)
            for poison in page.poison:
                await bury(self._store, poison)
            lane.phase = LanePhase.OPEN
            if self._lanes.get((lane.tenant, lane.key)) is lane:
                self._read(lane, page, missed=lane.spills != before)

        self._writer.read(operation)

    def _read(self, lane: Lane, page: Page, *, missed: bool) -> None:
        held = None
        for event in page.events:
            entry = self._memory.admit_to_lane(event)
            if entry is None:
                # A user is changing the event. It may leave the line, so the line in memory ends before it for now.
                held = self._memory.entries[event.sequence]
                lane.horizon = event.order - 1
                break
            insort(lane.line, entry, key=order_of)
        else:
            if not (page.more or missed):
                lane.horizon = None
            elif page.events:
                lane.horizon = page.events[-1].order
        self._spill_beyond(lane)
        if held is None or lane.line:
            self._advance(lane)
        else:
            held.when_settled(lambda: self._go_on(lane))

    def _go_on(self, lane: Lane) -> None:
        if lane.phase is LanePhase.OPEN and self._lanes.get((lane.tenant, lane.key)) is lane:
            self._advance(lane)
