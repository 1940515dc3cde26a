"""The one writer: groups, order of reads and writes, overload, full and broken stores."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from everbell.core.event import Event
from everbell.engine import write_queue as backlog
from everbell.engine.supervisor import Supervisor
from everbell.engine.writer import GROUP_CHANGES_MAX, TURNS_GIVEN, StoreWriter
from everbell.errors import Overloaded, StoreBroken, StoreError, StoreFull, StoreUnavailable
from everbell.stores.port import Add, Change, Refusal
from everbell.testing import VirtualClock, run_virtual
from tests.conformance.stores import event
from tests.unit.engine.stage import WatchedStore

Told = list[Mapping[int, Refusal] | StoreError]


class Desk:
    """A writer at work on a store that takes ten milliseconds for a write."""

    def __init__(self, partitions: int = 1) -> None:
        self.store = WatchedStore(partitions)
        self.store.before_apply = lambda: asyncio.sleep(0.01)
        self.broken: list[BaseException] = []
        self.epochs = {0: 1}
        self.writer = StoreWriter(self.store, self.epochs, Supervisor(self.broken.append), self.lose)
        self.told: Told = []
        self._sequence = 0

    def add(self, count: int = 1) -> list[Add]:
        made = []
        for _ in range(count):
            self._sequence += 1
            made.append(Add(Event(f"e{self._sequence}", "t", 0, self._sequence, 5, 5, "queue:q", b"", 1)))
        return made

    def lose(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            del self.epochs[partition]

    def submit(self, count: int = 1, *, must: bool = True) -> None:
        self.writer.submit(self.add(count), self.told.append, must=must)

    def take_in(self, count: int = 1) -> None:
        self.writer.take_in(self.add(count), self.told.append)

    @property
    def sizes(self) -> list[int]:
        return [len(group) for group in self.store.applied]


def at_work(scene: Callable[[Desk], Coroutine[Any, Any, None]], partitions: int = 1) -> None:
    async def main(clock: VirtualClock) -> None:
        desk = Desk(partitions)
        await desk.store.raise_fence(desk.epochs)
        desk.writer.start(lambda: None)
        await scene(desk)
        await desk.writer.stop()

    run_virtual(main)


def test_a_single_change_is_written_at_once() -> None:
    async def scene(desk: Desk) -> None:
        began_s = asyncio.get_running_loop().time()
        done = asyncio.Event()
        desk.writer.submit(desk.add(), lambda _: done.set(), must=True)
        await done.wait()

        assert asyncio.get_running_loop().time() - began_s == pytest.approx(0.01)
        assert desk.sizes == [1]

    at_work(scene)


def test_those_that_come_during_a_write_share_the_next() -> None:
    async def scene(desk: Desk) -> None:
        desk.submit()
        await asyncio.sleep(0.005)
        for _ in range(100):
            desk.submit()
            desk.take_in()
        await asyncio.sleep(0.1)

        assert desk.sizes == [1, 200]
        assert desk.told == [{}] * 201

    at_work(scene)


def test_a_group_has_a_limit() -> None:
    async def scene(desk: Desk) -> None:
        for _ in range(5):
            desk.submit(GROUP_CHANGES_MAX // 2)
        await asyncio.sleep(0.1)

        assert sum(desk.sizes) == 5 * GROUP_CHANGES_MAX // 2
        assert max(desk.sizes) <= GROUP_CHANGES_MAX

    at_work(scene)


def test_changes_of_events_in_flight_come_before_new_events() -> None:
    async def scene(desk: Desk) -> None:
        desk.submit()
        await asyncio.sleep(0.005)
        for _ in range(3):
            desk.take_in(GROUP_CHANGES_MAX)
        desk.submit()
        await asyncio.sleep(0.1)

        assert desk.sizes == [1, GROUP_CHANGES_MAX + 1, GROUP_CHANGES_MAX, GROUP_CHANGES_MAX]

    at_work(scene)


def test_a_backlog_of_outcomes_leaves_room_for_something_new_in_every_group() -> None:
    async def scene(desk: Desk) -> None:
        for _ in range(2):
            desk.submit(GROUP_CHANGES_MAX)
            desk.take_in(10)
        await asyncio.sleep(0.1)

        assert desk.sizes == [GROUP_CHANGES_MAX + 10] * 2

    at_work(scene)


def test_while_due_events_have_no_room_they_get_turns_before_new_ones_are_stored() -> None:
    async def main(clock: VirtualClock) -> None:
        desk = Desk()
        desk.store.before_apply = None
        crowded = True
        turns = 0

        async def deliver() -> None:
            nonlocal turns
            while not desk.told:
                turns += 1
                await asyncio.sleep(0)

        await desk.store.raise_fence(desk.epochs)
        desk.writer.start(lambda: None, lambda: crowded)
        desk.take_in()
        await deliver()
        while_crowded, turns, crowded = turns, 0, False
        desk.told.clear()
        desk.take_in()
        await deliver()

        assert while_crowded == turns + TURNS_GIVEN - 1
        await desk.writer.stop()

    run_virtual(main)


def test_each_is_told_its_own_refusals() -> None:
    async def scene(desk: Desk) -> None:
        taken = desk.add()
        desk.submit()
        desk.writer.submit([*desk.add(), *taken], desk.told.append, must=True)
        desk.writer.submit([*taken, *desk.add()], desk.told.append, must=True)
        await asyncio.sleep(0.1)

        assert desk.told == [{}, {}, {0: Refusal(taken[0].event)}]

    at_work(scene)


def test_a_read_runs_after_everything_that_was_submitted_before_it() -> None:
    async def scene(desk: Desk) -> None:
        seen: list[int] = []

        async def read() -> None:
            seen.append(sum(desk.sizes))

        desk.submit(3)
        desk.writer.read(read)
        desk.submit(GROUP_CHANGES_MAX * 3)
        desk.writer.read(read)
        await asyncio.sleep(1)

        assert seen[0] >= 3
        assert seen[1] == 3 + GROUP_CHANGES_MAX * 3

    at_work(scene)


def test_too_much_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "INTAKE_CHANGES_MAX", 100)

    async def scene(desk: Desk) -> None:
        desk.take_in(100)
        with pytest.raises(Overloaded):
            desk.take_in()
        # An outcome that has happened already is never refused.
        desk.submit()
        await asyncio.sleep(0.1)
        desk.take_in()
        await asyncio.sleep(0.1)

        assert sum(desk.sizes) == 102

    at_work(scene)


def test_with_a_full_store_optional_changes_are_refused_and_required_ones_kept() -> None:
    async def scene(desk: Desk) -> None:
        full = desk.store.fault = StoreFull("no room")
        desk.submit(must=True)
        desk.submit(must=False)
        desk.take_in()
        await asyncio.sleep(0.2)
        assert desk.told == [full, full]
        with pytest.raises(StoreFull):
            desk.take_in()

        desk.store.fault = None
        await asyncio.sleep(2)
        assert desk.told == [full, full, {}]
        assert desk.broken == []
        desk.take_in()
        await asyncio.sleep(1)
        assert desk.sizes == [1, 1]

    at_work(scene)


def test_a_read_still_waits_for_a_kept_change_when_a_later_change_was_refused() -> None:
    async def scene(desk: Desk) -> None:
        async def read() -> None:
            pytest.fail("the read came before what it had to come after")

        desk.store.fault = StoreFull("no room")
        desk.submit(must=True)
        desk.writer.read(read)
        desk.submit(must=False)
        await asyncio.sleep(0.1)

        assert len(desk.told) == 1
        assert desk.writer._next_read() is None

    at_work(scene)


def test_a_stop_stores_all_submitted_changes() -> None:
    async def scene(desk: Desk) -> None:
        for _ in range(10):
            desk.submit(GROUP_CHANGES_MAX)
        await desk.writer.stop()

        assert sum(desk.sizes) == 10 * GROUP_CHANGES_MAX

    at_work(scene)


def test_a_stop_on_a_full_store_ends_all_the_same() -> None:
    async def scene(desk: Desk) -> None:
        desk.store.fault = StoreFull("no room")
        desk.submit()
        await asyncio.wait_for(desk.writer.stop(), 60)

        assert desk.told == []

    at_work(scene)


def test_changes_of_a_lost_partition_are_refused_and_the_others_are_written() -> None:
    async def scene(desk: Desk) -> None:
        desk.epochs[1] = 1
        mine, theirs = event(1, partition=0), event(2, partition=1)
        desk.writer.submit([Add(mine), Add(theirs)], desk.told.append, must=True)
        await asyncio.sleep(1)

        assert desk.told == [{1: Refusal(None)}]
        assert desk.epochs == {0: 1}
        assert await desk.store.get("shop", mine.id) == mine
        assert await desk.store.get("shop", theirs.id) is None
        assert desk.broken == []

    at_work(scene, partitions=2)


def test_while_the_store_is_away_new_events_are_refused_and_outcomes_wait() -> None:
    async def scene(desk: Desk) -> None:
        away = desk.store.fault = StoreUnavailable("the database restarts")
        desk.submit()
        desk.take_in()
        desk.submit(must=False)
        await asyncio.sleep(0.1)
        assert desk.told == [away, away]
        with pytest.raises(StoreUnavailable):
            desk.take_in()
        desk.store.fault = None
        await asyncio.sleep(1)

        assert desk.told == [away, away, {}]
        assert desk.broken == []

    at_work(scene)


def test_while_the_store_does_not_answer_new_events_are_refused_and_the_rest_waits() -> None:
    async def scene(desk: Desk) -> None:
        answer = asyncio.Event()
        desk.store.before_apply = answer.wait
        first: Told = []
        desk.writer.take_in(desk.add(), first.append)
        await asyncio.sleep(1)
        desk.take_in()
        desk.submit()
        await asyncio.sleep(5)

        assert [type(told) for told in desk.told] == [StoreUnavailable]
        with pytest.raises(StoreUnavailable):
            desk.take_in()
        assert first == [], "nobody knows"

        answer.set()
        await asyncio.sleep(1)
        assert first == [{}]
        assert desk.told[1:] == [{}]
        desk.take_in()
        await asyncio.sleep(1)
        assert desk.told[2:] == [{}]

    at_work(scene)


def test_a_read_is_tried_again_when_the_store_was_away() -> None:
    async def scene(desk: Desk) -> None:
        answers = iter([StoreUnavailable("away"), None])
        read = []

        async def operation() -> None:
            answer = next(answers)
            if answer is not None:
                raise answer
            read.append(True)

        desk.writer.read(operation)
        await desk.writer.caught_up()

        assert read == [True]

    at_work(scene)


def test_a_caller_that_waits_for_a_read_is_told_that_the_store_broke() -> None:
    async def scene(desk: Desk) -> None:
        desk.store.fault = StoreBroken("fsync failed")
        desk.submit()
        with pytest.raises(StoreBroken):
            await desk.writer.caught_up()
        with pytest.raises(StoreBroken):
            await desk.writer.caught_up()

    at_work(scene)


def test_after_a_failure_nothing_is_written_and_no_success_is_reported() -> None:
    fault = StoreBroken("fsync failed")

    async def scene(desk: Desk) -> None:
        desk.store.fault = fault
        desk.submit()
        await asyncio.sleep(0.1)
        desk.store.fault = None
        with pytest.raises(type(fault)):
            desk.submit(must=False)
        with pytest.raises(type(fault)):
            desk.take_in()
        await asyncio.sleep(10)

        assert desk.broken == [fault]
        assert {} not in desk.told
        assert desk.sizes == []

    at_work(scene)


def test_idle_work_is_done_when_there_is_room() -> None:
    async def main(clock: VirtualClock) -> None:
        desk = Desk()
        left = [1, 2, 3]

        async def work() -> None:
            left.pop()

        desk.writer.start(lambda: work if left else None)
        desk.writer.wake()
        await asyncio.sleep(0.1)
        assert left == []
        await desk.writer.stop()

    run_virtual(main)


# A store that prepares


class PreparingDesk(Desk):
    """A store for which ten changes make a group, and which records the changes that it was asked to prepare."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(partitions)
        self.store.preparer = self
        self.store.group_changes = 10
        self.prepared: list[Sequence[Change]] = []

    async def prepare(self, changes: Sequence[Change]) -> None:
        self.prepared.append(changes)
        await asyncio.sleep(0.001)


