"""Partitions that come and go: released cleanly or too late, lost in the middle of a write, taken over by another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from everbell.core.amendment import Amendment
from everbell.core.event import Event
from everbell.core.retry import DELIVERED, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.engine import ordering as lanes
from everbell.engine.engine import Engine
from everbell.engine.entry import until_settled
from everbell.engine.partition import CLOCKS_APART_MS
from everbell.engine.requests import Amend, Cancel, CountEvents, Get, GiveBack, LeaseEvents
from everbell.errors import EverbellError, Fenced, NotOwner, StoreCorrupt, StoreFull, StoreUnavailable
from everbell.stores.port import SEQUENCES_AT_ONCE, Counts
from tests.unit.engine.stage import FAILED, Receiver, Stage, SteadyEntropy, play

OLD, NEW = 1, 2
"""The epochs of the first owner and of the next."""


@dataclass
class Heirs:
    """The stage of the first owner, and the next one, which owns nothing yet; there is one partition."""

    stage: Stage
    next: Engine
    receiver: Receiver

    async def take(self, epoch: int = NEW, quiet_ms: int = 0) -> None:
        await self.next.take({0: epoch}, quiet_ms=quiet_ms)

    @property
    def all_names(self) -> list[str]:
        return self.stage.receiver.names + self.receiver.names


def play_heirs(scene: Callable[[Heirs], Coroutine[Any, Any, None]]) -> None:
    async def whole(stage: Stage) -> None:
        receiver = Receiver(stage.clock)
        heir = await Engine.start(
            stage.store, {"https": receiver}, stage.tenants, stage.clock, SteadyEntropy(), epochs={}
        )
        await scene(Heirs(stage, heir, receiver))
        await heir.stop()

    play(whole, partitions=1)


def test_a_clean_release_repeats_nothing_and_forgets_nothing() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.takes_s = 0.5
        for number in range(10):
            await stage.schedule(f"due-{number}")
        await stage.schedule("soon", 2_000)
        await stage.schedule("far", 100_000)
        await stage.pass_ms(100)
        assert await stage.engine.release([0], 5.0)
        assert stage.engine.memory.entries == {}
        await heirs.take()
        await stage.pass_ms(200_000)

        assert sorted(stage.receiver.names) == [f"due-{number}" for number in range(10)]
        assert heirs.receiver.names == ["soon", "far"]

    play_heirs(scene)


def test_nothing_starts_while_a_partition_is_being_released() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("under-way")
        await stage.schedule("soon", 1_000)
        await stage.schedule("next-of-key", 10, key="k")
        await stage.schedule("behind-it", 20, key="k")
        await stage.pass_ms(100)
        releasing = asyncio.create_task(stage.engine.release([0], 10.0))
        await stage.pass_ms(2_000)
        assert stage.receiver.names == ["under-way", "next-of-key"]
        stage.receiver.settle("under-way")
        stage.receiver.settle("next-of-key")
        assert await releasing
        await heirs.take()
        await stage.pass_ms(1_000)

        assert stage.receiver.names == ["under-way", "next-of-key"]
        assert sorted(heirs.receiver.names) == ["behind-it", "soon"]

    play_heirs(scene)


def test_while_it_is_being_released_new_events_are_stored_for_the_next_owner() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("under-way", id="named")
        await stage.settled()
        releasing = asyncio.create_task(stage.engine.release([0], 10.0))
        await stage.settled()
        late = await stage.ask("late", key="k")
        stage.receiver.settle("under-way")
        assert await releasing
        refused = await stage.ask("too-late", key="k")
        await heirs.take()
        await stage.pass_ms(1_000)

        assert not isinstance(late, EverbellError)
        assert isinstance(refused, NotOwner)
        assert heirs.receiver.names == ["late"]

    play_heirs(scene)


def test_after_the_deadline_the_rest_is_left_to_the_next_owner() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("stuck", key="k")
        await stage.schedule("after", 1, key="k")
        await stage.pass_ms(100)
        began_at = stage.clock.now()
        assert not await stage.engine.release([0], 3.0)
        assert stage.clock.now() - began_at == 3_000
        written = len(stage.store.applied)
        await heirs.take()
        # An outcome that the old owner hears later changes nothing any more.
        stage.receiver.settle("stuck", FAILED)
        await stage.pass_ms(1_000)

        assert heirs.receiver.names == ["stuck", "after"]
        assert all(change.before.payload for group in stage.store.applied[written:] for change in group)  # type: ignore[union-attr]

    play_heirs(scene)


def test_a_head_that_fails_during_the_release_still_leaves_its_mark() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        head = await stage.schedule("head", key="k")
        for number in range(3):
            await stage.schedule(f"follower-{number}", 1, key="k")
        await stage.pass_ms(100)
        releasing = asyncio.create_task(stage.engine.release([0], 10.0))
        await stage.settled()
        stage.receiver.settle("head", FAILED)
        assert await releasing
        assert list(stage.store._heads.values()) == [head.sequence]
        await heirs.take()
        await stage.pass_ms(60_000)

        assert heirs.receiver.names == ["head", "follower-0", "follower-1", "follower-2"]
        assert stage.store._heads == {}

    play_heirs(scene)


@pytest.mark.parametrize("ends", [True, False])
def test_a_crowded_key_goes_on_in_order_at_the_next_owner(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """Its line is in the store, whether its head came to its end here or not."""
    monkeypatch.setattr(lanes, "LINE_IN_MEMORY", 1)

    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("head", key="k")
        for number in range(5):
            await stage.schedule(f"{number}", 1, key="k")
        await stage.pass_ms(100)
        releasing = asyncio.create_task(stage.engine.release([0], 1.0))
        await stage.settled()
        if ends:
            stage.receiver.settle("head")
        assert await releasing is ends
        await heirs.take()
        await stage.pass_ms(60_000)

        rest = ["0", "1", "2", "3", "4"]
        assert heirs.receiver.names == (rest if ends else ["head", *rest])

    play_heirs(scene)


def test_a_change_that_is_being_stored_starts_nothing_in_a_partition_that_leaves() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("head", key="k")
        changed = await stage.schedule("changed", 1, key="k")
        await stage.pass_ms(100)
        go_on = stage.hold_writes()
        changing = asyncio.create_task(change_tags(stage, changed))
        await stage.settled()
        releasing = asyncio.create_task(stage.engine.release([0], 10.0))
        await stage.settled()
        go_on.set()
        stage.receiver.settle("head")
        await changing
        assert await releasing
        await heirs.take()
        await stage.pass_ms(10_000)

        assert stage.receiver.names == ["head"]
        assert heirs.receiver.names == ["changed"]

    play_heirs(scene)


@pytest.mark.parametrize("in_ms", [1, 5_000])
def test_a_change_that_cannot_be_stored_starts_nothing_either(in_ms: int) -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("head", key="k")
        changed = await stage.schedule("changed", in_ms, key="k")
        await stage.pass_ms(100)
        go_on = stage.hold_writes()
        stage.store.fault = StoreFull("no room")
        changing = asyncio.create_task(change_tags(stage, changed))
        await stage.settled()
        releasing = asyncio.create_task(stage.engine.release([0], 10.0))
        await stage.settled()
        go_on.set()
        with pytest.raises(StoreFull):
            await changing
        stage.store.fault = None
        stage.receiver.settle("head")
        assert await releasing
        await heirs.take()
        await stage.pass_ms(10_000)

        assert stage.receiver.names == ["head"]
        assert heirs.receiver.names == ["changed"]

    play_heirs(scene)


def test_cancelling_the_head_of_a_key_sets_nothing_going_in_a_partition_that_leaves() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: FAILED
        head = await stage.schedule("head", key="k")
        await stage.schedule("follower", 1, key="k")
        await stage.pass_ms(500)
        stage.receiver.got.clear()
        go_on = stage.hold_writes()
        cancelling = asyncio.ensure_future(stage.engine.ask(Cancel("default", head.id)))
        await stage.settled()
        releasing = asyncio.create_task(stage.engine.release([0], 10.0))
        await stage.settled()
        go_on.set()
        await cancelling
        assert await releasing
        await heirs.take()
        await stage.pass_ms(10_000)

        assert stage.receiver.names == []
        assert heirs.receiver.names == ["follower"]

    play_heirs(scene)


@pytest.mark.parametrize(("deadline_s", "is_clean", "lasts_s"), [(5.0, True, 2.0), (0.5, False, 0.5)])
def test_a_release_waits_for_the_request_of_a_head_that_was_cancelled(
    deadline_s: float, is_clean: bool, lasts_s: float
) -> None:
    """It has left memory, but the next of its key must not begin before its request is over."""

    async def scene(heirs: Heirs) -> None:
        stage, loop = heirs.stage, asyncio.get_running_loop()
        stage.receiver.takes_s = 3.0
        head = await stage.schedule("head", key="k")
        await asyncio.sleep(1)
        await stage.engine.ask(Cancel("default", head.id))
        assert stage.engine.busy({0}) == {0}
        began_s = loop.time()
        assert await stage.engine.release([0], deadline_s) is is_clean
        assert loop.time() - began_s == pytest.approx(lasts_s, abs=0.01)

    play_heirs(scene)


def test_an_event_given_back_during_the_release_goes_to_the_next_owner() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        await stage.schedule("e", to="queue:q")
        (lease,) = await stage.engine.ask(LeaseEvents("default", "q", 1, 1_000, 60_000))
        releasing = asyncio.create_task(stage.engine.release([0], 10.0))
        await stage.settled()
        assert await stage.engine.ask(GiveBack("default", "q", [lease.token])) == []
        assert await releasing
        assert await stage.engine.ask(LeaseEvents("default", "q", 1, 10, 60_000)) == []
        await heirs.take()
        (again,) = await heirs.next.ask(LeaseEvents("default", "q", 1, 1_000, 60_000))

        assert again.occurrence.raw == b"e"
        assert again.occurrence.attempt == 1

    play_heirs(scene)


def test_an_owner_that_was_fenced_in_the_middle_of_a_write_lets_go() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e", key="k")
        await stage.settled()
        go_on = stage.hold_writes()
        stage.receiver.settle("e")
        await stage.settled()
        await heirs.take()
        go_on.set()
        await stage.pass_ms(1_000)

        # Then its outcome counts for nothing, it owns nothing, and the next one delivers.
        assert stage.engine.epochs == {}
        assert stage.engine.memory.entries == {}
        assert stage.broken == []
        assert heirs.receiver.names == ["e"]
        assert (await heirs.next.ask(Get("default", event.id))).status == "delivered"
        assert isinstance(await stage.ask("late", key="k"), NotOwner)

    play_heirs(scene)


def test_after_an_unclean_take_over_keys_wait_until_the_last_owner_is_quiet() -> None:
    quiet_ms = 2 * CLOCKS_APART_MS

    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        heirs.next.tenants.override("default", Tenant(timeout_ms=quiet_ms))
        heirs.next.tenants.override("fences", Tenant("fences", fencing="receiver"))
        heirs.next.tenants.override("quick", Tenant("quick", timeout_ms=1_000))
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("keyed", key="k")
        await stage.schedule("behind", 10, key="k")
        await stage.schedule("fenced", key="k", tenant="fences")
        await stage.schedule("short", key="k", tenant="quick")
        await stage.schedule("free")
        await stage.schedule("later", CLOCKS_APART_MS + 200, key="other")
        await stage.pass_ms(100)
        stage.engine.drop([0])
        taken_at = stage.clock.now()
        await heirs.take(quiet_ms=quiet_ms)
        await stage.pass_ms(60_000)

        began = {got.name: got.at - taken_at for got in heirs.receiver.got}
        assert began["free"] < 100
        assert began["fenced"] < 100
        # The policy named a longer timeout before this process heard of the change.
        assert 10_000 <= began["short"] < 11_000
        # Not due when the last owner was there, by whichever clock, so it cannot have been sent.
        assert began["later"] == CLOCKS_APART_MS + 100
        assert quiet_ms <= began["keyed"] <= began["behind"] < quiet_ms + 1_000
        mine = [got.name for got in heirs.receiver.got if (got.event.tenant, got.event.key) == ("default", "k")]
        assert mine == ["keyed", "behind"]

    play_heirs(scene)


def test_a_partition_that_comes_back_goes_on_where_it_was() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        for number in range(5):
            await stage.schedule(f"{number}", 1_000 * (number + 1), key="k")
        await stage.pass_ms(1_500)
        assert await stage.engine.release([0], 1.0)
        await heirs.take()
        await stage.pass_ms(1_000)
        assert await heirs.next.release([0], 1.0)
        await stage.engine.take({0: NEW + 1})
        await stage.pass_ms(10_000)

        assert stage.receiver.names == ["0", "2", "3", "4"]
        assert heirs.receiver.names == ["1"]

    play_heirs(scene)


def test_a_cancel_that_was_asking_when_its_partition_came_and_went_stores_nothing() -> None:
    async def scene(stage: Stage) -> None:
        # Given an event for which its key waits, and a cancel that asks the store just that.
        stage.receiver.answer = lambda delivery: FAILED
        event = await stage.schedule("e", key="k", retry=RetryPolicy(backoff_ms=2_000))
        await stage.settled()
        go_on, heads = asyncio.Event(), stage.store.heads

        async def slow_heads(partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
            await go_on.wait()
            return await heads(partition, keys)

        stage.store.heads = slow_heads  # type: ignore[method-assign]  # A store that is slow for once.
        cancel = asyncio.ensure_future(stage.engine.ask(Cancel("default", event.id)))
        await stage.settled()

        # When the partition is lost and taken again before the answer, and all is well from then on.
        stage.engine.drop([0])
        taken = asyncio.ensure_future(stage.engine.take({0: NEW}))
        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.settled()
        go_on.set()
        with pytest.raises(NotOwner):
            await cancel
        await taken
        await stage.pass_ms(10_000)

        # Then the event goes on as if no cancel had been requested.
        assert [got.attempt for got in stage.receiver.got] == [1, 2]
        assert await stage.status(event) == "delivered"
        assert (await stage.engine.ask(CountEvents()))["default"] == Counts(delivered=1)

    play(scene, partitions=1)


def test_a_cancel_that_could_not_be_stored_brings_nothing_back_that_left_with_its_partition() -> None:
    async def scene(stage: Stage) -> None:
        # Given an attempt that is under way, and a cancel of it that is being stored.
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e")
        await stage.settled()
        go_on = stage.hold_writes()
        cancel = asyncio.ensure_future(stage.engine.ask(Cancel("default", event.id)))
        await stage.settled()

        # When the partition is lost and taken again, and the store refuses for a moment.
        stage.engine.drop([0])
        taken = asyncio.ensure_future(stage.engine.take({0: NEW}))
        stage.store.fault = StoreUnavailable("away")
        go_on.set()
        with pytest.raises(StoreUnavailable):
            await cancel
        stage.store.fault = None
        await taken
        await stage.pass_ms(5_000)

        # Then the event is attempted again, and the outcome of the first attempt is ignored.
        assert [got.attempt for got in stage.receiver.got] == [1, 1]
        stage.receiver.settle("e")
        await stage.settled()
        assert await stage.status(event) == "delivering"
        stage.receiver.settle("e")
        await stage.settled()
        assert (await stage.engine.ask(CountEvents()))["default"] == Counts(delivered=1)

    play(scene, partitions=1)


def test_deliveries_that_could_not_be_stored_are_not_repeated_if_the_partition_comes_back() -> None:
    async def scene(stage: Stage) -> None:
        # Given one event that was delivered while the store was away, and one that is delivered after the node lost the
        # partition, as it does when log and store are away for longer than a lease.
        stage.receiver.answer = lambda delivery: None
        for name in ("before", "after", "keyed"):
            await stage.schedule(name, key="k" if name == "keyed" else None)
        await stage.settled()
        stage.store.fault = StoreUnavailable("away")
        stage.receiver.settle("before")
        stage.receiver.settle("keyed")
        await stage.pass_ms(200)
        stage.engine.drop([0])
        stage.receiver.settle("after")
        await stage.pass_ms(3_000)

        # When the store is back, and then the partition.
        stage.store.fault = None
        await stage.pass_ms(500)
        await stage.engine.take({0: NEW})
        await stage.pass_ms(5_000)

        assert sorted(stage.receiver.names) == ["after", "before", "keyed"]
        assert (await stage.engine.ask(CountEvents()))["default"] == Counts(delivered=3)

    play(scene, partitions=1)


def test_a_kept_delivery_changes_no_event_that_another_owner_has_changed() -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e", id="e")
        await stage.settled()
        stage.engine.drop([0])
        stage.receiver.settle("e")
        # The next owner tries the event again, fails, and hands the partition back.
        heirs.receiver.answer = lambda delivery: FAILED
        await heirs.take()
        await stage.settled()
        await heirs.next.release([0], 1.0)
        await stage.engine.take({0: 3})
        await stage.settled()
        assert await stage.status(event) == "retrying"

    play_heirs(scene)


def test_a_lower_epoch_takes_nothing() -> None:
    async def scene(heirs: Heirs) -> None:
        with pytest.raises(Fenced):
            await heirs.take(epoch=OLD)
        assert heirs.next.epochs == {}
        await heirs.stage.schedule("e")
        await heirs.stage.settled()
        assert heirs.stage.receiver.names == ["e"]
        assert heirs.receiver.names == []

    play_heirs(scene)


async def change_tags(stage: Stage, event: Event) -> None:
    await stage.engine.ask(Amend("default", event.id, Amendment(tags=("changed",)), None))


def test_a_take_over_that_fails_after_the_fence_was_raised_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same epoch cannot be put in force again, so no engine could run the partitions that it took."""

    async def damaged(*arguments: Any) -> Any:
        raise StoreCorrupt("a mark cannot be read")

    async def scene(heirs: Heirs) -> None:
        monkeypatch.setattr(heirs.stage.store, "blocked", damaged)
        with pytest.raises(StoreCorrupt):
            await heirs.take()
        await asyncio.sleep(1)
        assert isinstance(heirs.next.broken, StoreCorrupt)

    play_heirs(scene)


