"""Opening the log that a URL names. Messages never repeat a URL, because it may contain a password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from everbell.errors import LogUnusable, StoreUnusable
from everbell.logs.port import Log

ANSWER_S = 5.0
"""How long a server may take for one answer before the call times out."""

_KNOWN = (
    "rocksdb:PATH (beside a store, for one process), postgresql://…, cassandra://…, "
    "zookeeper://host:port,host:port/path and memory: (gone with the process)"
)


class _ServerLog(Log, Protocol):
    """A log on a server, which has to be opened."""

    async def open(self) -> None: ...


async def open_log(url: str, *, timeout_s: float = ANSWER_S) -> Log:
    """Open the log, or make it. Raises `LogUnusable`, `LogCorrupt`, or `LogUnavailable` when trying again may help."""
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon and not rest:
        from everbell.logs.memory import SharedLog

        return SharedLog().handle()
    if scheme == "rocksdb":
        if not rest:
            raise LogUnusable("rocksdb: needs a directory, as in rocksdb:./everbell-data")
        from everbell.logs.local import LocalLog

        return LocalLog(Path(rest))
    log = _server_log(scheme, url, timeout_s)
    try:
        await log.open()
    except BaseException:
        await log.close()
        raise
    return log


def _server_log(scheme: str, url: str, timeout_s: float) -> _ServerLog:
    # Each driver is optional, so its module is imported only where it is used.
    if scheme in ("postgresql", "postgres"):
        with _needs("asyncpg", "postgres"):
            from everbell.logs.postgres import PostgresLog
            from everbell.stores.postgres import address as postgres

            return PostgresLog(postgres.read_address(url), timeout_s)
    if scheme == "cassandra":
        with _needs("acsylla", "cassandra"):
            from everbell.logs.cassandra import CassandraLog
            from everbell.stores.cassandra import address as cassandra

            return CassandraLog(cassandra.read_address(url), timeout_s)
    if scheme == "zookeeper":
        with _needs("kazoo", "zookeeper"):
            from everbell.logs.zookeeper import ZookeeperLog
            from everbell.logs.zookeeper_address import read_address

            return ZookeeperLog(read_address(url), timeout_s)
    raise LogUnusable(f"a URL that begins with {scheme[:20]!r} names no log that is known here; there are {_KNOWN}")


@contextmanager
def _needs(driver: str, extra: str) -> Iterator[None]:
    """Translate a missing driver and a URL that the store's parser refuses into `LogUnusable`."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith(driver):
            raise
        raise LogUnusable(f"the driver {driver} is not installed: pip install 'everbell[{extra}]'") from missing
    except StoreUnusable as refused:
        raise LogUnusable(str(refused)) from None
