"""The store in Cassandra, for many nodes in several datacentres.

Cassandra has no transactions over rows, so an apply is an operation in a journal (`journal`). The operation is written
to the journal, then one lightweight transaction makes it count and checks the fence, then its rows are written. The
next owner of a partition repeats the last operation. Events lie in buckets of time and limited shards (`buckets`), and
each partition has a mark at its first bucket with unfinished events.

A tenant's level says how many replicas must have a change of its users before it is acknowledged. A level that cannot
be met leads to a refusal, so changes of different levels are separate operations. Changes that have already happened,
such as the outcome of an attempt, are written by a majority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from everbell.clock import Clock, SystemClock
from everbell.core.event import Event, Record
from everbell.core.time import HOUR_MS, MINUTE_MS
from everbell.entropy import Entropy, SystemEntropy
from everbell.errors import Fenced, StoreError, StoreUnavailable, StoreUnusable
from everbell.stores.cassandra.address import read_address
from everbell.stores.cassandra.buckets import Buckets, bucket_of
from everbell.stores.cassandra.fence import Fence
from everbell.stores.cassandra.find import CassandraSearch
from everbell.stores.cassandra.fold import FOLD_MS, FOLDER, fold
from everbell.stores.cassandra.groups import groups_of, is_asked
from everbell.stores.cassandra.journal import Journal, Revoked, WriterEnded
from everbell.stores.cassandra.levels import levels_for
from everbell.stores.cassandra.reads import CassandraReader, read_page
from everbell.stores.cassandra.retire import retire
from everbell.stores.cassandra.rows import RowChange
from everbell.stores.cassandra.schema import OPEN_S, prepare
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.cassandra.table_changes import event_changes, name_changes, places_of, record_changes, tallied
from everbell.stores.cassandra.upkeep import Sweep, bury, claim, taken_ids
from everbell.stores.fence_checks import check_claim, partitions_of
from everbell.stores.port import Add, Change, Counts, Filter, Found, Move, Page, Poison, Refusal
from everbell.stores.rows import StatusCounts, added
from everbell.stores.table_reads import known_ids, read_many, read_one, stored_events
from everbell.stores.table_writes import TableWrites
from everbell.stores.write_path import EventName, WritePath, given_names, guarded_events

T = TypeVar("T")

RETIRE_MS = 10_000  # How often to look for finished buckets.
_TRIES = 10
_CLAIM_S = 60
_SHELVES_KNOWN_MAX = 100_000
_COUNTS = "SELECT tenant, tally FROM counts WHERE store = ?"
_TAKEN = "another node is just taking the same id: try again"
_BUSY = "other nodes keep taking the same partitions at the same time: try again"
_EVENT_BYTES_MAX = 4 << 20  # A quarter of the largest row that a server takes by default.
_TOO_LARGE = f"Cassandra stores no event with a payload of more than {_EVENT_BYTES_MAX >> 20} MiB: send a smaller one"


class CassandraStore:
    """A `Store` that any number of processes can have open."""

    partitions: int
    epoch: int
    group_changes = 3_000
    row_maker = None
    preparer = None

    def __init__(
        self,
        url: str,
        *,
        partitions: int | None = None,
        created_at: int = 0,
        level: Callable[[str], str | None] | None = None,
        entropy: Entropy | None = None,
        clock: Clock | None = None,
        patience_s: float = OPEN_S,
    ) -> None:
        """Open the store, or create it with `partitions` (None: 256). `level` is the level of consistency that a tenant
        wants, None for the usual one.

        Raises `StoreUnusable`, and `StoreUnavailable` if the servers do not answer within `patience_s`.
        """
        address = read_address(url)
        self._entropy = entropy or SystemEntropy()
        shape = prepare(address, partitions, created_at, self._entropy, patience_s)
        self.partitions, self.epoch = shape.partitions, shape.epoch
        self._datacenters = shape.datacenters
        self._level = level or (lambda tenant: None)
        self._clock = clock or SystemClock()
        self._link = CassandraSession(address)
        self._journal = Journal(self._link, self._clock, self._new_writer())
        self._fence = Fence(self._link, self._journal)
        self._buckets = Buckets(self._link, address.shard_events)
        self._reader = CassandraReader(self._link, empty=self._buckets.idle)
        self._tallies: dict[str, StatusCounts] = {}
        self._shelves: set[tuple[int, str, int]] = set()
        self._retire_at = self._fold_at = 0
        self._lock = asyncio.Lock()

    def _new_writer(self) -> int:
        return int.from_bytes(self._entropy.nonce()[:7], "big")

    async def claim(self, cluster: str) -> int:
        owner, epoch = await claim(self._link, cluster)
        check_claim(owner, cluster)
        return epoch

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        async with self._lock:
            block = await (self._take(epochs) if epochs else self._fence.next_block())
            self.epoch = max(self.epoch, *epochs.values(), 0)
            return block << 32

    async def _take(self, epochs: Mapping[int, int]) -> int:
        for _ in range(_TRIES):
            try:
                await self._journal.catch_up()
                self._buckets.forget(epochs)
                return await self._fence.take(epochs)
            except WriterEnded:
                self._begin_again()
        raise StoreUnavailable(_BUSY)

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        if not changes:
            return {}
        async with self._lock:
            refusals: dict[int, Refusal] = {}
            usual = (self._link.floor,)
            for number, (levels, indices) in enumerate(groups_of(changes, usual, self._wanted)):
                own = [changes[index] for index in indices]
                try:
                    refused = await self._apply(own, epochs, levels)
                except (StoreUnavailable, Fenced) as away:
                    is_for_all = isinstance(away, Fenced) or levels == usual or not all(map(is_asked, own))
                    if number == 0 and is_for_all:
                        raise
                    # Users wait for all of these changes, so they are refused. Other changes need not wait.
                    refused = dict.fromkeys(range(len(own)), Refusal(None, str(away)))
                refusals.update((indices[index], refusal) for index, refusal in refused.items())
            await self._tidy()
            return refusals

    def _wanted(self, tenant: str) -> tuple[str, ...]:
        """The levels at which to write changes of a tenant's users."""
        wanted = self._level(tenant)
        return levels_for(wanted, self._link.floor, self._datacenters) if wanted else (self._link.floor,)

    async def _apply(
        self, changes: Sequence[Change], epochs: Mapping[int, int], levels: tuple[str, ...]
    ) -> Mapping[int, Refusal]:
        claimed = {p: epochs.get(p, -1) for p in sorted(partitions_of(changes))}
        for _ in range(_TRIES):
            try:
                await self._journal.catch_up()
                if await self._fence.check(claimed):
                    self._buckets.forget(claimed)
                return await self._make(changes, levels)
            except Revoked:
                self._forget_rows()
            except WriterEnded:
                self._begin_again()
            except BaseException:
                self._forget_rows()
                raise
        raise StoreUnavailable(_BUSY)

    def _forget_rows(self) -> None:
        """Forget buckets and shelves, because they include the rows of an operation that perhaps did not count."""
        self._buckets.forget()
        self._shelves.clear()

    def _begin_again(self) -> None:
        """Go on as a new writer. No operation may be open."""
        self._journal.begin_again(self._new_writer())
        self._fence.forget()
        self._forget_rows()
        self._tallies.clear()

    async def _make(self, changes: Sequence[Change], levels: tuple[str, ...]) -> Mapping[int, Refusal]:
        given = given_names(changes)
        out = {
            **dict.fromkeys(_too_large(changes), Refusal(None, _TOO_LARGE, is_for_good=True)),
            **dict.fromkeys(_adds_of(changes, await self._claim_ids(given)), Refusal(None, _TAKEN)),
        }
        if out:
            return await self._make_without(changes, levels, out)
        known = await known_ids(self._reader, given)
        writes = TableWrites(known, await stored_events(self._reader, guarded_events(changes)))
        path = WritePath(changes, writes)
        await path.run()
        await self._buckets.know(places_of(writes))
        tallies = tallied(writes, self._tallies)
        if len(self._shelves) > _SHELVES_KNOWN_MAX:
            self._shelves.clear()
        rows = [
            *event_changes(writes, self._buckets),
            *name_changes(writes),
            *record_changes(writes, self._clock.now(), self._shelves),
            *await self._empty_lines(writes),
            *(("C", self._journal.writer, tenant, msgspec.msgpack.encode(tally)) for tenant, tally in tallies.items()),
        ]
        if rows:
            await self._journal.run(rows, levels, partial(self._tallies.update, tallies))
        return path.refusals

    async def _claim_ids(self, given: Mapping[EventName, int]) -> set[EventName]:
        """Keep other nodes from taking the same ids for other partitions now; returns the ids that others are taking.
        Not needed by a node that owns all partitions."""
        if not given or len(self._fence.held) == self.partitions:
            return set()
        taken = await taken_ids(self._link, given, _CLAIM_S)
        known = await self._reader.entries(taken)
        return {name for name in taken if name not in known}

    async def _make_without(
        self, changes: Sequence[Change], levels: tuple[str, ...], out: Mapping[int, Refusal]
    ) -> Mapping[int, Refusal]:
        """Make the changes except those that cannot be stored."""
        kept = [index for index in range(len(changes)) if index not in out]
        refused = await self._make([changes[index] for index in kept], levels) if kept else {}
        return {**out, **{kept[index]: refusal for index, refusal in refused.items()}}

    async def _empty_lines(self, writes: TableWrites) -> list[RowChange]:
        """The row changes that remove keys without waiting events from the table of lines."""
        changes: list[RowChange] = []
        for (partition, tenant, key), head in writes.heads.items():
            line = (partition, tenant, key)
            if head is not None or any(place[:3] == line for place in writes.waiting.rows):
                continue
            gone = {place[3:] for place in writes.waiting.gone if place[:3] == line}
            rows = await self._reader.line_rows(partition, tenant, key, -1, len(gone) + 1)
            if all(row[:2] in gone for row in rows):
                changes.append(("l", *line))
        return changes

    async def _tidy(self) -> None:
        """Fold counts and delete finished buckets, if it is time."""
        now = self._clock.now()
        if now >= self._fold_at and FOLDER in self._fence.held:
            self._fold_at = now + FOLD_MS
            await self._fold(now)
        if now < self._retire_at or not self._buckets.idle:
            return
        self._retire_at = now + RETIRE_MS
        try:
            await self._journal.catch_up()  # Else rows could be written after their bucket is deleted.
            gone, rows = await retire(self._link, self._buckets, self._fence.held, bucket_of(now - MINUTE_MS))
            if rows:
                await self._journal.run(rows, (self._link.floor,), lambda: None)
            for place in gone:
                self._buckets.drop(place)
        except (StoreError, Revoked, WriterEnded):
            self._buckets.forget()  # The next call tries again.

    async def _fold(self, now: int) -> None:
        """Add the counts of processes that are gone to those of this one."""
        try:
            rows, tallies = await fold(self._link, self._journal, self._tallies, now)
            if rows:
                await self._journal.run(rows, (self._link.floor,), partial(self._tallies.update, tallies))
        except (StoreError, Revoked, WriterEnded):
            self._buckets.forget()  # The next call tries again.

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        place = partition, after, until_at, limit, without
        return await self._caught_up(lambda: read_page(self._reader, self._buckets, *place))

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        return await self._caught_up(lambda: self._reader.line(partition, tenant, key, after, limit))

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        return await self._caught_up(lambda: self._reader.heads(partition, keys))

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        return await self._caught_up(lambda: self._reader.blocked(partition, after, limit))

    async def _caught_up(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work when the rows of all earlier operations are written."""
        async with self._lock:
            await self._journal.catch_up()
            return await work()

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        return await read_one(CassandraReader(self._link, self._level(tenant)), tenant, event_id)

    async def get_many(self, tenant: str, event_ids: Sequence[str]) -> list[Event | Record | None]:
        found = await read_many(CassandraReader(self._link, self._level(tenant)), tenant, event_ids)
        return [found.get(event_id) for event_id in event_ids]

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        return await CassandraSearch(self._link, self.partitions, filter, self._level(filter.tenant)).run(cursor, limit)

    async def counts(self) -> Mapping[str, Counts]:
        sums: dict[str, StatusCounts] = {}
        for tenant, tally in await self._link.ask(_COUNTS, self._link.address.store):
            sums[tenant] = added(sums.get(tenant), msgspec.msgpack.decode(tally))
        return {tenant: Counts(*numbers) for tenant, numbers in sums.items()}

    async def bury(self, poison: Poison) -> None:
        await self._caught_up(lambda: bury(self._link, self._journal, self._reader, self._buckets, poison))

    async def sweep(self, now: int, limit: int) -> int:
        self._shelves.clear()
        return await Sweep(self._link, self._journal, limit).run(now // HOUR_MS)

    async def backup(self, path: str) -> None:
        keyspace = self._link.address.keyspace
        raise StoreUnusable(f"Cassandra has its own tools for backups: use nodetool snapshot {keyspace}")

    async def close(self) -> None:
        async with self._lock:
            await self._journal.close()
            await self._link.close()


def _too_large(changes: Sequence[Change]) -> list[int]:
    """The changes with rows that the servers refuse, now and after any retry."""
    return [
        index
        for index, change in enumerate(changes)
        if (type(change) is Add and not change.follows and len(change.event.payload) > _EVENT_BYTES_MAX)
        or (type(change) is Move and change.guarded and len(change.after.payload) > _EVENT_BYTES_MAX)
    ]


def _adds_of(changes: Sequence[Change], names: Collection[EventName]) -> list[int]:
    return [
        index
        for index, change in enumerate(changes)
        if names and type(change) is Add and (change.event.tenant, change.event.id) in names
    ]
