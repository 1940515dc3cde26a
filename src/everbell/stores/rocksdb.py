"""The embedded store: RocksDB in a directory of its own.

An apply is one write batch, which RocksDB makes visible and durable as a whole, and then one fsync of the log; where
all of it belongs to tenants that accept that, the fsync follows within a tenth of a second. The
write is done on the loop, for the binding holds the interpreter's lock anyway; the fsync is done in a thread, for
there it lets go. Reads are done on the loop: a few microseconds each, and pages are bounded.

In memory, beside RocksDB's own caches: each tenant's counts, the last sequence, the epochs, the hours that have
records, and where each partition begins.

When the disk is full, RocksDB refuses every write from then on, even when there is room again. The store goes on
reading, and opens the database again before a later apply, as soon as there is room for what recovery writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree

from rocksdict import Checkpoint, Rdict, WriteBatch

from everbell.core.event import Event, Record, position
from everbell.core.time import HOUR_MS
from everbell.errors import StoreBroken, StoreCorrupt, StoreError, StoreFull, StoreUnusable
from everbell.stores import rocksdb_keys as keys
from everbell.stores.parcel import Parcel
from everbell.stores.port import Add, Change, Counts, Filter, Found, Page, Poison, Refusal, Write
from everbell.stores.rocksdb_access import open_database, reading, scan, store_error
from everbell.stores.rocksdb_batch import Batch
from everbell.stores.rocksdb_directory import Marker, claim, copy_log, free_bytes, log_bytes, mark, settle, sync_above
from everbell.stores.rocksdb_find import Search
from everbell.stores.rocksdb_fronts import Fronts
from everbell.stores.rocksdb_reads import read_blocked, read_heads, read_line, read_one, read_page
from everbell.stores.rocksdb_rows import (
    NUMBER_BYTES,
    counts_of,
    number_row,
    numbers_row,
    read_number,
    read_numbers,
    read_tally,
)
from everbell.stores.rocksdb_sweep import PAGE, forget, hours_in
from everbell.stores.rocksdb_sync import Syncer
from everbell.stores.rows import Tally
from everbell.stores.semantics import check_claim, check_fence, check_raise

RESERVE_BYTES = 64 << 20
"""Room that new events may not take, so that those that are stored can still go out."""
_BUILT_AT_ONCE = 512
_RELAXED_S = 0.1
"""How long what relaxed tenants stored may be without an fsync."""


class RocksdbStore:
    """See the port. One process at a time can have it open."""

    partitions: int
    epoch: int
    group_changes = 1_000
    prepares = False
    takes_parcels = True

    def __init__(
        self,
        path: str,
        *,
        partitions: int = 256,
        created_at: int = 0,
        reserve_bytes: int = RESERVE_BYTES,
        relaxed: Callable[[str], bool] | None = None,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """Open the store, or make it: then `partitions` counts. `relaxed` tells of a tenant whether it accepts that its
        latest events are lost when the machine fails. Raises `StoreUnusable`, `StoreCorrupt`, `StoreFull`."""
        self._directory = Path(path).expanduser()
        self._reserve_bytes = reserve_bytes
        self._free = free
        self._marker, is_new = claim(self._directory, partitions, created_at)
        self.partitions = self._marker.partitions
        self._db = open_database(self._directory, create=is_new)
        with reading:
            if is_new:
                self._begin()
            self._recall()
        self._lock = asyncio.Lock()
        self._syncer = Syncer()
        self._relaxed = relaxed
        self._late_sync: asyncio.Task[None] | None = None
        self._broken: str | None = None
        self._stuck = False
        self._searches = 0
        self._closed = False

    def _begin(self) -> None:
        """Write what a store knows about itself, once."""
        self._db.put(keys.SHAPE_KEY, _shape(self._marker))
        self._db.put(keys.EPOCHS_KEY, numbers_row([0] * self.partitions))
        self._db.flush_wal(True)
        settle(self._directory)

    def _recall(self) -> None:
        """Read what is kept in memory."""
        if self._db.get(keys.SHAPE_KEY) != _shape(self._marker):
            raise StoreCorrupt(f"{self._directory} is not what its marker says: restore the store from a backup")
        self._epochs = dict(enumerate(read_numbers(self._db.get(keys.EPOCHS_KEY) or b"")))
        self.epoch = max(self._epochs.values())
        sequence = self._db.get(keys.SEQUENCE_KEY)
        self._last_sequence = 0 if sequence is None else read_number(sequence)
        first = keys.counts_key("")
        rows = scan(self._db, first, keys.after_prefix(first))
        self._counts: dict[str, Tally] = {key[len(first) :].decode(): read_tally(row) for key, row in rows}
        self._hours = hours_in(self._db)
        self._fronts = Fronts(self._db, self.partitions)

    async def claim(self, cluster: str) -> int:
        """See the port."""
        async with self._lock:
            self._check_writable()
            row = self._db.get(keys.CLUSTER_KEY)
            if row is None:
                row = number_row(self.epoch) + cluster.encode()
                batch = WriteBatch(raw_mode=True)
                batch.put(keys.CLUSTER_KEY, row)
                self._write(batch)
                await self._sync()
            check_claim(row[NUMBER_BYTES:].decode(), cluster)
            return read_number(row[:NUMBER_BYTES])

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        """See the port."""
        async with self._lock:
            self._check_writable()
            check_raise(epochs, self._epochs)
            in_force = {**self._epochs, **epochs}
            batch = WriteBatch(raw_mode=True)
            batch.put(keys.EPOCHS_KEY, numbers_row(list(in_force.values())))
            self._write(batch)
            self._epochs = in_force
            self.epoch = max(in_force.values())
            await self._sync()
            return self._last_sequence

    async def apply(self, changes: Sequence[Write], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        """See the port. Cancelling it leaves open whether the changes are made."""
        async with self._lock:
            self._check_writable()
            check_fence(changes, epochs, self._epochs)
            self._check_room(changes)
            with reading:
                self._fronts.advance(self._db)
            batch = Batch(self._db, changes, self._counts, self._last_sequence, self._fronts)
            for start in range(0, len(changes), _BUILT_AT_ONCE):
                if start:
                    await asyncio.sleep(0)
                with reading:
                    batch.fill(start, min(start + _BUILT_AT_ONCE, len(changes)))
            if len(batch.refusals) < len(changes):
                self._write(batch.seal())
                self._counts.update(batch.counts)
                self._last_sequence = batch.last_sequence
                self._hours |= batch.hours
                self._fronts.stored(batch.ends, batch.rung_at)
                if self._relaxed is not None and all(map(self._relaxed, batch.tenants)):
                    self._sync_later()
                else:
                    await self._sync()
            return batch.refusals

    async def prepare(self, changes: Sequence[Change]) -> None:
        """See the port."""

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        """See the port."""
        front = position(self._fronts.at[partition], 0) - 1
        with reading:
            return read_page(self._db, partition, max(after, front), until_at, limit, without)

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        """See the port."""
        with reading:
            return read_line(self._db, partition, tenant, key, after, limit)

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        """See the port."""
        with reading:
            return read_heads(self._db, partition, keys)

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        """See the port."""
        with reading:
            return read_blocked(self._db, partition, after, limit)

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        """See the port."""
        with reading:
            return read_one(self._db, tenant, event_id, self._hours)

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        """See the port."""
        self._searches += 1
        try:
            return await Search(self._db, self.partitions, self._hours, filter).run(cursor, limit)
        finally:
            self._searches -= 1

    async def counts(self) -> Mapping[str, Counts]:
        """See the port."""
        return {tenant: counts_of(tally) for tenant, tally in self._counts.items()}

    async def bury(self, poison: Poison) -> None:
        """See the port."""
        place = poison.place or keys.place_key(b"E", poison.partition, poison.run_at, poison.sequence)
        async with self._lock:
            self._check_writable()
            with reading:
                row = self._db.get(place)
            if row is not None:
                batch = WriteBatch(raw_mode=True)
                batch.put(keys.grave_key(place), row)
                batch.delete(place)
                self._write(batch)
                await self._sync()

    async def sweep(self, now: int, limit: int) -> int:
        """See the port. Not synced: what a crash brings back is swept again."""
        gone = 0
        for hour in sorted(self._hours):
            if (hour + 1) * HOUR_MS > now:
                break
            while gone < limit and hour in self._hours:
                async with self._lock:
                    self._check_writable()
                    gone += self._forget(hour, min(PAGE, limit - gone))
        return gone

    def _forget(self, hour: int, limit: int) -> int:
        with reading:
            batch, count = forget(self._db, hour, limit)
        if count:
            self._write(batch)
        if count < limit:
            self._hours.discard(hour)
        return count

    async def backup(self, path: str) -> None:
        """See the port. The directory must not exist; it appears when the copy is complete."""
        await asyncio.to_thread(_copy, self._db, self._marker, self._directory, path)

    async def close(self) -> None:
        """See the port."""
        async with self._lock:
            if not self._closed:
                self._closed = True
                if self._late_sync is not None:
                    self._late_sync.cancel()
                    with suppress(StoreBroken):
                        await self._sync()
                # What it could complain about is known already, or is about room for what the log has anyway.
                with suppress(Exception):
                    await asyncio.get_running_loop().run_in_executor(self._syncer.thread, self._db.close)
                self._syncer.thread.shutdown()

    def _check_writable(self) -> None:
        if self._broken is not None:
            raise StoreBroken(self._broken)
        if self._stuck:
            self._reopen()

    def _check_room(self, changes: Sequence[Write]) -> None:
        free = self._free(self._directory)
        if free < self._reserve_bytes and any(map(_is_asked_for, changes)):
            raise StoreFull(
                f"the disk of the store has {free >> 20} MiB left, and the last {self._reserve_bytes >> 20} MiB are "
                "kept for events that are stored already: make room"
            )

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:
            failure = store_error(error, "writing")
            if isinstance(failure, StoreFull):
                self._stuck = True
            elif isinstance(failure, StoreBroken):
                self._broken = str(failure)
            raise failure from error

    def _sync_later(self) -> None:
        """The kernel has what was written, so it outlives the process; it is on disk within a tenth of a second."""
        if self._late_sync is None:
            self._late_sync = asyncio.get_running_loop().create_task(self._sync_soon())

    async def _sync_soon(self) -> None:
        await asyncio.sleep(_RELAXED_S)
        async with self._lock:
            self._late_sync = None
            if not self._closed and self._broken is None:
                with suppress(StoreBroken):  # The next who writes is told.
                    await self._sync()

    async def _sync(self) -> None:
        try:
            await self._syncer.sync(partial(self._db.flush_wal, True))
        except Exception as error:
            # The kernel may have dropped what it could not write, and would not say so again: never a second try.
            self._broken = f"the log could not be synced ({error}): end the process and start again"
            raise StoreBroken(self._broken) from error

    def _reopen(self) -> None:
        """After a write that found no room. Rare, and nothing can be written before: it may keep the loop waiting."""
        room = self._free(self._directory)
        need = log_bytes(self._directory) * 9 // 8  # A failed attempt would end reading, too: better a little late.
        if room < need:
            raise StoreFull(
                f"the disk of the store is full, {need - room >> 20} MiB more are needed to go on: make room"
            )
        if self._searches:
            raise StoreFull("the disk of the store was full, and a search is under way: try again in a moment")
        with suppress(Exception):  # It reports once more what brought us here.
            self._db.close()
        self._db = open_database(self._directory, create=False)
        self._stuck = False


def _is_asked_for(change: Write) -> bool:
    """Whether it adds what users ask for, and what did not follow from what is stored already."""
    return type(change) is Parcel or (type(change) is Add and not change.follows)


def _shape(marker: Marker) -> bytes:
    return numbers_row([marker.format, marker.partitions])


def _copy(db: Rdict, marker: Marker, directory: Path, path: str) -> None:
    target = Path(path).expanduser()
    part = target.with_name(target.name + ".part")
    for place in (target, part):
        if place.exists():
            raise StoreUnusable(f"{place} exists already: remove it, or name another directory for the backup")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        db.flush()  # Lets go of the interpreter, unlike the checkpoint, which would otherwise do this itself.
        Checkpoint(db).create_checkpoint(str(part))
        copy_log(directory, part)  # After the store: the log has to know all epochs that the store knows.
        mark(part, marker)
        part.rename(target)
        sync_above(target)
    except Exception as error:
        rmtree(part, ignore_errors=True)
        raise StoreError(f"the backup to {target} failed, and was removed: {error}") from error
