"""Random programs, run on every store and on a model: all visible results have to be the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from everbell.core.event import TRANSITIONS, End, Event, Repeat, State
from everbell.core.ids import partition_of
from everbell.core.time import HOUR_MS
from everbell.errors import Fenced
from everbell.stores.memory.row_maker import MemoryRowMaker
from everbell.stores.port import Add, Block, Change, Filter, Finish, Move, Poison, Refusal, Store, Unblock
from tests.conformance.store_model import StoreModel
from tests.conformance.stores import (
    NOW,
    PARTITIONS,
    STORES,
    Opener,
    event,
    find_all,
    open_crowded,
    openers,
    page_all,
    prepared,
    record,
)

T = TypeVar("T")

TENANTS = ["a", "ab"]
KEYS = ["k", "k1"]
IDS = ["order-1", "order-10", "x"]
FAR = NOW + 10**9

# Few values, so that they are often the same.
moments = st.sampled_from([0, 1, 2, 50, HOUR_MS])
keeps = st.sampled_from([0, 1, HOUR_MS - 1, HOUR_MS, 3 * HOUR_MS])
ends: st.SearchStrategy[End] = st.sampled_from(["delivered", "cancelled", "expired"])
statuses = st.sampled_from(
    [None, "scheduled", "waiting", "retrying", "delivering", "dead", "delivered", "cancelled", "expired"]
)
filters = st.builds(
    Filter,
    st.sampled_from(TENANTS),
    statuses,
    st.sampled_from([None, *KEYS]),
    st.sampled_from([None, "red"]),
    st.sampled_from([None, NOW + 1, NOW + 50]),
    st.sampled_from([None, NOW + 1, NOW + HOUR_MS]),
)


class StoreMachine(RuleBasedStateMachine):
    """Programs of all operations of the port, and of closing and opening."""

    openers = staticmethod(openers)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="everbell-test-"))
        self.stores = {name: opener(self.folder) for name, opener in self.openers().items()}
        self.model = StoreModel()
        self.runner = asyncio.Runner()
        self.past: list[Event] = []
        """Older forms of events, for changes that come too late."""
        self.names: set[tuple[str, str]] = {("a", "nothing")}
        self.sequence = 0
        self.epoch = 0

    def teardown(self) -> None:
        for store in self.stores.values():
            self.runner.run(store.close())
        self.runner.close()
        rmtree(self.folder)

    def same(self, ask: Callable[[Store], Awaitable[T]]) -> T:
        """Ask every store, and expect one answer."""

        async def asked(store: Store) -> T:
            return await ask(store)

        answers = {name: self.runner.run(asked(store)) for name, store in self.stores.items()}
        first = next(iter(answers.values()))
        assert all(answer == first for answer in answers.values()), answers
        return first

    @initialize()
    def own(self) -> None:
        self.take()

    @rule()
    def raise_fence(self) -> None:
        self.take()

    def take(self) -> None:
        self.epoch += 1
        for store in self.stores.values():
            self.runner.run(store.raise_fence(self.claims()))

    def claims(self, behind: int = 0) -> dict[int, int]:
        return dict.fromkeys(range(PARTITIONS), self.epoch - behind)

    @rule(data=st.data(), size=st.integers(1, 6))
    def apply(self, data: st.DataObject, size: int) -> None:
        changes: list[Change] = []
        refusals: dict[int, Refusal] = {}
        for index in range(size):
            # The model already has the earlier changes of this apply, so a change can build on them.
            change = self.draw_change(data)
            changes.append(change)
            refusal = self.model.make(change)
            if refusal is not None:
                refusals[index] = refusal
        assert self.same(lambda store: store.apply(changes, self.claims())) == refusals

    @rule(tenant=st.sampled_from(TENANTS), count=st.integers(1, 5), due_in=moments)
    def apply_prepared(self, tenant: str, count: int, due_in: int) -> None:
        first = self.sequence + 1
        self.sequence += count
        _, events = prepared(MemoryRowMaker(), first, count, tenant=tenant, due_in=due_in)
        adds = [Add(each) for each in events]
        for add in adds:
            self.model.make(add)
            self.names.add((tenant, add.event.id))

        async def attempt(store: Store) -> Mapping[int, Refusal]:
            if store.row_maker is None:
                return await store.apply(adds, self.claims())
            rows, _ = prepared(store.row_maker, first, count, tenant=tenant, due_in=due_in)
            return await store.apply([rows], self.claims())

        self.same(attempt)

    @rule(data=st.data())
    def apply_too_late(self, data: st.DataObject) -> None:
        changes = [Add(self.draw_event(data))]

        async def attempt(store: Store) -> None:
            with pytest.raises(Fenced):
                await store.apply(changes, self.claims(behind=1))

        self.same(attempt)

    def draw_change(self, data: st.DataObject) -> Change:
        live = sorted(self.model.events.values(), key=lambda event: event.sequence)
        kinds = ["add", "block"] + (["move", "finish"] * 2 if live else []) + (["late"] if self.past else [])
        kind = data.draw(st.sampled_from(kinds))
        if kind == "add":
            return Add(self.draw_event(data))
        if kind == "block":
            return self.draw_block(data)
        before = data.draw(st.sampled_from(self.past if kind == "late" else live))
        guarded = kind == "late" or data.draw(st.booleans())
        return self.draw_end(data, before, guarded) if kind == "finish" else self.draw_move(data, before, guarded)

    def draw_event(self, data: st.DataObject) -> Event:
        self.sequence += data.draw(st.integers(1, 2))
        drawn = event(
            self.sequence,
            tenant=data.draw(st.sampled_from(TENANTS)),
            id=data.draw(st.sampled_from([None, None, *IDS])),
            key=data.draw(st.sampled_from([None, *KEYS])),
            due_in=data.draw(moments),
            created_at=NOW + data.draw(moments),
            tags=data.draw(st.sampled_from([(), ("red",)])),
            repeat=data.draw(st.sampled_from([None, Repeat(1_000)])),
        )
        if drawn.key is not None and data.draw(st.booleans()):
            drawn = replace(drawn, state="waiting")
        self.names.add((drawn.tenant, drawn.id))
        return drawn

    def draw_block(self, data: st.DataObject) -> Change:
        tenant, key = data.draw(st.sampled_from(TENANTS)), data.draw(st.sampled_from(KEYS))
        partition = partition_of(tenant, key, PARTITIONS)
        if data.draw(st.booleans()):
            return Unblock(partition, tenant, key)
        return Block(partition, tenant, key, data.draw(st.integers(0, 3)))

    def draw_move(self, data: st.DataObject, before: Event, guarded: bool) -> Change:
        self.past.append(before)
        states: list[State] = ["scheduled", "waiting", "dead"]
        possible = [s for s in states if (before.state, s) in TRANSITIONS and (s != "waiting" or before.key)]
        state = data.draw(st.sampled_from(possible))
        fields: dict[str, Any] = {"state": state, "run_at": NOW + data.draw(moments)}
        if data.draw(st.booleans()):
            due_at = NOW + data.draw(moments)
            fields |= {"due_at": due_at, "run_at": due_at, "version": before.version + 1}
        if data.draw(st.booleans()):
            fields["attempt_count"] = before.attempt_count + 1
        return Move(before, replace(before, **fields), guarded)

    def draw_end(self, data: st.DataObject, before: Event, guarded: bool) -> Change:
        self.past.append(before)
        end = data.draw(ends)
        following = None
        if before.repeat is not None and before.state != "dead" and data.draw(st.booleans()):
            due_at = before.due_at + 1_000
            following = replace(
                before, occurrence=before.occurrence + 1, due_at=due_at, run_at=due_at, state="scheduled"
            )
        return Finish(before, record(before, end), NOW + data.draw(keeps), following, guarded)

    @precondition(lambda self: any(event.state == "scheduled" for event in self.model.events.values()))
    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        scheduled = [event for event in self.model.events.values() if event.state == "scheduled"]
        victim = data.draw(st.sampled_from(sorted(scheduled, key=lambda event: event.sequence)))
        self.model.bury(victim)
        poison = Poison(victim.partition, victim.run_at, victim.sequence, b"", "drawn")
        self.same(lambda store: store.bury(poison))

    @rule(hours=st.integers(0, 5), limit=st.integers(1, 5))
    def sweep(self, hours: int, limit: int) -> None:
        now = NOW + hours * HOUR_MS
        assert self.same(lambda store: store.sweep(now, limit)) == self.model.sweep(now, limit)

    @rule()
    def reopen(self) -> None:
        """Close and open the durable stores. The store in memory would be empty."""
        for name in self.stores.keys() - {"memory"}:
            self.runner.run(self.stores[name].close())
            self.stores[name] = self.openers()[name](self.folder)

    @rule(data=st.data(), limit=st.integers(1, 4))
    def find(self, data: st.DataObject, limit: int) -> None:
        filter = data.draw(filters)
        assert self.same(lambda store: find_all(store, filter, limit)) == self.model.find(filter)

    @rule(until_in=moments, limit=st.integers(1, 4))
    def page(self, until_in: int, limit: int) -> None:
        for partition in range(PARTITIONS):
            until_at = NOW + until_in
            seen = self.same(lambda store: page_all(store, partition, until_at, limit))  # noqa: B023
            assert seen == self.model.scheduled(partition, until_at)

    @invariant()
    def everything_that_can_be_seen_is_the_same(self) -> None:
        assert self.same(_overview) == {
            "counts": self.model.counts(),
            "scheduled": [self.model.scheduled(partition, FAR) for partition in range(PARTITIONS)],
            "lines": [self.model.line(tenant, key) for tenant in TENANTS for key in KEYS],
            "blocked": [self.model.blocked(partition) for partition in range(PARTITIONS)],
        }
        for tenant, event_id in sorted(self.names):
            assert self.same(lambda store: store.get(tenant, event_id)) == self.model.get(tenant, event_id)  # noqa: B023
        for tenant in TENANTS:
            for key in KEYS:
                partition = partition_of(tenant, key, PARTITIONS)
                heads = self.same(lambda store: store.heads(partition, [(tenant, key)]))  # noqa: B023
                assert heads == [self.model.heads.get((partition, tenant, key))]


class EmbeddedMachine(StoreMachine):
    """Only stores without servers, which are fast enough for many more programs."""

    @staticmethod
    def openers() -> dict[str, Opener]:
        return {name: STORES[name] for name in ("memory", "rocksdb")}


class CrowdedMachine(StoreMachine):
    """Cassandra is slow, so its shards are full with two events."""

    @staticmethod
    def openers() -> dict[str, Opener]:
        return {"memory": STORES["memory"], "cassandra": open_crowded}


async def _overview(store: Store) -> dict[str, Any]:
    lines: list[Sequence[Event]] = []
    for tenant in TENANTS:
        for key in KEYS:
            page = await store.waiting(partition_of(tenant, key, PARTITIONS), tenant, key, -1, 1_000)
            assert not page.more
            lines.append(list(page.events))
    return {
        "counts": await store.counts(),
        "scheduled": [await page_all(store, partition, FAR, 1_000) for partition in range(PARTITIONS)],
        "lines": lines,
        "blocked": [list(await store.blocked(partition, ("", ""), 1_000)) for partition in range(PARTITIONS)],
    }


@pytest.mark.parametrize(("machine", "percent"), [(EmbeddedMachine, 60), (StoreMachine, 12), (CrowdedMachine, 3)])
def test_random_programs_give_the_same_results_on_every_store(
    machine: type[StoreMachine], percent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The check of fronts follows every event instead of every 400th, so that it happens here.
    monkeypatch.setattr("everbell.stores.rocksdb.fronts.ENDS_PER_LOOK", 1)
    monkeypatch.setattr("everbell.stores.rocksdb.fronts.BEHIND_MS", 0)
    monkeypatch.setattr("everbell.stores.rocksdb.writes.RANGE_MIN", 1)
    monkeypatch.setattr("everbell.stores.cassandra.store.RETIRE_MS", 0)
    examples = settings().max_examples * percent // 100
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))
