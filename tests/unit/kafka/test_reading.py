"""One partition on its way to the engine: in order, through refusals, with poison set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from everbell.core.batch_item import BatchItem, ItemDone
from everbell.core.request import Handlers
from everbell.core.spec import Draft
from everbell.engine.requests import ApplyItems, Schedule
from everbell.errors import BeingDelivered, Conflict, EverbellError, OutcomeUnknown, StoreUnavailable, Throttled
from everbell.kafka.reading import RECORDS_MAX, Reading, Tally
from everbell.kafka.record import Asked, KafkaRecord, PoisonRecord
from everbell.testing import VirtualClock, run_virtual
from tests.scheduling import drafts_of

Answer = Callable[[Draft], EverbellError | None]


class Engine:
    """Accepts the events that the test allows, and records their order."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.answer: Answer = lambda draft: None
        self.calls: list[int] = []

    async def schedule(self, request: Schedule) -> list[str | EverbellError]:
        drafts = drafts_of(request)
        self.calls.append(len(drafts))
        await asyncio.sleep(0.01)
        results: list[str | EverbellError] = []
        for draft in drafts:
            refused = self.answer(draft)
            if refused is None:
                self.stored.append(draft.id or "")
            results.append(refused or draft.id or "")
        return results

    async def apply(self, request: ApplyItems) -> list[ItemDone | EverbellError]:
        await asyncio.sleep(0.01)
        results: list[ItemDone | EverbellError] = []
        for item in request.items:
            assert item.id is not None
            refused = None if item.draft is None else self.answer(item.draft)
            if refused is None:
                self.stored.append(f"{item.mode} {item.id}")
            results.append(refused or ItemDone(item.id, "replaced"))
        return results


class Stage:
    def __init__(self) -> None:
        self.engine = Engine()
        self.buried: list[PoisonRecord] = []
        self.done: list[int] = []
        self.pauses: list[bool] = []
        self.tally = Tally()
        self.can_bury = asyncio.Event()
        self.can_bury.set()
        ask = Handlers(Schedule.by(self.engine.schedule), ApplyItems.by(self.engine.apply)).ask
        self.reading = Reading(ask, read, self._bury, self.tally, self.done.append, self.pauses.append)

    async def _bury(self, poisons: Sequence[PoisonRecord]) -> None:
        await self.can_bury.wait()
        self.buried += poisons

    def add(self, *values: str) -> None:
        first = len(self.written)
        self.written += values
        self.reading.add([record(first + index, value) for index, value in enumerate(values)])

    written: list[str]


def record(offset: int, value: str) -> KafkaRecord:
    return KafkaRecord("orders", 0, offset, 0, None, value.encode())


async def read(record: KafkaRecord) -> tuple[Sequence[Asked], Sequence[PoisonRecord]]:
    """A record asks for an event of its name, in the tenant before the slash; `!` is poison, `=` replaces the
    event, and `-` cancels it."""
    value = (record.value or b"").decode()
    if value == "!":
        return (), (PoisonRecord(record, "poison"),)
    tenant, _, name = value.rpartition("/")
    if name.startswith("-"):
        return (Asked(tenant or "shop", BatchItem("cancel", name[1:]), record, None),), ()
    if name.startswith("="):
        draft = Draft(0, "queue:a", b"", name[1:])
        return (Asked(tenant or "shop", BatchItem("put", name[1:], draft), record, None),), ()
    return (Asked(tenant or "shop", BatchItem("create", name, Draft(0, "queue:a", b"", name)), record, None),), ()


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main(clock: VirtualClock) -> Any:
        stage = Stage()
        stage.written = []
        await scene(stage)
        assert stage.tally.waiting_bytes == 0

    run_virtual(main)


def test_records_that_replace_and_cancel_are_applied_in_order() -> None:
    async def scene(stage: Stage) -> None:
        stage.add("=a", "b", "-a")
        await asyncio.sleep(1)
        assert stage.engine.stored == ["put a", "create b", "cancel a"]
        assert stage.done == [3]

    play(scene)


def test_an_event_that_is_being_delivered_is_replaced_later() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.answer = lambda draft: BeingDelivered("a moment")
        stage.add("=a")
        await asyncio.sleep(1)
        assert (stage.done, stage.buried) == ([], [])
        stage.engine.answer = lambda draft: Conflict("the event is already delivered")
        await asyncio.sleep(5)
        assert [poison.reason for poison in stage.buried] == ["the event is already delivered"]
        assert stage.done == [1]

    play(scene)


