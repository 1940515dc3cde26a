"""Opening a PostgreSQL store: create its tables, or check that this version can use them.

Several nodes may start at once on an empty database. The first one takes a lock and creates everything in one
transaction; the others find the tables. A store of a newer release is refused. A file of SQL for each format brings an
older store up to date.
"""

from __future__ import annotations

import logging
from functools import partial
from importlib.resources import files

from everbell.errors import StoreUnusable
from everbell.stores.opening import StoreShape, check_shape, open_patiently, partitions_for
from everbell.stores.postgres.address import PostgresAddress
from everbell.stores.postgres.connection import Connection, connect
from everbell.stores.postgres.failures import PostgresFailure, store_error

FORMAT = 1  # The format that this version writes, and the newest that it reads.
OPEN_S = 15.0  # How long to wait for a database that is starting, too.

_SERVER_MIN = 130000
_log = logging.getLogger("everbell.stores.postgres.store")


def prepare(
    address: PostgresAddress, partitions: int | None, created_at: int, patience_s: float = OPEN_S
) -> StoreShape:
    """Bring the store up to date, or create it. Raises `StoreUnusable`, `StoreUnavailable` and others."""
    return open_patiently(partial(_once, address, partitions, created_at), patience_s)


async def _once(address: PostgresAddress, partitions: int | None, created_at: int) -> StoreShape:
    try:
        connection = await connect(address)
        try:
            _check_server(connection, address)
            async with connection.transaction():
                await _migrate(connection, address, partitions, created_at)
                await _fold_counts(connection)
            if await connection.fetchval("SHOW fsync") == "off":
                _log.warning("%s runs with fsync off: a crash of its machine loses acknowledged events", address.name)
            shape = await connection.fetchrow("SELECT partitions, (SELECT max(epoch) FROM fence) AS epoch FROM store")
            return StoreShape(shape["partitions"], shape["epoch"])
        finally:
            connection.terminate()
    except PostgresFailure as error:
        raise store_error(error, address.name) from error


def _check_server(connection: Connection, address: PostgresAddress) -> None:
    version = connection.get_server_version()
    if version.major * 10_000 < _SERVER_MIN:
        raise StoreUnusable(
            f"{address.name} is version {version.major}: Everbell needs {_SERVER_MIN // 10_000} or later"
        )


async def _migrate(connection: Connection, address: PostgresAddress, partitions: int | None, created_at: int) -> None:
    await connection.execute(
        "SELECT pg_advisory_xact_lock(hashtext('everbell migrations'), hashtext($1))", address.schema
    )
    if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", address.schema):
        await connection.execute(f'CREATE SCHEMA "{address.schema}"')
    is_new = await connection.fetchval("SELECT to_regclass($1) IS NULL", f'"{address.schema}".store')
    row = None if is_new else await connection.fetchrow("SELECT format, partitions FROM store")
    if row is None:
        await _make(connection, partitions_for(partitions), created_at)
        return
    check_shape(address.name, row["format"], FORMAT, row["partitions"], partitions, "schema")
    await _climb(connection, row["format"])


async def _climb(connection: Connection, format: int) -> None:
    """Bring a store from an older format to the present one, by one file after the other."""
    for number in range(format + 1, FORMAT + 1):
        await connection.execute(_script(number))
        await connection.execute("UPDATE store SET format = $1", number)
        _log.info("the store has format %d now", number)


def _script(number: int) -> str:
    return files("everbell.stores.postgres").joinpath(f"schema_{number}.sql").read_text()


async def _make(connection: Connection, partitions: int, created_at: int) -> None:
    await connection.execute(_script(1))
    await connection.execute(
        "INSERT INTO store (format, partitions, created_at) VALUES (1, $1, $2)", partitions, created_at
    )
    await _climb(connection, 1)
    await connection.execute("INSERT INTO fence SELECT p, 0 FROM generate_series(0, $1 - 1) AS p", partitions)


async def _fold_counts(connection: Connection) -> None:
    """Add up the counts of all writers in one row, because most writers are gone. Writers that still run begin new
    rows, and so does a writer that comes back after a month."""
    await connection.execute("""
        WITH gone AS (DELETE FROM counts RETURNING *)
        INSERT INTO counts SELECT tenant, 0, sum(pending), sum(dead), sum(delivered), sum(cancelled), sum(expired)
        FROM gone GROUP BY tenant
    """)
    await connection.execute("DELETE FROM writers WHERE seen_at < now() - interval '30 days'")
