"""The working set: which events come to memory, which stay in the store behind a skip, and how memory is freed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everbell.channels.nowhere import NowhereChannel
from everbell.core.event import Event
from everbell.core.tenant import Tenant, Tenants
from everbell.engine import account as account_module
from everbell.engine.account import Budget
from everbell.engine.agenda import Agenda
from everbell.engine.attempt_listeners import AttemptListeners
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase
from everbell.engine.flow import EVENT_OVERHEAD_BYTES
from everbell.engine.flow_table import FlowTable
from everbell.engine.partition import Partition
from everbell.engine.supervisor import Supervisor
from everbell.engine.working_set import MemoryListeners, WorkingSet
from everbell.testing import VirtualClock, run_virtual

NEAR_MS = 5_000
SHOP, BANK = "https://shop.example/a", "https://bank.example/a"


class Room:
    """A working set with one partition that was read up to now, and room for some events."""

    def __init__(self, clock: VirtualClock, events: int) -> None:
        self.now = clock.now()
        self.early: list[int] = []
        """The times with which the loader was called earlier."""
        self.partition = Partition(0, Tenants())
        self.partition.take(1, self.now, 0, 0)
        self.partition.read_to(self.now, None)
        supervisor = Supervisor(lambda fault: None)
        self.dispatcher = Dispatcher(clock, {0: 1}, 100, AttemptListeners(), supervisor)
        self.budget = Budget(events * EVENT_OVERHEAD_BYTES)
        self.memory = WorkingSet(
            [self.partition],
            self.budget,
            Agenda(clock, supervisor, lambda entry: None),
            self.dispatcher,
            FlowTable(self.budget, Tenants(Tenant()), lambda group: NowhereChannel()),
            lambda: self.now + NEAR_MS,
            MemoryListeners(early=self.early.append),
        )

    def event(self, sequence: int, in_ms: int = 0, to: str = SHOP, key: str | None = None) -> Event:
        at = self.now + in_ms
        return Event(f"e{sequence}", "default", 0, sequence, at, at, to, b"", 1, key)

    def admit(self, *events: Event) -> list[bool]:
        return [self.memory.admit(event, self.partition) for event in events]

    @property
    def sequences(self) -> list[int]:
        return sorted(self.memory.entries)


def in_room(events: int, scene: Callable[[Room], None]) -> None:
    async def main(clock: VirtualClock) -> None:
        scene(Room(clock, events))

    run_virtual(main)


def test_near_events_come_to_memory_and_far_events_stay_in_the_store() -> None:
    def scene(room: Room) -> None:
        room.memory.arrive(room.event(1))
        room.memory.arrive(room.event(2, NEAR_MS))
        room.memory.arrive(room.event(3, NEAR_MS + 1))

        assert room.sequences == [1, 2]

    in_room(10, scene)


def test_the_loader_is_told_of_an_event_earlier_than_it_expected() -> None:
    def scene(room: Room) -> None:
        room.memory.expected_at = room.now + 3 * NEAR_MS
        room.memory.arrive_all([room.event(1, 2 * NEAR_MS), room.event(2, 4 * NEAR_MS)])

        assert room.early == [room.now + 2 * NEAR_MS]
        assert room.partition.next_at == room.now + 2 * NEAR_MS

    in_room(10, scene)


def test_no_event_is_in_memory_twice() -> None:
    def scene(room: Room) -> None:
        assert room.admit(room.event(1), room.event(1)) == [True, True]
        assert room.memory.admit_to_lane(room.event(1)) is None
        room.memory.arrive_all([room.event(1), room.event(1)])

        assert room.sequences == [1]
        assert room.budget.free_bytes == 9 * EVENT_OVERHEAD_BYTES

    in_room(10, scene)


def test_a_flow_without_room_leaves_its_events_and_takes_nothing_from_others() -> None:
    def scene(room: Room) -> None:
        # One flow alone may have half of the memory.
        admitted = room.admit(*(room.event(number, number) for number in range(6)))
        assert admitted == [True] * 4 + [False] * 2
        assert list(room.memory.starved) == [room.memory.flows.of(room.event(0))]
        # The other flow has half of the rest. The first stays behind its skip, though it could have room again.
        assert room.admit(room.event(10, 10, BANK), room.event(11, 11, BANK)) == [True, True]
        room.memory.forget(room.memory.entries[0])
        assert room.admit(room.event(12, 12)) == [False]

    in_room(8, scene)


def test_many_at_once_are_treated_as_one_by_one() -> None:
    def scene(room: Room) -> None:
        herd = [room.event(number, number) for number in range(6)]
        room.memory.admit_all([*herd, room.event(10, 10, BANK), room.event(3, 3), room.event(11, 11)], room.partition)

        assert room.sequences == [0, 1, 2, 3, 10]
        assert room.memory.flows.of(herd[0]).skips[0].position == herd[4].position

    in_room(8, scene)


def test_a_later_event_of_a_key_does_not_pass_one_that_was_left() -> None:
    def scene(room: Room) -> None:
        room.admit(*(room.event(number, number) for number in range(4)))
        assert room.admit(room.event(5, 5, key="k")) == [False]
        # To another target, which has room: before it, after it, and of another key.
        assert room.admit(
            room.event(4, 4, BANK, key="k"), room.event(6, 6, BANK, key="k"), room.event(7, 7, BANK, key="other")
        ) == [True, False, True]

    in_room(8, scene)


def test_an_entry_gives_way_at_its_time_to_an_earlier_one_of_its_key_that_was_left() -> None:
    def scene(room: Room) -> None:
        room.admit(room.event(9, 9, BANK, key="k"), *(room.event(number, number) for number in range(3)))
        late = room.memory.entries[9]
        assert not room.memory.yield_to_skipped(late)
        assert room.admit(room.event(5, 5, key="k")) == [False]

        assert room.memory.yield_to_skipped(late)
        assert late.phase is Phase.GONE
        assert 9 not in room.memory.entries

    in_room(7, scene)


def test_skipped_events_come_back_when_there_is_room() -> None:
    def scene(room: Room) -> None:
        herd = [room.event(number, number) for number in range(6)]
        room.admit(*herd)
        flow = room.memory.flows.of(herd[0])
        assert room.memory.admit_skipped(herd[4:], room.partition, flow) is herd[4]
        room.memory.forget_all([room.memory.entries[0], room.memory.entries[1]])

        assert room.memory.admit_skipped(herd[4:5], room.partition, flow) is None
        assert room.sequences == [2, 3, 4]

    in_room(8, scene)


def test_every_byte_is_given_back_once() -> None:
    def scene(room: Room) -> None:
        room.admit(room.event(1), room.event(2))
        entries = [room.memory.entries[1], room.memory.entries[2]]
        woken: list[str] = []
        entries[0].when_settled(lambda: woken.append("one"))
        entries[1].when_settled(lambda: woken.append("two"))
        room.memory.forget(entries[0])
        room.memory.forget_all(entries)
        room.memory.forget(entries[1])

        assert room.budget.free_bytes == room.budget.total_bytes
        assert woken == ["one", "two"]

    in_room(8, scene)


def test_an_event_that_is_held_cannot_be_loaded() -> None:
    def scene(room: Room) -> None:
        held: Entry = room.memory.reserve(room.event(1))
        assert room.admit(room.event(1)) == [True]
        assert room.memory.entries[1] is held
        assert held.phase is Phase.SETTLING

    in_room(8, scene)


def test_a_target_that_is_no_longer_allowed_has_a_flow_of_its_own() -> None:
    def scene(room: Room) -> None:
        first = room.memory.flows.of(room.event(1, to="gopher://old"))
        assert first is room.memory.flows.of(room.event(2, to="gopher://old"))
        assert first is not room.memory.flows.of(room.event(3))
        assert room.memory.flows.of(room.event(3)) is room.memory.flows.of(room.event(4, to="https://shop.example/b"))

    in_room(8, scene)


def test_unused_flows_are_dropped_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_module, "FLOWS_FREE", 2)

    def scene(room: Room) -> None:
        for number in range(6):
            room.admit(room.event(number, to=f"https://host{number}.example/"))
        for number in range(6):
            room.memory.forget(room.memory.entries[number])

        assert len(room.memory.flows.all()) == 3

    in_room(100, scene)


@pytest.mark.parametrize(
    "delays_ms",
    [
        (0, -5, -1),
        (1, 2, NEAR_MS),
        (NEAR_MS + 1, 90_000, 70_000),
        (-1, NEAR_MS + 1, 3, 90_000),
        (60_000, 2 * NEAR_MS, NEAR_MS),
    ],
)
def test_many_arrive_as_each_would(delays_ms: tuple[int, ...]) -> None:
    seen = []
    for together in (True, False):

        def scene(room: Room, together: bool = together) -> None:
            room.memory.expected_at = room.now + 80_000
            events = [room.event(sequence, in_ms) for sequence, in_ms in enumerate(delays_ms, 1)]
            if together:
                room.memory.arrive_all(events)
            else:
                for event in events:
                    room.memory.arrive(event)
            partition = room.partition
            seen.append((room.sequences, partition.checkpoint, partition.next_at, min(room.early, default=None)))

        in_room(100, scene)

    assert seen[0] == seen[1]
