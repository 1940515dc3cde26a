"""The places of scheduled events: buckets of ten minutes, divided into shards with a limited number of events.

A shard holds the sequences from its first one up to the first of the next shard. Sequences rise, so new events fill the
last shard until it is full, and then begin the next. So the place of an event follows from its fields and the list of
its bucket's shards. An event with an older sequence (a retry, a new time) goes to the shard of its sequence if that has
room, else to an overflow shard. To remove an event, its row is deleted from the shard of its sequence and from all
overflow shards.

The owner of a partition knows how many events each shard has. A new owner counts the rows of a bucket before it puts an
event there. The counts decide where new events go, and when a bucket may be finished. They never decide whether an
event exists.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable

from everbell.core.time import MINUTE_MS
from everbell.stores.cassandra.rows import RowChange
from everbell.stores.cassandra.session import CassandraSession

BUCKET_MS = 10 * MINUTE_MS
KNOWN_MAX = 20_000  # How many buckets have their shards in memory.
OVERFLOW = -1  # The first sequence of an overflow shard.

BucketPlace = tuple[int, int]  # A partition and a bucket.

SHARDS = "SELECT shard, first FROM buckets WHERE store = ? AND partition = ? AND bucket = ?"
_COUNT = "SELECT count(*), max(sequence) FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ?"


def bucket_of(at: int) -> int:
    return at // BUCKET_MS


class Shards:
    """The shards of a bucket, and how full they are."""

    __slots__ = ("counts", "firsts", "highest", "live", "overflow", "ranges")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.ranges: list[int] = []  # The shards that begin with these sequences.
        self.overflow: list[int] = []
        self.counts: dict[int, int] = {}
        self.highest = -1
        self.live = 0

    def candidates(self, sequence: int) -> list[int]:
        """The shards in which an event can be."""
        if not self.ranges:
            return []
        return [self.ranges[max(bisect_right(self.firsts, sequence) - 1, 0)], *self.overflow]

    def open(self, shard: int, first: int, count: int = 0) -> None:
        if first == OVERFLOW:
            self.overflow.append(shard)
        else:
            self.firsts.append(first)
            self.ranges.append(shard)
        self.counts[shard] = count

    def choose(self, sequence: int, limit: int) -> tuple[int, int | None]:
        """The shard for a new row, and the first sequence of that shard if it is new."""
        first = None
        shard = self._with_room(sequence, limit)
        if shard is None:
            shard = len(self.counts)
            first = 0 if not self.ranges else sequence if sequence > self.highest else OVERFLOW
            self.open(shard, first)
        self.counts[shard] += 1
        self.live += 1
        self.highest = max(self.highest, sequence)
        return shard, first

    def _with_room(self, sequence: int, limit: int) -> int | None:
        found = self.candidates(sequence)
        # Overflow shards are for events with a full shard of their own that is not the last one.
        if found and self.counts[found[0]] < limit:
            return found[0]
        if not found or sequence > self.highest:
            return None
        return next((shard for shard in reversed(found[1:]) if self.counts[shard] < limit), None)


class Buckets:
    """The known buckets of the partitions that this process owns."""

    def __init__(self, link: CassandraSession, limit: int) -> None:
        self._link = link
        self._limit = limit
        self._known: dict[BucketPlace, Shards] = {}
        self.lows: dict[int, int] = {}  # By partition: the buckets before this one have no unfinished events.
        self.idle: set[BucketPlace] = set()  # Buckets that may be finished.

    def forget(self, partitions: Iterable[int] | None = None) -> None:
        """Another process may have changed these partitions, or (None) all of them."""
        if partitions is None:
            self._known, self.lows = {}, {}
            self.idle.clear()
            return
        gone = set(partitions)
        self._known = {place: shards for place, shards in self._known.items() if place[0] not in gone}
        self.lows = {partition: low for partition, low in self.lows.items() if partition not in gone}
        # In place, because readers add to this set.
        self.idle.difference_update([place for place in self.idle if place[0] in gone])

    async def know(self, places: set[BucketPlace]) -> None:
        """Read the shards of these buckets, unless they are known."""
        missing = [place for place in places if place not in self._known]
        if len(self._known) + len(missing) > KNOWN_MAX:
            for place in list(self._known)[: len(missing) + KNOWN_MAX // 4]:
                if place not in places:
                    del self._known[place]
        # All are read before any is kept, because a late answer could be stale after a failure.
        partitions = list({partition for partition, _ in missing})
        learned, lows = await asyncio.gather(
            asyncio.gather(*map(self._learn, missing)), asyncio.gather(*map(self._low, partitions))
        )
        self._known.update(zip(missing, learned, strict=True))
        self.lows.update(zip(partitions, lows, strict=True))

    async def _learn(self, place: BucketPlace) -> Shards:
        store = self._link.address.store
        rows = await self._link.ask(SHARDS, store, *place)
        counted = await self._link.ask_all(_COUNT, [(store, *place, shard) for shard, _ in rows])
        shards = Shards()
        for (shard, first), [(count, highest)] in sorted(zip(rows, counted, strict=True)):
            shards.open(shard, first, count)
            shards.live += count
            # A shard had an event with its first sequence, even if all its events are gone.
            shards.highest = max(shards.highest, first, -1 if highest is None else highest)
        return shards

    async def low_of(self, partition: int) -> int:
        """The first bucket of a partition that may have unfinished events."""
        low = self.lows[partition] = await self._low(partition)
        return low

    async def _low(self, partition: int) -> int:
        if partition in self.lows:
            return self.lows[partition]
        rows = await self._link.ask(LOW, self._link.address.store, partition)
        return rows[0][0] if rows else 0

    def put(self, partition: int, run_at: int, sequence: int, body: bytes, into: list[RowChange]) -> int:
        """Add the row of an event; returns its shard. The bucket must be known."""
        bucket = bucket_of(run_at)
        shard, first = self._known[partition, bucket].choose(sequence, self._limit)
        if first is not None:
            into.append(("B", partition, bucket, shard, first))
            if bucket < self.lows[partition]:
                self.lows[partition] = bucket
                into.append(("M", partition, bucket))
        into.append(("E", partition, bucket, shard, run_at, sequence, body))
        return shard

    def take(self, partition: int, run_at: int, sequence: int, into: list[RowChange], but: int | None = None) -> None:
        """Remove the row of an event from all shards in which it can be, except `but`."""
        bucket = bucket_of(run_at)
        shards = self._known[partition, bucket]
        where = [shard for shard in shards.candidates(sequence) if shard != but]
        into += [("e", partition, bucket, shard, run_at, sequence) for shard in where]
        shards.live -= 1
        if shards.live <= 0:
            self.idle.add((partition, bucket))

    def shards_at(self, place: BucketPlace) -> list[int]:
        return sorted(self._known[place].counts)

    def drop(self, place: BucketPlace) -> None:
        self._known.pop(place, None)
        self.idle.discard(place)


LOW = "SELECT low FROM marks WHERE store = ? AND partition = ?"
