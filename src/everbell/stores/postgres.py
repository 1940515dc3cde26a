"""The store in PostgreSQL, for several nodes that share one database.

An apply is one transaction: the epochs are checked and held, rows go and come in bulk, and the number of the
operation is written down. A small one is a single call of a function in the database, which takes arrays: one round
trip, and nobody who stops in the middle of it can hold a lock. A large one copies its rows in first, for COPY takes
half as long as INSERT.

When a connection is lost and nobody knows whether the transaction was made, the next connection asks, and gives the
operation up for good if it was not: a server that is still about to make it will find that, and refuse.

Events of tenants who accept that are committed without waiting for the disk (`synchronous_commit = off`), as long as
nothing else is in the same apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from everbell.core.event import Event, Record
from everbell.core.ids import is_made
from everbell.core.time import HOUR_MS
from everbell.entropy import Entropy, SystemEntropy
from everbell.errors import StoreUnavailable, StoreUnusable
from everbell.stores.port import Add, Change, Counts, Filter, Finish, Found, Move, Page, Poison, Refusal
from everbell.stores.postgres_address import read_address
from everbell.stores.postgres_find import Search
from everbell.stores.postgres_link import Connection, Link, Links
from everbell.stores.postgres_operation import Operations
from everbell.stores.postgres_reads import look_up, read_blocked, read_heads, read_line, read_one, read_page, read_spots
from everbell.stores.postgres_schema import OPEN_S, prepare
from everbell.stores.postgres_upkeep import SWEEP, bury, claim
from everbell.stores.semantics import check_claim, partition_of_change, raise_if_fenced, tenant_of_change
from everbell.stores.table_batch import Batch, Looked, Name, Spot

_READERS = 3
_BUILT_AT_ONCE = 512
_SWEPT_AT_ONCE = 2_000
_TRIES = 10
_COUNTS = """
    SELECT tenant, sum(pending), sum(dead), sum(delivered), sum(cancelled), sum(expired) FROM counts GROUP BY tenant
