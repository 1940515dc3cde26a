"""Opening the log that a URL names.

Errors never repeat a URL: it may have a password in it.
"""

from __future__ import annotations

from pathlib import Path

from everbell.errors import LogUnusable, StoreUnusable
from everbell.logs.port import Log

ANSWER_S = 5.0
"""How long a server may take for one answer, before it is taken for lost."""

_KNOWN = (
    "rocksdb:PATH (beside a store, for one process), postgresql://…, cassandra://…, "
    "zookeeper://host:port,host:port/path and memory: (gone with the process)"
)


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
    if scheme in ("postgresql", "postgres"):
        return await _open_postgres(url, timeout_s)
    if scheme == "cassandra":
        return await _open_cassandra(url, timeout_s)
    if scheme == "zookeeper":
        return await _open_zookeeper(url, timeout_s)
    raise LogUnusable(f"a URL that begins with {scheme[:20]!r} names no log that is known here; there are {_KNOWN}")


async def _open_postgres(url: str, timeout_s: float) -> Log:
    # Imported only where it is used: the driver is an option.
    try:
        from everbell.logs.postgres import PostgresLog
        from everbell.stores.postgres_address import read_address
    except ModuleNotFoundError as missing:
        raise _without_driver("asyncpg", "postgres", missing) from missing
    try:
        log = PostgresLog(read_address(url), timeout_s)
    except StoreUnusable as refused:
        raise LogUnusable(str(refused)) from None
    await log.open()
    return log


async def _open_cassandra(url: str, timeout_s: float) -> Log:
    try:
        from everbell.logs.cassandra import CassandraLog
        from everbell.stores.cassandra_address import read_address
    except ModuleNotFoundError as missing:
        raise _without_driver("acsylla", "cassandra", missing) from missing
    try:
        log = CassandraLog(read_address(url), timeout_s)
    except StoreUnusable as refused:
        raise LogUnusable(str(refused)) from None
    try:
        await log.open()
    except BaseException:
        await log.close()
        raise
    return log


async def _open_zookeeper(url: str, timeout_s: float) -> Log:
    try:
        from everbell.logs.zookeeper import ZookeeperLog
        from everbell.logs.zookeeper_address import read_address
    except ModuleNotFoundError as missing:
        raise _without_driver("kazoo", "zookeeper", missing) from missing
    log = ZookeeperLog(read_address(url), timeout_s)
    try:
        await log.open()
    except BaseException:
        await log.close()
        raise
    return log


def _without_driver(driver: str, extra: str, missing: ModuleNotFoundError) -> Exception:
    if not (missing.name or "").startswith(driver):
        return missing
    return LogUnusable(f"the driver {driver} is not installed: pip install 'everbell[{extra}]'")
