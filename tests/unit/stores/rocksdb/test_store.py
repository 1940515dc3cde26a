"""The RocksDB store beyond the port: rows after a restart, rows that stay behind, damage, and a full disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rocksdict import Rdict

from everbell.core.event import Event, Repeat
from everbell.core.time import HOUR_MS
from everbell.errors import Fenced, StoreBroken, StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnusable
from everbell.stores.port import Add, Block, Change, Counts, Filter, Finish, Move
from everbell.stores.rocksdb.access import open_database, present, scan
from everbell.stores.rocksdb.keys import event_key, index_key
from everbell.stores.rocksdb.store import RocksdbStore
from everbell.stores.rocksdb.writes import RANGE_MIN
from everbell.stores.rows import event_row
from tests.conformance.stores import NOW, PARTITIONS, UNOWNED, event, find_all, finish, page_all, record

FAR = NOW + 10**12
Step = Callable[[RocksdbStore], Awaitable[None]]


class Failing:
    """A database with one method that fails."""

    def __init__(self, db: Rdict, method: str, error: str) -> None:
        self._db = db
        self._method = method
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._method else getattr(self._db, name)

    def _fail(self, *_: Any, **__: Any) -> None:
        raise Exception(self._error)


def visit(path: Path, step: Step, **options: Any) -> None:
    """Open the store, run a scenario, and close it."""

    async def run() -> None:
        store = RocksdbStore(str(path / "store"), partitions=PARTITIONS, **options)
        try:
            await step(store)
        finally:
            await store.close()

    asyncio.run(run())


@pytest.fixture
def orphans() -> Iterator[list[RocksdbStore]]:
    """Stores that a test leaves open. The list keeps them alive until its end."""
    stores: list[RocksdbStore] = []
    yield stores
    for store in stores:
        asyncio.run(store.close())


def test_all_kinds_of_rows_survive_a_restart(tmp_path: Path) -> None:
    kept, named, ended = event(1, due_in=5), event(2, id="named", key="k"), event(3)
    dead = replace(named, state="dead")

    async def before(store: RocksdbStore) -> None:
        epochs = dict.fromkeys(range(PARTITIONS), 2)
        await store.raise_fence(epochs)
        changes: list[Change] = [
            Add(kept),
            Add(named),
            Add(ended),
            Move(named, dead),
            finish(ended),
            Block(2, "shop", "k", 2),
        ]
        assert await store.apply(changes, epochs) == {}

    async def after(store: RocksdbStore) -> None:
        assert store._last_sequence == 3
        assert await store.counts() == {"shop": Counts(pending=1, dead=1, delivered=1)}
        assert await store.get("shop", kept.id) == kept
        assert await store.get("shop", "named") == dead
        assert await store.get("shop", ended.id) == record(ended)
        assert await page_all(store, kept.partition, FAR, 10) == ([kept], None)
        assert await store.heads(2, [("shop", "k")]) == [2]
        with pytest.raises(Fenced):
            await store.apply([Add(event(9))], UNOWNED)
        assert store.epoch == 2
        assert await store.raise_fence({0: 3}) == 3
        assert await store.sweep(NOW + 9 * HOUR_MS, 10) == 1

    visit(tmp_path, before)
    visit(tmp_path, after)


def test_events_leave_no_rows_after_the_sweep(tmp_path: Path) -> None:
    made, named = event(1, key="k", repeat=Repeat(1_000)), event(2, id="named")
    retried = replace(made, run_at=NOW + 7, attempt_count=1)
    back = replace(retried, run_at=NOW)
    second = replace(made, occurrence=2, due_at=NOW + 1_000, run_at=NOW + 1_000)
    waiting = replace(second, state="waiting")

    async def step(store: RocksdbStore) -> None:
        steps: list[Change] = [
            Move(made, retried),
            Move(retried, back),
            finish(back, following=second),
            Move(second, waiting),
        ]
        for change in (Add(made), Add(named), *steps, finish(waiting), finish(named)):
            assert await store.apply([change], UNOWNED) == {}
        assert await store.sweep(FAR, 100) == 3
        rows = [key for key, _ in scan(store._db, b"\0", b"\xff")]
        assert rows == [b"Cshop", b"Mepochs", b"Msequence", b"Mshape", b"Msynced"]

    visit(tmp_path, step)


@pytest.mark.parametrize("come_with_them", [False, True])
def test_a_range_deletion_removes_a_run_of_finished_events_and_no_other(tmp_path: Path, come_with_them: bool) -> None:
    same = [event(sequence, partition=1) for sequence in range(1, 3 * RANGE_MIN)]
    middle, last = same.pop(RANGE_MIN), same.pop()
    later, beside = event(RANGE_MIN // 2, partition=1, due_in=1), event(RANGE_MIN // 2, partition=2)
    stay = [middle, last, later, beside]
    adds, ends = [Add(one) for one in (*same, *stay)], [finish(one) for one in same]

    async def step(store: RocksdbStore) -> None:
        steps: list[list[Add | Finish]] = [[*adds, *ends]] if come_with_them else [[*adds], [*ends]]
        for changes in steps:
            assert await store.apply(changes, UNOWNED) == {}
        assert (await page_all(store, 1, FAR, 1_000))[0] == [middle, last, later]
        assert (await page_all(store, 2, FAR, 1_000))[0] == [beside]
        assert store._db.property_int_value("rocksdb.num-deletes-active-mem-table") == 0
        assert [await store.get("shop", one.id) for one in same] == [record(one) for one in same]

    visit(tmp_path, step)


def test_an_event_at_home_has_no_index_entry(tmp_path: Path) -> None:
    made, named = event(1), event(2, id="named")

    async def step(store: RocksdbStore) -> None:
        await store.apply([Add(made), Add(named)], UNOWNED)
        assert store._db.get(index_key("shop", made.id)) is None
        assert store._db.get(index_key("shop", "named")) == event_key(named)
        later = replace(made, run_at=NOW + 1)
        await store.apply([Move(made, later)], UNOWNED)
        assert store._db.get(index_key("shop", made.id)) == event_key(later)
        await store.apply([Move(later, made)], UNOWNED)
        assert store._db.get(index_key("shop", made.id)) is None

    visit(tmp_path, step)


@pytest.mark.parametrize("row", [b"", b"\x01", b"\x01\xc1", b"\x01\x90", b"\x02rest", b"\x01\xdc\x00\x17\xa1\xff"])
def test_a_row_that_cannot_be_decoded_is_poison_and_other_rows_are_read(tmp_path: Path, row: bytes) -> None:
    good, bad = event(1, partition=1), event(2, id="bad", partition=1)
    line_bad, line_good = (event(s, key="k", state="waiting") for s in (3, 4))

    async def step(store: RocksdbStore) -> None:
        await store.apply([Add(good), Add(bad), Add(line_bad), Add(line_good)], UNOWNED)
        for victim in (bad, line_bad):
            store._db.put(event_key(victim), row)
        page = await store.page(1, -1, FAR, 10)
        assert list(page.events) == [good]
        (poison,) = page.poison
        assert (poison.partition, poison.run_at, poison.sequence, poison.raw) == (1, bad.run_at, 2, row)
        line = await store.waiting(line_bad.partition, "shop", "k", -1, 10)
        assert list(line.events) == [line_good]
        assert good in await find_all(store, Filter("shop"), 10)
        with pytest.raises(StoreCorrupt, match="'bad' cannot be decoded"):
            await store.get("shop", "bad")
        assert 0 in await store.apply([finish(bad, guarded=True)], UNOWNED)
        for found in (poison, *line.poison):
            await store.bury(found)
        assert (await store.page(1, -1, FAR, 10)).poison == []
        assert (await store.waiting(line_bad.partition, "shop", "k", -1, 10)).poison == []
        graves = list(scan(store._db, b"X", b"Y"))
        assert graves == sorted((b"X" + event_key(victim), row) for victim in (bad, line_bad))
        assert await store.apply([Add(replace(bad, sequence=9))], UNOWNED) == {}

    visit(tmp_path, step)


def test_an_unreadable_event_does_not_block_its_id(tmp_path: Path) -> None:
    first, second = event(1, id="named"), event(2, id="named")

    async def step(store: RocksdbStore) -> None:
        await store.apply([Add(first)], UNOWNED)
        store._db.put(event_key(first), b"?")
        assert await store.apply([Add(second)], UNOWNED) == {}
        assert await store.get("shop", "named") == second

    visit(tmp_path, step)


def test_poison_counts_towards_a_page(tmp_path: Path) -> None:
    events = [event(sequence, partition=1) for sequence in range(1, 5)]

    async def step(store: RocksdbStore) -> None:
        await store.apply([Add(each) for each in events], UNOWNED)
        for bad in events[:3]:
            store._db.put(event_key(bad), b"?")
        page = await store.page(1, -1, FAR, 2)
        assert (len(page.poison), page.more) == (2, True)
        page = await store.page(1, events[1].position, FAR, 2)
        assert (len(page.poison), list(page.events), page.more) == (1, [events[3]], False)

    visit(tmp_path, step)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rdict]:
    """Random keys, some of which exist, and some of which were deleted."""
    db = open_database(tmp_path_factory.mktemp("numbers"), create=True)
    for number in (*range(40, 60), 100, 120, *range(300, 700, 7), *range(750, 900), 999):
        db[b"%03d" % number] = b"here"
    for number in range(750, 880):
        del db[b"%03d" % number]
    yield db
    db.close()


@given(st.lists(st.integers(0, 999)), st.integers(0, 999), st.integers(0, 200))
def test_present_finds_exactly_the_existing_keys(numbers: Rdict, scattered: list[int], first: int, row: int) -> None:
    names = [b"%03d" % number for number in (*scattered, *range(first, min(first + row, 1_000)))]
    assert present(numbers, names) == {name for name in names if name in numbers}


def test_tables_have_bloom_filters_also_after_a_restart(tmp_path: Path) -> None:
    async def step(store: RocksdbStore) -> None:
        await store.apply([Add(event(store._last_sequence + n)) for n in range(1, 101)], UNOWNED)
        store._db.flush()
        properties = store._db.property_value("rocksdb.aggregated-table-properties") or ""
        facts = dict(fact.strip().split("=", 1) for fact in properties.split(";") if "=" in fact)
        assert int(facts["# entries for filter"]) >= store._last_sequence

    visit(tmp_path, step)
    visit(tmp_path, step)


# Backups


def test_a_backup_is_a_store(tmp_path: Path) -> None:
    first, second = event(1, id="first"), event(2)

    async def before(store: RocksdbStore) -> None:
        await store.apply([Add(first)], UNOWNED)
        await store.backup(str(tmp_path / "backups" / "monday"))
        await store.apply([Add(second)], UNOWNED)
        with pytest.raises(StoreUnusable, match="exists already"):
            await store.backup(str(tmp_path / "backups" / "monday"))

    visit(tmp_path, before)
    copy = RocksdbStore(str(tmp_path / "backups" / "monday"))

    async def after() -> None:
        assert copy.partitions == PARTITIONS
        assert await copy.get("shop", "first") == first
        assert await copy.get("shop", second.id) is None
        assert await copy.counts() == {"shop": Counts(pending=1)}
        await copy.close()

    asyncio.run(after())


def test_only_the_owner_may_read_a_store_and_its_backups(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir(mode=0o755)
    store = RocksdbStore(str(tmp_path / "data"))

    async def back_up() -> None:
        await store.backup(str(tmp_path / "backups" / "monday"))
        await store.close()

    asyncio.run(back_up())
    for directory in ("data", "backups/monday"):
        assert (tmp_path / directory).stat().st_mode & 0o777 == 0o700


def test_a_backup_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def step(store: RocksdbStore) -> None:
        with pytest.raises(StoreError, match="the backup to"):
            await store.backup(str(tmp_path / "file" / "backup"))
        await store.apply([Add(event(1))], UNOWNED)

    visit(tmp_path, step)


# Damage


def crash(path: Path, orphans: list[RocksdbStore], events: list[Event]) -> None:
    """Store events one by one, and copy the files as a crash would leave them."""

    async def run() -> None:
        store = RocksdbStore(str(path / "origin"), partitions=PARTITIONS)
        orphans.append(store)
        for each in events:
            await store.apply([Add(each)], UNOWNED)

    asyncio.run(run())
    (path / "store").mkdir()
    for file in (path / "origin").iterdir():
        (path / "store" / file.name).write_bytes(file.read_bytes())


def log_of(path: Path) -> Path:
    """The write-ahead log that is not empty."""
    return max((path / "store").glob("*.log"), key=lambda log: log.stat().st_size)


EVENTS = [event(sequence, payload=b"%d" % sequence + b" " * 1_000) for sequence in range(1, 101)]


def test_a_crash_loses_nothing_that_was_acknowledged(tmp_path: Path, orphans: list[RocksdbStore]) -> None:
    crash(tmp_path, orphans, EVENTS)

    async def step(store: RocksdbStore) -> None:
        for each in EVENTS:
            assert await store.get("shop", each.id) == each
        assert await store.counts() == {"shop": Counts(pending=100)}
        assert store._last_sequence == 100

    visit(tmp_path, step)


@pytest.mark.parametrize("missing", [1, 100, 2_000])
def test_an_unfinished_record_at_the_end_of_the_log_is_ignored(
    tmp_path: Path, orphans: list[RocksdbStore], missing: int
) -> None:
    crash(tmp_path, orphans, EVENTS)
    log = log_of(tmp_path)
    os.truncate(log, log.stat().st_size - missing)

    async def step(store: RocksdbStore) -> None:
        left = store._last_sequence
        assert left == 100 - (1 if missing < 1_000 else 2)
        assert await store.counts() == {"shop": Counts(pending=left)}
        found = [await store.get("shop", each.id) for each in EVENTS]
        assert found == EVENTS[:left] + [None] * (100 - left)

    visit(tmp_path, step)


def test_rows_without_a_label_are_read_like_labelled_rows(tmp_path: Path) -> None:
    old, new = (event(sequence, partition=1, to="https://herd.example/") for sequence in (1, 2))

    async def step(store: RocksdbStore) -> None:
        await store.apply([Add(old), Add(new)], UNOWNED)
        store._db.put(event_key(old), event_row(old))
        assert await page_all(store, 1, FAR, 10) == ([old, new], None)
        page = await store.page(1, -1, FAR, 10, [("shop", "https://herd.example")])
        assert (list(page.events), page.left_out) == ([old], 1)
        assert await store.get("shop", old.id) == old

    visit(tmp_path, step)


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_damage_in_the_middle_of_the_log_is_refused(tmp_path: Path, orphans: list[RocksdbStore], at: float) -> None:
    crash(tmp_path, orphans, EVENTS)
    _flip(log_of(tmp_path), at)
    with pytest.raises(StoreCorrupt, match="restore the store from a backup"):
        RocksdbStore(str(tmp_path / "store"))


def test_damage_in_a_table_raises_when_it_is_read(tmp_path: Path) -> None:
    # Random payloads, because a well compressed table is too small to be damaged in the middle.
    events = [event(sequence, partition=1, payload=Random(sequence).randbytes(1_000)) for sequence in range(1, 301)]

    async def write(store: RocksdbStore) -> None:
        await store.apply([Add(each) for each in events], UNOWNED)
        store._db.flush()

    async def read(store: RocksdbStore) -> None:
        for limit in (1, 7, 299, 1_000):
            with pytest.raises(StoreCorrupt):
                await page_all(store, 1, FAR, limit)
        with pytest.raises(StoreCorrupt):
            await find_all(store, Filter("shop"), 1_000)
        with pytest.raises(StoreCorrupt):
            await asyncio.gather(*(store.get("shop", each.id) for each in events))

    visit(tmp_path, write)
    _flip(max((tmp_path / "store").glob("*.sst"), key=lambda table: table.stat().st_size), 0.5)
    visit(tmp_path, read)


def test_damage_in_the_records_raises_when_they_are_read(tmp_path: Path) -> None:
    events = [event(sequence, tags=(Random(sequence).randbytes(500).hex(),)) for sequence in range(1, 301)]

    async def write(store: RocksdbStore) -> None:
        await store.apply([Add(each) for each in events], UNOWNED)
        await store.apply([finish(each) for each in events], UNOWNED)
        store._db.flush()

    async def read(store: RocksdbStore) -> None:
        with pytest.raises(StoreCorrupt):
            await find_all(store, Filter("shop", "delivered"), 1_000)
        with pytest.raises(StoreCorrupt):
            await store.sweep(FAR, 1_000)

    visit(tmp_path, write)
    _flip(max((tmp_path / "store").glob("*.sst"), key=lambda table: table.stat().st_size), 0.5)
    visit(tmp_path, read)


def _flip(file: Path, at: float) -> None:
    content = bytearray(file.read_bytes())
    middle = int(len(content) * at)
    for index in range(middle, middle + 3):
        content[index] ^= 0xFF
    file.write_bytes(content)


# Trouble with the disk


def test_below_the_reserve_only_new_events_of_users_are_refused(tmp_path: Path) -> None:
    free = 1 << 30
    first, second = event(1), event(2)

    async def step(store: RocksdbStore) -> None:
        nonlocal free
        await store.apply([Add(first)], UNOWNED)
        free = 99
        with pytest.raises(StoreFull, match="make room"):
            await store.apply([finish(first), Add(second)], UNOWNED)
        with pytest.raises(StoreFull):
            await store.apply([Add(event(3), follows=True), Add(second)], UNOWNED)
        later = replace(first, run_at=NOW + 1)
        await store.apply([Move(first, later), Block(1, "shop", "k", 1)], UNOWNED)
        await store.apply([finish(later), Add(event(3), follows=True)], UNOWNED)
        free = 100
        await store.apply([Add(second)], UNOWNED)
        assert await store.counts() == {"shop": Counts(pending=2, delivered=1)}

    visit(tmp_path, step, reserve_bytes=100, free=lambda path: free)


def test_a_failed_fsync_ends_the_store(tmp_path: Path) -> None:
    async def step(store: RocksdbStore) -> None:
        db = store._db
        store._db = Failing(db, "flush_wal", "IO error: fdatasync: Input/output error")  # type: ignore[assignment]
        with pytest.raises(StoreBroken):
            await store.apply([Add(event(1))], UNOWNED)
        store._db = db
        with pytest.raises(StoreBroken):
            await store.apply([Add(event(2))], UNOWNED)
        with pytest.raises(StoreBroken):
            await store.raise_fence({1: 1})

    visit(tmp_path, step)


def test_a_failed_write_ends_the_store_unless_the_disk_is_full(tmp_path: Path) -> None:
    async def step(store: RocksdbStore) -> None:
        db = store._db
        store._db = Failing(db, "write", "IO error: pwrite: Input/output error")  # type: ignore[assignment]
        with pytest.raises(StoreBroken):
            await store.apply([Add(event(1))], UNOWNED)
        store._db = db
        with pytest.raises(StoreBroken):
            await store.apply([Add(event(1))], UNOWNED)

    visit(tmp_path, step)


def test_a_closed_store_is_unavailable(tmp_path: Path) -> None:
    async def step(store: RocksdbStore) -> None:
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.get("shop", "x")
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.apply([Add(event(1))], UNOWNED)

    visit(tmp_path, step)


OWNED = dict.fromkeys(range(PARTITIONS), 1)


class Syncs:
    """Counts fsyncs, and wakes a waiter after each."""

    def __init__(self, store: RocksdbStore) -> None:
        self._sync = store._syncer.sync
        self.count = 0
        self.made = asyncio.Event()

    async def __call__(self, flush: Callable[[], object]) -> None:
        await self._sync(flush)
        self.count += 1
        self.made.set()


def test_relaxed_tenants_are_answered_before_a_later_fsync(tmp_path: Path) -> None:
    async def step(store: RocksdbStore) -> None:
        await store.raise_fence(OWNED)
        store._syncer.sync = syncs = Syncs(store)  # type: ignore[method-assign]
        await store.apply([Add(event(1, tenant="loose"))], OWNED)
        await store.apply([Add(event(2, tenant="loose"))], OWNED)
        assert syncs.count == 0
        await asyncio.wait_for(syncs.made.wait(), 10)
        assert syncs.count == 1, "one for both"
        await store.apply([Add(event(3, tenant="loose")), Add(event(4, tenant="shop"))], OWNED)
        assert syncs.count == 2, "a strict change makes all of them strict"
        await store.apply([Add(event(5, tenant="loose"))], OWNED)
        await store.close()
        assert syncs.count == 3, "nothing is left behind"

    visit(tmp_path, step, relaxed=lambda tenant: tenant == "loose")


def test_a_later_fsync_that_fails_breaks_the_store(tmp_path: Path) -> None:
    async def step(store: RocksdbStore) -> None:
        await store.raise_fence(OWNED)
        db = store._db
        store._db = Failing(db, "flush_wal", "IO error: fdatasync: Input/output error")  # type: ignore[assignment]
        await store.apply([Add(event(1))], OWNED)
        assert store._late_sync is not None
        await store._late_sync
        with pytest.raises(StoreBroken):
            await store.apply([Add(event(2))], OWNED)
        store._db = db

    visit(tmp_path, step, relaxed=lambda tenant: True)


def test_the_logs_of_a_store_in_use_are_left_alone(tmp_path: Path) -> None:
    """The check of the logs cuts off unfinished writes, and a log in use may have one at any moment."""
    store = RocksdbStore(str(tmp_path / "s"), partitions=4)
    log = next((tmp_path / "s").glob("*.log"))
    with log.open("ab") as file:
        file.write(b"\1\2\3")
    before = log.read_bytes()
    with pytest.raises(StoreUnusable, match="in use by another process"):
        RocksdbStore(str(tmp_path / "s"), partitions=4)
    assert log.read_bytes() == before
    asyncio.run(store.close())
    asyncio.run(RocksdbStore(str(tmp_path / "s"), partitions=4).close())
