"""Other writes to a Cassandra store than changes: claim the store, set undecodable rows aside, and forget records. All
of them may be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from everbell.core.ids import is_made
from everbell.errors import StoreUnavailable
from everbell.stores.cassandra.buckets import Buckets, bucket_of
from everbell.stores.cassandra.fence import FENCE
from everbell.stores.cassandra.journal import Journal
from everbell.stores.cassandra.reads import HOURS, CassandraReader, read_entry
from everbell.stores.cassandra.rows import RowChange, make
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.port import Poison

_CLAIMS_AT_ONCE = 32

_OWNER = "SELECT cluster, claimed_epoch FROM stores WHERE store = ?"
_CLAIM = "UPDATE stores SET cluster = ?, claimed_epoch = ? WHERE store = ? IF cluster = null"

_CLAIM_ID = (
    "UPDATE claims USING TTL ? SET partition = ? WHERE store = ? AND tenant = ? AND id = ? IF partition IN (null, ?)"
)

_SHELVES = "SELECT tenant, part FROM shelves WHERE store = ? AND hour = ?"
_NAMES = "SELECT id, occurrence FROM records WHERE store = ? AND hour = ? AND tenant = ? AND part = ? LIMIT ?"
_ENTRY = "SELECT entry, writetime(entry) FROM ids WHERE store = ? AND tenant = ? AND id = ?"
_DROP_RECORDS = "DELETE FROM records WHERE store = ? AND hour = ? AND tenant = ? AND part = ?"
_DROP_RECORD = f"{_DROP_RECORDS} AND id = ? AND occurrence = ?"
_DROP_SHELF = "DELETE FROM shelves WHERE store = ? AND hour = ? AND tenant = ? AND part = ?"
_DROP_HOUR = "DELETE FROM hours WHERE store = ? AND hour = ?"
_DROP_ENTRY = "DELETE FROM ids WHERE store = ? AND tenant = ? AND id = ?"


async def claim(link: CassandraSession, cluster: str) -> tuple[str, int]:
    """Give the store to a cluster, unless it has one. Returns the owner, and the highest epoch before its claim."""
    store = link.address.store
    while True:
        [(owner, epoch)] = await link.see(_OWNER, store)
        if owner is not None:
            return owner, epoch
        highest = max((row[1] or 0 for row in await link.see(FENCE, store)), default=0)
        await link.decide([(_CLAIM, (cluster, highest, store))])


async def bury(
    link: CassandraSession, journal: Journal, reader: CassandraReader, buckets: Buckets, poison: Poison
) -> None:
    partition, at, sequence = poison.partition, poison.run_at, poison.sequence
    changes: list[RowChange] = []
    space, tenant, key = "E", "", ""
    if poison.place:
        space = "W"
        tenant, key = msgspec.msgpack.decode(poison.place, type=tuple[str, str])
        body = await reader.body(("W", (partition, tenant, key, at, sequence)))
        changes.append(("w", partition, tenant, key, at, sequence))
    else:
        body = await reader.body(("E", (partition, at, sequence)))
        await buckets.know({(partition, bucket_of(at))})
        buckets.take(partition, at, sequence, changes)
    if body is None:
        return
    # In this order, a crash in between leaves the row twice instead of losing it.
    await make(link, [("G", partition, space, at, sequence, tenant, key, body)], journal.tick(), link.floor)
    await make(link, changes, journal.tick(), link.floor)


class Sweep:
    """Forgets the records of hours that are over, the oldest hour first."""

    def __init__(self, link: CassandraSession, journal: Journal, limit: int) -> None:
        self._link = link
        self._journal = journal
        self._left = limit
        self._store = link.address.store

    async def run(self, hour: int) -> int:
        """Forget records of the hours before `hour`; returns how many."""
        limit = self._left
        hours = sorted(row[0] for row in await self._link.ask(HOURS, self._store))
        for over in hours:
            if over >= hour or self._left <= 0:
                break
            await self._forget(over)
        return limit - self._left

    async def _forget(self, hour: int) -> None:
        for tenant, part in await self._link.ask(_SHELVES, self._store, hour):
            if self._left <= 0:
                return
            await self._forget_part((self._store, hour, tenant, part))
        if not await self._link.ask(_SHELVES, self._store, hour):
            await self._write(_DROP_HOUR, self._store, hour)

    async def _forget_part(self, place: tuple[Any, ...]) -> None:
        names = await self._link.ask(_NAMES, *place, self._left + 1)
        is_all = len(names) <= self._left
        names = names[: self._left]
        _, hour, tenant, _ = place
        for event_id, occurrence in names:
            if not is_made(event_id) and occurrence == 0:
                await self._forget_entry(tenant, event_id, hour)
        if is_all:  # One deletion for all records, instead of one for each.
            await self._write(_DROP_RECORDS, *place)
            await self._write(_DROP_SHELF, *place)
        else:
            for name in names:
                await self._write(_DROP_RECORD, *place, *name)
        self._left -= len(names)

    async def _forget_entry(self, tenant: str, event_id: str, hour: int) -> None:
        """Remove the index entry of a record, unless the entry points elsewhere."""
        rows = await self._link.ask(_ENTRY, self._store, tenant, event_id)
        if not rows:
            return
        entry, written_us = rows[0]
        space, _, at, _, _ = read_entry(entry)
        if space == "H" and at == hour:
            # With the timestamp of the entry that was read, so that a newer entry stays.
            await self._link.write([(_DROP_ENTRY, (self._store, tenant, event_id))], written_us, self._link.floor)

    async def _write(self, text: str, *values: Any) -> None:
        await self._link.write([(text, values)], self._journal.tick(), self._link.floor)


async def taken_ids(link: CassandraSession, names: Mapping[tuple[str, str], int], seconds: int) -> set[tuple[str, str]]:
    """Claim client-given ids for their partitions, for some seconds; returns the ids that other nodes have claimed."""
    permits = asyncio.Semaphore(_CLAIMS_AT_ONCE)

    async def is_ours(name: tuple[str, str], partition: int) -> bool:
        async with permits:
            try:
                return (await link.decide([(_CLAIM_ID, (seconds, partition, link.address.store, *name, partition))]))[0]
            except StoreUnavailable:
                return False  # It may be claimed. A retry can claim it again.

    ours = await asyncio.gather(*(is_ours(name, partition) for name, partition in names.items()))
    return {name for name, claimed in zip(names, ours, strict=True) if not claimed}
