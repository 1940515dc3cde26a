"""Where scheduled events lie: in buckets of ten minutes, and in shards of a bucket that hold a bounded number each.

A shard of a bucket has the events with sequences from its first one on, up to the first of the next shard. Sequences
rise, so new events fill the last shard until it is full, and then begin the next: where an event lies follows from its
own fields and the list of its bucket's shards, and nothing has to be kept for each event. What comes with an older
sequence (a retry, a new time) goes where its sequence belongs if there is room, else into a shard for such events. To
take an event away, its row goes from the one and from all of the other kind.

How many events a shard has is known to the owner of the partition, who put them there; whoever becomes the owner counts
the rows, of the buckets that it puts something into. The counts decide where new events go and when to look whether a
bucket is finished. They never decide whether an event exists.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable

from everbell.core.time import MINUTE_MS
from everbell.stores.cassandra_link import Link
from everbell.stores.cassandra_rows import RowChange

BUCKET_MS = 10 * MINUTE_MS
KNOWN_MAX = 20_000
"""Buckets whose shards are kept in memory."""
OVERFLOW = -1
"""The first sequence of a shard for what found no room where it belongs."""

Place = tuple[int, int]
"""A partition and a bucket."""

SHARDS = "SELECT shard, first FROM buckets WHERE store = ? AND partition = ? AND bucket = ?"
_COUNT = "SELECT count(*), max(sequence) FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ?"


def bucket_of(at: int) -> int:
    """The bucket of a time."""
    return at // BUCKET_MS


class Shards:
    """The shards of a bucket, and how full they are."""

    __slots__ = ("counts", "firsts", "highest", "live", "overflow", "ranges")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.ranges: list[int] = []
        """The shards that begin with these sequences."""
        self.overflow: list[int] = []
        self.counts: dict[int, int] = {}
        self.highest = -1
        self.live = 0

    def candidates(self, sequence: int) -> list[int]:
        """Where an event can be."""
        if not self.ranges:
            return []
        return [self.ranges[max(bisect_right(self.firsts, sequence) - 1, 0)], *self.overflow]

    def open(self, shard: int, first: int, count: int = 0) -> None:
        """There is one more."""
        if first == OVERFLOW:
            self.overflow.append(shard)
        else:
            self.firsts.append(first)
            self.ranges.append(shard)
        self.counts[shard] = count

    def choose(self, sequence: int, limit: int) -> tuple[int, int | None]:
        """The shard for an event, and if that is new, its first sequence."""
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
        # One of those for latecomers is only for those whose own shard is full and not the last.
        if found and self.counts[found[0]] < limit:
            return found[0]
        if not found or sequence > self.highest:
            return None
        return next((shard for shard in reversed(found[1:]) if self.counts[shard] < limit), None)


class Buckets:
    """The buckets of the partitions that this process owns, as far as they are known."""

    def __init__(self, link: Link, limit: int) -> None:
        self._link = link
        self._limit = limit
        self._known: dict[Place, Shards] = {}
        self.lows: dict[int, int] = {}
        """By partition: there is nothing unfinished in the buckets before this one."""
        self.idle: set[Place] = set()
        """Buckets that may be finished."""

    def forget(self, partitions: Iterable[int] | None = None) -> None:
        """Others may have changed these partitions, or all of them."""
        gone = None if partitions is None else set(partitions)
        self._known = {place: s for place, s in self._known.items() if gone is not None and place[0] not in gone}
        self.lows = {
            partition: low for partition, low in self.lows.items() if gone is not None and partition not in gone
        }
        # In place: whoever reads adds to this very set.
        self.idle.difference_update([place for place in self.idle if gone is None or place[0] in gone])

    async def know(self, places: set[Place]) -> None:
        """Learn of the shards of these buckets."""
        missing = [place for place in places if place not in self._known]
        if len(self._known) + len(missing) > KNOWN_MAX:
            for place in list(self._known)[: len(missing) + KNOWN_MAX // 4]:
                if place not in places:
                    del self._known[place]
        # None counts before all are read: after a failure, an answer that is late would tell what is no longer so.
        partitions = list({partition for partition, _ in missing})
        learned, lows = await asyncio.gather(
            asyncio.gather(*map(self._learn, missing)), asyncio.gather(*map(self._low, partitions))
        )
        self._known.update(zip(missing, learned, strict=True))
        self.lows.update(zip(partitions, lows, strict=True))

    async def _learn(self, place: Place) -> Shards:
        store = self._link.address.store
        rows = await self._link.ask(SHARDS, store, *place)
        counted = await self._link.ask_all(_COUNT, [(store, *place, shard) for shard, _ in rows])
        shards = Shards()
        for (shard, first), [(count, highest)] in sorted(zip(rows, counted, strict=True)):
            shards.open(shard, first, count)
            shards.live += count
            # A shard that begins with a sequence had one as high, even if its events are gone.
            shards.highest = max(shards.highest, first, -1 if highest is None else highest)
        return shards

    async def low_of(self, partition: int) -> int:
        """The bucket in which unfinished work of a partition begins."""
        low = self.lows[partition] = await self._low(partition)
        return low

    async def _low(self, partition: int) -> int:
        if partition in self.lows:
            return self.lows[partition]
        rows = await self._link.ask(LOW, self._link.address.store, partition)
        return rows[0][0] if rows else 0

    def put(self, partition: int, run_at: int, sequence: int, body: bytes, into: list[RowChange]) -> int:
        """Add the row of an event; returns its shard. Its bucket is known."""
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
        """Remove the row of an event from wherever it can be, but not from the shard `but`."""
        bucket = bucket_of(run_at)
        shards = self._known[partition, bucket]
        where = [shard for shard in shards.candidates(sequence) if shard != but]
        into += [("e", partition, bucket, shard, run_at, sequence) for shard in where]
        shards.live -= 1
        if shards.live <= 0:
            self.idle.add((partition, bucket))

    def shards_at(self, place: Place) -> list[int]:
        """The shards of a known bucket."""
        return sorted(self._known[place].counts)

    def drop(self, place: Place) -> None:
        """It is finished, and gone."""
        self._known.pop(place, None)
        self.idle.discard(place)


LOW = "SELECT low FROM marks WHERE store = ? AND partition = ?"
