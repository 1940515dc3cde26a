"""Reading many events by their places or names takes as long as reading one, not as many times as long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from everbell.stores.cassandra_link import Link
from everbell.stores.cassandra_reads import Reader
from tests.conformance.stores import event

COUNT = 20


class CountingLink:
    """Has an entry for every id, and nothing else; knows how many asked at a time."""

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


def test_places_are_read_all_at_once() -> None:
    link = CountingLink()
    asyncio.run(Reader(cast(Link, link)).spots([event(number, state="dead") for number in range(COUNT)]))
    assert link.most == COUNT


def test_names_are_read_all_at_once() -> None:
    link = CountingLink()
    looked = asyncio.run(Reader(cast(Link, link)).look_up([("shop", str(number)) for number in range(COUNT)]))
    assert len(looked) == COUNT
    assert link.most == COUNT
