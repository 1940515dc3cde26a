"""Reading one event from tables while the event moves."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from everbell.core.event import Event, Record
from everbell.core.ids import make_id
from everbell.stores.rows import labelled_row
from everbell.stores.table_reads import read_one
from everbell.stores.table_writes import IndexEntry, TablePlace
from everbell.stores.write_path import EventName

EVENT = Event("order-17", "shop", 3, 7, 1_000, 1_000, "queue:q", b"{}", 5)
OLD: IndexEntry = ("E", 3, 1_000, 7, None)
NEW: IndexEntry = ("E", 3, 2_000, 7, None)

Look = dict[str, tuple[IndexEntry, bytes | None]]


class MovingReader:
    """Shows another state at each look."""

    def __init__(self, *looks: Look, home: Sequence[bytes | None] = ()) -> None:
        self._looks = list(looks)
        self._home = list(home)
        self.looks = 0

    async def bodies(self, places: Sequence[TablePlace]) -> Sequence[bytes | None]:
        return [self._home.pop(0) if self._home else None for _ in places]

    async def entries(self, names: Collection[EventName]) -> dict[EventName, tuple[IndexEntry, bytes | None]]:
        look = self._looks[min(self.looks, len(self._looks) - 1)]
        self.looks += 1
        return {name: look[name[1]] for name in names if name[1] in look}

    async def finished(self, tenant: str, event_id: str) -> bytes | None:
        return None


def read(reader: MovingReader, event_id: str, monkeypatch: pytest.MonkeyPatch) -> Event | Record | None:
    monkeypatch.setattr("everbell.stores.table_reads._LOOK_AGAIN_S", (0.0, 0.0))
    return asyncio.run(read_one(reader, "shop", event_id))


def test_an_event_that_moves_while_it_is_read_is_found_at_its_new_place(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = MovingReader({"order-17": (OLD, None)}, {"order-17": (NEW, labelled_row(EVENT))})
    assert read(reader, "order-17", monkeypatch) == EVENT


def test_an_entry_without_its_row_leads_to_nothing_after_some_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = MovingReader({"order-17": (OLD, None)})
    assert read(reader, "order-17", monkeypatch) is None
    assert reader.looks == 3


def test_an_unknown_id_of_a_client_costs_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = MovingReader({})
    assert read(reader, "order-18", monkeypatch) is None
    assert reader.looks == 1


def test_a_made_id_that_comes_home_while_it_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    event_id = make_id(1_000, 7, 3, bytes(9))
    event = Event(event_id, "shop", 3, 7, 1_000, 1_000, "queue:q", b"{}", 5)
    reader = MovingReader({}, home=[None, labelled_row(event)])
    assert read(reader, event_id, monkeypatch) == event
