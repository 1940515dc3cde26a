"""Rows of simple events for RocksDB: the body is two columns, the keys and the rows."""

from __future__ import annotations

from everbell.core.allotment import Allotment
from everbell.core.event import Event
from everbell.core.simple_batch import SimpleBatch
from everbell.stores.port import PreparedRows
from everbell.stores.rocksdb.keys import SCHEDULED_KEY_BYTES
from everbell.stores.rows import read_event
from everbell.stores.simple_rows import SimpleRows, repeated


class RocksdbRowMaker:
    """The `RowMaker` of RocksDB."""

    format = "rocksdb"

    def make(
        self, tenant: str, batch: SimpleBatch, allotment: Allotment, nonces: bytes, now: int
    ) -> tuple[PreparedRows, list[str]]:
        made = SimpleRows(tenant, batch, allotment, nonces, now)
        body = _scheduled_keys(made, len(batch)), made.rows
        return PreparedRows(tenant, len(batch), made.last_sequence, made.runs, body), made.ids

    def events(self, rows: PreparedRows, start: int = 0, end: int | None = None) -> list[Event]:
        return list(map(read_event, rows.body[1][start:end]))


def _scheduled_keys(made: SimpleRows, count: int) -> list[bytes]:
    """The keys that `keys.event_key` makes of the events."""
    width = SCHEDULED_KEY_BYTES
    columns = (made.partition, 1, 2), (made.due, 3, 8), (made.sequence, 11, 8)
    keys = repeated(b"E".ljust(width), count, columns)
    return [keys[start : start + width] for start in range(0, count * width, width)]