"""


class PostgresStore:
    """See the port. Any number of processes can have it open."""

    partitions: int
    epoch: int
    group_changes = 4_500
    prepares = True
    takes_parcels = False

    def __init__(
        self,
        url: str,
        *,
        partitions: int | None = None,
        created_at: int = 0,
        relaxed: Callable[[str], bool] | None = None,
        entropy: Entropy | None = None,
        patience_s: float = OPEN_S,
    ) -> None:
        """Open the store, or make it: then `partitions` counts, None means 256. `relaxed` tells of a tenant whether it
        accepts that its latest events are lost when the database crashes.

        Raises `StoreUnusable`, and `StoreUnavailable` when there is no answer after `patience_s`.
        """
        address = read_address(url)
        shape = prepare(address, partitions, created_at, patience_s)
        self.partitions, self.epoch = shape.partitions, shape.epoch
        self._relaxed = relaxed
        self._schema = address.schema
        entropy = entropy or SystemEntropy()
        self._link = Link(address, entropy)
        self._readers = Links(address, entropy, _READERS)
        self._operations = Operations(self._link, address, int.from_bytes(entropy.nonce()[:7], "big"))
        self._prepared: Batch | None = None
        self._lock = asyncio.Lock()

    async def claim(self, cluster: str) -> int:
        """See the port."""
        owner, epoch = await self._readers.ask(lambda link: claim(link, cluster))
        check_claim(owner, cluster)
        return epoch

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        """See the port."""
        async with self._lock:
            block = await self._operations.take(epochs)
            self.epoch = max(self.epoch, *epochs.values(), 0)
            return block << 32

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        """See the port. Cancelling it leaves open whether the changes are made."""
        if not changes:
            return {}
        claimed = {partition: epochs.get(partition, -1) for partition in sorted(_partitions_of(changes))}
        async with self._lock:
            batch, self._prepared = self._prepared, None
            guarded: Mapping[Spot, Event] = {}
            looked: Looked = {}
            if batch is None or batch.changes is not changes:
                # Nobody else can change what is read here as long as the epochs are in force.
                guarded = await self._read_guarded(changes)
                batch = await _build(changes, looked, guarded)
            for _ in range(_TRIES):
                outcome = await self._operations.apply(batch, claimed, relaxed=self._is_relaxed(changes))
                raise_if_fenced(outcome.fenced)
                if not outcome.is_taken:
                    return batch.refusals
                looked = await self._link.ask(partial(look_up, names=_given_names(changes)))
                batch = await _build(changes, looked, guarded)
        raise StoreUnavailable("others keep taking the same ids at the same time: try again")

    async def prepare(self, changes: Sequence[Change]) -> None:
        """See the port."""
        batch = await _build(changes, {}, {})
        self._prepared = None if batch.is_guarded else batch

    async def _read_guarded(self, changes: Sequence[Change]) -> Mapping[Spot, Event]:
        named = [change.before for change in changes if isinstance(change, (Move, Finish)) and change.guarded]
        return await self._link.ask(partial(read_spots, events=named)) if named else {}

    def _is_relaxed(self, changes: Sequence[Change]) -> bool:
        return self._relaxed is not None and all(map(self._relaxed, set(map(tenant_of_change, changes))))

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        """See the port."""
        async with self._lock:
            return await self._link.ask(lambda link: read_page(link, partition, after, until_at, limit, without))

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        """See the port."""
        async with self._lock:
            return await self._link.ask(lambda link: read_line(link, partition, tenant, key, after, limit))

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        """See the port."""
        async with self._lock:
            return await self._link.ask(lambda link: read_heads(link, partition, keys))

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        """See the port."""
        async with self._lock:
            return await self._link.ask(lambda link: read_blocked(link, partition, after, limit))

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        """See the port."""
        return await self._readers.ask(lambda link: read_one(link, tenant, event_id))

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        """See the port."""
        return await self._readers.ask(lambda link: Search(link, self.partitions, filter).run(cursor, limit))

    async def counts(self) -> Mapping[str, Counts]:
        """See the port."""
        rows = await self._readers.ask(lambda link: link.fetch(_COUNTS))
        return {tenant: Counts(*map(int, tally)) for tenant, *tally in rows}

    async def bury(self, poison: Poison) -> None:
        """See the port."""
        async with self._lock:
            await self._link.ask(lambda link: bury(link, poison))

    async def sweep(self, now: int, limit: int) -> int:
        """See the port."""
        gone = 0
        while gone < limit:
            page = min(limit - gone, _SWEPT_AT_ONCE)
            count = await self._readers.ask(partial(_forget, now // HOUR_MS, page))
            gone += count
            if count < page:
                break
        return gone

    async def backup(self, path: str) -> None:
        """PostgreSQL has its own tools for that."""
        raise StoreUnusable(f"a store in PostgreSQL is backed up by its own tools: pg_dump --schema={self._schema}")

    async def close(self) -> None:
        """See the port."""
        async with self._lock:
            await self._link.close()
            await self._readers.close()


async def _forget(hour: int, limit: int, connection: Connection) -> int:
    count: int = await connection.fetchval(SWEEP, hour, limit)
    return count


async def _build(changes: Sequence[Change], looked: Looked, guarded: Mapping[Spot, Event]) -> Batch:
    batch = Batch(changes, looked, guarded)
    for start in range(0, len(changes), _BUILT_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        batch.fill(start, min(start + _BUILT_AT_ONCE, len(changes)))
    return batch


def _partitions_of(changes: Sequence[Change]) -> set[int]:
    # As in `Batch`: it runs for every event that comes or ends, and spares those a call.
    return {
        change.event.partition
        if type(change) is Add
        else change.before.partition
        if type(change) is Finish
        else partition_of_change(change)
        for change in changes
    }


def _given_names(changes: Sequence[Change]) -> set[Name]:
    events = (change.event for change in changes if type(change) is Add)
    return {(event.tenant, event.id) for event in events if not is_made(event.id)}
