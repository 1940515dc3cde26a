"""The floor: who comes to memory, who stays in the store and behind whom, and what is given back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everbell.channels.nowhere import NowhereChannel
from everbell.core.event import Event
from everbell.core.tenant import Tenant, Tenants
from everbell.engine import floor as floor_module
from everbell.engine.agenda import Agenda
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase
from everbell.engine.floor import Floor
from everbell.engine.flow import EVENT_OVERHEAD_BYTES, Budget
from everbell.engine.partition import Partition
from everbell.testing import VirtualClock, run_virtual

NEAR_MS = 5_000
SHOP, BANK = "https://shop.example/a", "https://bank.example/a"


class Room:
    """A floor with one partition that was read up to now, and room for some events."""

    def __init__(self, clock: VirtualClock, events: int) -> None:
        self.now = clock.now()
        self.partition = Partition(0)
        self.partition.take(1, self.now, 0)
        self.partition.read_to(self.now, None)
        self.dispatcher = Dispatcher(clock, {0: 1}, 100)
        self.budget = Budget(events * EVENT_OVERHEAD_BYTES)
        self.floor = Floor(
            [self.partition],
            self.budget,
            Agenda(clock, lambda entry: None),
            self.dispatcher,
            Tenants(Tenant()),
            lambda group: NowhereChannel(),
            lambda: self.now + NEAR_MS,
        )

    def event(self, sequence: int, in_ms: int = 0, to: str = SHOP, key: str | None = None) -> Event:
        at = self.now + in_ms
        return Event(f"e{sequence}", "default", 0, sequence, at, at, to, b"", 1, key)

    def admit(self, *events: Event) -> list[bool]:
        return [self.floor.admit(event, self.partition) for event in events]

    @property
    def sequences(self) -> list[int]:
        return sorted(self.floor.entries)


def in_room(events: int, scene: Callable[[Room], None]) -> None:
    async def main(clock: VirtualClock) -> None:
        scene(Room(clock, events))

    run_virtual(main)


def test_what_is_near_comes_to_memory_and_what_is_far_stays() -> None:
    def scene(room: Room) -> None:
        room.floor.arrive(room.event(1))
        room.floor.arrive(room.event(2, NEAR_MS))
        room.floor.arrive(room.event(3, NEAR_MS + 1))

        assert room.sequences == [1, 2]

    in_room(10, scene)


def test_the_loader_is_told_of_what_it_has_to_find_earlier_than_it_expected() -> None:
    def scene(room: Room) -> None:
        told: list[int] = []
        room.floor.on_early = told.append
        room.floor.expected_at = room.now + 3 * NEAR_MS
        room.floor.arrive_all([room.event(1, 2 * NEAR_MS), room.event(2, 4 * NEAR_MS)])

        assert told == [room.now + 2 * NEAR_MS]
        assert room.partition.next_at == room.now + 2 * NEAR_MS

    in_room(10, scene)


def test_no_event_is_in_memory_twice() -> None:
    def scene(room: Room) -> None:
        assert room.admit(room.event(1), room.event(1)) == [True, True]
        assert room.floor.admit_to_lane(room.event(1)) is None
        room.floor.arrive_all([room.event(1), room.event(1)])

        assert room.sequences == [1]
        assert room.budget.free_bytes == 9 * EVENT_OVERHEAD_BYTES

    in_room(10, scene)


def test_a_flow_without_room_leaves_its_events_and_takes_nothing_from_others() -> None:
    def scene(room: Room) -> None:
        # One flow alone may have half of the memory.
        admitted = room.admit(*(room.event(number, number) for number in range(6)))
        assert admitted == [True] * 4 + [False] * 2
        assert list(room.floor.starved) == [room.floor.flow_of(room.event(0))]
        # The other has half of what is left. The first stays behind its skip, though it could have room again.
        assert room.admit(room.event(10, 10, BANK), room.event(11, 11, BANK)) == [True, True]
        room.floor.forget(room.floor.entries[0])
        assert room.admit(room.event(12, 12)) == [False]

    in_room(8, scene)


def test_many_at_once_are_treated_as_one_by_one() -> None:
    def scene(room: Room) -> None:
        herd = [room.event(number, number) for number in range(6)]
        room.floor.admit_all([*herd, room.event(10, 10, BANK), room.event(3, 3), room.event(11, 11)], room.partition)

        assert room.sequences == [0, 1, 2, 3, 10]
        assert room.partition.skips[room.floor.flow_of(herd[0])].position == herd[4].position

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
        late = room.floor.entries[9]
        assert not room.floor.give_way(late)
        assert room.admit(room.event(5, 5, key="k")) == [False]

        assert room.floor.give_way(late)
        assert late.phase is Phase.GONE
        assert 9 not in room.floor.entries

    in_room(7, scene)


def test_what_was_left_comes_back_when_there_is_room() -> None:
    def scene(room: Room) -> None:
        herd = [room.event(number, number) for number in range(6)]
        room.admit(*herd)
        flow = room.floor.flow_of(herd[0])
        assert room.floor.admit_left_behind(herd[4:], room.partition, flow) is herd[4]
        room.floor.forget_all([room.floor.entries[0], room.floor.entries[1]])

        assert room.floor.admit_left_behind(herd[4:5], room.partition, flow) is None
        assert room.sequences == [2, 3, 4]

    in_room(8, scene)


def test_every_byte_is_given_back_once() -> None:
    def scene(room: Room) -> None:
        room.admit(room.event(1), room.event(2))
        entries = [room.floor.entries[1], room.floor.entries[2]]
        woken: list[str] = []
        entries[0].when_settled(lambda: woken.append("one"))
        entries[1].when_settled(lambda: woken.append("two"))
        room.floor.forget(entries[0])
        room.floor.forget_all(entries)
        room.floor.forget(entries[1])

        assert room.budget.free_bytes == room.budget.total_bytes
        assert woken == ["one", "two"]

    in_room(8, scene)


def test_an_event_that_is_held_cannot_be_loaded() -> None:
    def scene(room: Room) -> None:
        held: Entry = room.floor.hold(room.event(1))
        assert room.admit(room.event(1)) == [True]
        assert room.floor.entries[1] is held
        assert held.phase is Phase.SETTLING

    in_room(8, scene)


def test_a_target_that_is_no_longer_allowed_has_a_flow_of_its_own() -> None:
    def scene(room: Room) -> None:
        first = room.floor.flow_of(room.event(1, to="gopher://old"))
        assert first is room.floor.flow_of(room.event(2, to="gopher://old"))
        assert first is not room.floor.flow_of(room.event(3))
        assert room.floor.flow_of(room.event(3)) is room.floor.flow_of(room.event(4, to="https://shop.example/b"))

    in_room(8, scene)


def test_flows_that_nobody_uses_are_dropped_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor_module, "_FLOWS_KEPT", 2)

    def scene(room: Room) -> None:
        for number in range(6):
            room.admit(room.event(number, to=f"https://host{number}.example/"))
        for number in range(6):
            room.floor.forget(room.floor.entries[number])

        assert len(room.floor.flows()) == 2

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
            early: list[int] = []
            room.floor.on_early = early.append
            room.floor.expected_at = room.now + 80_000
            events = [room.event(sequence, in_ms) for sequence, in_ms in enumerate(delays_ms, 1)]
            if together:
                room.floor.arrive_all(events)
            else:
                for event in events:
                    room.floor.arrive(event)
            partition = room.partition
            seen.append((room.sequences, partition.checkpoint, partition.next_at, min(early, default=None)))

        in_room(100, scene)

    assert seen[0] == seen[1]
