"""A connection to PostgreSQL that reconnects by itself and runs one statement at a time.

A statement that fails or is cancelled closes its connection, because the state of that connection is unknown. The
next statement opens a new one. Every statement of a log is a transaction of its own, so a frozen node never holds a
lock that others wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from everbell.errors import LogError, LogUnavailable
from everbell.logs.postgres_failures import log_error
from everbell.stores.postgres.address import PostgresAddress
from everbell.stores.postgres.failures import PostgresFailure

_SETTINGS = {
    "application_name": "everbell log",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "10s",  # only the creation of tables takes more than one statement
    "jit": "off",
    "synchronous_commit": "on",  # overrides the server's default: an acknowledged entry must survive
}


async def connect(address: PostgresAddress, timeout_s: float) -> asyncpg.Connection[Any]:
    """A new session on a server that accepts writes. Raises one of `PostgresFailure`."""
    settings = {
        **_SETTINGS,
        "search_path": f'"{address.schema}"',
        # The server ends a statement after its caller has timed out.
        "statement_timeout": str(int(timeout_s * 1_000)),
    }
    return await asyncpg.connect(
        address.dsn, timeout=timeout_s, server_settings=settings, target_session_attrs="read-write"
    )


class LogConnection:
    """One connection, opened on demand."""

    def __init__(self, address: PostgresAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._connection: asyncpg.Connection[Any] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def ask(
        self,
        statement: str,
        *arguments: object,
        failure: Callable[[BaseException, str], LogError] = log_error,
        within_s: float | None = None,
    ) -> list[asyncpg.Record]:
        """Run one statement within `within_s`. `failure` translates an error after the statement was sent."""
        if self._closed:
            raise LogUnavailable("the log is closed: this process is stopping")
        meaning: Callable[[BaseException, str], LogError] = log_error
        try:
            async with asyncio.timeout(within_s or self._timeout_s), self._turn:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._address, self._timeout_s)
                meaning = failure
                try:
                    rows: list[asyncpg.Record] = await self._connection.fetch(statement, *arguments)
                    return rows
                except BaseException:
                    self._drop()
                    raise
        except PostgresFailure as error:
            raise meaning(error, self._address.name) from error

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        async with self._turn:
            self._drop()