def prepared(scene: Callable[[PreparingDesk], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        desk = PreparingDesk()
        await desk.store.raise_fence(desk.epochs)
        desk.writer.start(lambda: None)
        await scene(desk)
        await desk.writer.stop()

    run_virtual(main)


def test_the_next_group_is_made_ready_while_one_is_written() -> None:
    async def scene(desk: PreparingDesk) -> None:
        desk.submit()
        await asyncio.sleep(0.005)
        desk.submit(4)
        await asyncio.sleep(0.001)
        assert not desk.prepared, "it does not pay yet"
        desk.submit(4)
        await asyncio.sleep(0.1)

        assert [list(group) for group in desk.prepared] == desk.store.applied[1:]
        assert desk.sizes == [1, 8]
        assert desk.told == [{}] * 3

    prepared(scene)


def test_a_prepared_group_goes_to_the_store_before_callers_of_the_last_group_are_told() -> None:
    async def scene(desk: PreparingDesk) -> None:
        begun: list[int] = []
        wait = desk.store.before_apply
        assert wait is not None

        async def begin() -> None:
            begun.append(len(desk.told))
            await wait()

        desk.store.before_apply = begin
        for _ in range(5):
            desk.submit(5)
        await asyncio.sleep(0.1)

        assert desk.sizes == [10, 10, 5]
        # One of the last group is told meanwhile, as to begin takes two turns of the loop.
        assert begun == [0, 1, 3]
        assert desk.told == [{}] * 5

    prepared(scene)


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), StoreFull("full")])
def test_a_prepared_group_behind_a_failed_write_keeps_its_place(fault: StoreError) -> None:
    async def scene(desk: PreparingDesk) -> None:
        desk.submit(10)
        await asyncio.sleep(0.005)
        desk.submit(5)
        desk.take_in(5)
        desk.submit(5, must=False)
        await asyncio.sleep(0.002)
        assert len(desk.prepared) == 1
        desk.store.fault = fault
        await asyncio.sleep(0.1)
        assert desk.told == [fault, fault]
        desk.store.fault = None
        await asyncio.sleep(1)

        sequences = [change.event.sequence for group in desk.store.applied for change in group]  # type: ignore[union-attr]
        assert sequences == [*range(1, 16)]
        assert desk.told == [fault, fault, {}, {}]

    prepared(scene)


