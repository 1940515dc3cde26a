"""The store in Cassandra, for many nodes in several datacentres.

Cassandra has no transactions over rows, so an apply is an operation in a journal (`cassandra_journal`): written down,
made to count by one lightweight transaction that is the fence as well, and then carried out; whoever takes partitions
over repeats the last one. Events lie in buckets of time and bounded shards (`cassandra_buckets`), and a mark for each
partition says where unfinished work begins.

A tenant's level says how many replicas have what its users ask for before that is acknowledged. What can be met is done
and what cannot is refused, so changes of different levels are operations of their own. What has happened already, as
the outcome of an attempt, is written by a majority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from everbell.clock import Clock, SystemClock
from everbell.core.event import Event, Record
from everbell.core.ids import is_made
from everbell.core.time import HOUR_MS, MINUTE_MS
from everbell.entropy import Entropy, SystemEntropy
from everbell.errors import Fenced, StoreError, StoreUnavailable, StoreUnusable
from everbell.stores.cassandra_address import read_address
from everbell.stores.cassandra_batch import event_changes, name_changes, places_of, record_changes, tallied
from everbell.stores.cassandra_buckets import Buckets, bucket_of
from everbell.stores.cassandra_fence import Fence
from everbell.stores.cassandra_find import Search
from everbell.stores.cassandra_fold import FOLD_MS, FOLDER, fold
from everbell.stores.cassandra_groups import groups_of, is_asked
from everbell.stores.cassandra_journal import Ended, Journal, Revoked
from everbell.stores.cassandra_levels import levels_for
from everbell.stores.cassandra_link import Link
from everbell.stores.cassandra_reads import Reader, read_page
from everbell.stores.cassandra_retire import retire
from everbell.stores.cassandra_rows import RowChange
from everbell.stores.cassandra_schema import OPEN_S, prepare
from everbell.stores.cassandra_upkeep import Sweep, bury, claim, taken_ids
from everbell.stores.port import Add, Change, Counts, Filter, Finish, Found, Move, Page, Poison, Refusal
from everbell.stores.rows import Tally, added
from everbell.stores.semantics import check_claim, partition_of_change
from everbell.stores.table_batch import Batch, Name

RETIRE_MS = 10_000
"""How often to look for buckets that are finished."""
_TRIES = 10
_CLAIM_S = 60
_SHELVES_KNOWN_MAX = 100_000
_COUNTS = "SELECT tenant, tally FROM counts WHERE store = ?"
_TAKEN = "somebody else is just taking the same id: try again"
_BUSY = "others keep taking the same partitions at the same time: try again"
_EVENT_BYTES_MAX = 4 << 20
"""A quarter of the largest row that a server takes by default."""
_TOO_LARGE = f"Cassandra keeps no event with a payload of more than {_EVENT_BYTES_MAX >> 20} MiB: send a smaller one"


class CassandraStore:
    """See the port. Any number of processes can have it open."""

    partitions: int
    epoch: int
    group_changes = 3_000
    prepares = False
    takes_parcels = False

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
        """Open the store, or make it: then `partitions` counts, None means 256. `level` tells of a tenant which level
        of consistency it wants, None for the usual one.

        Raises `StoreUnusable`, and `StoreUnavailable` when there is no answer after `patience_s`.
        """
        address = read_address(url)
        self._entropy = entropy or SystemEntropy()
        shape = prepare(address, partitions, created_at, self._entropy, patience_s)
        self.partitions, self.epoch = shape.partitions, shape.epoch
        self._datacenters = shape.datacenters
        self._level = level or (lambda tenant: None)
        self._clock = clock or SystemClock()
        self._link = Link(address)
        self._journal = Journal(self._link, self._clock, self._new_writer())
        self._fence = Fence(self._link, self._journal)
        self._buckets = Buckets(self._link, address.shard_events)
        self._reader = Reader(self._link, empty=self._buckets.idle)
        self._tallies: dict[str, Tally] = {}
        self._shelves: set[tuple[int, str, int]] = set()
        self._retire_at = self._fold_at = 0
        self._lock = asyncio.Lock()

    def _new_writer(self) -> int:
        return int.from_bytes(self._entropy.nonce()[:7], "big")

    async def claim(self, cluster: str) -> int:
        """See the port."""
        owner, epoch = await claim(self._link, cluster)
        check_claim(owner, cluster)
        return epoch

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        """See the port."""
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
            except Ended:
                self._begin_again()
        raise StoreUnavailable(_BUSY)

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        """See the port. Cancelling it leaves open whether the changes are made."""
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
                    # All of this is for users, who can be told; it is no reason for others to wait.
                    refused = dict.fromkeys(range(len(own)), Refusal(None, str(away)))
                refusals.update((indices[index], refusal) for index, refusal in refused.items())
            await self._tidy()
            return refusals

    def _wanted(self, tenant: str) -> tuple[str, ...]:
        """The levels at which to write what users of a tenant ask for."""
        wanted = self._level(tenant)
        return levels_for(wanted, self._link.floor, self._datacenters) if wanted else (self._link.floor,)

    async def _apply(
        self, changes: Sequence[Change], epochs: Mapping[int, int], levels: tuple[str, ...]
    ) -> Mapping[int, Refusal]:
        claimed = {p: epochs.get(p, -1) for p in sorted(set(map(partition_of_change, changes)))}
        for _ in range(_TRIES):
            try:
                await self._journal.catch_up()
                if await self._fence.check(claimed):
                    self._buckets.forget(claimed)
                return await self._make(changes, levels)
            except Revoked:
                self._forget_worked_out()
            except Ended:
                self._begin_again()
            except BaseException:
                self._forget_worked_out()
                raise
        raise StoreUnavailable(_BUSY)

    def _forget_worked_out(self) -> None:
        """An operation did not count: what was taken for stored while its rows were worked out is not so."""
        self._buckets.forget()
        self._shelves.clear()

    def _begin_again(self) -> None:
        """This process goes on as another one. Nothing of the old one is open."""
        self._journal.begin_again(self._new_writer())
        self._fence.forget()
        self._forget_worked_out()
        self._tallies.clear()

    async def _make(self, changes: Sequence[Change], levels: tuple[str, ...]) -> Mapping[int, Refusal]:
        given = {
            (change.event.tenant, change.event.id): change.event.partition
            for change in changes
            if type(change) is Add and not is_made(change.event.id)
        }
        out = {
            **dict.fromkeys(_too_large(changes), Refusal(None, _TOO_LARGE, is_for_good=True)),
            **dict.fromkeys(_adds_of(changes, await self._claim_ids(given)), Refusal(None, _TAKEN)),
        }
        if out:
            return await self._make_without(changes, levels, out)
        looked = await self._reader.look_up(given) if given else {}
        named = [change.before for change in changes if isinstance(change, (Move, Finish)) and change.guarded]
        guarded = await self._reader.spots(named) if named else {}
        batch = Batch(changes, looked, guarded)
        batch.fill(0, len(changes))
        await self._buckets.know(places_of(batch))
        tallies = tallied(batch, self._tallies)
        if len(self._shelves) > _SHELVES_KNOWN_MAX:
            self._shelves.clear()
        rows = [
            *event_changes(batch, self._buckets),
            *name_changes(batch),
            *record_changes(batch, self._clock.now(), self._shelves),
            *await self._empty_lines(batch),
            *(("C", self._journal.writer, tenant, msgspec.msgpack.encode(tally)) for tenant, tally in tallies.items()),
        ]
        if rows:
            await self._journal.run(rows, levels, partial(self._tallies.update, tallies))
        return batch.refusals

    async def _claim_ids(self, given: Mapping[Name, int]) -> set[Name]:
        """Keep other nodes from taking the same ids for other partitions at this moment. Whoever has all partitions
        has nobody to keep away.
        """
        if not given or len(self._fence.held) == self.partitions:
            return set()
        taken = await taken_ids(self._link, given, _CLAIM_S)
        known = await self._reader.look_up(taken) if taken else {}
        return {name for name in taken if name not in known}

    async def _make_without(
        self, changes: Sequence[Change], levels: tuple[str, ...], out: Mapping[int, Refusal]
    ) -> Mapping[int, Refusal]:
        """Leave out what cannot be stored."""
        kept = [index for index in range(len(changes)) if index not in out]
        refused = await self._make([changes[index] for index in kept], levels) if kept else {}
        return {**out, **{kept[index]: refusal for index, refusal in refused.items()}}

    async def _empty_lines(self, batch: Batch) -> list[RowChange]:
        """Keys of which nothing waits any more leave the list of those that may have something."""
        changes: list[RowChange] = []
        for (partition, tenant, key), head in batch.heads.items():
            line = (partition, tenant, key)
            if head is not None or any(place[:3] == line for place in batch.waiting.rows):
                continue
            gone = {place[3:] for place in batch.waiting.gone if place[:3] == line}
            rows = await self._reader.line_rows(partition, tenant, key, -1, len(gone) + 1)
            if all(row[:2] in gone for row in rows):
                changes.append(("l", *line))
        return changes

    async def _tidy(self) -> None:
        """Now and then, put away what is over."""
        now = self._clock.now()
        if now >= self._fold_at and FOLDER in self._fence.held:
            self._fold_at = now + FOLD_MS
            await self._fold(now)
        if now < self._retire_at or not self._buckets.idle:
            return
        self._retire_at = now + RETIRE_MS
        try:
            await self._journal.catch_up()  # Or what is about to be written would be deleted right after.
            gone, rows = await retire(self._link, self._buckets, self._fence.held, bucket_of(now - MINUTE_MS))
            if rows:
                await self._journal.run(rows, (self._link.floor,), lambda: None)
            for place in gone:
                self._buckets.drop(place)
        except (StoreError, Revoked, Ended):
            self._buckets.forget()  # There is another time.

    async def _fold(self, now: int) -> None:
        """Put the counts of processes that are gone to those of this one."""
        try:
            rows, tallies = await fold(self._link, self._journal, self._tallies, now)
            if rows:
                await self._journal.run(rows, (self._link.floor,), partial(self._tallies.update, tallies))
        except (StoreError, Revoked, Ended):
            self._buckets.forget()  # As above.

    async def prepare(self, changes: Sequence[Change]) -> None:
        """See the port."""

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        """See the port."""
        async with self._lock:
            await self._journal.catch_up()
            return await read_page(self._reader, self._buckets, partition, after, until_at, limit, without)

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        """See the port."""
        async with self._lock:
            await self._journal.catch_up()
            return await self._reader.line(partition, tenant, key, after, limit)

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        """See the port."""
        async with self._lock:
            await self._journal.catch_up()
            return await self._reader.heads(partition, keys)

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        """See the port."""
        async with self._lock:
            await self._journal.catch_up()
            return await self._reader.blocked(partition, after, limit)

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        """See the port."""
        return await Reader(self._link, self._level(tenant)).one(tenant, event_id)

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        """See the port."""
        return await Search(self._link, self.partitions, filter, self._level(filter.tenant)).run(cursor, limit)

    async def counts(self) -> Mapping[str, Counts]:
        """See the port."""
        sums: dict[str, Tally] = {}
        for tenant, tally in await self._link.ask(_COUNTS, self._link.address.store):
            sums[tenant] = added(sums.get(tenant), msgspec.msgpack.decode(tally))
        return {tenant: Counts(*numbers) for tenant, numbers in sums.items()}

    async def bury(self, poison: Poison) -> None:
        """See the port."""
        async with self._lock:
            await self._journal.catch_up()
            await bury(self._link, self._journal, self._reader, self._buckets, poison)

    async def sweep(self, now: int, limit: int) -> int:
        """See the port."""
        self._shelves.clear()
        return await Sweep(self._link, self._journal, limit).run(now // HOUR_MS)

    async def backup(self, path: str) -> None:
        """Cassandra has its own tools for that."""
        raise StoreUnusable(
            f"a store in Cassandra is backed up by its own tools: nodetool snapshot {self._link.address.keyspace}"
        )

    async def close(self) -> None:
        """See the port."""
        async with self._lock:
            await self._journal.close()
            await self._link.close()


def _too_large(changes: Sequence[Change]) -> list[int]:
    """Changes that nobody could make: the row is refused by the servers, now and whenever it is tried again."""
    return [
        index
        for index, change in enumerate(changes)
        if (type(change) is Add and not change.follows and len(change.event.payload) > _EVENT_BYTES_MAX)
        or (type(change) is Move and change.guarded and len(change.after.payload) > _EVENT_BYTES_MAX)
    ]


def _adds_of(changes: Sequence[Change], names: Collection[Name]) -> list[int]:
    """The new events with these ids."""
    return [
        index
        for index, change in enumerate(changes)
        if names and type(change) is Add and (change.event.tenant, change.event.id) in names
    ]
