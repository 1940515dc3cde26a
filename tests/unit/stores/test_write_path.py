"""All layouts give the same result for the same changes: the fast loops of RocksDB and of the tables, and the layout in
memory with every change in a separate apply.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everbell.core.event import Event, State
from everbell.core.time import HOUR_MS
from everbell.stores.memory.shelves import Shelves
from everbell.stores.port import Add, Change, Finish, Move, Refusal
from everbell.stores.rocksdb.store import RocksdbStore
from everbell.stores.rows import StatusCounts, read_event, read_record
from everbell.stores.table_writes import TablePlace, TableWrites, entry_of, place_of
from everbell.stores.write_path import Stored, WritePath
from tests.conformance.stores import NOW, PARTITIONS, UNOWNED, event, finish

Row = tuple[Any, ...]


class Tables:
    """The tables of a database after some applies."""

    def __init__(self) -> None:
        self.events: dict[TablePlace, bytes] = {}
        self.records: dict[Row, bytes] = {}
        self.entries: dict[tuple[str, str], Any] = {}
        self.counts: dict[str, StatusCounts] = {}

    def apply(self, changes: Sequence[Change]) -> Mapping[int, Refusal]:
        known = {name: (entry, self._at(name, entry)) for name, entry in self.entries.items()}
        guarded = {place: read_event(body) for place, body in self.events.items()}
        path = WritePath(changes, TableWrites(known, guarded))
        path.make(0, len(changes))
        self._write(path.layout)
        return path.refusals

    def _at(self, name: tuple[str, str], entry: Any) -> Stored | None:
        if entry[0] == "H":
            return read_record(self.records[entry[2], *name, 0])
        found = [each for each in map(read_event, self.events.values()) if (each.tenant, each.id) == name]
        return found[0] if found else None

    def _write(self, writes: TableWrites) -> None:
        for letter, table in (("E", writes.scheduled), ("W", writes.waiting), ("D", writes.dead)):
            for key in table.gone:
                self.events.pop((letter, key), None)  # type: ignore[arg-type]  # One of the three letters.
            self.events.update({(letter, key): body for key, body in table.rows.items()})  # type: ignore[misc]
        self.records.update({key: row[-1] for key, row in writes.records.items()})
        for name, entry in {**writes.claims, **writes.entries}.items():
            self.entries[name] = entry
            if entry is None:
                del self.entries[name]
        for tenant, more in writes.counts.items():
            old = self.counts.get(tenant, [0] * 5)
            self.counts[tenant] = [a + b for a, b in zip(old, more, strict=True)]


def one_by_one(shelves: Shelves, changes: Sequence[Change]) -> Mapping[int, Refusal]:
    """Make each change in a separate apply, so that no change is part of a run."""
    refusals: dict[int, Refusal] = {}
    for index, change in enumerate(changes):
        path = WritePath([change], shelves)
        path.make(0, 1)
        if path.refusals:
            refusals[index] = path.refusals[0]
    return refusals


KINDS = st.lists(st.sampled_from(["add", "add", "add", "given", "moved", "end", "end", "move", "late"]), max_size=12)


@st.composite
def histories(draw: st.DrawFn) -> list[list[Change]]:
    """Applies that add, move and finish mostly simple events, alone and in runs."""
    shelves = Shelves(PARTITIONS)
    past: list[Event] = []
    sequence = 0
    applies: list[list[Change]] = []
    for kinds in draw(st.lists(KINDS, min_size=1, max_size=4)):
        changes: list[Change] = []
        for kind in kinds:
            if kind in ("add", "given", "moved"):
                sequence += draw(st.integers(1, 2))
                changes.append(Add(draw(new_events(sequence, kind))))
            elif kind == "late" and past:
                changes.append(finish(draw(st.sampled_from(past)), guarded=True))
            elif kind in ("move", "end") and shelves.events:
                before = shelves.events[draw(st.sampled_from(sorted(shelves.events)))]
                past.append(before)
                changes.append(draw(moves(before)) if kind == "move" else draw(ends(before)))
            else:
                continue
            one_by_one(shelves, changes[-1:])
        applies.append(changes)
    return applies


@st.composite
def new_events(draw: st.DrawFn, sequence: int, kind: str) -> Event:
    given = draw(st.sampled_from(["a", "b", "c"])) if kind == "given" else None
    tenant, created_at = draw(st.sampled_from(["shop", "bank"])), NOW + draw(st.integers(0, 1))
    new = event(sequence, id=given, due_in=draw(st.integers(0, 2)), tenant=tenant, created_at=created_at)
    return replace(new, run_at=new.run_at + 5) if kind == "moved" else new


@st.composite
def moves(draw: st.DrawFn, before: Event) -> Move:
    state: State = draw(st.sampled_from(["scheduled", "waiting", "dead"]))
    run_at = before.run_at + draw(st.integers(0, 3))
    after = replace(before, state=state, key=before.key, run_at=run_at, version=before.version + 1)
    return Move(before, after, guarded=draw(st.booleans()))


@st.composite
def ends(draw: st.DrawFn, before: Event) -> Finish:
    following = replace(before, occurrence=before.occurrence + 1, due_at=before.due_at + 9, run_at=before.due_at + 9)
    return finish(
        before,
        keep_ms=draw(st.sampled_from([0, HOUR_MS])),
        guarded=draw(st.booleans()),
        following=draw(st.sampled_from([None, None, replace(following, state="scheduled")])),
    )


@settings(max_examples=150, deadline=None)
@given(histories())
def test_all_layouts_give_the_same_result_for_the_same_changes(applies: list[list[Change]]) -> None:
    shelves, tables = Shelves(PARTITIONS), Tables()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(applies, shelves, tables, Path(folder)))


async def compare(applies: list[list[Change]], shelves: Shelves, tables: Tables, folder: Path) -> None:
    store = RocksdbStore(str(folder / "store"), partitions=PARTITIONS)
    ids = {(each.tenant, each.id) for changes in applies for each in map(event_of_change, changes)}
    for changes in applies:
        expected = one_by_one(shelves, changes)
        assert await store.apply(changes, UNOWNED) == expected
        assert tables.apply(changes) == expected
        assert {name: await store.get(*name) for name in ids} == {name: shelves.get(*name) for name in ids}
        assert {place: read_event(body) for place, body in tables.events.items()} == {
            place_of(each): each for each in shelves.events.values()
        }
        records = {name: kept for hour in shelves.records.values() for name, kept in hour.items()}
        assert {key: read_record(row) for key, row in tables.records.items()} == records
        counted = await store.counts()
        assert tables.counts == shelves.counts
        assert {
            tenant: [c.pending, c.dead, c.delivered, c.cancelled, c.expired] for tenant, c in counted.items()
        } == shelves.counts
    await store.close()
    for each in shelves.events.values():
        if (each.tenant, each.id) in tables.entries:
            assert tables.entries[each.tenant, each.id] == entry_of(each)


def event_of_change(change: Change) -> Event:
    assert isinstance(change, (Add, Move, Finish))
    return change.event if isinstance(change, Add) else change.before
