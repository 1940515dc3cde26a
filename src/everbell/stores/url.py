"""Opening the store that a URL names."""

from __future__ import annotations

from everbell.clock import SystemClock
from everbell.errors import StoreUnusable
from everbell.stores.memory import MemoryStore
from everbell.stores.port import Store

_KNOWN = "rocksdb:PATH (in a directory) and memory: (gone with the process)"


def open_store(url: str, *, partitions: int = 256, reserve_bytes: int | None = None) -> Store:
    """Open the store, or make it: then `partitions` counts. Raises `StoreUnusable`, `StoreCorrupt` or `StoreFull`."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory" and not rest:
        return MemoryStore(partitions)
    if colon and scheme == "rocksdb":
        if not rest:
            raise StoreUnusable("rocksdb: needs a directory, as in rocksdb:./everbell-data")
        # Imported only where it is used: not every machine has a wheel for it.
        from everbell.stores.rocksdb import RESERVE_BYTES, RocksdbStore

        reserve = RESERVE_BYTES if reserve_bytes is None else reserve_bytes
        return RocksdbStore(rest, partitions=partitions, created_at=SystemClock().now(), reserve_bytes=reserve)
    raise StoreUnusable(f"{url!r} names no store that is known here; there are {_KNOWN}")
