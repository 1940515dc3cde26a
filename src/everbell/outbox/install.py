"""`everbell outbox install`: run the SQL of the outbox in the application's database."""

from __future__ import annotations

import asyncio

from everbell.errors import EverbellError
from everbell.outbox.settings import OutboxAddress
from everbell.outbox.statements import install_script

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('everbell outbox install', 8420))"
CONNECT_S = 10.0


class OutboxUnusable(EverbellError):
    """The outbox cannot be installed there."""

    slug = "outbox"
    title = "The outbox cannot be used"


def install(address: OutboxAddress, application: str | None, collector: str | None) -> None:
    """Install the outbox, or bring it up to date, in one transaction. Raises `OutboxUnusable`."""
    try:
        from everbell.outbox.failures import trouble_of
        from everbell.stores.postgres.failures import PostgresFailure
    except ModuleNotFoundError as missing:
        raise OutboxUnusable("PostgreSQL needs its driver: pip install 'everbell[postgres]'") from missing
    try:
        asyncio.run(_install(address.dsn, install_script(application, collector)))
    except PostgresFailure as error:
        raise OutboxUnusable(trouble_of(error, address.name)) from error


async def _install(dsn: str, script: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=CONNECT_S)
    try:
        async with connection.transaction():
            await connection.execute(_LOCK)
            await connection.execute(script)
    finally:
        connection.terminate()