def test_reads_come_after_all_changes_submitted_before_them_even_prepared_groups() -> None:
    async def scene(desk: PreparingDesk) -> None:
        seen: list[int] = []
        for _ in range(6):
            desk.submit(5)

        async def read() -> None:
            seen.append(sum(desk.sizes))

        desk.writer.read(read)
        await asyncio.sleep(0.015)
        desk.submit(5)
        await asyncio.sleep(0.1)

        assert len(seen) == 1
        assert seen[0] >= 30

    prepared(scene)


def test_idle_work_comes_between_groups_that_are_ready() -> None:
    async def main(clock: VirtualClock) -> None:
        desk = PreparingDesk()
        await desk.store.raise_fence(desk.epochs)
        seen: list[tuple[int, int]] = []

        async def work() -> None:
            seen.append((sum(desk.sizes), len(desk.told)))

        desk.writer.start(lambda: work if sum(desk.sizes) in (20, 30) and len(seen) < 3 else None)
        for _ in range(8):
            desk.submit(5)
        await asyncio.sleep(0.1)

        assert seen == [(20, 4), (20, 4), (30, 6)], "all that is stored was told before"
        await desk.writer.stop()

    run_virtual(main)


def test_new_events_that_are_ready_are_refused_when_the_store_does_not_answer() -> None:
    async def scene(desk: PreparingDesk) -> None:
        answers = asyncio.Event()
        desk.store.before_apply = answers.wait
        desk.submit(10)
        await asyncio.sleep(0.005)
        desk.take_in(10)
        await asyncio.sleep(5)

        assert len(desk.prepared) == 1
        assert [type(told) for told in desk.told] == [StoreUnavailable]
        answers.set()
        await asyncio.sleep(0.1)
        assert desk.sizes == [10]
        assert desk.told[1:] == [{}]

    prepared(scene)


def test_when_the_store_breaks_those_that_are_ready_are_told() -> None:
    async def scene(desk: PreparingDesk) -> None:
        desk.submit(10, must=False)
        await asyncio.sleep(0.005)
        desk.submit(10, must=False)
        await asyncio.sleep(0.002)
        desk.store.fault = StoreBroken("broken")
        await asyncio.sleep(0.1)

        assert desk.told == [desk.store.fault] * 2
        assert desk.broken == [desk.store.fault]

    prepared(scene)


def test_a_write_that_fails_while_the_writer_is_stopped_leaves_no_unseen_exception() -> None:
    async def scene(desk: PreparingDesk) -> None:
        loop = asyncio.get_running_loop()
        surprises: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: surprises.append(context))

        def stop() -> None:
            assert desk.writer._task is not None
            desk.writer._task.cancel()
            desk.writer._task = None

        async def fail() -> None:
            await asyncio.sleep(0.01)
            loop.call_soon(stop)
            raise StoreUnavailable("away")

        desk.store.before_apply = fail
        desk.submit()
        await asyncio.sleep(0.1)
        gc.collect()  # That is when Python reports exceptions that were never retrieved.

        assert surprises == []

    prepared(scene)
