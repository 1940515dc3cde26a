"""Lanes: the events of one key go one at a time, in (due time, acceptance) order.

A lane is in memory only while something of its key is due. Its head is the one event that may be attempted; the rest
of the line is in memory up to the lane's `horizon`, beyond it in the store (state `waiting`), in the same order.

A head that fails leaves memory like any other event, to come back at its next attempt, or stays dead. What keeps its
followers waiting is a mark in the store (`Block`), written together with the failure, so it survives restarts and
costs no memory however many keys are blocked. Whether a key may be marked is known from a Bloom filter; only then is
the store asked.

    no lane ──due──► open ──head ends, line empty──► no lane
       │               │ head fails, or the line is too long
       │ perhaps       ▼
       │ marked     marked in the store; the line waits there ──► no lane, until the head or a follower is due again
       ▼
    asking ──not marked──► open          ──marked by this one──► open, with the line in the store
           └─marked by another──► the event joins the line in the store
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Container, Mapping, Sequence

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.core.keyfilter import KeyFilter
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase
from everbell.engine.floor import Floor
from everbell.engine.lane import Lane, order_of, to_line
from everbell.engine.left_lines import LeftLines
from everbell.engine.loader import bury
from everbell.engine.partition import Partition
from everbell.engine.scribe import Scribe
from everbell.errors import StoreError
from everbell.stores.port import Block, Change, Page, Refusal, Store, Unblock

LINE_IN_MEMORY = 64
NOBODY = 0
"""The head of a marked key whose line may go on by itself."""

_NOTHING = -1
_FILTER_BITS = 1 << 20
_BLOCKED_PAGE = 1_000


class Lanes:
    """All lanes of a node."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        scribe: Scribe,
        dispatcher: Dispatcher,
        floor: Floor,
        partitions: Sequence[Partition],
    ) -> None:
        self._store = store
        self._clock = clock
        self._partitions = partitions
        self._scribe = scribe
        self._dispatcher = dispatcher
        self._floor = floor
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._marked = KeyFilter(_FILTER_BITS)
        self._left = LeftLines(clock, floor, partitions)
        self._paused: frozenset[tuple[str, str]] = frozenset()

    async def recover(self, partition: int) -> None:
        """Learn which keys are marked, and which lines have no head. To be called as a read of the scribe."""
        self._left.forget((partition,))
        after = ("", "")
        while rows := await self._store.blocked(partition, after, _BLOCKED_PAGE):
            for tenant, key, head in rows:
                self._marked.add(tenant, key)
                if head == NOBODY:
                    self._left.add(partition, tenant, key)
            after = rows[-1][:2]

    def leave(self, partitions: Container[int]) -> None:
        """These partitions are owned elsewhere from now on."""
        for name in [name for name, lane in self._lanes.items() if lane.partition in partitions]:
            del self._lanes[name]
        self._left.forget(partitions)

    def resume_left(self) -> bool:
        """Set lines going that were found without a head; returns whether more may go in a moment."""
        for index, tenant, key in self._left.to_go():
            if (tenant, key) not in self._lanes:
                # The mark may be another's by now: an event of the key that came due meanwhile set the line going.
                lane = self._lanes[tenant, key] = Lane(index, tenant, key)
                self._ask(lane)
        return self._left.is_soon

    def enter(self, entry: Entry) -> None:
        """The entry is due. It is dispatched when its turn in its key has come."""
        event = entry.event
        assert event.key is not None, "only events with a key have a lane"
        lane = self._lanes.get((event.tenant, event.key))
        if lane is None:
            lane = self._lanes[event.tenant, event.key] = Lane(event.partition, event.tenant, event.key)
            if not self._marked.perhaps(event.tenant, event.key):
                self._lead(lane, entry)
                return
            self._ask(lane)
        if lane.asking or lane.horizon is None or event.order <= lane.horizon:
            insort(lane.line, entry, key=order_of)
            if len(lane.line) > self._line_max(lane) and not lane.asking:
                self._mark_crowded(lane)
        else:
            self._spill(lane, entry)

    def failed(self, entry: Entry) -> tuple[list[Change], list[Entry]]:
        """What to store with the failure of a head, so that its key waits for it: the mark, and its followers in line.

        It has to be one write: followers in the store's line without a mark would be forgotten there. The lane leaves
        memory at once, and the followers when that is stored.
        """
        event = entry.event
        assert event.key is not None, "only events with a key have a lane"
        self._marked.add(event.tenant, event.key)
        lane = self._lanes.pop((event.tenant, event.key), None)
        changes: list[Change] = [Block(event.partition, event.tenant, event.key, event.sequence)]
        line = [] if lane is None else lane.line  # None: the partition is being handed over.
        for follower in line:
            follower.phase = Phase.SETTLING
            if follower.event.state != "waiting":
                changes.append(to_line(follower.event))
        return changes, line

    def ended(self, entry: Entry) -> None:
        """The entry is stored as ended and nothing of it is under way: the next of its key may go."""
        lane = self._lane_of(entry)
        if lane is not None and lane.head is entry:
            lane.head = None
            self._advance(lane)

    def step_out(self, entry: Entry) -> None:
        """A user changes or cancels an entry that is not under way. `step_in` follows when that is over."""
        lane = self._lane_of(entry)
        if lane is not None and entry in lane.line:
            lane.line.remove(entry)
            lane.away.append(entry)

    def step_in(self, entry: Entry, event: Event | None) -> None:
        """The change of an entry is over: it takes its place again, as `event`, or the key goes on without it."""
        lane = self._lane_of(entry)
        fresh = None
        if event is not None and self._partitions[event.partition].is_open:
            fresh = self._floor.admit_to_lane(event)
        if lane is not None and lane.head is entry:
            lane.head = None
            if fresh is not None:
                fresh.blocks_key = entry.blocks_key
                self._lead(lane, fresh)
                return
        if lane is not None and entry in lane.away:
            lane.away.remove(entry)
        if fresh is not None:
            self.enter(fresh)
        if lane is not None:
            self._go_on(lane)

    async def blocks(self, event: Event) -> bool:
        """Whether the key waits for this event, according to the store. To be called as a read of the scribe."""
        if event.key is None or not self._marked.perhaps(event.tenant, event.key):
            return False
        heads = await self._store.heads(event.partition, [(event.tenant, event.key)])
        return heads[0] == event.sequence

    def look(self, tenant: str, key: str) -> tuple[Event | None, int]:
        """Whose turn it is in a key, as far as memory knows, and how many of its line are nowhere else in a line."""
        lane = self._lanes.get((tenant, key))
        return (None, 0) if lane is None else lane.look()

    def resume(self, partition: int, tenant: str, key: str) -> None:
        """The key's line goes on without a head, unless it is going already."""
        if not self._partitions[partition].is_open:
            return  # It is being handed over: the next owner finds the mark.
        self._marked.add(tenant, key)
        lane = self._lanes.get((tenant, key))
        if lane is not None:
            lane.freed = True
            return
        lane = self._lanes[tenant, key] = Lane(partition, tenant, key)
        lane.horizon = _NOTHING
        lane.marked = True
        self._advance(lane)

    def pause(self, keys: frozenset[tuple[str, str]]) -> None:
        """These keys are paused, and no others. A paused key has its head in memory, and its line in the store."""
        before, self._paused = self._paused, keys
        for lane in filter(None, map(self._lanes.get, sorted(keys - before))):
            lane.withheld = lane.head is not None and self._dispatcher.withdraw(lane.head)
            if lane.line and not lane.asking:
                self._mark_crowded(lane)
        for lane in filter(None, map(self._lanes.get, sorted(before - keys))):
            if lane.withheld and lane.head is not None:
                self._lead(lane, lane.head)

    def withholds(self, entry: Entry) -> bool:
        """Whether the head of a lane has to wait because its key is paused."""
        if (entry.event.tenant, entry.event.key) not in self._paused:
            return False
        if (lane := self._lane_of(entry)) is not None and lane.head is entry:
            lane.withheld = True
        return True

    def put_away(self, entry: Entry) -> None:
        """A key whose head's target is paused can wait in the store, if nothing of it has been anywhere else yet."""
        lane = self._lane_of(entry)
        if lane is not None and lane.head is not None and lane.head.flow.paused and lane.is_only_here:
            del self._lanes[lane.tenant, lane.key]
            for each in (lane.head, *lane.line):
                self._floor.put_away(each, lane.head.flow)

    def sending(self, partitions: Container[int]) -> list[Entry]:
        """Heads whose attempts are under way, also those that were cancelled meanwhile and have left memory."""
        heads = (lane.head for lane in self._lanes.values() if lane.partition in partitions)
        return [head for head in heads if head is not None and head.under_way]

    def _line_max(self, lane: Lane) -> int:
        return 0 if self._paused and (lane.tenant, lane.key) in self._paused else LINE_IN_MEMORY

    def _lane_of(self, entry: Entry) -> Lane | None:
        event = entry.event
        return None if event.key is None else self._lanes.get((event.tenant, event.key))

    def _lead(self, lane: Lane, entry: Entry) -> None:
        lane.head = entry
        lane.withheld = False
        self._dispatch(entry)

    def _dispatch(self, entry: Entry) -> None:
        """Let the head of a lane go, now or as soon as it may."""
        if self._paused and self.withholds(entry):
            return
        wait_ms = self._wait_ms(entry.event)
        if wait_ms <= 0:
            self._dispatcher.enqueue(entry)
        else:
            # Not for long at a time: somebody may set the clock meanwhile.
            asyncio.get_running_loop().call_later(min(wait_ms, 1_000) / 1_000, self._dispatch, entry)

    def _wait_ms(self, event: Event) -> int:
        wait_ms = self._partitions[event.partition].quiet_ms(event.run_at, self._clock.elapsed_ms())
        if event.state == "waiting":
            # It came to the line when it was due by the clock of an owner before this one, which may be ahead of ours.
            wait_ms = max(wait_ms, event.run_at - self._clock.now())
        return wait_ms

    def _advance(self, lane: Lane) -> None:
        if lane.asking or (lane.away and (not lane.line or min(map(order_of, lane.away)) < order_of(lane.line[0]))):
            return  # Whoever is awaited sets the line going.
        if lane.line:
            if not self._gives_way(lane):
                self._lead(lane, lane.line.pop(0))
        elif lane.horizon is not None:
            self._read_on(lane)
        else:
            del self._lanes[lane.tenant, lane.key]
            if lane.marked:
                self._scribe.submit([Unblock(lane.partition, lane.tenant, lane.key)], _stored, must=True)

    def _gives_way(self, lane: Lane) -> bool:
        """Whether an event that had to stay in the store comes before the line, perhaps the next occurrence of the last
        head, which was due at once and found no room: then the line goes back there."""
        if not self._floor.is_behind_left(lane.line[0].event):
            return False
        del self._lanes[lane.tenant, lane.key]
        line, lane.line = lane.line, []  # Whoever holds the lane still has none of them to send anywhere.
        for entry in line:
            if entry.event.state == "waiting" or not self._floor.give_way(entry):
                self._mark(lane)
                self._spill(lane, entry)
        if lane.marked:
            # Whatever comes first sets the line going when it is due, unless somebody cancels it.
            self._left.add(lane.partition, lane.tenant, lane.key)
        return True

    def _mark(self, lane: Lane) -> None:
        if not lane.marked:
            lane.marked = True
            self._marked.add(lane.tenant, lane.key)
            self._scribe.submit([Block(lane.partition, lane.tenant, lane.key, NOBODY)], _stored, must=True)

    def _mark_crowded(self, lane: Lane) -> None:
        """The line is too long for memory: mark the key, and send the line to the store."""
        self._mark(lane)
        lane.horizon = _NOTHING
        self._spill_line(lane)

    def _spill_line(self, lane: Lane) -> None:
        line, lane.line = lane.line, []
        for entry in line:
            self._spill(lane, entry)

    def _spill_beyond(self, lane: Lane) -> None:
        """Send those to the store's line that came while it was read and have others before them there."""
        horizon = lane.horizon
        if horizon is not None:
            line, lane.line = lane.line, [entry for entry in lane.line if order_of(entry) <= horizon]
            for entry in line[len(lane.line) :]:
                self._spill(lane, entry)

    def _spill(self, lane: Lane, entry: Entry) -> None:
        """Send an entry to the store's line; it leaves memory."""
        lane.spills += 1
        event = entry.event
        if event.state == "waiting":
            self._floor.forget(entry)
            return
        entry.phase = Phase.SETTLING
        self._scribe.submit([to_line(event)], lambda _: self._floor.forget(entry), must=True)

    def _ask(self, lane: Lane) -> None:
        lane.asking = True

        async def operation() -> None:
            heads = await self._store.heads(lane.partition, [(lane.tenant, lane.key)])
            lane.asking = False
            if self._lanes.get((lane.tenant, lane.key)) is lane:
                self._answered(lane, heads[0])

        self._scribe.read(operation)

    def _answered(self, lane: Lane, head: int | None) -> None:
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
            if head == NOBODY or lane.freed:
                self.resume(lane.partition, lane.tenant, lane.key)

    def _read_on(self, lane: Lane) -> None:
        """Fetch the next of the line from the store.

        Entries that come due meanwhile line up there, or here behind the mark.
        """
        lane.asking = True
        lane.freed = False
        before = lane.spills

        async def operation() -> None:
            limit = max(self._line_max(lane), 1)
            page = await self._store.waiting(lane.partition, lane.tenant, lane.key, _NOTHING, limit)
            for poison in page.poison:
                await bury(self._store, poison)
            lane.asking = False
            if self._lanes.get((lane.tenant, lane.key)) is not lane:
                return
            self._read(lane, page, missed=lane.spills != before)

        self._scribe.read(operation)

    def _read(self, lane: Lane, page: Page, *, missed: bool) -> None:
        held = None
        for event in page.events:
            entry = self._floor.admit_to_lane(event)
            if entry is None:
                # A user is changing it. It may be in line after that or not, so the line ends before it for now.
                held = self._floor.entries[event.sequence]
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
        if lane.head is None and self._lanes.get((lane.tenant, lane.key)) is lane:
            self._advance(lane)


def _stored(refused: Mapping[int, Refusal] | StoreError) -> None:
    """A mark cannot be refused, and a store that fails ends the engine."""
