"""Letting finished buckets go: one deletion for a shard, however many events it had, and the mark moves on.

What was deleted before the mark is never read again, so it does not matter how long Cassandra takes to forget it.
"""

from __future__ import annotations

from collections.abc import Container

from everbell.stores.cassandra_buckets import Buckets, Place
from everbell.stores.cassandra_link import Link
from everbell.stores.cassandra_rows import RowChange

_AT_ONCE = 64
_ANY = "SELECT sequence FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ? LIMIT 1"
_FIRST = "SELECT bucket FROM buckets WHERE store = ? AND partition = ? AND bucket >= ? PER PARTITION LIMIT 64"


async def retire(
    link: Link, buckets: Buckets, held: Container[int], before: int
) -> tuple[list[Place], list[RowChange]]:
    """The buckets before one that have nothing left, and the row changes that remove them."""
    ripe = [place for place in sorted(buckets.idle) if place[0] in held and place[1] < before][:_AT_ONCE]
    await buckets.know(set(ripe))
    gone: list[Place] = []
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
        # Of what lies behind the last that was seen nothing is known, and there may be more shards of that one.
        end = max(seen, default=low) + (1 if 0 < len(seen) < _AT_ONCE else 0)
        raised = min(unfinished, default=end)
        if raised > low:
            buckets.lows[partition] = raised
            rows.append(("M", partition, raised))
    return gone, rows
