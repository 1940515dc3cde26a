"""The floor: all events in memory, and the door through which they come.

Whoever finds an event that may have to ring soon — intake after storing it, the loader after reading it, an outcome
that asks for another attempt — hands it to `arrive` or `admit`. Every event in memory is in `entries` by its
sequence, also while a change of it is being stored, so no event can be in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import groupby, islice
from operator import attrgetter

from everbell.channels.port import Channel
from everbell.core.event import Event, position, position_at
from everbell.core.ids import SEQUENCE_MAX
from everbell.core.pause import Held
from everbell.core.target import group_of, stem_of
from everbell.core.tenant import Tenants
from everbell.engine.agenda import NEVER, Agenda
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase, entry_of
from everbell.engine.flow import EVENT_OVERHEAD_BYTES, Budget, Flow
from everbell.engine.partition import Partition
from everbell.errors import EverbellError
from everbell.stores.parcel import Parcel

_partition_of = attrgetter("partition")
_run_at_of = attrgetter("run_at")

_FLOWS_KEPT = 10_000
_STEMS_KEPT = 10_000
_STARVED_ASKED = 100
"""Of how many starved flows, those that have waited longest, it is said since when."""


class Floor:
    """Admits events to memory as far as the budget allows, and forgets them."""

    def __init__(
        self,
        partitions: list[Partition],
        budget: Budget,
        agenda: Agenda,
        dispatcher: Dispatcher,
        tenants: Tenants,
        channel_for: Callable[[str], Channel],
        near_at: Callable[[], int],
    ) -> None:
        self.entries: dict[int, Entry] = {}
        self.starved: dict[Flow, None] = {}
        """Flows that left events in the store for want of room, in the order in which that happened; not those that
        are paused, for whom nobody has to look."""
        self.paused_flows = 0
        self.held = Held()
        """What is paused; flows that are made meanwhile are paused from the beginning."""
        self.budget = budget
        self._partitions = partitions
        self._agenda = agenda
        self._dispatcher = dispatcher
        self._tenants = tenants
        self._channel_for = channel_for
        self._flows: dict[tuple[str, str], Flow] = {}
        self._groups: dict[str, str] = {}
        """By the stem of a target."""
        self._near_at = near_at
        self.on_room: Callable[[], None] = lambda: None
        self.on_paused_flow: Callable[[], None] = lambda: None
        """Told that there is another flow that is paused, so that each may hold less than before."""
        self.on_early: Callable[[int], None] = lambda run_at: None
        """Told of events that the loader has to find before the time in `expected_at`."""
        self.expected_at = 0

    def arrive(self, event: Event) -> None:
        """An event was just stored: it is pushed to memory, or the loader will find it."""
        self.arrive_all((event,))

    def arrive_all(self, events: Sequence[Event]) -> None:
        """The same for many that were stored together, at one look at the clock."""
        near_at = self._near_at()
        for index, run in groupby(events, _partition_of):
            partition = self._partitions[index]
            together = list(run)
            # Mostly all are near, or all are far: two quick looks tell, and save a closer one at each.
            first_at, last_at = min(map(_run_at_of, together)), max(map(_run_at_of, together))
            if position(last_at, SEQUENCE_MAX) <= partition.checkpoint:
                self.admit_all(together, partition)
            elif not self._expects(partition, first_at, near_at):
                self._arrive_each(together, partition, near_at)

    def arrive_parcel(self, parcel: Parcel) -> None:
        """The same for a parcel, of which only what may be near is read."""
        near_at = self._near_at()
        start = 0
        for run in parcel.runs:
            if not self._expects(self._partitions[run.partition], run.first_at, near_at):
                self.arrive_all(parcel.events(start, start + run.count))
            start += run.count

    def _expects(self, partition: Partition, first_at: int, near_at: int) -> bool:
        """Whether events that begin at this time are far, so that the loader will find them all."""
        if first_at <= near_at or position(first_at, 0) <= partition.checkpoint:
            return False
        partition.expect(first_at)
        if first_at < self.expected_at:
            self.on_early(first_at)
        return True

    def _arrive_each(self, events: Sequence[Event], partition: Partition, near_at: int) -> None:
        near: list[Event] = []
        for event in events:
            if partition.covers(event, near_at):
                near.append(event)
            elif event.run_at < self.expected_at:
                self.on_early(event.run_at)
        self.admit_all(near, partition)

    def admit_all(self, events: Sequence[Event], partition: Partition) -> None:
        """Take in events of one partition, or leave them in the store: `admit`, for many."""
        entries, budget, dispatcher = self.entries, self.budget, self._dispatcher
        taken: list[Entry] = []
        tenant = target = flow = None
        for event in events:
            if event.to != target or event.tenant != tenant or flow is None:
                tenant, target, flow = event.tenant, event.to, self.flow_of(event)
            if partition.skips or event.sequence in entries:
                self.admit(event, partition)
                continue
            # This runs for every event, and spells out `entry_of` and what the budget does.
            cost = EVENT_OVERHEAD_BYTES + len(event.payload)
            entry = Entry(event, flow, dispatcher, cost, event.attempt_count + 1)
            if flow.held_bytes + cost > budget.free_bytes or (flow.paused and not budget.allows(flow, cost)):
                self._leave(entry, partition)
                continue
            entries[event.sequence] = entry
            flow.held_bytes += cost
            budget.free_bytes -= cost
            taken.append(entry)
        self._agenda.add_all(taken)

    def admit(self, event: Event, partition: Partition) -> bool:
        """Take in an event, or leave it in the store behind a skip."""
        if event.sequence in self.entries:
            return True
        flow = self.flow_of(event)
        if partition.skips and (skip := partition.skip_for(event, flow)) is not None:
            skip.leave(event)
            flow.leave(event)
            return False
        entry = entry_of(event, flow, self._dispatcher)
        if not self.budget.allows(flow, entry.cost):
            self._leave(entry, partition)
            return False
        self._take_in(entry)
        self._agenda.add(entry)
        return True

    def admit_left_behind(self, events: Sequence[Event], partition: Partition, flow: Flow) -> Event | None:
        """Take in events that may have stayed behind the skip of `flow`; returns the first that it has no room for.

        Some may be of another flow: one with the same key, or one that a store took for this one.
        """
        entries, budget, dispatcher = self.entries, self.budget, self._dispatcher
        taken: list[Entry] = []
        refused = tenant = target = own = None
        for event in events:
            if event.sequence in entries:
                continue
            if event.to != target or event.tenant != tenant or own is None:
                tenant, target, own = event.tenant, event.to, self.flow_of(event)
            if len(partition.skips) > 1 and (other := partition.skip_for(event, own, besides=flow)) is not None:
                other.leave(event)
                continue
            cost = EVENT_OVERHEAD_BYTES + len(event.payload)
            entry = Entry(event, own, dispatcher, cost, event.attempt_count + 1)
            if own.held_bytes + cost > budget.free_bytes or (own.paused and not budget.allows(own, cost)):
                # If it only shares a key with the flow, from now on it waits for room in its own.
                self._leave(entry, partition)
                if own is flow:
                    refused = event
                    break
                continue
            entries[event.sequence] = entry
            own.held_bytes += cost
            budget.free_bytes -= cost
            taken.append(entry)
        self._agenda.add_all(taken)
        return refused

    def give_way(self, entry: Entry) -> bool:
        """An entry with a key is due: does an earlier event of its key wait for room in the store? Then it goes back
        there."""
        skip = self._partitions[entry.event.partition].skip_of_key(entry.event)
        if skip is None:
            return False
        skip.leave(entry.event)
        self.forget(entry)
        return True

    def put_away(self, entry: Entry, flow: Flow) -> None:
        """An entry that nobody is at work on goes back to the store, to wait there until the flow has room."""
        partition = self._partitions[entry.event.partition]
        if partition.is_open:
            self._leave(entry, partition, flow)
            self.forget(entry)

    def is_behind_others(self, event: Event) -> bool:
        """Whether others of its key may come before it that were left in the store, or that are not read yet."""
        partition = self._partitions[event.partition]
        return not partition.covers(event, self._near_at()) or self.is_behind_left(event)

    def is_behind_left(self, event: Event) -> bool:
        """Whether others of its key may come before it that were left in the store."""
        return self._partitions[event.partition].skip_of_key(event) is not None

    def admit_to_lane(self, event: Event) -> Entry | None:
        """Take in an event that waited in its key's line; None when it is in memory already. Lanes bound how many."""
        if event.sequence in self.entries:
            return None
        entry = entry_of(event, self.flow_of(event), self._dispatcher)
        entry.phase = Phase.READY
        self._take_in(entry)
        return entry

    def hold(self, event: Event) -> Entry:
        """Keep an event that is not in memory from being loaded while a change of it is being stored."""
        entry = entry_of(event, self.flow_of(event), self._dispatcher)
        entry.phase = Phase.SETTLING
        self._take_in(entry)
        return entry

    def put_back(self, entry: Entry) -> None:
        """An entry that had been taken off the agenda is to ring after all."""
        self._agenda.add(entry)

    def forget(self, entry: Entry) -> None:
        """The event leaves memory, unless its partition did already."""
        if self.entries.get(entry.event.sequence) is not entry:
            return
        entry.phase = Phase.GONE
        del self.entries[entry.event.sequence]
        flow = entry.flow
        self.budget.give_back(flow, entry.cost)
        if self.starved:
            self.on_room()
        elif len(self._flows) > _FLOWS_KEPT:
            self._drop_idle((flow,))
        if entry.waiters:
            entry.wake_waiters()

    def forget_all(self, entries: Sequence[Entry]) -> None:
        """Many events leave memory."""
        table, gone, awaited = self.entries, Phase.GONE, []
        freed = 0
        for entry in entries:
            sequence = entry.event.sequence
            if table.get(sequence) is entry:
                del table[sequence]
                entry.phase = gone
                entry.flow.held_bytes -= entry.cost
                freed += entry.cost
                if entry.waiters:
                    awaited.append(entry)
        self.budget.free_bytes += freed
        if self.starved:
            self.on_room()
        elif len(self._flows) > _FLOWS_KEPT:
            self._drop_idle({entry.flow for entry in entries})
        for entry in awaited:
            entry.wake_waiters()

    def _drop_idle(self, flows: Iterable[Flow]) -> None:
        """There are too many flows to keep those that nobody uses."""
        for flow in flows:
            if flow.idle and self._flows.pop((flow.tenant.name, flow.group), None) is not None:
                self.paused_flows -= flow.paused

    def of_partitions(self, partitions: Container[int]) -> list[Entry]:
        """All entries of these partitions."""
        return [entry for entry in self.entries.values() if entry.event.partition in partitions]

    def adopt(self, tenant: str) -> None:
        """The tenant has another policy: its flows go by it, and so do all that are in them."""
        policy = self._tenants.policy(tenant)
        for (name, _), flow in self._flows.items():
            if name == tenant:
                flow.adopt(policy)
                self._dispatcher.resume(flow)

    def flow_of(self, event: Event) -> Flow:
        stem = stem_of(event.to)
        group = self._groups.get(stem)
        if group is None:
            group = self._group_of(event.to)
            if len(self._groups) >= _STEMS_KEPT:
                self._groups.clear()
            self._groups[stem] = group
        flow = self._flows.get((event.tenant, group))
        if flow is None:
            flow = Flow(self._tenants.policy(event.tenant), group, self._channel_for(group))
            self._flows[event.tenant, group] = flow
            if self.held.holds(event.tenant, group):
                flow.paused = True
                flow.recap()
                self.paused_flows += 1
                self.budget.share_out(self.paused_flows)
                self.on_paused_flow()
        return flow

    def _group_of(self, target: str) -> str:
        try:
            return group_of(target)
        except EverbellError:
            # Checked when it came in; if rules have tightened since, it still has to end in a recorded state.
            return target

    def oldest_at(self) -> int:
        """When the first of those was due that wait for a slot of their target, or in the store for room; what is
        paused is meant to wait."""
        times = [flow.ready[0].event.run_at for flow in self._flows.values() if flow.ready and not flow.paused]
        for flow in islice(self.starved, _STARVED_ASKED):
            times.extend(position_at(skip.position) for skip in flow.skips.values())
        return min(times, default=NEVER)

    def share_out_paused(self) -> None:
        """Other flows are paused than before."""
        self.paused_flows = sum(flow.paused for flow in self._flows.values())
        self.budget.share_out(self.paused_flows)

    def flows(self) -> list[Flow]:
        return list(self._flows.values())

    def _leave(self, entry: Entry, partition: Partition, flow: Flow | None = None) -> None:
        flow = flow or entry.flow
        flow.left_bytes = entry.cost
        partition.leave(entry.event, flow)
        if not flow.paused:
            self.starved[flow] = None

    def _take_in(self, entry: Entry) -> None:
        self.entries[entry.event.sequence] = entry
        self.budget.take(entry.flow, entry.cost)
