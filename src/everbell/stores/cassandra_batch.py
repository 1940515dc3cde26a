"""From what an apply leaves in which table to the row changes that Cassandra is given."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import msgspec

from everbell.core.time import DAY_MS, HOUR_MS
from everbell.stores.cassandra_buckets import Buckets, Place, bucket_of
from everbell.stores.cassandra_reads import part_of_dead, part_of_record
from everbell.stores.cassandra_rows import RowChange
from everbell.stores.rows import Tally, added
from everbell.stores.table_batch import Batch

_TTL_MAX_S = 20 * 365 * 86_400
"""The longest that Cassandra takes."""


def places_of(batch: Batch) -> set[Place]:
    """The buckets that a batch touches."""
    keys = [*batch.scheduled.rows, *batch.scheduled.gone]
    return {(int(partition), bucket_of(int(run_at))) for partition, run_at, _ in keys}


def event_changes(batch: Batch, buckets: Buckets) -> list[RowChange]:
    """Events that come and go. The buckets are known."""
    changes: list[RowChange] = []
    scheduled: dict[Any, bytes] = {**batch.scheduled.rows}
    shards = {key: buckets.put(key[0], key[1], key[2], body, changes) for key, body in scheduled.items()}
    for key in batch.scheduled.gone:
        partition, run_at, sequence = map(int, key)
        buckets.take(partition, run_at, sequence, changes, shards.get(key))
    changes += [("w", *key) for key in batch.waiting.gone - batch.waiting.rows.keys()]
    changes += [("W", *key, body) for key, body in batch.waiting.rows.items()]
    changes += [("L", *line) for line in {key[:3] for key in batch.waiting.rows}]
    for key in batch.dead.gone - batch.dead.rows.keys():
        changes.append(("d", key[0], part_of_dead(int(key[2])), *key[1:]))
    for key, body in batch.dead.rows.items():
        changes.append(("D", key[0], part_of_dead(int(key[2])), *key[1:], body))
    return changes


def name_changes(batch: Batch) -> list[RowChange]:
    """Entries of ids, and heads of keys."""
    changes: list[RowChange] = [
        ("I", *name, msgspec.msgpack.encode(entry)) for name, entry in batch.claims.items() if name not in batch.entries
    ]
    for name, changed in batch.entries.items():
        changes.append(("i", *name) if changed is None else ("I", *name, msgspec.msgpack.encode(changed)))
    for key, head in batch.heads.items():
        changes.append(("h", *key) if head is None else ("H", *key, head))
    return changes


def record_changes(batch: Batch, now: int, known: set[tuple[int, str, int]]) -> list[RowChange]:
    """Records, and the shelves and hours where they are found; `known` are shelves that are there already.

    Records go when their hour is swept. Should nobody sweep, they go a day later by themselves.
    """
    changes: list[RowChange] = []
    moved = ((*place, body) for place, body in batch.records.items())
    for hour, tenant, event_id, occurrence, body in chain(batch.ends, moved):
        part = part_of_record(event_id)
        if (hour, tenant, part) not in known:
            known.add((hour, tenant, part))
            changes += [("O", hour), ("S", hour, tenant, part)]
        left_ms = max((hour + 1) * HOUR_MS - now, 0) + DAY_MS
        changes.append(("R", hour, tenant, part, event_id, occurrence, body, min(left_ms // 1_000, _TTL_MAX_S)))
    return changes


def tallied(batch: Batch, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
    """What the counts of a writer are after a batch, of the tenants that it touches."""
    return {tenant: added(tallies.get(tenant), more) for tenant, more in batch.counts.items()}
