"""Many events are read concurrently, by their places or names."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from everbell.stores.cassandra.reads import CassandraReader
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.table_reads import known_ids, stored_events
from tests.conformance.stores import event

COUNT = 20


class CountingLink:
    """Has an entry for every id and no other rows, and counts concurrent requests."""

    address = SimpleNamespace(store="store")

    def __init__(self) -> None:
        self.asking = self.most = 0

    async def ask(self, text: str, *values: Any, level: str | None = None) -> list[Any]:
        self.asking += 1
        self.most = max(self.most, self.asking)
        await asyncio.sleep(0)
        self.asking -= 1
        return [(msgspec.msgpack.encode(("D", 0, 1, 1, None)),)] if "FROM ids" in text else []

    async def ask_all(self, text: str, places: list[Any], level: str | None = None) -> list[Any]:
        self.most = 0
        return [await self.ask(text, *values, level=level) for values in places]


def test_places_are_read_concurrently() -> None:
    link = CountingLink()
    dead = [event(number, state="dead") for number in range(COUNT)]
    asyncio.run(stored_events(CassandraReader(cast(CassandraSession, link)), dead))
    assert link.most == COUNT


def test_names_are_read_concurrently() -> None:
    link = CountingLink()
    names = [("shop", str(number)) for number in range(COUNT)]
    known = asyncio.run(known_ids(CassandraReader(cast(CassandraSession, link)), names))
    assert len(known) == COUNT
    assert link.most == COUNT
