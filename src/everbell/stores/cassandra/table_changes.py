"""The row changes of Cassandra for the result of an apply (`table_writes`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from everbell.core.time import DAY_MS, HOUR_MS
from everbell.stores.cassandra.buckets import BucketPlace, Buckets, bucket_of
from everbell.stores.cassandra.reads import part_of_dead, part_of_record
from everbell.stores.cassandra.rows import RowChange
from everbell.stores.rows import StatusCounts, added
from everbell.stores.table_writes import TableWrites

_TTL_MAX_S = 20 * 365 * 86_400  # Cassandra accepts no longer time to live.


def places_of(writes: TableWrites) -> set[BucketPlace]:
    keys = [*writes.scheduled.rows, *writes.scheduled.gone]
    return {(int(partition), bucket_of(int(run_at))) for partition, run_at, _ in keys}


def event_changes(writes: TableWrites, buckets: Buckets) -> list[RowChange]:
    """The row changes of unfinished events. Their buckets must be known."""
    changes: list[RowChange] = []
    scheduled: dict[Any, bytes] = {**writes.scheduled.rows}
    shards = {key: buckets.put(key[0], key[1], key[2], body, changes) for key, body in scheduled.items()}
    for key in writes.scheduled.gone:
        partition, run_at, sequence = map(int, key)
        buckets.take(partition, run_at, sequence, changes, shards.get(key))
    changes += [("w", *key) for key in writes.waiting.gone - writes.waiting.rows.keys()]
    changes += [("W", *key, body) for key, body in writes.waiting.rows.items()]
    changes += [("L", *line) for line in {key[:3] for key in writes.waiting.rows}]
    for key in writes.dead.gone - writes.dead.rows.keys():
        changes.append(("d", key[0], part_of_dead(int(key[2])), *key[1:]))
    for key, body in writes.dead.rows.items():
        changes.append(("D", key[0], part_of_dead(int(key[2])), *key[1:], body))
    return changes


def name_changes(writes: TableWrites) -> list[RowChange]:
    """The row changes of the index of ids, and of the heads of keys."""
    changes: list[RowChange] = [
        ("I", *name, msgspec.msgpack.encode(entry))
        for name, entry in writes.claims.items()
        if name not in writes.entries
    ]
    for name, changed in writes.entries.items():
        changes.append(("i", *name) if changed is None else ("I", *name, msgspec.msgpack.encode(changed)))
    for key, head in writes.heads.items():
        changes.append(("h", *key) if head is None else ("H", *key, head))
    return changes


def record_changes(writes: TableWrites, now: int, known: set[tuple[int, str, int]]) -> list[RowChange]:
    """The row changes of records, and of the shelves and hours that list them, except `known` shelves.

    A sweep removes records when their hour is over. Without a sweep, they expire a day later.
    """
    changes: list[RowChange] = []
    for hour, tenant, event_id, occurrence, body in writes.records.values():
        part = part_of_record(event_id)
        if (hour, tenant, part) not in known:
            known.add((hour, tenant, part))
            changes += [("O", hour), ("S", hour, tenant, part)]
        left_ms = max((hour + 1) * HOUR_MS - now, 0) + DAY_MS
        changes.append(("R", hour, tenant, part, event_id, occurrence, body, min(left_ms // 1_000, _TTL_MAX_S)))
    return changes


def tallied(writes: TableWrites, tallies: Mapping[str, StatusCounts]) -> dict[str, StatusCounts]:
    """The counts of this writer after the apply, for the tenants that it concerns."""
    return {tenant: added(tallies.get(tenant), more) for tenant, more in writes.counts.items()}
