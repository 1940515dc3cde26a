"""The tables of a log in PostgreSQL: created, or found and checked.

Several nodes may start at once on an empty database. The first one takes a lock and creates everything in one
transaction; the others find the tables. The store takes the same lock, because both create the schema. A log of a
newer release is refused.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import asyncpg

from everbell.errors import LogUnusable
from everbell.logs.postgres_connection import connect
from everbell.logs.postgres_failures import log_error
from everbell.stores.postgres.address import PostgresAddress
from everbell.stores.postgres.failures import PostgresFailure

FORMAT = 1
"""The format that this version writes, and the newest that it reads."""


async def prepare(address: PostgresAddress, timeout_s: float) -> None:
    """Create the tables if they are missing. Raises `LogUnusable` or `LogUnavailable`."""
    try:
        connection = await connect(address, timeout_s)
        try:
            async with connection.transaction():
                await _make_or_check(connection, address)
        finally:
            connection.terminate()
    except PostgresFailure as error:
        raise log_error(error, address.name) from error


async def _make_or_check(connection: asyncpg.Connection[Any], address: PostgresAddress) -> None:
    schema = address.schema
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext('everbell migrations'), hashtext($1))", schema)
    if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema):
        await connection.execute(f'CREATE SCHEMA "{schema}"')
    if await connection.fetchval("SELECT to_regclass($1) IS NULL", f'"{schema}".log_head'):
        await connection.execute(files("everbell.logs").joinpath(f"postgres_{FORMAT}.sql").read_text())
    found = await connection.fetchval("SELECT format FROM log_head")
    if found > FORMAT:
        raise LogUnusable(
            f"{address.name} was written by a newer Everbell (format {found}, this one reads up to {FORMAT}): "
            "install a newer version"
        )
