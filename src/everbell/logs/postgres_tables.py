"""The tables of a log in PostgreSQL: made, or found and understood.

Several nodes may start at once on an empty database: the first one gets a lock, makes everything in one transaction,
and the others find it made. It is the lock under which the store makes its tables, for both make the schema. A log
that was written by a newer release is refused.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import asyncpg

from everbell.errors import LogUnusable
from everbell.logs.postgres_failures import FAILURES, log_error
from everbell.logs.postgres_link import connect
from everbell.stores.postgres_address import Address

FORMAT = 1
"""What this version writes, and the highest that it reads."""


async def prepare(address: Address, timeout_s: float) -> None:
    """Make the tables, if they are not there. Raises `LogUnusable` or `LogUnavailable`."""
    try:
        connection = await connect(address, timeout_s)
        try:
            async with connection.transaction():
                await _make_or_check(connection, address)
        finally:
            connection.terminate()
    except FAILURES as error:
        raise log_error(error, address.name) from error


async def _make_or_check(connection: asyncpg.Connection[Any], address: Address) -> None:
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
