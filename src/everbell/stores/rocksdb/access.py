"""Access to RocksDB: tuning, opening, reading, and the meaning of its errors.

Facts about rocksdict 0.3.29 (RocksDB 9.8), all measured:

- `items()` costs half as much as a cursor, but ends silently at a block that cannot be read. Only the `status()` of a
  cursor reports that, so a cursor checks every place where `items()` ends.
- The database cannot be opened again while either exists.
- An existing database takes the options of its column family from its own files, without bloom filters, unless
  the options are also passed for the column family "default".
- The default recovery mode drops everything after a damaged record of the log. The mode used here accepts an
  unfinished last record, which a crash leaves, and refuses all other damage.
- `set_iterate_lower_bound` sets the upper bound, so this module does not use it.
"""

from __future__ import annotations

import resource
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
)

from everbell.errors import StoreBroken, StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnusable
from everbell.stores.rocksdb.torn_end import check_logs

_MIB = 1 << 20
_MANY = 8  # Looking up this many keys costs more than seeking the next key.
_NO_ROOM = ("No space left", "Disk quota exceeded")


def open_database(directory: Path, *, create: bool) -> Rdict:
    """Raises `StoreUnusable`, `StoreCorrupt` or `StoreFull`."""
    if not create:
        check_logs(directory, thoroughly=False)
    try:
        return _open(directory, create)
    except Exception as error:
        text = str(error)
        if "Corruption" in text and not create and check_logs(directory, thoroughly=True):
            return open_database(directory, create=False)
        if "LOCK" in text:
            message = f"{directory} is in use by another process: stop that one first, or name another directory"
            raise StoreUnusable(message) from error
        if any(words in text for words in _NO_ROOM):
            raise StoreFull(f"{directory} cannot be opened, the disk is full: make room and restart") from error
        if "Corruption" in text:
            raise StoreCorrupt(f"{directory} is damaged ({text}): restore the store from a backup") from error
        raise StoreUnusable(f"{directory} cannot be opened: {text}") from error


def _open(directory: Path, create: bool) -> Rdict:
    options = _options()
    options.create_if_missing(create)
    return Rdict(str(directory), options, {"default": options})


def _options() -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_size(16 << 10)
    blocks.set_block_cache(Cache(32 * _MIB))
    # Indexes and filters grow with the store. In the cache, and divided, they use no more memory than the cache has.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_pin_top_level_index_and_filter(True)
    blocks.set_bloom_filter(10, False)

    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(32 * _MIB)
    options.set_max_write_buffer_number(3)
    options.set_max_total_wal_size(128 * _MIB)
    # Merging more files of the first level at once saves a quarter of all work, and hardly slows reads.
    options.set_level_zero_file_num_compaction_trigger(8)
    options.set_max_background_jobs(2)
    options.set_max_open_files(open_files_max())
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(4 * _MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def open_files_max() -> int:
    """A quarter of the file descriptors of the process, within bounds. Connections leave this quarter to the store."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if limit == resource.RLIM_INFINITY else min(max(limit // 4, 32), 512)


def scan(db: Rdict, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows from `start` to before `end`. Rows that are added meanwhile, behind the last one, may be among them."""
    while True:
        found: Any = None
        for found in db.items(from_key=start, read_opt=_until(end)):
            yield found
        # Either there are no more rows, or the next one cannot be read, or it is new: the caller may have let others
        # write between two rows.
        cursor = db.iter(_until(end))
        cursor.seek(start if found is None else found[0])
        if found is not None and cursor.valid() and cursor.key() == found[0]:
            cursor.next()
        cursor.status()
        if not cursor.valid():
            return
        following: bytes = cursor.key()
        if following == start:
            raise StoreBroken("reading ended too early: restart the process; acknowledged events are safe")
        start = following


def first_key(db: Rdict, start: bytes, end: bytes) -> bytes | None:
    """The first key from `start` to before `end`."""
    cursor = db.iter(_until(end))
    cursor.seek(start)
    key: bytes | None = cursor.key() if cursor.valid() else None
    cursor.status()
    return key


def _until(end: bytes) -> ReadOptions:
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(end)
    return bounds


def scan_back(db: Rdict, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows with the prefix before `start`, backwards."""
    cursor = db.iter()
    cursor.seek_for_prev(start)
    while cursor.valid():
        key: bytes = cursor.key()
        if key != start:
            if not key.startswith(prefix):
                break
            yield key, cursor.value()
        cursor.prev()
    cursor.status()


def get_many(db: Rdict, names: Sequence[bytes]) -> list[bytes | None]:
    """The rows with these keys. Much cheaper than single lookups if most keys do not exist."""
    rows: list[bytes | None] | None = db.get(list[Any](names))
    return rows or []


def present(db: Rdict, names: Iterable[bytes]) -> set[bytes]:
    """The keys that exist.

    New names of one source mostly follow each other, with no existing key in between. While that is so, one seek of the
    next key answers for many.
    """
    wanted = sorted(names)
    found: set[bytes] = set()
    start = 0
    if len(wanted) >= _MANY:
        bounds = _until(wanted[-1] + b"\0")
        bounds.set_max_skippable_internal_keys(_MANY)  # A million deleted rows may lie in between.
        cursor = db.iter(bounds)
        while len(wanted) - start >= _MANY:
            cursor.seek(wanted[start])
            if not cursor.valid():
                if _is_at_end(cursor):
                    return found
                break
            following = cursor.key()
            passed = bisect_right(wanted, following, start)
            if wanted[passed - 1] == following:
                found.add(following)
            told, start = passed - start, passed
            if told < _MANY:
                break
    rest = wanted[start:]
    found.update(name for name, row in zip(rest, get_many(db, rest), strict=True) if row is not None)
    return found


def _is_at_end(cursor: RdictIter) -> bool:
    """Whether there certainly is no next key."""
    try:
        cursor.status()
    except Exception:  # It skipped too many deleted rows, or met damage, which the lookup of that key will report.
        return False
    return True


class Translation:
    """A context that turns errors of RocksDB into `StoreError`s."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # The binding raises only plain Exceptions and DbClosedError.
        if error is not None and (kind is Exception or kind is DbClosedError):
            raise store_error(error, self._doing) from error


reading = Translation("reading")
writing = Translation("writing")


def store_error(error: BaseException, doing: str) -> StoreError:
    text = str(error)
    if isinstance(error, DbClosedError):
        return StoreUnavailable("the store is closed, because this process is stopping: try again in a moment")
    if any(words in text for words in _NO_ROOM):
        return StoreFull("the disk of the store is full: make room; nothing of this write was stored")
    if "Corruption" in text or "No such file" in text:
        return StoreCorrupt(f"the store is damaged ({text}): stop, and restore it from a backup")
    return StoreBroken(f"{doing} failed ({text}): restart the process; acknowledged events are safe")
