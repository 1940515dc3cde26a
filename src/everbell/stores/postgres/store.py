"""The store in PostgreSQL, for several nodes that share one database.

An apply is one transaction: it checks and locks the epochs, deletes and inserts rows in bulk, and stores the number of
the operation. A small apply is one call of a function in the database, with arrays: one round trip, so a process that
stops in the middle holds no lock. A large apply first copies its rows, because COPY takes half as long as INSERT.

If a connection is lost and the outcome is unknown, the next connection finds it out (`operation`).

An apply that concerns only tenants with relaxed durability does not wait for the disk (`synchronous_commit = off`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from everbell.core.event import Event, Record
from everbell.core.time import HOUR_MS
from everbell.entropy import Entropy, SystemEntropy
from everbell.errors import StoreUnavailable, StoreUnusable
from everbell.stores.fence_checks import check_claim, partitions_of, raise_if_fenced
from everbell.stores.port import Change, Counts, Filter, Found, Page, Poison, Refusal
from everbell.stores.postgres.address import read_address
from everbell.stores.postgres.connection import Connection, PostgresLink, PostgresLinks
from everbell.stores.postgres.find import PostgresSearch
from everbell.stores.postgres.operation import NumberedOperations
from everbell.stores.postgres.reads import PostgresReader
from everbell.stores.postgres.schema import OPEN_S, prepare
from everbell.stores.postgres.upkeep import SWEEP, bury, claim
from everbell.stores.table_reads import known_ids, stored_events
from everbell.stores.table_writes import KnownIds, TablePlace, TableWrites
from everbell.stores.write_path import WritePath, given_names, guarded_events

T = TypeVar("T")

_READERS = 3
_SWEPT_AT_ONCE = 2_000
_TRIES = 10
_COUNTS = """
    SELECT tenant, sum(pending), sum(dead), sum(delivered), sum(cancelled), sum(expired) FROM counts GROUP BY tenant
"""


class PostgresStore:
    """A `Store` that any number of processes can have open."""

    partitions: int
    epoch: int
    group_changes = 4_500
    row_maker = None

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
        """Open the store, or create it with `partitions` (None: 256). `relaxed` says whether a tenant accepts that a
        crash of the database loses its latest events.

        Raises `StoreUnusable`, and `StoreUnavailable` if the database does not answer within `patience_s`.
        """
        address = read_address(url)
        shape = prepare(address, partitions, created_at, patience_s)
        self.partitions, self.epoch = shape.partitions, shape.epoch
        self._relaxed = relaxed
        self._schema = address.schema
        entropy = entropy or SystemEntropy()
        self._link = PostgresLink(address, entropy)
        self._readers = PostgresLinks(address, entropy, _READERS)
        self._operations = NumberedOperations(self._link, address, int.from_bytes(entropy.nonce()[:7], "big"))
        self._prepared: WritePath[TableWrites] | None = None
        self._lock = asyncio.Lock()

    async def claim(self, cluster: str) -> int:
        owner, epoch = await self._readers.ask(lambda link: claim(link, cluster))
        check_claim(owner, cluster)
        return epoch

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        async with self._lock:
            block = await self._operations.take(epochs)
            self.epoch = max(self.epoch, *epochs.values(), 0)
            return block << 32

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        if not changes:
            return {}
        claimed = {partition: epochs.get(partition, -1) for partition in sorted(partitions_of(changes))}
        async with self._lock:
            path, self._prepared = self._prepared, None
            guarded: Mapping[TablePlace, Event] = {}
            if path is None or path.changes is not changes:
                # No other node can change these rows while the epochs are in force.
                guarded = await self._read_guarded(changes)
                path = await _worked_out(changes, {}, guarded)
            for _ in range(_TRIES):
                is_relaxed = self._relaxed is not None and all(map(self._relaxed, path.tenants))
                outcome = await self._operations.apply(path.layout, claimed, relaxed=is_relaxed)
                raise_if_fenced(outcome.fenced)
                if not outcome.is_taken:
                    return path.refusals
                known = await self._link.ask(lambda link: known_ids(PostgresReader(link), given_names(changes)))
                path = await _worked_out(changes, known, guarded)
        raise StoreUnavailable("other nodes keep taking the same ids at the same time: try again")

    @property
    def preparer(self) -> PostgresStore:
        # Making the rows takes as long as the server takes to write them.
        return self

    async def prepare(self, changes: Sequence[Change]) -> None:
        path = await _worked_out(changes, {}, {})
        self._prepared = None if path.is_guarded else path

    async def _read_guarded(self, changes: Sequence[Change]) -> Mapping[TablePlace, Event]:
        named = guarded_events(changes)
        return await self._link.ask(lambda link: stored_events(PostgresReader(link), named)) if named else {}

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        return await self._read(lambda reader: reader.page(partition, after, until_at, limit, without))

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        return await self._read(lambda reader: reader.line(partition, tenant, key, after, limit))

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        return await self._read(lambda reader: reader.heads(partition, keys))

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        return await self._read(lambda reader: reader.blocked(partition, after, limit))

    async def _read(self, work: Callable[[PostgresReader], Awaitable[T]]) -> T:
        """Read by the connection that writes, so that a partition has one reader or writer at a time."""
        async with self._lock:
            return await self._link.ask(lambda link: work(PostgresReader(link)))

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        return await self._readers.ask(lambda link: PostgresReader(link).one(tenant, event_id))

    async def get_many(self, tenant: str, event_ids: Sequence[str]) -> list[Event | Record | None]:
        return await self._readers.ask(lambda link: PostgresReader(link).many(tenant, event_ids))

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        return await self._readers.ask(lambda link: PostgresSearch(link, self.partitions, filter).run(cursor, limit))

    async def counts(self) -> Mapping[str, Counts]:
        rows = await self._readers.ask(lambda link: link.fetch(_COUNTS))
        return {tenant: Counts(*map(int, tally)) for tenant, *tally in rows}

    async def bury(self, poison: Poison) -> None:
        async with self._lock:
            await self._link.ask(lambda link: bury(link, poison))

    async def sweep(self, now: int, limit: int) -> int:
        gone = 0
        while gone < limit:
            page = min(limit - gone, _SWEPT_AT_ONCE)
            count = await self._readers.ask(partial(_forget, now // HOUR_MS, page))
            gone += count
            if count < page:
                break
        return gone

    async def backup(self, path: str) -> None:
        raise StoreUnusable(f"PostgreSQL has its own tools for backups: use pg_dump --schema={self._schema}")

    async def close(self) -> None:
        async with self._lock:
            await self._link.close()
            await self._readers.close()


async def _forget(hour: int, limit: int, connection: Connection) -> int:
    count: int = await connection.fetchval(SWEEP, hour, limit)
    return count


async def _worked_out(
    changes: Sequence[Change], known: KnownIds, guarded: Mapping[TablePlace, Event]
) -> WritePath[TableWrites]:
    path = WritePath(changes, TableWrites(known, guarded))
    await path.run()
    return path
