"""Opening the store that a URL names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everbell.clock import SystemClock
from everbell.errors import StoreUnusable
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Store

_KNOWN = (
    "rocksdb:PATH (in a directory), postgresql://user@host/database (shared by several nodes), "
    "cassandra://host/keyspace (in several datacentres) memory: (gone with the process) "
    "and replicas: (no store: events are in the memory of several nodes)"
)


def open_store(
    url: str,
    *,
    partitions: int = 256,
    reserve_bytes: int | None = None,
    relaxed: Callable[[str], bool] | None = None,
    level: Callable[[str], str | None] | None = None,
) -> Store:
    """Open the store, or make it with `partitions`. `relaxed` says whether a tenant accepts that a crash loses its
    latest events, `level` which of Cassandra's levels of consistency a tenant wants.

    Raises `StoreUnusable`, `StoreUnavailable`, `StoreCorrupt` or `StoreFull`.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme in ("memory", "replicas") and not rest:
        return MemoryStore(partitions)
    if colon and scheme == "rocksdb":
        if not rest:
            raise StoreUnusable("rocksdb: needs a directory, as in rocksdb:./everbell-data")
        # Imported only where it is used: not every machine has a wheel for it.
        from everbell.stores.rocksdb.store import RESERVE_BYTES, RocksdbStore

        reserve = RESERVE_BYTES if reserve_bytes is None else reserve_bytes
        return RocksdbStore(
            rest, partitions=partitions, created_at=SystemClock().now(), reserve_bytes=reserve, relaxed=relaxed
        )
    if colon and scheme in ("postgresql", "postgres"):
        with _needs("asyncpg", "postgresql", "postgres"):
            from everbell.stores.postgres.store import PostgresStore
        return PostgresStore(url, partitions=partitions, created_at=SystemClock().now(), relaxed=relaxed)
    if colon and scheme == "cassandra":
        with _needs("acsylla", "cassandra", "cassandra"):
            from everbell.stores.cassandra.store import CassandraStore
        return CassandraStore(url, partitions=partitions, created_at=SystemClock().now(), level=level)
    raise StoreUnusable(f"{without_password(url)!r} names no store that is known here; there are {_KNOWN}")


def without_password(url: str) -> str:
    """A URL without its password, so that the password of a mistyped URL does not end up in a log."""
    head, slashes, rest = url.partition("://")
    return f"{head}{slashes}{rest.rpartition('@')[2]}".partition("?")[0] if slashes else url


@contextmanager
def _needs(driver: str, scheme: str, extra: str) -> Iterator[None]:
    """A context for an import that needs a driver."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != driver:
            raise
        raise StoreUnusable(f"{scheme}: needs a driver: pip install 'everbell[{extra}]'") from missing
