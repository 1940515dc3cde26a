"""Rows of simple events for the store in memory: the body is one column, the rows."""

from __future__ import annotations

from everbell.core.allotment import Allotment
from everbell.core.event import Event
from everbell.core.simple_batch import SimpleBatch
from everbell.stores.port import PreparedRows
from everbell.stores.rows import read_event
from everbell.stores.simple_rows import SimpleRows


class MemoryRowMaker:
    """The `RowMaker` of the store in memory."""

    format = "memory"

    def make(
        self, tenant: str, batch: SimpleBatch, allotment: Allotment, nonces: bytes, now: int
    ) -> tuple[PreparedRows, list[str]]:
        made = SimpleRows(tenant, batch, allotment, nonces, now)
        return PreparedRows(tenant, len(batch), made.last_sequence, made.runs, (made.rows,)), made.ids

    def events(self, rows: PreparedRows, start: int = 0, end: int | None = None) -> list[Event]:
        return list(map(read_event, rows.body[0][start:end]))
