"""The embedded store: RocksDB in a directory of its own.

An apply is one write batch, which RocksDB makes visible and durable as a whole, and then one fsync of the log. If an
apply concerns only tenants with relaxed durability, the fsync follows within a tenth of a second. Writes and reads run
on the loop: the binding holds the interpreter's lock anyway, and pages are limited. `sync` decides where an fsync runs.

The store keeps in memory, beside RocksDB's own caches: the counts of tenants, the last sequence, the epochs, the hours
that have records, and the fronts of the partitions.

After the disk was full, RocksDB refuses all writes, even when there is room again. The store can still read. It opens
the database again before an apply, as soon as there is room for the recovery.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree

from rocksdict import Checkpoint, Rdict, WriteBatch

from everbell.core.event import Event, Record, position
from everbell.core.time import HOUR_MS
from everbell.errors import StoreBroken, StoreCorrupt, StoreError, StoreFull, StoreUnusable
from everbell.stores.fence_checks import check_claim, check_fence, check_raise
from everbell.stores.port import Add, Change, Counts, Filter, Found, Page, Poison, PreparedRows, Refusal
from everbell.stores.rocksdb import keys
from everbell.stores.rocksdb.access import open_database, reading, scan, store_error
from everbell.stores.rocksdb.directory import (
    OWNER_ONLY,
    Marker,
    claim,
    copy_log,
    free_bytes,
    lock,
    log_bytes,
    mark,
    settle,
    sync_above,
)
from everbell.stores.rocksdb.find import RocksdbSearch
from everbell.stores.rocksdb.fronts import Fronts
from everbell.stores.rocksdb.reads import read_blocked, read_heads, read_line, read_many, read_one, read_page
from everbell.stores.rocksdb.row_maker import RocksdbRowMaker
from everbell.stores.rocksdb.rows import (
    NUMBER_BYTES,
    number_row,
    numbers_row,
    read_number,
    read_numbers,
    read_tally,
)
from everbell.stores.rocksdb.sweep import PAGE, forget, hours_in
from everbell.stores.rocksdb.sync import Syncer
from everbell.stores.rocksdb.writes import RocksdbWrites
from everbell.stores.rows import StatusCounts
from everbell.stores.write_path import WritePath

RESERVE_BYTES = 64 << 20  # Room that new events may not use, so that stored events can still be finished.
_ROWS_IN_MEMORY = "rocksdb.num-entries-active-mem-table"
_RELAXED_S = 0.1  # How long events of relaxed tenants may be without an fsync.


class RocksdbStore:
    """A `Store` that one process at a time can have open."""

    partitions: int
    epoch: int
    group_changes = 1_000
    row_maker = RocksdbRowMaker()
    preparer = None

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
        """Open the store, or create it with `partitions`. `relaxed` says whether a tenant accepts that a failure of the
        machine loses its latest events. Raises `StoreUnusable`, `StoreCorrupt`, `StoreFull`."""
        self._directory = Path(path).expanduser()
        self._reserve_bytes = reserve_bytes
        self._free = free
        self._marker, is_new = claim(self._directory, partitions, created_at)
        self.partitions = self._marker.partitions
        self._held = lock(self._directory)
        try:
            self._db = open_database(self._directory, create=is_new)
            self._start(is_new)
        except BaseException:
            os.close(self._held)
            raise
        self._synced = self._db.latest_sequence_number()
        self._rows_in_memory = 0
        self._lock = asyncio.Lock()
        self._syncer = Syncer()
        self._relaxed = relaxed
        self._late_sync: asyncio.Task[None] | None = None
        self._broken: str | None = None
        self._stuck = False
        self._searches = 0
        self._closed = False

    def _start(self, is_new: bool) -> None:
        try:
            with reading:
                if is_new:
                    self._begin()
                self._recall()
        except BaseException:
            self._db.close()
            raise

    def _begin(self) -> None:
        """Write the facts about a new store."""
        self._db.put(keys.SHAPE_KEY, _shape(self._marker))
        self._db.put(keys.EPOCHS_KEY, numbers_row([0] * self.partitions))
        self._db.flush_wal(True)
        settle(self._directory)

    def _recall(self) -> None:
        """Read the values that the store keeps in memory."""
        if self._db.get(keys.SHAPE_KEY) != _shape(self._marker):
            raise StoreCorrupt(f"{self._directory} does not match its marker: restore the store from a backup")
        self._epochs = dict(enumerate(read_numbers(self._db.get(keys.EPOCHS_KEY) or b"")))
        self.epoch = max(self._epochs.values())
        sequence = self._db.get(keys.SEQUENCE_KEY)
        self._last_sequence = 0 if sequence is None else read_number(sequence)
        first = keys.counts_key("")
        rows = scan(self._db, first, keys.after_prefix(first))
        self._counts: dict[str, StatusCounts] = {key[len(first) :].decode(): read_tally(row) for key, row in rows}
        self._hours = hours_in(self._db)
        self._fronts = Fronts(self._db, self.partitions)

    async def claim(self, cluster: str) -> int:
        async with self._lock:
            self._check_writable()
            row = self._db.get(keys.CLUSTER_KEY)
            if row is None:
                row = number_row(self.epoch) + cluster.encode()
                batch = self._new_batch()
                batch.put(keys.CLUSTER_KEY, row)
                self._write(batch)
                await self._sync()
            check_claim(row[NUMBER_BYTES:].decode(), cluster)
            return read_number(row[:NUMBER_BYTES])

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        async with self._lock:
            self._check_writable()
            check_raise(epochs, self._epochs)
            in_force = {**self._epochs, **epochs}
            batch = self._new_batch()
            batch.put(keys.EPOCHS_KEY, numbers_row(list(in_force.values())))
            self._write(batch)
            self._epochs = in_force
            self.epoch = max(in_force.values())
            await self._sync()
            return self._last_sequence

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        async with self._lock:
            self._check_writable()
            check_fence(changes, epochs, self._epochs)
            self._check_room(changes)
            with reading:
                self._fronts.advance(self._db)
                writes = RocksdbWrites(self._db, self._counts, self._last_sequence, self._fronts, changes)
                path = WritePath(changes, writes)
                await path.run()
            if len(path.refusals) < len(changes):
                counts = writes.new_counts()
                batch = self._new_batch()
                writes.fill(batch, counts)
                is_first = self._write(batch)
                self._counts.update(counts)
                self._last_sequence = writes.last_sequence
                self._hours |= writes.hours
                self._fronts.stored(writes.end_count, writes.rung_at)
                if self._relaxed is not None and not is_first and all(map(self._relaxed, path.tenants)):
                    self._sync_later()
                else:
                    await self._sync()
            return path.refusals

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        front = position(self._fronts.at[partition], 0) - 1
        with reading:
            return read_page(self._db, partition, max(after, front), until_at, limit, without)

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        with reading:
            return read_line(self._db, partition, tenant, key, after, limit)

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        with reading:
            return read_heads(self._db, partition, keys)

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        with reading:
            return read_blocked(self._db, partition, after, limit)

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        with reading:
            return read_one(self._db, tenant, event_id, self._hours)

    async def get_many(self, tenant: str, event_ids: Sequence[str]) -> list[Event | Record | None]:
        with reading:
            return read_many(self._db, tenant, event_ids, self._hours)

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        self._searches += 1
        try:
            return await RocksdbSearch(self._db, self.partitions, self._hours, filter).run(cursor, limit)
        finally:
            self._searches -= 1

    async def counts(self) -> Mapping[str, Counts]:
        return {tenant: Counts(*tally) for tenant, tally in self._counts.items()}

    async def bury(self, poison: Poison) -> None:
        place = poison.place or keys.place_key(b"E", poison.partition, poison.run_at, poison.sequence)
        async with self._lock:
            self._check_writable()
            with reading:
                row = self._db.get(place)
            if row is not None:
                batch = self._new_batch()
                batch.put(keys.grave_key(place), row)
                batch.delete(place)
                self._write(batch)
                await self._sync()

    async def sweep(self, now: int, limit: int) -> int:
        # Without an fsync: records that come back after a crash are swept again.
        gone = 0
        for hour in sorted(self._hours):
            if (hour + 1) * HOUR_MS > now:
                break
            while gone < limit and hour in self._hours:
                async with self._lock:
                    self._check_writable()
                    gone += await self._forget(hour, min(PAGE, limit - gone))
        return gone

    async def _forget(self, hour: int, limit: int) -> int:
        batch = self._new_batch()
        with reading:
            count = forget(self._db, batch, hour, limit)
        if count and self._write(batch):
            await self._sync()
        if count < limit:
            self._hours.discard(hour)
        return count

    async def backup(self, path: str) -> None:
        # The directory gets its name when the copy is complete.
        await asyncio.to_thread(_copy, self._db, self._marker, self._directory, path)

    async def close(self) -> None:
        async with self._lock:
            if not self._closed:
                self._closed = True
                if self._late_sync is not None:
                    self._late_sync.cancel()
                    with suppress(StoreBroken):
                        await self._sync()
                # Its errors are already known, or are about a full disk, and the log has all the rows.
                with suppress(Exception):
                    await asyncio.get_running_loop().run_in_executor(self._syncer.thread, self._db.close)
                self._syncer.thread.shutdown()
                os.close(self._held)

    def _check_writable(self) -> None:
        if self._broken is not None:
            raise StoreBroken(self._broken)
        if self._stuck:
            self._reopen()

    def _check_room(self, changes: Sequence[Change]) -> None:
        free = self._free(self._directory)
        if free < self._reserve_bytes and any(map(_is_asked_for, changes)):
            raise StoreFull(
                f"the disk of the store has {free >> 20} MiB left, and the last {self._reserve_bytes >> 20} MiB are "
                "reserved for stored events: make room"
            )

    def _new_batch(self) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        batch.put(keys.SYNCED_KEY, number_row(self._synced))
        return batch

    def _write(self, batch: WriteBatch) -> bool:
        """Write without an fsync. Returns whether RocksDB began a new log file with it, which has to be synced then."""
        count = batch.len()
        try:
            self._db.write(batch)
        except Exception as error:
            failure = store_error(error, "writing")
            if isinstance(failure, StoreFull):
                self._stuck = True
            elif isinstance(failure, StoreBroken):
                self._broken = str(failure)
            raise failure from error
        # A log file belongs to one table in memory.
        before, self._rows_in_memory = self._rows_in_memory, self._db.property_int_value(_ROWS_IN_MEMORY) or 0
        return before == 0 or self._rows_in_memory < before + count

    def _sync_later(self) -> None:
        """Fsync within `_RELAXED_S`. The kernel has the rows already, so they survive a crash of this process."""
        if self._late_sync is None:
            self._late_sync = asyncio.get_running_loop().create_task(self._sync_soon())

    async def _sync_soon(self) -> None:
        await asyncio.sleep(_RELAXED_S)
        async with self._lock:
            self._late_sync = None
            if not self._closed and self._broken is None:
                with suppress(StoreBroken):  # The next write raises it.
                    await self._sync()

    async def _sync(self) -> None:
        written = self._db.latest_sequence_number()
        try:
            await self._syncer.sync(partial(self._db.flush_wal, True))
        except Exception as error:
            # No retry: the kernel may have dropped the rows, and a second fsync would not report that.
            self._broken = f"the log could not be synced ({error}): restart the process"
            raise StoreBroken(self._broken) from error
        self._synced = written

    def _reopen(self) -> None:
        """Open the database again after a full disk. This blocks the loop, but is rare, and no write can go before."""
        room = self._free(self._directory)
        need = log_bytes(self._directory) * 9 // 8  # With a margin, because a failed attempt would end reads, too.
        if room < need:
            raise StoreFull(
                f"the disk of the store is full, {need - room >> 20} MiB more are needed to go on: make room"
            )
        if self._searches:
            raise StoreFull("the disk of the store was full, and a search is running: try again in a moment")
        with suppress(Exception):  # It reports the full disk once more.
            self._db.close()
        self._db = open_database(self._directory, create=False)
        self._stuck = False


def _is_asked_for(change: Change) -> bool:
    """Whether the change adds events for users, and not events that follow from stored ones."""
    return type(change) is PreparedRows or (type(change) is Add and not change.follows)


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
        db.flush()  # Releases the interpreter, unlike the checkpoint, which would otherwise flush.
        Checkpoint(db).create_checkpoint(str(part))
        copy_log(directory, part)  # After the store, because the log must contain all epochs of the store.
        mark(part, marker)
        part.chmod(OWNER_ONLY)  # Backups contain payloads and the secrets of tenants.
        part.rename(target)
        sync_above(target)
    except Exception as error:
        rmtree(part, ignore_errors=True)
        raise StoreError(f"the backup to {target} failed, and was removed: {error}") from error
