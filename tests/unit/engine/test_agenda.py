"""The near future: rung in order, never early, a herd in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everbell.channels.nowhere import NowhereChannel
from everbell.core.event import Event
from everbell.core.tenant import Tenant
from everbell.engine import agenda
from everbell.engine.account import Account
from everbell.engine.agenda import SLICE, Agenda
from everbell.engine.attempt_listeners import AttemptListeners
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase, entry_of
from everbell.engine.flow import Flow
from everbell.engine.supervisor import Supervisor
from everbell.testing import VirtualClock, run_virtual


class Bells:
    """An agenda, and the events that it rang."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.rung: list[tuple[int, int]] = []
        self.faults: list[BaseException] = []
        supervisor = Supervisor(self.faults.append)
        self.agenda = Agenda(clock, supervisor, self._ring)
        self._dispatcher = Dispatcher(clock, {0: 1}, 100, AttemptListeners(), supervisor)
        self._flow = Flow(Tenant(), "queue:q", NowhereChannel(), Account("default"))

    def _ring(self, entry: Entry) -> None:
        entry.phase = Phase.READY
        self.rung.append((entry.event.sequence, self.clock.now()))

    def entry(self, sequence: int, in_ms: int) -> Entry:
        at = self.clock.now() + in_ms
        return entry_of(Event("e", "t", 0, sequence, at, at, "queue:q", b"", 1), self._flow, self._dispatcher)

    def add(self, sequence: int, in_ms: int) -> Entry:
        entry = self.entry(sequence, in_ms)
        self.agenda.add(entry)
        return entry


def play(scene: Callable[[Bells], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        await scene(Bells(clock))

    run_virtual(main)


def test_entries_ring_at_their_time_in_order() -> None:
    async def scene(bells: Bells) -> None:
        start_at = bells.clock.now()
        for sequence, in_ms in ((4, 2_500), (2, 10), (3, 10), (1, 10), (5, 0)):
            bells.add(sequence, in_ms)
        await asyncio.sleep(3)

        rung = [(sequence, at - start_at) for sequence, at in bells.rung]
        assert rung == [(5, 0), (1, 10), (2, 10), (3, 10), (4, 2_500)]

    play(scene)


def test_an_earlier_entry_comes_before_the_one_that_was_waited_for() -> None:
    async def scene(bells: Bells) -> None:
        bells.add(1, 900)
        await asyncio.sleep(0.1)
        bells.add(2, 100)
        await asyncio.sleep(1)

        assert [sequence for sequence, _ in bells.rung] == [2, 1]

    play(scene)


def test_an_entry_that_is_gone_does_not_ring() -> None:
    async def scene(bells: Bells) -> None:
        for phase in (Phase.GONE, Phase.SETTLING, Phase.IN_FLIGHT):
            bells.add(1, 10).phase = phase
        await asyncio.sleep(1)

        assert bells.rung == []

    play(scene)


def test_a_herd_leaves_turns_to_others() -> None:
    async def scene(bells: Bells) -> None:
        for sequence in range(3 * SLICE):
            bells.add(sequence, -1)
        turns = []
        while len(bells.rung) < 3 * SLICE:
            turns.append(len(bells.rung))
            await asyncio.sleep(0)

        assert {SLICE, 2 * SLICE} <= set(turns)
        assert [sequence for sequence, _ in bells.rung] == list(range(3 * SLICE))

    play(scene)


def test_those_that_come_for_a_time_that_has_rung_keep_their_order() -> None:
    async def scene(bells: Bells) -> None:
        bells.agenda.add_all([bells.entry(sequence, 0) for sequence in (1, 2)])
        late = [bells.entry(sequence, 0) for sequence in (3, 4, 5)]
        await asyncio.sleep(0.001)
        bells.agenda.add_all(late)
        await asyncio.sleep(0.001)

        assert [sequence for sequence, _ in bells.rung] == [1, 2, 3, 4, 5]

    play(scene)


def test_after_a_stop_nothing_rings() -> None:
    async def scene(bells: Bells) -> None:
        bells.add(1, 10)
        bells.agenda.stop()
        bells.add(2, 5)
        await asyncio.sleep(1)

        assert bells.rung == []

    play(scene)


def test_a_late_event_takes_its_place_among_the_due_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event may leave memory and come back while a herd is being rung; others of its key must not pass it."""
    monkeypatch.setattr(agenda, "SLICE", 2)

    async def scene(bells: Bells) -> None:
        for sequence in (10, 20, 30, 40):
            bells.add(sequence, -5)
        bells.add(50, -4)
        await asyncio.sleep(0)
        assert [sequence for sequence, _ in bells.rung] == [10, 20]
        bells.add(25, -5)
        bells.add(5, -6)
        await asyncio.sleep(1)

        assert [sequence for sequence, _ in bells.rung] == [10, 20, 5, 25, 30, 40, 50]

    play(scene)
