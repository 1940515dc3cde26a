"""Deleting finished buckets: one deletion for each shard, and then the mark rises.

Readers start at the mark. So they never read deleted rows before it, which Cassandra keeps for a while.
"""

from __future__ import annotations

from collections.abc import Container

from everbell.stores.cassandra.buckets import BucketPlace, Buckets
from everbell.stores.cassandra.rows import RowChange
from everbell.stores.cassandra.session import CassandraSession

_AT_ONCE = 64
_ANY = "SELECT sequence FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ? LIMIT 1"
_FIRST = "SELECT bucket FROM buckets WHERE store = ? AND partition = ? AND bucket >= ? PER PARTITION LIMIT 64"


async def retire(
    link: CassandraSession, buckets: Buckets, held: Container[int], before: int
) -> tuple[list[BucketPlace], list[RowChange]]:
    """The buckets before `before` that have no events left, and the row changes that remove them."""
    ripe = [place for place in sorted(buckets.idle) if place[0] in held and place[1] < before][:_AT_ONCE]
    await buckets.know(set(ripe))
    gone: list[BucketPlace] = []
    rows: list[RowChange] = []
    store = link.address.store
    for place in ripe:
        shards = buckets.shards_at(place)
        found = await link.ask_all(_ANY, [(store, *place, shard) for shard in shards])
        if any(found):
            buckets.idle.discard(place)
            continue
        gone.append(place)
        rows += [("x", *place, shard) for shard in shards]
        rows.append(("b", *place))
    for partition in {place[0] for place in gone}:
        low = await buckets.low_of(partition)
        seen = [row[0] for row in await link.ask(_FIRST, store, partition, low)]
        unfinished = set(seen) - {bucket for number, bucket in gone if number == partition}
        # Buckets after the last one here are unknown, and that one may have more shards.
        end = max(seen, default=low) + (1 if 0 < len(seen) < _AT_ONCE else 0)
        raised = min(unfinished, default=end)
        if raised > low:
            buckets.lows[partition] = raised
            rows.append(("M", partition, raised))
    return gone, rows
