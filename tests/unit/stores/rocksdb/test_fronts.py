"""Fronts of partitions: as late as possible, but never too late, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from everbell.stores.port import Add, Change, Move
from everbell.stores.rocksdb.store import RocksdbStore
from tests.conformance.stores import NOW, UNOWNED, event, finish, page_all

FAR = NOW + 10**12


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.stores.rocksdb.fronts.ENDS_PER_LOOK", 1)
    monkeypatch.setattr("everbell.stores.rocksdb.fronts.BEHIND_MS", 10)


def visit(path: Path, *applies: Sequence[Change]) -> tuple[list[int], list[list[int]]]:
    """Open the store, apply, and close it. Returns the fronts, and the sequences that a reader sees."""

    async def run() -> tuple[list[int], list[list[int]]]:
        store = RocksdbStore(str(path), partitions=2)
        for changes in applies:
            assert await store.apply(changes, UNOWNED) == {}
        pages = [await page_all(store, partition, FAR, 100) for partition in range(2)]
        fronts = list(store._fronts.at)
        await store.close()
        return fronts, [[event.sequence for event in events] for events, _ in pages]

    return asyncio.run(run())


def test_fronts_rise_behind_the_latest_delivery_and_are_stored(tmp_path: Path) -> None:
    events = [event(sequence, due_in=sequence, partition=sequence % 2) for sequence in range(1, 101)]
    adds = [Add(each) for each in events]
    ends = [finish(each) for each in events[:80]]
    # Two checks, one for each partition, and a write that stores the new fronts.
    fronts, seen = visit(tmp_path, adds, ends, [finish(events[80])], [finish(events[81])])
    assert min(fronts) >= NOW + 70
    assert seen == [list(range(84, 101, 2)), list(range(83, 101, 2))]
    again, seen_again = visit(tmp_path)
    assert min(again) >= NOW + 70
    assert seen_again == seen


def test_an_event_before_the_front_is_read_also_after_a_restart(tmp_path: Path) -> None:
    events = [event(sequence, due_in=sequence, partition=sequence % 2) for sequence in range(1, 101)]
    visit(tmp_path, [Add(each) for each in events], [finish(each) for each in events], [Add(event(101, partition=0))])
    early = event(102, due_in=-1_000, partition=0)
    fronts, seen = visit(tmp_path, [Add(early)])
    assert fronts[0] == early.run_at
    assert seen == [[102, 101], []]
    assert visit(tmp_path) == (fronts, seen)


@pytest.mark.parametrize("id", [None, "named"])
def test_an_event_that_moves_before_the_front_is_read_also_after_a_restart(tmp_path: Path, id: str | None) -> None:
    events = [event(sequence, due_in=sequence, partition=sequence % 2) for sequence in range(1, 101)]
    late = event(101, id=id, due_in=500, partition=0)
    ends = [finish(each) for each in events]
    visit(tmp_path, [Add(each) for each in [*events, late]], ends[:-1], ends[-1:])
    early = replace(late, run_at=NOW - 1_000)
    fronts, seen = visit(tmp_path, [Move(late, early)])
    assert fronts[0] == early.run_at
    assert seen == [[101], []]
    assert visit(tmp_path) == (fronts, seen)


def test_a_front_stays_before_the_first_event(tmp_path: Path) -> None:
    old, young = event(1, partition=0), event(2, due_in=5_000, partition=0)
    fronts, seen = visit(tmp_path, [Add(old), Add(young)], [finish(young)], [Add(event(3, partition=1))])
    assert fronts == [NOW, 0]
    assert seen == [[1], [3]]
