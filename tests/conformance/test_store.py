"""The contract of the store port, one rule a test, over every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from everbell.core.event import Attempt, Course, Event, Repeat, State, position
from everbell.core.ids import partition_of
from everbell.core.retry import RetryPolicy
from everbell.core.time import HOUR_MS, INSTANT_MAX
from everbell.errors import Fenced, InvalidInput, StoreUnusable
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import (
    Add,
    Block,
    Change,
    Counts,
    Filter,
    Move,
    Poison,
    Refusal,
    Store,
    Unblock,
)
from everbell.stores.row_makers import row_maker
from tests.conformance.stores import (
    NOW,
    PARTITIONS,
    STORES,
    event,
    find_all,
    finish,
    page_all,
    page_without,
    prepared,
    record,
)

Epochs = Mapping[int, int]
Scenario = Callable[[Store, Epochs], Awaitable[None]]
FAR = NOW + 10**12


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = STORES[request.param](tmp_path)
    yield opened
    asyncio.run(opened.close())


def play(store: Store, scenario: Scenario) -> None:
    """Run a scenario that owns all partitions."""

    async def run() -> None:
        epochs = dict.fromkeys(range(PARTITIONS), store.epoch + 1)
        await store.raise_fence(epochs)
        try:
            await scenario(store, epochs)
        finally:
            await store.close()  # Its connections belong to this loop.

    asyncio.run(run())


async def make(store: Store, epochs: Epochs, *changes: Change) -> None:
    """Apply changes, and check that none was refused."""
    assert await store.apply(changes, epochs) == {}


# Adding and reading


def test_a_new_store_is_empty(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        assert store.partitions == PARTITIONS
        assert await store.counts() == {}
        assert await page_all(store, 0, FAR, 10) == ([], None)
        assert await store.get("shop", "nothing") is None
        assert await store.apply([], epochs) == {}

    play(store, scenario)


def test_many_events_are_found_at_once(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        home, moved, named, gone = event(1), event(2), event(3, id="order-3"), event(4, id="order-4")
        dead, late = event(5), event(6, id="order-6", key="k")
        await make(store, epochs, *map(Add, (home, moved, named, gone, dead, late)))
        after = replace(moved, run_at=moved.run_at + 5, due_at=moved.due_at + 5, version=2)
        waits = replace(late, state="waiting")
        over = [finish(one) for one in (gone, dead)]
        await make(store, epochs, Move(moved, after), Move(late, waits), *over)

        names = [late.id, "nothing", dead.id, home.id, moved.id, gone.id, named.id, "ev_nothing"]
        found = await store.get_many("shop", names)
        assert found == [waits, None, record(dead), home, after, record(gone), named, None]
        assert found == [await store.get("shop", name) for name in names]
        assert await store.get_many("shop", []) == []
        assert await store.get_many("other", names) == [None] * len(names)

    play(store, scenario)


def test_an_event_is_read_back_unchanged(store: Store) -> None:
    full = event(
        7,
        key="kéy ☎",
        due_in=5,
        payload=bytes(range(256)),
        version=3,
        occurrence=2,
        attempt_count=1,
        attempts=(Attempt(1, NOW, 20, "failed", "no route", 502),),
        content_type="image/png",
        headers=(("x-a", "1"), ("x-b", "2")),
        tags=("red", "blue"),
        retry=RetryPolicy(3, 100, 1_000),
        repeat=Repeat(1_000, 5, NOW + 9_000),
        expires_ms=60_000,
        traceparent="00-" + "0" * 32 + "-" + "0" * 16 + "-00",
        reason="why",
        course=Course(1, 2, 3, 4, 5, 6, NOW, "a nöte"),
        origin="report",
    )

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, Add(full))
        assert await store.get("shop", full.id) == full
        assert await page_all(store, full.partition, FAR, 10) == ([full], None)

    play(store, scenario)


def test_a_paused_event_is_found_and_is_last_in_order(store: Store) -> None:
    paused = event(1, repeat=Repeat(1_000), course=Course(paused_at=NOW), run_at=INSTANT_MAX)
    other = event(2)

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, Add(paused), Add(other))
        assert await find_all(store, Filter("shop", "paused"), 10) == [paused]
        assert await find_all(store, Filter("shop", "scheduled"), 10) == [other]
        assert await page_all(store, paused.partition, FAR, 10) == (
            [other] if other.partition == paused.partition else [],
            INSTANT_MAX,
        )
        resumed = replace(paused, course=Course(), run_at=paused.due_at, version=2)
        await make(store, epochs, Move(paused, resumed, guarded=True))
        assert await store.get("shop", paused.id) == resumed

    play(store, scenario)


@pytest.mark.parametrize("named", [True, False])
def test_an_occurrence_may_be_split_off_from_its_recurring_event(store: Store, named: bool) -> None:
    recurring = event(1, id="report" if named else None, repeat=Repeat(1_000, overlap="allow"))
    apart = replace(event(2, partition=recurring.partition, due_in=0), origin=recurring.id)
    comes = replace(
        recurring, due_at=recurring.due_at + 1_000, run_at=recurring.due_at + 1_000, occurrence=2, course=Course(1)
    )

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, Add(recurring))
        await make(store, epochs, Add(apart), Move(recurring, comes))
        assert await store.get("shop", recurring.id) == comes
        assert await store.get("shop", apart.id) == apart
        assert (await page_all(store, recurring.partition, FAR, 10))[0] == sorted(
            [apart, comes], key=lambda event: event.position
        )
        assert (await store.counts())["shop"].pending == 2

    play(store, scenario)


def test_pages_are_in_order_of_position_and_end_at_the_given_time(store: Store) -> None:
    events = [event(sequence, due_in=due_in, partition=1) for sequence, due_in in enumerate((9, 3, 3, 7, 0, 20), 1)]

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, *map(Add, events))
        in_order = sorted(events, key=lambda event: event.position)
        for limit in (1, 2, 5, 6, 7):
            assert await page_all(store, 1, FAR, limit) == (in_order, None)
        assert await page_all(store, 1, NOW + 7, 2) == (in_order[:4], NOW + 9)
        assert await page_all(store, 0, FAR, 2) == ([], None)
        page = await store.page(1, position(NOW + 3, 2), NOW + 7, 10)
        assert list(page.events) == in_order[2:4]
        assert (await store.page(1, -1, NOW - 1, 10)).next_at == NOW
        full = await store.page(1, -1, NOW + 3, 3)
        assert (full.more, full.next_at) == (False, NOW + 7)

    play(store, scenario)


@pytest.mark.parametrize("state", ["scheduled", "waiting"])
def test_a_page_of_large_events_is_short_and_the_next_continues(
    store: Store, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbell.stores.paging.PAGE_BYTES_MAX", 2_000)
    key = "k" if state == "waiting" else None
    events = [
        event(number, due_in=number, partition=1, key=key, state=state, payload=b"1" * size)
        for number, size in enumerate([1_100, 1_100, 1_100, 9_000, 10, 10, 2_500, 10], 1)
    ]
    herd = [event(99, due_in=3, partition=1, to="queue:herd", payload=b"1" * 9_000)] if state == "scheduled" else []

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, *map(Add, events + herd))
        for without in ([], [("shop", "queue:herd")]):
            pages, after, more = [], -1, True
            while more:
                if state == "scheduled":
                    page = await store.page(1, after, FAR, 100, without)
                else:
                    page = await store.waiting(1, "shop", "k", after, 100)
                pages.append([each for each in page.events if each not in herd])
                last = page.events[-1]
                after, more = page.last or (last.position if state == "scheduled" else last.order), page.more
            assert [each for page in pages for each in page] == events
            assert len(pages) > 3 or isinstance(store, MemoryStore), "the store in memory needs no limit of bytes"
            assert all(len(page) <= 4 for page in pages) or isinstance(store, MemoryStore)

    play(store, scenario)


def test_a_page_leaves_out_only_unwanted_events(store: Store) -> None:
    crowded = "http://crowded.example:8080"
    herd = [event(n, due_in=n, partition=1, to=f"{crowded}/{n}" if n % 2 else crowded) for n in range(1, 41)]
    others = [
        event(50, due_in=5, partition=1, to=f"{crowded}/", tenant="bank"),
        event(51, due_in=6, partition=1, to=f"{crowded}/", key="k"),
        event(52, due_in=41, partition=1, to=f"{crowded}0/"),
        event(53, due_in=42, partition=1, to="queue:work"),
    ]
    without = [("shop", crowded), ("shop", "queue:wor")]

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, *map(Add, herd + others))
        for limit in (1, 2, 3, 100):
            found, left_out = await page_without(store, 1, FAR, limit, without)
            assert [event for event in found if event not in herd] == others
            assert left_out == len(herd + others) - len(found)
            found, left_out = await page_without(store, 1, NOW + 4, limit, without)
            assert left_out == 4 - len(found)

    play(store, scenario)


def test_a_read_from_the_front_sees_events_added_before_it(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        late, early = event(1, due_in=50, partition=2), event(2, due_in=5, partition=2)
        await make(store, epochs, Add(late))
        assert await page_all(store, 2, FAR, 10) == ([late], None)
        await make(store, epochs, Add(early))
        assert await page_all(store, 2, FAR, 10) == ([early, late], None)
        await make(store, epochs, finish(early), finish(late))
        assert await page_all(store, 2, FAR, 10) == ([], None)
        again = event(3, id="named", partition=2)
        await make(store, epochs, Add(again))
        assert await page_all(store, 2, FAR, 10) == ([again], None)
        dead = replace(again, state="dead")
        await make(store, epochs, Move(again, dead))
        assert await page_all(store, 2, FAR, 10) == ([], None)
        await make(store, epochs, Move(dead, again))
        assert await page_all(store, 2, FAR, 10) == ([again], None)

    play(store, scenario)


def test_an_id_of_another_tenant_is_not_found(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        made, named = event(1), event(2, id="named")
        await make(store, epochs, Add(made), Add(named))
        assert await store.get("other", made.id) is None
        assert await store.get("other", named.id) is None
        forged = "ev_" + made.id[3:23] + "-" * 12
        for unknown in (forged, "ev_", "ev_" + "!" * 32, "ev_" + "z" * 32, ""):
            assert await store.get("shop", unknown) is None

    play(store, scenario)


# Ids


def test_a_client_given_id_is_taken_once(store: Store) -> None:
    first, second = event(1, id="order-1"), event(2, id="order-1", payload=b"[]")

    async def scenario(store: Store, epochs: Epochs) -> None:
        assert await store.apply([Add(first), Add(event(3)), Add(second)], epochs) == {2: Refusal(first)}
        assert await store.apply([Add(second)], epochs) == {0: Refusal(first)}
        assert (await store.counts())["shop"].pending == 2
        other = event(4, id="order-1", tenant="bank")
        await make(store, epochs, Add(other))
        assert await store.get("bank", "order-1") == other
        assert await store.get("shop", "order-1") == first

    play(store, scenario)


def test_each_of_many_client_given_ids_is_taken_once(store: Store) -> None:
    old = [event(1 + number, id=f"order-{number:03}") for number in range(20, 60)]
    new = [event(101 + number, id=f"order-{number:03}", payload=b"[]") for number in range(40, 100)]
    twice = event(201, id="order-090")

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, *map(Add, old))
        refused = await store.apply([*map(Add, new), Add(twice)], epochs)
        assert refused == {**{i: Refusal(old[20 + i]) for i in range(20)}, 60: Refusal(new[50])}
        assert (await store.counts())["shop"].pending == 80

    play(store, scenario)


def test_a_client_given_id_stays_taken_while_its_record_is_kept(store: Store) -> None:
    first = event(1, id="order-1")
    kept = record(first)

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, Add(first))
        assert await store.apply([finish(first), Add(event(2, id="order-1"))], epochs) == {1: Refusal(kept)}
        in_time = event(3, id="order-1", created_at=NOW + HOUR_MS - 1)
        assert await store.apply([Add(in_time)], epochs) == {0: Refusal(kept)}
        later = event(4, id="order-1", created_at=NOW + HOUR_MS)
        await make(store, epochs, Add(later))
        assert await store.get("shop", "order-1") == later

    play(store, scenario)


def test_a_new_event_may_reuse_the_id_of_a_record_and_not_that_of_an_event(store: Store) -> None:
    first, again = event(1, id="order-1"), event(2, id="order-1")

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, Add(first), finish(first))
        await make(store, epochs, Add(again, reuses=True))
        assert await store.get("shop", "order-1") == again
        third = event(3, id="order-1")
        assert await store.apply([Add(third, reuses=True)], epochs) == {0: Refusal(again)}
        # The record of the first one is forgotten in its time, and the event stays.
        assert await store.sweep(NOW + 9 * HOUR_MS, 10) == 1
        assert await store.get("shop", "order-1") == again
        await make(store, epochs, finish(again), Add(third, reuses=True))
        assert await store.get("shop", "order-1") == third

    play(store, scenario)


def test_forgetting_an_old_record_keeps_the_new_event_with_its_id(store: Store) -> None:
    first = event(1, id="order-1")
    later = event(2, id="order-1", created_at=NOW + HOUR_MS)

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, Add(first), finish(first), Add(later))
        assert await store.sweep(NOW + 9 * HOUR_MS, 10) == 1
        assert await store.get("shop", "order-1") == later
        assert await store.apply([Add(event(3, id="order-1"))], epochs) == {0: Refusal(later)}

    play(store, scenario)


@pytest.mark.parametrize("id", [None, "order-1"])
def test_an_event_is_found_by_its_id_wherever_it_is(store: Store, id: str | None) -> None:
    home = event(1, id=id, key="k", due_in=10)
    retried = replace(home, run_at=NOW + 99, attempt_count=1)
    waiting = replace(retried, state="waiting")
    dead = replace(waiting, state="dead", run_at=NOW + 200)
    redriven = replace(dead, state="scheduled", run_at=NOW + 300, attempt_count=0)
    moved = replace(redriven, version=2, due_at=NOW + 400, run_at=NOW + 400)
    back = replace(moved, version=3, due_at=home.due_at, run_at=home.due_at)
    changed = replace(back, version=4, payload=b"[1]")
    path = [home, retried, waiting, dead, redriven, moved, back, changed]

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, Add(home))
        for before, after in pairwise(path):
            await make(store, epochs, Move(before, after, guarded=True))
            assert await store.get("shop", home.id) == after
            scheduled = [after] if after.state == "scheduled" else []
            assert await page_all(store, home.partition, FAR, 10) == (scheduled, None)
        await make(store, epochs, finish(changed, guarded=True))
        assert await store.get("shop", home.id) == record(changed)
        assert await store.sweep(NOW + 9 * HOUR_MS, 10) == 1
        assert await store.get("shop", home.id) is None

    play(store, scenario)


def test_an_event_may_begin_away_from_home(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        waiting = event(1, key="k", state="waiting")
        later = event(2, run_at=NOW + 50)
        await make(store, epochs, Add(waiting), Add(later))
        assert await store.get("shop", waiting.id) == waiting
        assert await store.get("shop", later.id) == later

    play(store, scenario)


# Guards and atomicity


async def prepare(store: Store, changes: list[Change]) -> None:
    if store.preparer is not None:
        await store.preparer.prepare(changes)


def test_preparing_does_not_change_the_result_of_an_apply(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        taken, old = event(1, id="order"), event(2, partition=1)
        await make(store, epochs, Add(taken), Add(old))
        # Prepared before another apply is made, and with a guarded change, which depends on stored events.
        behind: list[Change] = [Add(event(3, id="order")), Add(event(4, partition=1)), finish(old)]
        guarded: list[Change] = [replace(finish(taken), guarded=True), Add(event(5))]
        never: list[Change] = [Add(event(6))]
        for changes in (never, guarded, behind):
            await prepare(store, changes)
        assert await store.apply(behind, epochs) == {0: Refusal(taken)}
        await prepare(store, guarded)
        await make(store, epochs, Move(taken, replace(taken, version=2)))
        await prepare(store, never)
        assert await store.apply(guarded, epochs) == {0: Refusal(None)}
        found = [each for p in range(PARTITIONS) for each in (await page_all(store, p, FAR, 10))[0]]
        assert sorted(each.sequence for each in found) == [1, 4, 5]

    play(store, scenario)


def test_a_guarded_change_is_refused_when_the_event_has_changed(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        first = event(1, id="order-1", key="k")
        second = replace(first, version=2)
        later = replace(second, run_at=NOW + 5)
        dead = replace(later, state="dead")
        await make(store, epochs, Add(first))
        refused = Refusal(None)
        assert await store.apply([Move(second, later, guarded=True)], epochs) == {0: refused}
        await make(store, epochs, Move(first, second, guarded=True))
        assert await store.apply([Move(first, later, guarded=True), finish(first, guarded=True)], epochs) == {
            0: refused,
            1: refused,
        }
        await make(store, epochs, Move(second, later))
        assert await store.apply([finish(second, guarded=True)], epochs) == {0: refused}
        assert await store.apply([finish(dead, guarded=True)], epochs) == {0: refused}
        assert await store.get("shop", "order-1") == later
        await make(store, epochs, finish(later, guarded=True))
        assert await store.apply([finish(later, guarded=True)], epochs) == {0: refused}
        assert await store.counts() == {"shop": Counts(delivered=1)}

    play(store, scenario)


def test_a_change_sees_earlier_changes_of_the_same_apply(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        first = event(1)
        later = replace(first, run_at=NOW + 5, version=2)
        changes: list[Change] = [
            Add(first),
            Move(first, later, guarded=True),
            Move(first, later, guarded=True),
            finish(later, guarded=True),
            finish(later, guarded=True),
        ]
        assert await store.apply(changes, epochs) == {2: Refusal(None), 4: Refusal(None)}
        assert await store.get("shop", first.id) == record(later)
        assert await page_all(store, first.partition, FAR, 10) == ([], None)

    play(store, scenario)


def test_a_fenced_writer_changes_nothing(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        one, two = event(1, partition=1), event(2, partition=2)
        taken = {2: store.epoch + 1}
        await store.raise_fence(taken)
        changes: list[Change] = [
            Add(two),
            Move(two, two),
            finish(two),
            Block(2, "shop", "k", 1),
            Unblock(2, "shop", "k"),
        ]
        for change in changes:
            for claimed in (epochs, {**epochs, 2: taken[2] + 1}, {1: epochs[1]}):
                with pytest.raises(Fenced) as refused:
                    await store.apply([Add(one), change], claimed)
                assert refused.value.partitions == (2,)
        assert await store.counts() == {}
        assert await store.get("shop", one.id) is None
        await make(store, epochs, Add(one))
        await make(store, taken, Add(two))

    play(store, scenario)


def test_epochs_only_rise(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        first = store.epoch
        await store.raise_fence({0: first + 1, 1: first + 1})
        await store.raise_fence({2: first + 5})
        assert store.epoch == first + 5
        for late in ({0: first + 1}, {1: first}, {0: first + 2, 2: first + 4}):
            with pytest.raises(Fenced) as refused:
                await store.raise_fence(late)
            assert set(refused.value.partitions) <= set(late)
        await make(store, {0: first + 1}, Add(event(1, partition=0)))
        await make(store, {2: first + 5}, Add(event(2, partition=2)))

    play(store, scenario)


def test_a_store_belongs_to_the_cluster_that_claimed_it_first(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        before = store.epoch
        assert await store.claim("one") == before
        await store.raise_fence({0: before + 9})
        assert await store.claim("one") == before
        with pytest.raises(StoreUnusable):
            await store.claim("another")

    play(store, scenario)


def test_a_new_owner_gets_sequences_above_all_stored_in_its_partitions(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        sequence = await store.raise_fence({0: store.epoch + 1})
        stored = event(sequence + 7, partition=0)
        await make(store, {0: store.epoch}, Add(stored))
        assert await store.raise_fence({0: store.epoch + 1}) >= stored.sequence

    play(store, scenario)


# Ends


def test_the_next_occurrence_replaces_the_previous_one(store: Store) -> None:
    first = event(1, key="k", repeat=Repeat(1_000, 3))
    second = replace(first, occurrence=2, due_at=NOW + 1_000, run_at=NOW + 1_000)
    third = replace(second, occurrence=3, due_at=NOW + 2_000, run_at=NOW + 2_000)

    async def scenario(store: Store, epochs: Epochs) -> None:
        await make(store, epochs, Add(first), finish(first, following=second))
        assert await store.get("shop", first.id) == second
        assert await page_all(store, first.partition, FAR, 10) == ([second], None)
        await make(store, epochs, finish(second, following=third), finish(third))
        assert await store.get("shop", first.id) == record(third)
        found = await find_all(store, Filter("shop", "delivered"), 10)
        assert sorted(found, key=lambda found: found.occurrence) == [record(first), record(second), record(third)]
        assert await store.counts() == {"shop": Counts(delivered=3)}
        assert await store.sweep(NOW + 9 * HOUR_MS, 10) == 3

    play(store, scenario)


def test_counts_follow_every_change(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        a, b, c, d = (event(sequence, key="k") for sequence in range(1, 5))
        other = event(5, tenant="bank")
        await make(store, epochs, *map(Add, (a, b, c, d, other)))
        assert await store.counts() == {"shop": Counts(pending=4), "bank": Counts(pending=1)}
        dead = replace(a, state="dead")
        await make(store, epochs, Move(a, dead), finish(b), finish(c, status="expired"))
        assert (await store.counts())["shop"] == Counts(pending=1, dead=1, delivered=1, expired=1)
        waiting = replace(d, state="waiting")
        await make(store, epochs, Move(d, waiting), finish(dead, status="cancelled"))
        assert (await store.counts())["shop"] == Counts(pending=1, delivered=1, expired=1, cancelled=1)
        await make(store, epochs, Move(waiting, d), Move(d, dead := replace(d, state="dead")), Move(dead, d))
        assert (await store.counts())["shop"] == Counts(pending=1, delivered=1, expired=1, cancelled=1)
        await store.sweep(NOW + 9 * HOUR_MS, 10)
        assert (await store.counts())["shop"] == Counts(pending=1, delivered=1, expired=1, cancelled=1)

    play(store, scenario)


def test_records_are_forgotten_by_the_hour_the_oldest_first(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        hours = [2, 1, 1, 3, 1]
        events = [event(sequence, id=f"order-{sequence}") for sequence, _ in enumerate(hours)]
        ends = [finish(e, keep_ms=hour * HOUR_MS + 7) for e, hour in zip(events, hours, strict=True)]
        await make(store, epochs, *map(Add, events), *ends)
        assert await store.sweep(NOW + 2 * HOUR_MS - 1, 10) == 0
        assert await store.sweep(NOW + 2 * HOUR_MS, 2) == 2
        assert await store.sweep(NOW + 2 * HOUR_MS, 2) == 1
        assert await store.sweep(NOW + 2 * HOUR_MS, 2) == 0
        kept = [await store.get("shop", e.id) is not None for e in events]
        assert kept == [True, False, False, True, False]
        assert await store.sweep(NOW + 4 * HOUR_MS, 10) == 2
        assert await find_all(store, Filter("shop", "delivered"), 10) == []

    play(store, scenario)


# Keys


def test_waiting_events_of_a_key_have_their_own_order(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        line = [event(s, key="k", due_in=due, state="waiting", run_at=NOW) for s, due in ((1, 9), (2, 3), (3, 3))]
        # Keys with a common prefix, and keys of another tenant, have separate lines.
        apart = [
            event(4, key="k2", state="waiting"),
            event(5, key="k", tenant="shop2", state="waiting"),
            event(6, key="k", due_in=4),
        ]
        await make(store, epochs, *map(Add, line + apart))
        partition = line[0].partition
        in_order = [line[1], line[2], line[0]]
        page = await store.waiting(partition, "shop", "k", -1, 2)
        assert (list(page.events), page.more) == (in_order[:2], True)
        page = await store.waiting(partition, "shop", "k", page.events[-1].order, 2)
        assert (list(page.events), page.more) == (in_order[2:], False)
        assert list((await store.waiting(partition, "shop", "nobody", -1, 9)).events) == []

    play(store, scenario)


def test_heads_are_stored_until_unblocked(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        names = [("a", "k"), ("a", "k2"), ("ab", "a"), ("b", "")]
        blocks = [Block(1, tenant, key, head) for head, (tenant, key) in enumerate(names)]
        await make(store, epochs, *blocks, Block(2, "a", "k", 99), Block(1, "c", "gone", 5), Unblock(1, "c", "gone"))
        assert await store.heads(1, [*names, ("c", "gone"), ("x", "y")]) == [0, 1, 2, 3, None, None]
        assert await store.heads(1, []) == []
        everything = [(tenant, key, head) for head, (tenant, key) in enumerate(names)]
        assert list(await store.blocked(1, ("", ""), 10)) == everything
        assert list(await store.blocked(1, ("a", "k"), 2)) == everything[1:3]
        assert list(await store.blocked(3, ("", ""), 10)) == []
        await make(store, epochs, Block(1, "a", "k", 1 << 55))
        assert await store.heads(1, [("a", "k")]) == [1 << 55]

    play(store, scenario)


def test_a_buried_row_is_not_read_again(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        bad, good = event(1, id="bad", partition=1), event(2, partition=1)
        await make(store, epochs, Add(bad), Add(good))
        poison = Poison(1, bad.run_at, 1, b"", "broken")
        await store.bury(poison)
        await store.bury(poison)
        assert await page_all(store, 1, FAR, 10) == ([good], None)
        assert await store.get("shop", "bad") is None
        assert await store.apply([finish(bad, guarded=True)], epochs) == {0: Refusal(None)}
        assert (await store.counts())["shop"].pending == 2
        again = event(3, id="bad")
        await make(store, epochs, Add(again))
        assert await store.get("shop", "bad") == again

    play(store, scenario)


# Searching


async def fill(store: Store, epochs: Epochs) -> dict[str, Event]:
    """Events of two tenants in every state."""
    events = {
        "soon": event(1, due_in=1, tags=("red",)),
        "keyed": event(2, due_in=4, key="k", tags=("red", "blue")),
        "later": event(3, due_in=9),
        "retrying": event(4, due_in=2, run_at=NOW + 6, attempt_count=1),
        "waiting": event(5, due_in=3, key="k", state="waiting"),
        "in line": event(6, due_in=3, key="k", state="waiting", tags=("red",)),
        "another line": event(7, due_in=1, key="j", state="waiting"),
        "dead": event(8, due_in=5, key="k", state="dead", run_at=NOW + 50),
        "died first": event(9, due_in=7, state="dead", run_at=NOW + 20),
        "delivered": event(10, id="done", due_in=2, key="k"),
        "cancelled": event(11, due_in=3),
        "other": event(12, due_in=1, tenant="bank", tags=("red",)),
        "other waiting": event(13, due_in=1, tenant="bank", key="k", state="waiting"),
        "other delivered": event(14, tenant="bank"),
    }
    ends = [
        finish(events["delivered"]),
        finish(events["cancelled"], status="cancelled"),
        finish(events["other delivered"]),
    ]
    await make(store, epochs, *map(Add, events.values()), *ends)
    return events


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        (Filter("shop", "scheduled"), ["soon", "keyed", "later"]),
        (Filter("shop", "retrying"), ["retrying"]),
        (Filter("shop", "delivering"), ["soon", "keyed", "retrying", "later"]),
        (Filter("shop", "dead"), ["died first", "dead"]),
        (Filter("shop", "dead", key="k"), ["dead"]),
        (Filter("shop", "waiting", key="k"), ["waiting", "in line"]),
        (Filter("shop", key="k"), ["keyed", "waiting", "in line"]),
        (Filter("shop", tag="red", key="k"), ["keyed", "in line"]),
        (Filter("shop", key="k", partition=partition_of("shop", "k", PARTITIONS)), ["keyed", "waiting", "in line"]),
        (Filter("shop", "waiting", key="k", partition=partition_of("shop", "k", PARTITIONS)), ["waiting", "in line"]),
        (Filter("shop", tag="blue"), ["keyed"]),
        (Filter("shop", "scheduled", from_at=NOW + 4, until_at=NOW + 9), ["keyed", "later"]),
        (Filter("shop", "scheduled", until_at=NOW + 4), ["soon", "keyed"]),
        (Filter("shop", "dead", from_at=NOW + 6), ["died first"]),
        (Filter("shop", key="nobody"), []),
        (Filter("shop", "scheduled", to="queue:"), ["soon", "keyed", "later"]),
        (Filter("shop", to="queue:other"), []),
        (Filter("shop", "dead", to="queue:q", id_prefix="ev_"), ["died first", "dead"]),
        (Filter("shop", id_prefix="order-"), []),
        (Filter("bank"), ["other", "other waiting"]),
        (Filter("nobody"), []),
        (Filter("nobody", "delivered"), []),
        (Filter("shop", key="k\0"), []),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_search_finds_all_matches_in_order(store: Store, filter: Filter, names: list[str], limit: int) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        events = await fill(store, epochs)
        assert await find_all(store, filter, limit) == [events[name] for name in names]

    play(store, scenario)


def test_a_search_without_status_finds_all_unfinished_events(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        events = await fill(store, epochs)
        found = await find_all(store, Filter("shop"), 2)
        scheduled = [events[name] for name in ("soon", "keyed", "retrying", "later")]
        assert found[:4] == scheduled
        waiting = {event.id for event in found[4:]}
        assert waiting == {events[name].id for name in ("waiting", "in line", "another line")}

    play(store, scenario)


def test_finished_events_are_found_the_latest_to_expire_first(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        events = [event(sequence, due_in=sequence) for sequence in range(1, 7)]
        hours = [1, 3, 2, 3, 1, 2]
        ends = [finish(e, keep_ms=hour * HOUR_MS) for e, hour in zip(events, hours, strict=True)]
        await make(store, epochs, *map(Add, events), *ends)
        for limit in (1, 4, 10):
            found = await find_all(store, Filter("shop", "delivered"), limit)
            assert found == [record(events[index]) for index in (3, 1, 5, 2, 4, 0)]
        assert await find_all(store, Filter("shop", "expired"), 10) == []

    play(store, scenario)


@pytest.mark.parametrize(
    ("filter", "cursor"),
    [
        (Filter("shop"), "nonsense"),
        (Filter("shop"), "ünicode"),
        (Filter("shop"), ""),
        (Filter("shop"), "RUFB"),
        (Filter("shop", "waiting"), "V0E"),
        (Filter("shop", "dead"), "REE"),
        (Filter("shop", "delivered"), "SEE"),
        (Filter("shop", "dead"), "RUFBQUFBQUFBQUFBQUFBQUE"),
    ],
)
def test_a_broken_cursor_is_refused(store: Store, filter: Filter, cursor: str) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        with pytest.raises(InvalidInput) as refused:
            await store.find(filter, cursor, 10)
        assert refused.value.field == "cursor"

    play(store, scenario)


def test_a_cursor_works_only_for_its_own_search(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        await fill(store, epochs)
        cursor = (await store.find(Filter("shop", "scheduled"), None, 1)).cursor
        with pytest.raises(InvalidInput):
            await store.find(Filter("shop", "dead"), cursor, 1)
        # For another tenant, the cursor finds only events of that tenant.
        found = await store.find(Filter("bank", "scheduled"), cursor, 10)
        assert {event.tenant for event in found.events} <= {"bank"}

    play(store, scenario)


def test_a_long_search_returns_early_and_can_be_continued(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rocksdb.find", "searching"):
        monkeypatch.setattr(f"everbell.stores.{module}.EXAMINED_MAX", 50)
    for module in ("memory.find", "rocksdb.find", "postgres.find", "cassandra.find"):
        monkeypatch.setattr(f"everbell.stores.{module}.SLICE", 20)

    async def scenario(store: Store, epochs: Epochs) -> None:
        crowd = [event(sequence, due_in=sequence % 7, tags=("x",) * (sequence == 180)) for sequence in range(1, 201)]
        await make(store, epochs, *map(Add, crowd))
        first = await store.find(Filter("shop", tag="x"), None, 10)
        assert first.events == []
        assert first.cursor is not None
        assert await find_all(store, Filter("shop", tag="x"), 10) == [crowd[179]]
        assert len(await find_all(store, Filter("shop"), 7)) == 200

    play(store, scenario)


@pytest.mark.parametrize("state", ["scheduled", "waiting", "dead"])
def test_a_page_of_large_events_ends_early_and_the_search_can_be_continued(
    store: Store, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everbell.stores.searching.FOUND_BYTES_MAX", 2_000)
    monkeypatch.setattr("everbell.stores.paging.PAGE_BYTES_MAX", 1_000)

    async def scenario(store: Store, epochs: Epochs) -> None:
        sizes = [900, 900, 900, 5_000, 10, 1_500, 600]
        key = "k" if state == "waiting" else None
        crowd = [
            event(number, due_in=number, key=key, state=state, payload=b"1" * (size - 5), headers=(("a", "4444"),))
            for number, size in enumerate(sizes, 1)
        ]
        await make(store, epochs, *map(Add, crowd))
        filter, cursor = Filter("shop", state), None
        pages = []
        while True:
            found = await store.find(filter, cursor, 100)
            pages.append(list(found.events))
            cursor = found.cursor
            if cursor is None:
                break
        assert [each for page in pages for each in page] == crowd
        assert [len(page) for page in pages if page] == [2, 2, 2, 1], "with the event that is too much, the page ends"

    play(store, scenario)


def test_many_changes_can_be_applied_at_once(store: Store) -> None:
    async def scenario(store: Store, epochs: Epochs) -> None:
        events = [event(sequence, due_in=sequence % 100, id=f"c{sequence}") for sequence in range(1, 2_001)]
        again = [Add(replace(e, sequence=e.sequence + 5_000)) for e in events[-3:]]
        refused = await store.apply([*map(Add, events), *again], epochs)
        assert refused == {2_000 + n: Refusal(events[n - 3]) for n in range(3)}
        assert (await store.counts())["shop"].pending == 2_000
        found: list[Any] = []
        for partition in range(PARTITIONS):
            found += (await page_all(store, partition, FAR, 300))[0]
        assert sorted(found, key=lambda e: e.sequence) == events

    play(store, scenario)


HAVE_ROW_MAKERS = [name for name in STORES if name in ("memory", "rocksdb")]
"""Checked by the next test."""


def test_some_stores_have_a_row_maker(store: Store, request: pytest.FixtureRequest) -> None:
    has_one = request.node.callspec.params["store"] in HAVE_ROW_MAKERS
    assert (store.row_maker is not None) == has_one
    if store.row_maker is not None:
        assert row_maker(store.row_maker.format).format == store.row_maker.format


@pytest.mark.parametrize("store", HAVE_ROW_MAKERS, indirect=True)
def test_prepared_rows_are_stored_as_their_events(store: Store) -> None:
    assert store.row_maker is not None
    made, events = prepared(store.row_maker, 60, 150)
    beside = event(500, key="k")

    async def scenario(store: Store, epochs: Epochs) -> None:
        assert await store.apply([Add(beside), made], epochs) == {}
        for partition in range(PARTITIONS):
            expected = [each for each in [*events, beside] if each.partition == partition]
            assert (await page_all(store, partition, FAR, 7))[0] == sorted(expected, key=lambda e: e.position)
        assert [await store.get("shop", each.id) for each in events] == events
        assert (await store.counts())["shop"] == Counts(pending=151)
        await make(store, epochs, *(finish(each) for each in events))
        assert (await store.counts())["shop"] == Counts(pending=1, delivered=150)
        assert [await store.get("shop", each.id) for each in events] == [record(each) for each in events]

    play(store, scenario)


@pytest.mark.parametrize("store", HAVE_ROW_MAKERS, indirect=True)
def test_the_fence_refuses_prepared_rows_as_a_whole(store: Store) -> None:
    assert store.row_maker is not None
    made, events = prepared(store.row_maker, 60, 150)

    async def scenario(store: Store, epochs: Epochs) -> None:
        await store.raise_fence({events[-1].partition: store.epoch + 1})
        with pytest.raises(Fenced):
            await store.apply([made], epochs)
        assert [await store.get("shop", each.id) for each in events] == [None] * len(events)

    play(store, scenario)
