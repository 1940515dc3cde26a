"""Searches, counts and forecasts that run while events are added, moved and finished, on every store.

One task changes events without a pause. Others search with several filters at once, page by page, and with slices that
are so small that changes fall into the middle of a page. `tests/search_checker.py` judges what each of them found.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from everbell.core.event import Event, Record, Repeat
from everbell.core.time import HOUR_MS, MINUTE_MS
from everbell.engine.forecast import Forecaster
from everbell.stores.port import Add, Change, Filter, Finish, Move, Store
from tests.conformance.store_model import is_meant
from tests.conformance.stores import NOW, PARTITIONS, STORES, event, record
from tests.search_checker import SearchChecker, SearchedPlace

TENANTS = "shop", "shopping"
KEYS = None, None, "k", "k1"
SPAN_MS = 40 * MINUTE_MS
ENDS = "delivered", "cancelled", "expired"
ROUNDS = {"memory": 150, "rocksdb": 150, "postgres": 80, "cassandra": 25}
"""How many writes happen while the searches run."""


class MovingStore:
    """Events in a store, and tasks that change and search them."""

    def __init__(self, store: Store, seed: int) -> None:
        self.violations: list[str] = []
        self.searches = 0
        self._store = store
        self._dice = random.Random(f"{seed}/changes")
        self._live: dict[str, Event] = {}
        self._unfinished = SearchChecker()
        self._records = SearchChecker()
        self._sequence = 0
        self._instant = 0
        self._ended = False
        self._turn = asyncio.Lock()
        """The caller of a store has one write or page under way at a time."""

    async def run(self, rounds: int) -> None:
        self._epochs = dict.fromkeys(range(PARTITIONS), self._store.epoch + 1)
        await self._store.raise_fence(self._epochs)
        await self._write([self._new() for _ in range(60)])
        seekers = [self._seek(random.Random(f"{number}/filters")) for number in range(3)]
        await asyncio.gather(self._change(rounds), self._count(), self._foresee(), *seekers)

    async def _change(self, rounds: int) -> None:
        for _ in range(rounds):
            changed = self._dice.sample(list(self._live.values()), self._dice.randint(1, 4))
            new = [self._new() for _ in range(60 - len(self._live))]
            await self._write([self._next(before) for before in changed] + new)
            await asyncio.sleep(0)
        self._ended = True

    async def _write(self, changes: Sequence[Change]) -> None:
        async with self._turn:
            # A search may see a change before the writer hears that it is stored.
            sent = self._tick()
            names = [name for change in changes for name in self._note(change, sent)]
            assert await self._store.apply(changes, self._epochs) == {}
            stored = self._tick()
            for checker, name in names:
                checker.settle(name, stored)

    def _note(self, change: Change, sent: int) -> list[tuple[SearchChecker, str]]:
        """Write the change into the histories; returns those that have to be settled."""
        assert isinstance(change, (Add, Move, Finish))
        if isinstance(change, Finish):
            name, ended = change.before.id, change.record
            after = change.following
            self._records.begin(_name(ended), ("H",), ended, sent)
            also = [(self._records, _name(ended))]
        else:
            after, also = change.event if isinstance(change, Add) else change.after, []
            name = after.id
        if after is None:
            del self._live[name]
        else:
            self._live[name] = after
        self._unfinished.begin(name, None if after is None else _place(after), after, sent)
        return [(self._unfinished, name), *also]

    def _new(self) -> Change:
        dice = self._dice
        self._sequence += 1
        drawn = event(
            self._sequence,
            tenant=dice.choice(TENANTS),
            id=dice.choice((None, f"order-{self._sequence}")),
            key=dice.choice(KEYS),
            due_in=dice.randrange(SPAN_MS),
            tags=dice.choice(((), ("red",), ("red", "blue"))),
            to=dice.choice(("queue:q", "queue:other", "https://a.test/x")),
            repeat=dice.choice((None, None, Repeat(MINUTE_MS))),
        )
        return Add(drawn)

    def _next(self, before: Event) -> Change:
        dice = self._dice
        kinds = ["cancel", "retry", "time", "tags", "die"]
        kinds += ["wait"] if before.key is not None and before.state == "scheduled" else []
        kinds += ["deliver"] if before.state != "dead" else []
        match "redrive" if before.state == "dead" else dice.choice(kinds):
            case "cancel":
                return Finish(before, record(before, "cancelled"), NOW + dice.randrange(3) * HOUR_MS)
            case "deliver":
                following = None
                if before.repeat is not None:
                    due_at = before.due_at + MINUTE_MS
                    following = replace(
                        before, occurrence=before.occurrence + 1, due_at=due_at, run_at=due_at, state="scheduled"
                    )
                return Finish(before, record(before), NOW + dice.randrange(3) * HOUR_MS, following)
            case "retry":
                run_at = before.run_at + dice.randrange(1, MINUTE_MS)
                after = replace(before, state="scheduled", run_at=run_at, attempt_count=before.attempt_count + 1)
            case "time":
                due_at = NOW + dice.randrange(SPAN_MS)
                after = replace(before, state="scheduled", due_at=due_at, run_at=due_at, version=before.version + 1)
            case "tags":
                after = replace(before, tags=dice.choice(((), ("red",), ("blue",))), version=before.version + 1)
            case "wait":
                after = replace(before, state="waiting")
            case "die":
                after = replace(before, state="dead", run_at=NOW + self._instant, reason="gone")
            case _:
                after = replace(before, state="scheduled", run_at=NOW + dice.randrange(SPAN_MS))
        return Move(before, after)

    async def _seek(self, dice: random.Random) -> None:
        while not self._ended:
            filter = _filter(dice)
            began = self._tick()
            found: list[Event | Record] = []
            cursor = None
            while True:
                page = await self._store.find(filter, cursor, dice.randint(1, 9))
                found.extend(page.events)
                cursor = page.cursor
                await asyncio.sleep(0)
                if cursor is None:
                    break
            self._judge(filter, found, began, self._tick())

    def _judge(self, filter: Filter, found: Sequence[Event | Record], began: int, ended: int) -> None:
        self.searches += 1
        checker = self._records if filter.status in ENDS else self._unfinished
        wrong = checker.violations(map(_name, found), began, ended, lambda one: is_meant(filter, one))
        self.violations += [f"{violation} in {filter}" for violation in wrong]

    async def _count(self) -> None:
        while not self._ended:
            began = self._tick()
            counts = await self._store.counts()
            ended = self._tick()
            for tenant in TENANTS:
                for dead in (False, True):
                    least, most = self._unfinished.bounds(began, ended, partial(_is_counted, tenant, dead))
                    number = counts[tenant].dead if dead else counts[tenant].pending
                    if not least <= number <= most:
                        self.violations.append(f"count: {number} of {tenant}, {least} to {most} expected")
            await asyncio.sleep(0)

    async def _foresee(self) -> None:
        while not self._ended:
            tenant = TENANTS[self._instant % 2]
            began = self._tick()
            forecaster = Forecaster(self._store, self._page, tenant, NOW - 1, MINUTE_MS, 100)
            forecast = await forecaster.run()
            ended = self._tick()
            kept = [one for one in self._unfinished.kept(began, ended) if _is_due(tenant, one)]
            least = Counter((one.run_at - forecast.from_at) // MINUTE_MS for one in kept)
            self.violations += [
                f"forecast: {forecast.due[number]} at {number}, at least {count} expected"
                for number, count in least.items()
                if forecast.due[number] < count
            ]
            await asyncio.sleep(0)

    async def _page(self, partition: int, after: int, until_at: int, limit: int) -> Any:
        async with self._turn:
            return await self._store.page(partition, after, until_at, 7)

    def _tick(self) -> int:
        self._instant += 1
        return self._instant


def _filter(dice: random.Random) -> Filter:
    """A filter with several conditions."""
    statuses: list[Any] = [None, None, None, "scheduled", "waiting", "retrying", "dead", "delivered", "cancelled"]
    from_at, until_at = sorted(NOW + dice.randrange(SPAN_MS) for _ in range(2))
    return Filter(
        dice.choice(TENANTS),
        dice.choice(statuses),
        dice.choice(KEYS),
        dice.choice((None, "red", "blue")),
        dice.choice((None, None, from_at)),
        dice.choice((None, None, until_at)),
        dice.choice((None, None, "queue:")),
        dice.choice((None, None, "order-")),
        attempts_min=dice.choice((0, 0, 1)),
        target=dice.choice((None, None, "queue:q")),
    )


def _place(event: Event) -> SearchedPlace:
    """The place in the order of a search."""
    if event.state == "waiting":
        return (1, event.partition, event.key, event.due_at, event.sequence)
    return (0 if event.state == "scheduled" else 2, event.run_at, event.sequence)


def _name(found: Event | Record) -> str:
    return found.id if isinstance(found, Event) else f"{found.id}:{found.occurrence}"


def _is_counted(tenant: str, dead: bool, event: Event) -> bool:
    return event.tenant == tenant and (event.state == "dead") == dead


def _is_due(tenant: str, event: Event) -> bool:
    return event.tenant == tenant and event.state == "scheduled" and event.run_at < NOW + SPAN_MS


@pytest.mark.parametrize(
    ("found", "rule"),
    [
        (["stays", "later"], []),
        (["stays", "later", "later"], []),
        (["later"], ["kept: stays was found 0 times"]),
        (["stays"], ["forward: later was found 0 times"]),
        (["stays", "later", "earlier"], []),
        (["stays", "later", "gone"], ["stray: gone was found 1 times"]),
        (["stays", "later", "new", "blue"], ["stray: blue was found 1 times"]),
        (["stays", "stays", "later"], ["twice: stays was found 2 times"]),
        (["stays", "later", "made up"], ["stray: made up is unknown"]),
    ],
)
def test_the_checker_notices_each_broken_rule(found: list[str], rule: list[str]) -> None:
    checker = SearchChecker()
    for name, color in {"stays": "red", "later": "red", "earlier": "red", "gone": "red", "blue": "blue"}.items():
        checker.begin(name, (5,), color, 1)
        checker.settle(name, 2)
    checker.begin("gone", None, None, 3)
    checker.settle("gone", 4)
    # The search runs from 10 to 20.
    for name, place in {"later": 6, "earlier": 4, "new": 7}.items():
        checker.begin(name, (place,), "red", 11)
        checker.settle(name, 12)
    assert checker.violations(found, 10, 20, lambda color: color == "red") == rule


@pytest.mark.parametrize("name", STORES)
def test_searches_are_right_while_events_move(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("memory", "rocksdb", "postgres"):
        monkeypatch.setattr(f"everbell.stores.{module}.find.SLICE", 8)
    monkeypatch.setattr("everbell.stores.cassandra.find.SLICE", 16)
    monkeypatch.setattr("everbell.stores.cassandra.find._DEPTH_MIN", 2)
    store = STORES[name](tmp_path)

    async def run() -> MovingStore:
        moving = MovingStore(store, seed=1)
        try:
            await moving.run(ROUNDS[name])
        finally:
            await store.close()
        return moving

    moving = asyncio.run(run())
    assert moving.violations == []
    assert moving.searches > 10
