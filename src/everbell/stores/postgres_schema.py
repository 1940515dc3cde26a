"""Opening a PostgreSQL store: making its tables, or making sure that they are ours and that we can read them.

Several nodes may start at once on an empty database: the first one gets a lock, makes everything in one transaction,
and the others find it made. A store that was written by a newer release is refused; an older one is brought up to
date, by a file of SQL for each format.

It is done before there is anything else to do, in a thread with a loop of its own, for stores are opened by plain
calls.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files

from everbell.errors import StoreUnavailable, StoreUnusable
from everbell.stores.postgres_address import Address
from everbell.stores.postgres_failures import Failure, store_error
from everbell.stores.postgres_link import Connection, connect

FORMAT = 1
"""What this version writes, and the highest that it reads."""
PARTITIONS_MAX = 0xFFFF
OPEN_S = 15.0
"""How long to wait for a database that is not there yet, as when both are started together."""

_SERVER_MIN = 130000
_RETRY_S = 0.25
_log = logging.getLogger("everbell.stores.postgres")


@dataclass(frozen=True)
class Shape:
    """What is known of a store when it is open."""

    partitions: int
    epoch: int


def prepare(address: Address, partitions: int | None, created_at: int, patience_s: float = OPEN_S) -> Shape:
    """Bring the store up to date, or make it. Raises `StoreUnusable`, `StoreUnavailable` and others."""
    with ThreadPoolExecutor(1, "everbell-open") as thread:
        return thread.submit(asyncio.run, _prepare(address, partitions, created_at, patience_s)).result()


async def _prepare(address: Address, partitions: int | None, created_at: int, patience_s: float) -> Shape:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while True:
        try:
            return await _once(address, partitions, created_at)
        except StoreUnavailable:
            if loop.time() + _RETRY_S > end_s:
                raise
            await asyncio.sleep(_RETRY_S)


async def _once(address: Address, partitions: int | None, created_at: int) -> Shape:
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
            return Shape(shape["partitions"], shape["epoch"])
        finally:
            connection.terminate()
    except Failure as error:
        raise store_error(error, address.name) from error


def _check_server(connection: Connection, address: Address) -> None:
    version = connection.get_server_version()
    if version.major * 10_000 < _SERVER_MIN:
        raise StoreUnusable(
            f"{address.name} is version {version.major}: Everbell needs {_SERVER_MIN // 10_000} or later"
        )


async def _migrate(connection: Connection, address: Address, partitions: int | None, created_at: int) -> None:
    await connection.execute(
        "SELECT pg_advisory_xact_lock(hashtext('everbell migrations'), hashtext($1))", address.schema
    )
    if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", address.schema):
        await connection.execute(f'CREATE SCHEMA "{address.schema}"')
    is_new = await connection.fetchval("SELECT to_regclass($1) IS NULL", f'"{address.schema}".store')
    row = None if is_new else await connection.fetchrow("SELECT format, partitions FROM store")
    if row is None:
        await _make(connection, 256 if partitions is None else partitions, created_at)
        return
    if row["format"] > FORMAT:
        raise StoreUnusable(
            f"{address.name} was written by a newer Everbell (format {row['format']}, this one reads up to {FORMAT}): "
            "install a newer version"
        )
    if partitions is not None and row["partitions"] != partitions:
        raise StoreUnusable(
            f"{address.name} was made with {row['partitions']} partitions, which cannot change: "
            f"start with that number, or name another schema for one with {partitions}"
        )
    await _climb(connection, row["format"])


async def _climb(connection: Connection, format: int) -> None:
    """From a format to the present one, by one file after the other."""
    for number in range(format + 1, FORMAT + 1):
        await connection.execute(_script(number))
        await connection.execute("UPDATE store SET format = $1", number)
        _log.info("the store has format %d now", number)


def _script(number: int) -> str:
    return files("everbell.stores").joinpath(f"postgres_{number}.sql").read_text()


async def _make(connection: Connection, partitions: int, created_at: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise StoreUnusable(f"a store has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
    await connection.execute(_script(1))
    await connection.execute(
        "INSERT INTO store (format, partitions, created_at) VALUES (1, $1, $2)", partitions, created_at
    )
    await _climb(connection, 1)
    await connection.execute("INSERT INTO fence SELECT p, 0 FROM generate_series(0, $1 - 1) AS p", partitions)


async def _fold_counts(connection: Connection) -> None:
    """Put the counts of all writers together, for many of them are gone. Whoever is not begins a new row; so does a
    writer that comes back after a month."""
    await connection.execute("""
        WITH gone AS (DELETE FROM counts RETURNING *)
        INSERT INTO counts SELECT tenant, 0, sum(pending), sum(dead), sum(delivered), sum(cancelled), sum(expired)
        FROM gone GROUP BY tenant
    """)
    await connection.execute("DELETE FROM writers WHERE seen_at < now() - interval '30 days'")
