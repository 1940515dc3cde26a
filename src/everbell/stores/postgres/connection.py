"""A connection to PostgreSQL that reconnects by itself.

A call whose connection is lost is repeated on a new one at once: a server ends single sessions for many reasons, and
the caller notices nothing. A call fails at once while the database is away. The first call after a pause connects
again. The pause is short even after many failures: a restarted server is used as soon as it accepts connections.

Every statement of the store uses a primary key. So a session switches all other plans off, and plans each statement
once: statistics are never up to date for tables that gain and lose ten thousand rows a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import asyncpg

from everbell.entropy import Entropy
from everbell.errors import StoreUnavailable
from everbell.stores.postgres.address import PostgresAddress
from everbell.stores.postgres.failures import PostgresFailure, store_error

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[Any]"

CONNECT_S = 5.0
ANSWER_S = 15.0  # A connection without an answer for this long is lost.
TRIES = 8
"""How many connections in a row may be lost during the same call before the call fails."""
_PAUSE_S = 0.025
_PAUSE_MAX_S = 0.2

# A statement times out in the server before its caller gives up, so the server reports that nothing was made. A session
# that is idle within a transaction belongs to a stopped process, and delays the nodes that take its partitions.
_SESSION = """
    SET search_path = {schema};
    SET application_name = 'everbell';
    SET default_transaction_isolation = 'read committed';
    SET statement_timeout = '10s';
    SET lock_timeout = '5s';
    SET idle_in_transaction_session_timeout = '2s';
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET jit = off
"""


async def connect(address: PostgresAddress) -> Connection:
    """A new session on a server that accepts writes."""
    connection = await asyncpg.connect(address.dsn, timeout=CONNECT_S, target_session_attrs="read-write")
    try:
        async with asyncio.timeout(CONNECT_S):
            await connection.execute(_SESSION.format(schema=f'"{address.schema}"'))
    except BaseException:
        connection.terminate()
        raise
    return connection


def is_certain(error: BaseException, connection: Connection) -> bool:
    """Whether the server reported that nothing was made, and goes on."""
    return (
        isinstance(error, asyncpg.PostgresError)
        and not connection.is_closed()
        and getattr(error, "severity_en", None) not in ("FATAL", "PANIC")
    )


def is_lost(error: BaseException, connection: Connection) -> bool:
    """Whether the connection is lost, and another one may work at once. A server that does not answer is not asked
    again: its callers have waited long enough."""
    return not isinstance(error, TimeoutError) and not is_certain(error, connection)


class PostgresLink:
    """One connection, used by one caller at a time."""

    def __init__(self, address: PostgresAddress, entropy: Entropy) -> None:
        self._address = address
        self._entropy = entropy
        self._connection: Connection | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        self._why = ""

    async def connected(self) -> Connection:
        """The connection, or a new one if that is lost. Raises `StoreUnavailable`."""
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        loop = asyncio.get_running_loop()
        if self._failures and loop.time() < self._retry_at_s:
            raise StoreUnavailable(self._why)
        try:
            self._connection = await connect(self._address)
        except PostgresFailure as error:
            # This includes a wrong password: it was right before, and is perhaps being changed.
            self._why = str(store_error(error, self._address.name))
            self._failures += 1
            self._retry_at_s = loop.time() + self._pause_s()
            raise StoreUnavailable(self._why) from error
        self._failures = 0
        return self._connection

    async def patiently_connected(self) -> Connection:
        """The connection, as soon as there is one."""
        while True:
            try:
                return await self.connected()
            except StoreUnavailable:
                await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        longest: float = min(_PAUSE_S * 2 ** min(self._failures, 10), _PAUSE_MAX_S)
        return longest * (1 + self._entropy.jitter()) / 2

    def drop(self) -> None:
        """Close the connection at once, because its next answer could belong to an earlier request."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do work that may be repeated. Raises a `StoreError`."""
        for left in reversed(range(TRIES)):
            connection = await self.connected()
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await work(connection)
            except PostgresFailure as error:
                failure = store_error(error, self._address.name)
                is_over = not left or not is_lost(error, connection)
                if isinstance(failure, StoreUnavailable):
                    self.drop()
                if is_over:
                    raise failure from error
            except asyncio.CancelledError:
                self.drop()
                raise
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=CONNECT_S)
            except PostgresFailure:
                connection.terminate()


class PostgresLinks:
    """A few connections for reads, opened on demand."""

    def __init__(self, address: PostgresAddress, entropy: Entropy, count: int) -> None:
        self._links = [PostgresLink(address, entropy) for _ in range(count)]
        self._idle = list(self._links)
        self._permits = asyncio.Semaphore(count)

    async def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """As `PostgresLink.ask`. Waits while all connections are in use."""
        async with self._permits:
            link = self._idle.pop()  # The one used last, because others may not be open yet.
            try:
                return await link.ask(work)
            finally:
                self._idle.append(link)

    async def close(self) -> None:
        for link in self._links:
            await link.close()
