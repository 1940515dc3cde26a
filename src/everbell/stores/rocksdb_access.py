"""How we use RocksDB: how it is tuned, how it is opened, how it is read, and what its errors mean.

Learned by measuring, with rocksdict 0.3.29 (RocksDB 9.8):

- `items()` costs half of what a cursor does, but ends silently at a block that cannot be read. A cursor's `status()`
  tells, so wherever `items()` ends, a cursor is sent to look why.
- The database cannot be opened again while either is alive.
- An existing database takes the options of its column family from its own files, without bloom filters, unless
  they are passed as those of the column family "default".
- The recovery mode that RocksDB has by default drops everything behind a damaged record of the log. The one used
  here forgives an unfinished record at the end, as a crash leaves it, and refuses all other damage.
- `set_iterate_lower_bound` sets the upper bound. It is not used.
"""

from __future__ import annotations

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

_MIB = 1 << 20
_MANY = 8
"""To look up so many keys costs more than to look what comes next."""
_NO_ROOM = ("No space left", "Disk quota exceeded")


def open_database(directory: Path, *, create: bool) -> Rdict:
    """Raises `StoreUnusable`, `StoreCorrupt` or `StoreFull`."""
    options = _options()
    options.create_if_missing(create)
    try:
        return Rdict(str(directory), options, {"default": options})
    except Exception as error:
        text = str(error)
        if "LOCK" in text:
            message = f"{directory} is in use by another process: stop that one first, or name another directory"
            raise StoreUnusable(message) from error
        if any(words in text for words in _NO_ROOM):
            raise StoreFull(f"{directory} cannot be opened, the disk is full: make room and start again") from error
        if "Corruption" in text:
            raise StoreCorrupt(f"{directory} is damaged ({text}): restore the store from a backup") from error
        raise StoreUnusable(f"{directory} cannot be opened: {text}") from error


def _options() -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_size(16 << 10)
    blocks.set_block_cache(Cache(32 * _MIB))
    # Indexes and filters grow with the store: in the cache, and cut up, they cannot take more than its share of memory.
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
    # Merging more files of the first level at once saves a quarter of all work, and reading hardly notices.
    options.set_level_zero_file_num_compaction_trigger(8)
    options.set_max_background_jobs(2)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(4 * _MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def scan(db: Rdict, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows from `start` up to, without, `end`, as they are now."""
    found: Any = None
    for found in db.items(from_key=start, read_opt=_until(end)):
        yield found
    # Nothing more, or nothing more that can be read.
    cursor = db.iter(_until(end))
    cursor.seek(start if found is None else found[0])
    if found is not None and cursor.valid():
        cursor.next()
    cursor.status()
    if cursor.valid():
        raise StoreBroken("reading ended too early: end the process and start again; what was acknowledged is safe")


def first_key(db: Rdict, start: bytes, end: bytes) -> bytes | None:
    """The first key from `start` up to, without, `end`."""
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
    """The rows with the prefix that lie before `start`, backwards."""
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
    """The rows with these keys; much cheaper than one by one where most are not there."""
    rows: list[bytes | None] | None = db.get(list[Any](names))
    return rows or []


def present(db: Rdict, names: Iterable[bytes]) -> set[bytes]:
    """Those of the keys that are there.

    New names of one source mostly follow each other, with nothing in between that is there already: as long as that is
    so, one look at what comes next tells of many.
    """
    wanted = sorted(names)
    found: set[bytes] = set()
    start = 0
    if len(wanted) >= _MANY:
        bounds = _until(wanted[-1] + b"\0")
        bounds.set_max_skippable_internal_keys(_MANY)  # Rows that were deleted lie in between, perhaps a million.
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
    """Whether nothing comes next; if not, it cannot tell."""
    try:
        cursor.status()
    except Exception:  # It passed over too much, or something cannot be read: whoever looks there will be told.
        return False
    return True


class Translation:
    """A context that turns RocksDB's errors into ours."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # The binding raises plain Exceptions, and this is all it raises beside DbClosedError.
        if error is not None and (kind is Exception or kind is DbClosedError):
            raise store_error(error, self._doing) from error


reading = Translation("reading")
writing = Translation("writing")


def store_error(error: BaseException, doing: str) -> StoreError:
    """What an error of RocksDB means."""
    text = str(error)
    if isinstance(error, DbClosedError):
        return StoreUnavailable("the store is closed, as this process is stopping: ask again in a moment")
    if any(words in text for words in _NO_ROOM):
        return StoreFull("the disk of the store is full: make room; nothing of this write was stored")
    if "Corruption" in text or "No such file" in text:
        return StoreCorrupt(f"the store is damaged ({text}): stop, and restore it from a backup")
    return StoreBroken(f"{doing} failed ({text}): end the process and start again; what was acknowledged is safe")
