"""A connection to PostgreSQL that comes back by itself, used by one at a time.

A statement that fails, or whose caller is cancelled, takes its connection with it: nobody knows what that is about to
say. The next statement makes a new one. Every statement of a log is a transaction of its own, so a node that is frozen
at any moment holds no lock that others wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from everbell.errors import LogError, LogUnavailable
from everbell.logs.postgres_failures import FAILURES, log_error
from everbell.stores.postgres_address import Address

_SETTINGS = {
    "application_name": "everbell log",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "10s",  # only the making of tables takes more than one statement
    "jit": "off",
    "synchronous_commit": "on",  # whatever the server's default: an entry that was acknowledged must not go
}


async def connect(address: Address, timeout_s: float) -> asyncpg.Connection[Any]:
    """A new session on a server that takes writes. Raises one of `FAILURES`."""
    settings = {
        **_SETTINGS,
        "search_path": f'"{address.schema}"',
        # A statement that nobody waits for any more ends by itself.
        "statement_timeout": str(int(timeout_s * 1_000)),
    }
    return await asyncpg.connect(
        address.dsn, timeout=timeout_s, server_settings=settings, target_session_attrs="read-write"
    )


class Link:
    """One connection, made when it is needed."""

    def __init__(self, address: Address, timeout_s: float) -> None:
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
        """Run one statement. `failure` says what an error means that comes after it was sent, and `within_s` how long
        it may take, where that is less than usual.
        """
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
        except FAILURES as error:
            raise meaning(error, self._address.name) from error

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Let go of it, for good."""
        self._closed = True
        async with self._turn:
            self._drop()
