"""Taking partitions in Cassandra when answers are lost: the node recognises its own partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from everbell.errors import Fenced, StoreUnavailable
from everbell.stores.cassandra.fence import FENCE, Fence
from everbell.stores.cassandra.journal import Journal
from everbell.stores.cassandra.session import CassandraSession


class Table:
    """The rows of the fence on a server that loses the answers that a test chooses."""

    address = SimpleNamespace(store="s")

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int]] = {}
        self.loses: list[bool] = []
        """For the next transactions: whether they are made before their answer is lost."""

    async def see(self, text: str, store: str) -> list[tuple[int, ...]]:
        return [(partition, *row) for partition, row in self.rows.items()] if text == FENCE else []

    async def decide(self, statements: Sequence[tuple[str, tuple[Any, ...]]]) -> tuple[bool, None]:
        if "blocks" in statements[0][0]:
            return True, None
        is_made = self.loses.pop(0) if self.loses else True
        if is_made:
            self.rows |= {values[3]: (values[0], values[1]) for _, values in statements}
        if self.loses or not is_made:
            raise StoreUnavailable("the answer was lost")
        return True, None


class Writer:
    """The part of a journal that a fence uses."""

    revoked: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.writer = 1

    async def revoke(self, writer: int, partitions: set[int]) -> None: ...

    async def allow(self, partitions: object) -> None: ...

    async def keep_time(self) -> None: ...


def test_a_partition_taken_with_a_lost_answer_is_recognised_by_another_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.stores.cassandra.fence._TRIES", 1)
    table, journal = Table(), Writer()
    fence = Fence(cast(CassandraSession, table), cast(Journal, journal))

    async def main() -> None:
        table.loses = [True, False]  # Made, and the answer is lost; then, as another writer, not made.
        with pytest.raises(StoreUnavailable):
            await fence.take({0: 7})
        assert table.rows == {0: (7, 1)}
        journal.writer = 2
        with pytest.raises(StoreUnavailable):
            await fence.take({0: 7})
        await fence.take({0: 7})
        assert table.rows == {0: (7, 2)}
        assert fence.held == {0: 7}
        table.rows[0] = (8, 3)
        with pytest.raises(Fenced):
            await fence.take({0: 8})

    asyncio.run(main())