def test_records_are_done_when_they_are_stored() -> None:
    async def scene(stage: Stage) -> None:
        stage.add("a", "b")
        assert stage.done == []
        assert stage.tally.waiting_bytes > 0
        await asyncio.sleep(1)
        assert (stage.engine.stored, stage.done) == (["a", "b"], [2])
        assert (stage.tally.records, stage.tally.events) == (2, 2)

    play(scene)


def test_records_that_come_meanwhile_form_the_next_batch() -> None:
    async def scene(stage: Stage) -> None:
        stage.add("a")
        await asyncio.sleep(0)
        stage.add("b")
        stage.add("c")
        await asyncio.sleep(1)
        assert (stage.engine.stored, stage.engine.calls, stage.done) == (["a", "b", "c"], [1, 2], [1, 3])

    play(scene)


def test_no_record_behind_a_refused_one_is_scheduled_and_the_order_stays() -> None:
    async def scene(stage: Stage) -> None:
        reasons = [StoreUnavailable("away"), OutcomeUnknown("lost"), Throttled("enough", 1)]
        stage.engine.answer = lambda draft: reasons[-1] if reasons and draft.id in ("b", "c") else None
        stage.add("a", "b", "c")
        await asyncio.sleep(0.03)
        stage.add("d")
        while reasons:
            await asyncio.sleep(1)
            reasons.pop()
        assert stage.done == []
        assert stage.pauses[0] is True
        await asyncio.sleep(5)
        assert (stage.engine.stored, stage.done) == (["a", "b", "c", "d"], [3, 4])
        assert stage.pauses[-1] is False
        assert stage.buried == []

    play(scene)


def test_more_than_a_group_is_stored_one_group_after_the_other() -> None:
    async def scene(stage: Stage) -> None:
        names = [f"e{number}" for number in range(RECORDS_MAX + 10)]
        refused = [True]
        stage.engine.answer = lambda draft: StoreUnavailable("away") if refused and draft.id == "e5" else None
        stage.add(*names)
        await asyncio.sleep(1)
        assert names[-1] not in stage.engine.stored
        refused.clear()
        await asyncio.sleep(5)
        assert stage.engine.stored[-10:] == names[-10:]
        assert stage.done == [len(names)]

    play(scene)


def test_poison_is_buried_before_its_record_counts_as_read() -> None:
    async def scene(stage: Stage) -> None:
        stage.can_bury.clear()
        stage.engine.answer = lambda draft: Conflict("taken") if draft.id == "b" else None
        stage.add("a", "!", "b", "blue/c")
        await asyncio.sleep(1)
        assert (stage.engine.stored, stage.done) == (["a", "c"], [])
        stage.can_bury.set()
        await asyncio.sleep(1)
        assert [(poison.record.offset, poison.reason) for poison in stage.buried] == [(1, "poison"), (2, "taken")]
        assert (stage.done, stage.tally.refused) == ([4], 2)

    play(scene)


def test_an_error_of_our_own_passes_nothing_over() -> None:
    async def scene(stage: Stage) -> None:
        wrong = [ValueError("a bug")]

        def answer(draft: Draft) -> None:
            if wrong:
                raise wrong.pop()

        stage.engine.answer = answer
        stage.add("a")
        await asyncio.sleep(5)
        assert (stage.engine.stored, stage.done) == (["a"], [1])

    play(scene)


def test_leaving_drops_refused_events_and_records_not_begun() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.answer = lambda draft: StoreUnavailable("away")
        stage.add("a")
        await asyncio.sleep(0.1)
        stage.add("b")
        await stage.reading.finish()
        stage.engine.answer = lambda draft: None
        await asyncio.sleep(60)
        assert (stage.engine.stored, stage.done) == ([], [])

    play(scene)


def test_a_batch_is_given_up_when_another_reader_has_the_partition() -> None:
    async def scene(stage: Stage) -> None:
        stage.add("a")
        await asyncio.sleep(0.001)  # The request is on its way.
        stage.add("b")
        stage.reading.leave()
        await asyncio.sleep(60)
        assert (stage.engine.stored, stage.done) == ([], [])
        assert stage.tally.waiting_bytes == 0

    play(scene)


def test_leaving_waits_for_a_batch_that_is_being_stored() -> None:
    async def scene(stage: Stage) -> None:
        stage.add("a")
        await asyncio.sleep(0.001)
        await stage.reading.finish()
        assert (stage.engine.stored, stage.done) == (["a"], [1])

    play(scene)


def test_leaving_does_not_wait_for_a_dead_letter_that_cannot_be_written() -> None:
    async def scene(stage: Stage) -> None:
        stage.can_bury.clear()
        stage.add("!")
        await asyncio.sleep(0.1)
        await stage.reading.finish()
        await asyncio.sleep(0)
        assert stage.done == []

    play(scene)
