"""The working set: all events in memory.

Intake passes every stored event to `arrive`, and so do outcomes with the next attempt. The loader passes the events
that it reads to `admit_all`. Every event in memory is in `entries` under its sequence, also while a change of it is
being stored, so no event can be in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

from everbell.core.event import Event, position, position_at
from everbell.core.ids import SEQUENCE_MAX
from everbell.engine.account import Budget, Starved
from everbell.engine.agenda import NEVER, Agenda
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase, entry_of
from everbell.engine.flow import EVENT_OVERHEAD_BYTES, Flow
from everbell.engine.flow_table import FlowTable
from everbell.engine.partition import Partition
from everbell.stores.port import PreparedRows, RowMaker

_partition_of = attrgetter("partition")
_run_at_of = attrgetter("run_at")

# The number of flows of a tenant that have skips of their own. Later flows share the skips of the tenant's overflow. An
# event with a key is compared with all skips of its tenant.
SKIPPED_FLOWS_MAX = 32
# The number of starved flows, longest wait first, that `oldest_at` looks at.
_STARVED_ASKED = 100


class MemoryListeners(NamedTuple):
    """The functions that the working set calls about changes. The defaults do nothing."""

    room: Callable[[], None] = lambda: None
    """Called when events left memory, so events that wait in the store may have room."""
    early: Callable[[int], None] = lambda run_at: None
    """Called when an event was stored that is due before `expected_at`, so the loader must run earlier."""


class WorkingSet:
    """Admits events to memory while the budget allows it, and forgets them."""

    def __init__(
        self,
        partitions: list[Partition],
        budget: Budget,
        agenda: Agenda,
        dispatcher: Dispatcher,
        flows: FlowTable,
        near_at: Callable[[], int],
        listeners: MemoryListeners,
    ) -> None:
        self.entries: dict[int, Entry] = {}
        self.starved = Starved()
        """Flows that skipped events because they had no room. Paused flows are not among them."""
        self.budget = budget
        self._partitions = partitions
        self._agenda = agenda
        self._dispatcher = dispatcher
        self.flows = flows
        self._near_at = near_at
        self.on_room, self._on_early = listeners
        self.expected_at = 0

    def arrive(self, event: Event) -> None:
        """Take in an event that was just stored, unless it is far: then the loader will find it."""
        self.arrive_all((event,))

    def arrive_all(self, events: Sequence[Event]) -> None:
        """Take in events that were stored together. The clock is read once."""
        near_at = self._near_at()
        for index, run in groupby(events, _partition_of):
            partition = self._partitions[index]
            together = list(run)
            # Usually all events are near, or all are far: comparing the first and the last time saves a check of each.
            first_at, last_at = min(map(_run_at_of, together)), max(map(_run_at_of, together))
            if position(last_at, SEQUENCE_MAX) <= partition.checkpoint:
                self.admit_all(together, partition)
            elif not self._expects(partition, first_at, near_at):
                self._arrive_each(together, partition, near_at)

    def arrive_prepared(self, rows: PreparedRows, row_maker: RowMaker) -> None:
        """Take in the events of prepared rows. Only the runs that may be near are decoded."""
        near_at = self._near_at()
        start = 0
        for run in rows.runs:
            if not self._expects(self._partitions[run.partition], run.first_at, near_at):
                self.arrive_all(row_maker.events(rows, start, start + run.count))
            start += run.count

    def _expects(self, partition: Partition, first_at: int, near_at: int) -> bool:
        """Whether all events from this time on are far, so that the loader will find them."""
        if first_at <= near_at or position(first_at, 0) <= partition.checkpoint:
            return False
        partition.expect(first_at)
        if first_at < self.expected_at:
            self._on_early(first_at)
        return True

    def _arrive_each(self, events: Sequence[Event], partition: Partition, near_at: int) -> None:
        near: list[Event] = []
        for event in events:
            if partition.covers(event, near_at):
                near.append(event)
            elif event.run_at < self.expected_at:
                self._on_early(event.run_at)
        self.admit_all(near, partition)

    def admit_all(self, events: Sequence[Event], partition: Partition) -> None:
        """Take in events of one partition, or skip them: `admit` for many events."""
        entries, budget, dispatcher = self.entries, self.budget, self._dispatcher
        taken: list[Entry] = []
        tenant = target = flow = None
        has_skips = partition.has_skips
        for event in events:
            if event.to != target or event.tenant != tenant or flow is None:
                tenant, target, flow = event.tenant, event.to, self.flows.find(event)
            if flow is None or not flow.held_bytes or has_skips or event.sequence in entries:
                self.admit(event, partition)
                has_skips = partition.has_skips
                continue
            # This runs for every event, so `entry_of` and the methods of the budget are written out here.
            account = flow.account
            cost = EVENT_OVERHEAD_BYTES + len(event.payload)
            entry = Entry(event, flow, dispatcher, cost, event.attempt_count + 1)
            if 3 * flow.held_bytes + account.held_bytes + 4 * cost > 4 * budget.free_bytes or (
                flow.paused and not budget.allows(flow, cost)
            ):
                self._skip(entry, partition)
                has_skips = True
                continue
            entries[event.sequence] = entry
            flow.held_bytes += cost
            account.held_bytes += cost
            budget.free_bytes -= cost
            taken.append(entry)
        self._agenda.add_all(taken)

    def admit(self, event: Event, partition: Partition) -> bool:
        """Take in an event, or leave it in the store behind a skip. Returns whether it is in memory."""
        if event.sequence in self.entries:
            return True
        flow = self.flows.within(event, partition)
        if partition.has_skips and (skip := partition.skip_for(event, flow)) is not None:
            skip.add(event)
            flow.note_skipped(event)
            return False
        entry = entry_of(event, flow, self._dispatcher)
        if flow.is_overflow or not self.budget.allows(flow, entry.cost):
            self._skip(entry, partition)
            return False
        self._take_in(entry)
        self._agenda.add(entry)
        return True

    def admit_skipped(self, events: Sequence[Event], partition: Partition, flow: Flow) -> Event | None:
        """Take in events that may be behind the skip of `flow`. Returns its first event that has no room, if any.

        Some events may be of another flow: they have the same key, or the store could not tell the flows apart. Behind
        the skip of an overflow are events of many flows.
        """
        taken: list[Entry] = []
        refused = None
        for event in events:
            if event.sequence in self.entries:
                continue
            own = self.flows.within(event, partition, besides=flow)
            if (other := partition.skip_for(event, own, besides=flow)) is not None:
                other.add(event)
                continue
            entry = entry_of(event, own, self._dispatcher)
            if own.is_overflow or not self.budget.allows(own, entry.cost):
                # An event of another flow now waits behind the skip of its own flow, or of its tenant's overflow.
                if self._skip(entry, partition) is flow:
                    refused = event
                    break
                continue
            self._take_in(entry)
            taken.append(entry)
        self._agenda.add_all(taken)
        return refused

    def yield_to_skipped(self, entry: Entry) -> bool:
        """Send a due entry back to the store if an earlier event of its key was skipped. Returns whether it was."""
        skip = self._partitions[entry.event.partition].skip_of_key(entry.event)
        if skip is None:
            return False
        skip.add(entry.event)
        self.forget(entry)
        return True

    def return_to_store(self, entry: Entry, flow: Flow) -> None:
        """Send an entry that no component is working on back to the store, until the flow has room."""
        partition = self._partitions[entry.event.partition]
        if partition.is_open:
            self._skip(entry, partition, flow)
            self.forget(entry)

    def is_behind_others(self, event: Event) -> bool:
        """Whether earlier events of the key may have been skipped or not been read yet."""
        partition = self._partitions[event.partition]
        return not partition.covers(event, self._near_at()) or self.is_behind_skipped(event)

    def is_behind_stored(self, event: Event) -> bool:
        """The same for an event that waited in its key's line, to which an earlier owner may have sent it.

        If the loader has not read as far as the event, it is called earlier.
        """
        if self._partitions[event.partition].is_unread(event):
            self._on_early(event.run_at)
            return True
        return self.is_behind_skipped(event)

    def is_behind_skipped(self, event: Event) -> bool:
        """Whether earlier events of the key may have been skipped."""
        return self._partitions[event.partition].skip_of_key(event) is not None

    def admit_to_lane(self, event: Event) -> Entry | None:
        """Take in an event of a key's line without asking the budget: lanes bound how many. None: it is in memory."""
        if event.sequence in self.entries:
            return None
        entry = entry_of(event, self.flows.of(event), self._dispatcher)
        entry.phase = Phase.READY
        self._take_in(entry)
        return entry

    def reserve(self, event: Event) -> Entry:
        """Take in an event that is being changed, so that the loader does not load it meanwhile."""
        entry = entry_of(event, self.flows.of(event), self._dispatcher)
        entry.phase = Phase.SETTLING
        self._take_in(entry)
        return entry

    def put_back(self, entry: Entry) -> None:
        """Return an entry to the agenda, because its change was not stored."""
        self._agenda.add(entry)

    def forget(self, entry: Entry) -> None:
        """Remove an entry from memory, unless it was removed with its partition already."""
        if self.entries.get(entry.event.sequence) is not entry:
            return
        entry.phase = Phase.GONE
        del self.entries[entry.event.sequence]
        flow = entry.flow
        self.budget.give_back(flow, entry.cost)
        if self.flows.is_crowded:
            self.flows.drop_idle((flow,))
        if self.starved:
            self.on_room()
        if entry.waiters:
            entry.wake_waiters()

    def forget_all(self, entries: Sequence[Entry]) -> None:
        """Remove many entries from memory."""
        table, budget, gone, awaited = self.entries, self.budget, Phase.GONE, []
        freed = 0
        for entry in entries:
            sequence = entry.event.sequence
            if table.get(sequence) is entry:
                del table[sequence]
                entry.phase = gone
                flow, cost = entry.flow, entry.cost
                # This runs for every event, so `Budget.give_back` is written out for all but a flow's last event.
                if flow.held_bytes == flow.own_bytes + cost:
                    budget.give_back(flow, cost)
                else:
                    flow.held_bytes -= cost
                    flow.account.held_bytes -= cost
                    freed += cost
                if entry.waiters:
                    awaited.append(entry)
        budget.free_bytes += freed
        if self.flows.is_crowded:
            self.flows.drop_idle(dict.fromkeys(entry.flow for entry in entries))
        if self.starved:
            self.on_room()
        for entry in awaited:
            entry.wake_waiters()

    def of_partitions(self, partitions: Container[int]) -> list[Entry]:
        """All entries of these partitions."""
        return [entry for entry in self.entries.values() if entry.event.partition in partitions]

    def oldest_at(self) -> int:
        """The time of the oldest entry that waits for a slot of its target, or of the oldest skipped event.

        Paused flows do not count, because they are meant to wait.
        """
        times = [flow.ready[0].event.run_at for flow in self.flows.all() if flow.ready and not flow.paused]
        for flow in islice(self.starved, _STARVED_ASKED):
            times.extend(position_at(skip.position) for skip in flow.skips.values())
        return min(times, default=NEVER)

    def _skip(self, entry: Entry, partition: Partition, flow: Flow | None = None) -> Flow:
        """Leave an event in the store, behind a skip. Returns the flow whose skip it is."""
        flow = wanted = flow or entry.flow
        if not flow.skips and flow.account.skipped_flows >= SKIPPED_FLOWS_MAX:
            overflow = self.flows.overflow_of(flow.tenant.name)
            if overflow.paused or not flow.paused:  # A paused target must not hold up the other targets of its tenant.
                flow = overflow
        flow.skipped_bytes = entry.cost
        partition.skip(entry.event, flow)
        if not flow.paused:
            self.starved.add(flow)
        if wanted is not flow and self.flows.is_crowded:
            self.flows.drop_idle((wanted,))
        return flow

    def _take_in(self, entry: Entry) -> None:
        self.entries[entry.event.sequence] = entry
        self.budget.take(entry.flow, entry.cost)
