"""The size of Cassandra's partitions when everything is due in one minute, counted by Cassandra itself.

A minute lies in one bucket, so each partition of the store has one bucket for all of its events, and only shards
limit its size. Rows are counted by their partition key, in slices of the ring that are short enough to be answered
in time. If the counts do not add up to the events sent, the measurement fails.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from everbell.bench.cassandra import cassandra_stores
from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Figure
from everbell.bench.goals import CASSANDRA_SHARD
from everbell.bench.scene import HOUR_MS, Scene, batches, load_plan, now_ms, send
from everbell.bench.stage import BenchStage

_CONNECTIONS = 4
_PAYLOAD_BYTES = 500
_MINUTE_MS = 60_000
_SLICE_EVENTS = 4_000
_RING = 1 << 64
_FLUSH_S = 30
_COUNT = (
    "SELECT store, count(*) FROM scheduled "
    "WHERE token(store, partition, bucket, shard) >= ? AND token(store, partition, bucket, shard) <= ? "
    "GROUP BY store, partition, bucket, shard"
)
_FLUSH = "ALTER TABLE {}.scheduled WITH memtable_flush_period_in_ms = 1000"
_LARGEST = (
    "SELECT mebibytes FROM system_views.max_partition_size WHERE keyspace_name = '{}' AND table_name = 'scheduled'"
)


class Fill(Struct, frozen=True):
    """Cassandra's statistics of the table of scheduled events."""

    counts: list[int]
    """Rows of each Cassandra partition."""
    largest_mib: int
    """The largest partition in whole MiB by system_views; 0 until the table is flushed to disk."""


def shards(scene: Scene) -> list[Figure]:
    """Bulk requests over HTTP, all for one minute; the store is removed afterwards."""
    count, size = batches(scene.scale.shards)
    events = count * size
    with cassandra_stores(scene) as store, BenchStage() as stage:
        _, port = stage.server(gateways=scene.few_gateways, store=store("shards"))
        due = (now_ms() + HOUR_MS) // _MINUTE_MS * _MINUTE_MS
        plan = load_plan(port, "queue:later", size, _CONNECTIONS, due_from=due, due_span_ms=_MINUTE_MS)
        load = stage.load(replace(plan, payload_bytes=_PAYLOAD_BYTES))
        sent = send(load, count, scene.progress("for one minute", events))
        fill = asyncio.run(_look(store("shards"), max(events // _SLICE_EVENTS, 1)))
    if sum(fill.counts) != events:
        raise BenchFailed(f"Cassandra counts {sum(fill.counts):,} events where {events:,} were stored")
    notes = (
        f"Cassandra counts {events:,} events in {len(fill.counts):,} shards; they were stored at {sent.rate:,.0f}/s",
        f"its largest partition of the table by system_views.max_partition_size: {fill.largest_mib} MiB, rounded up",
    )
    goal = CASSANDRA_SHARD.titled(count=f"{events:,}")
    return [Figure(goal, float(max(fill.counts)), notes=notes)]


async def _look(url: str, slices: int) -> Fill:
    from everbell.stores.cassandra.address import read_address
    from everbell.stores.cassandra.session import CassandraSession

    link = CassandraSession(read_address(url))
    try:
        keyspace, name = link.address.keyspace, link.address.store
        ends = [_RING * number // slices - _RING // 2 for number in range(slices + 1)]
        counts = []
        for start, end in pairwise(ends):
            counts += [rows for store, rows in await link.ask(_COUNT, start, end - 1) if store == name]
        # The statistics cover only data on disk, so the table is flushed.
        await link.run(_FLUSH.format(keyspace))
        largest_mib = 0
        for _ in range(_FLUSH_S):
            [(largest_mib,)] = await link.run(_LARGEST.format(keyspace))
            if largest_mib:
                break
            await asyncio.sleep(1)
        return Fill(counts, largest_mib)
    finally:
        await link.close()
