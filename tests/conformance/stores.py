"""The stores under test, and the events of the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from everbell.core.allotment import Allotment
from everbell.core.event import End, Event, Record
from everbell.core.ids import NONCE_BYTES, make_id, partition_of
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import event_of
from everbell.core.time import HOUR_MS
from everbell.stores.cassandra.store import CassandraStore
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Filter, Finish, PreparedRows, RowMaker, Store
from everbell.stores.postgres.store import PostgresStore
from everbell.stores.rocksdb.store import RocksdbStore
from tests.services import shared

PARTITIONS = 4
UNOWNED = dict.fromkeys(range(PARTITIONS), 0)
"""The epochs in force before any node has taken a partition."""
NOW = 1_000 * HOUR_MS
"""The beginning of an hour, because records are forgotten by the hour."""

Opener = Callable[[Path], Store]

STORES: dict[str, Opener] = {
    "memory": lambda path: MemoryStore(PARTITIONS),
    "rocksdb": lambda path: RocksdbStore(str(path / "store"), partitions=PARTITIONS),
    "postgres": lambda path: _open_postgres(path),
    "cassandra": lambda path: _open_cassandra(path),
}
_schemas: dict[Path, str] = {}


def _open_postgres(path: Path) -> Store:
    """Each folder gets its own schema."""
    if path not in _schemas:
        _schemas[path] = shared.postgres().fresh_schema()
    return PostgresStore(_schemas[path], partitions=PARTITIONS)


def open_crowded(path: Path) -> Store:
    """A Cassandra store with shards that are full with two events."""
    return _open_cassandra(path, "&shard_events=2")


def _open_cassandra(path: Path, options: str = "") -> Store:
    """Each folder gets its own store, in shared tables."""
    if (path / "cassandra") not in _schemas:
        _schemas[path / "cassandra"] = shared.cassandra().fresh_store()
    return CassandraStore(_schemas[path / "cassandra"] + options, partitions=PARTITIONS)


def openers() -> dict[str, Opener]:
    """The stores that are available here and fast enough to run all programs."""
    chosen = {name: STORES[name] for name in ("memory", "rocksdb", "postgres")}
    try:
        shared.postgres()
    except pytest.skip.Exception:
        del chosen["postgres"]
    return chosen


def event(sequence: int, *, id: str | None = None, key: str | None = None, due_in: int = 0, **fields: Any) -> Event:
    """An event as the engine makes it: the partition of an event with a key or given id follows from that name."""
    tenant = fields.pop("tenant", "shop")
    due_at = NOW + due_in
    name = key or id
    spread = sequence % PARTITIONS if name is None else partition_of(tenant, name, PARTITIONS)
    partition = fields.pop("partition", spread)
    fields = {"run_at": due_at, "to": "queue:q", "payload": b"{}", "created_at": NOW, **fields}
    event_id = id or make_id(due_at, sequence, partition, sequence.to_bytes(9, "big"))
    return Event(event_id, tenant, partition, sequence, due_at, key=key, **fields)


def prepared(
    maker: RowMaker, sequence: int, count: int, *, tenant: str = "shop", due_in: int = 0
) -> tuple[PreparedRows, list[Event]]:
    """Rows of simple events as a gateway makes them, and the events."""
    dues = [NOW + due_in + number % 3 for number in range(count)]
    batch = SimpleBatch(dues, ["queue:q"] * count, [b"%d" % number for number in range(count)])
    nonces = b"".join((sequence + number).to_bytes(NONCE_BYTES, "big") for number in range(count))
    allotment = Allotment(sequence, count, tuple(range(PARTITIONS)), maker.format)
    made, ids = maker.make(tenant, batch, allotment, nonces, NOW)
    places = [partition for run in made.runs for partition in [run.partition] * run.count]
    events = [
        event_of(draft, made_id, tenant, partition, sequence + number, NOW)
        for number, (draft, made_id, partition) in enumerate(zip(batch.drafts(), ids, places, strict=True))
    ]
    return made, events


def record(event: Event, status: End = "delivered") -> Record:
    """The record of an event."""
    return Record(
        event.id,
        event.tenant,
        status,
        event.due_at,
        event.due_at + 1,
        event.to,
        event.created_at,
        event.key,
        event.version,
        event.occurrence,
        event.attempt_count,
        event.attempts,
        event.tags,
    )


def finish(before: Event, *, keep_ms: int = HOUR_MS, status: End = "delivered", **more: Any) -> Finish:
    """The end of an event, kept for a while from `NOW` on."""
    return Finish(before, record(before, status), NOW + keep_ms, **more)


async def find_all(store: Store, filter: Filter, limit: int) -> list[Event | Record]:
    """All matches of a search, read page by page."""
    found: list[Event | Record] = []
    cursor = None
    while True:
        page = await store.find(filter, cursor, limit)
        assert len(page.events) <= limit
        found.extend(page.events)
        if page.cursor is None:
            return found
        assert page.cursor != cursor, "the search does not get on"
        cursor = page.cursor


async def page_without(
    store: Store, partition: int, until_at: int, limit: int, without: Sequence[tuple[str, str]]
) -> tuple[list[Event], int]:
    """All scheduled events of a partition except those left out, and how many were left out."""
    events: list[Event] = []
    after, left_out = -1, 0
    while True:
        page = await store.page(partition, after, until_at, limit, without)
        assert len(page.events) <= limit
        events.extend(page.events)
        left_out += page.left_out
        if not page.more:
            return events, left_out
        last = page.events[-1].position if page.last is None else page.last
        assert last > after, "the pages do not get on"
        after = last


async def page_all(store: Store, partition: int, until_at: int, limit: int) -> tuple[list[Event], int | None]:
    """All scheduled events of a partition until a time, read page by page, and the time of the next one."""
    events: list[Event] = []
    after = -1
    while True:
        page = await store.page(partition, after, until_at, limit)
        assert len(page.events) <= limit
        events.extend(page.events)
        if not page.more:
            return events, page.next_at
        assert page.next_at is None
        assert events[-1].position > after, "the reader does not get on"
        after = events[-1].position
