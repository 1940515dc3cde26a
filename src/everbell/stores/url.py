"""Opening the store that a URL names."""

from __future__ import annotations

from collections.abc import Callable

from everbell.clock import SystemClock
from everbell.errors import StoreUnusable
from everbell.stores.memory import MemoryStore
from everbell.stores.port import Store

_KNOWN = (
    "rocksdb:PATH (in a directory), postgresql://user@host/database (shared by several nodes), "
    "cassandra://host/keyspace (in several datacentres) and memory: (gone with the process)"
)


def open_store(
    url: str,
    *,
    partitions: int = 256,
    reserve_bytes: int | None = None,
    relaxed: Callable[[str], bool] | None = None,
    level: Callable[[str], str | None] | None = None,
) -> Store:
    """Open the store, or make it: then `partitions` counts. `relaxed` tells of a tenant whether it accepts that its
    latest events are lost in a crash, `level` which of Cassandra's levels of consistency it wants.

    Raises `StoreUnusable`, `StoreUnavailable`, `StoreCorrupt` or `StoreFull`.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory" and not rest:
        return MemoryStore(partitions)
    if colon and scheme == "rocksdb":
        if not rest:
            raise StoreUnusable("rocksdb: needs a directory, as in rocksdb:./everbell-data")
        # Imported only where it is used: not every machine has a wheel for it.
        from everbell.stores.rocksdb import RESERVE_BYTES, RocksdbStore

        reserve = RESERVE_BYTES if reserve_bytes is None else reserve_bytes
        return RocksdbStore(
            rest, partitions=partitions, created_at=SystemClock().now(), reserve_bytes=reserve, relaxed=relaxed
        )
    if colon and scheme in ("postgresql", "postgres"):
        return _open_postgres(url, partitions, relaxed)
    if colon and scheme == "cassandra":
        return _open_cassandra(url, partitions, level)
    raise StoreUnusable(f"{without_password(url)!r} names no store that is known here; there are {_KNOWN}")


def without_password(url: str) -> str:
    """A URL as it may be shown: whoever mistypes one should not find the password in a log."""
    head, slashes, rest = url.partition("://")
    return f"{head}{slashes}{rest.rpartition('@')[2]}".partition("?")[0] if slashes else url


def _open_postgres(url: str, partitions: int, relaxed: Callable[[str], bool] | None) -> Store:
    try:
        from everbell.stores.postgres import PostgresStore
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise StoreUnusable("postgresql: needs a driver: pip install 'everbell[postgres]'") from missing
    return PostgresStore(url, partitions=partitions, created_at=SystemClock().now(), relaxed=relaxed)


def _open_cassandra(url: str, partitions: int, level: Callable[[str], str | None] | None) -> Store:
    try:
        from everbell.stores.cassandra import CassandraStore
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("acsylla"):
            raise
        raise StoreUnusable("cassandra: needs a driver: pip install 'everbell[cassandra]'") from missing
    return CassandraStore(url, partitions=partitions, created_at=SystemClock().now(), level=level)