def test_a_page_that_is_being_read_when_the_release_begins_is_not_brought_to_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(heirs: Heirs) -> None:
        stage = heirs.stage
        await stage.schedule("far", 20_000)
        read, begun, go_on = stage.store.page, asyncio.Event(), asyncio.Event()

        async def page(*arguments: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await read(*arguments)

        monkeypatch.setattr(stage.store, "page", page)
        await begun.wait()
        releasing = asyncio.create_task(stage.engine.release([0], 5.0))
        await stage.settled()
        go_on.set()
        assert await releasing, "nothing was under way"
        assert stage.engine.memory.entries == {}
        await heirs.take()
        await stage.pass_ms(60_000)
        assert (stage.receiver.names, heirs.receiver.names) == ([], ["far"])

    play_heirs(scene)


def test_sequences_are_taken_long_before_they_run_out() -> None:
    async def scene(stage: Stage) -> None:
        intake = stage.engine._intake
        intake._sequence += SEQUENCES_AT_ONCE * 3 // 4
        before = intake._sequence
        assert bool(intake.needs_sequences)
        await stage.pass_ms(20_000)
        assert not bool(intake.needs_sequences)
        event = await stage.schedule("next", 5)
        assert event.sequence > before

    play(scene)


def test_an_entry_that_settles_in_the_turn_of_the_wait_is_not_missed() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        await stage.schedule("e")
        await stage.settled()
        [entry] = stage.engine.memory.entries.values()
        waiting = until_settled(entry)
        entry.wake_waiters()
        assert waiting.done()
        stage.receiver.settle("e")

    play(scene)
