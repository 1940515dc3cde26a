"""A connection to PostgreSQL that comes back by itself.

Nothing waits in here for a database that is away: whoever asks learns at once that it is, and an attempt to connect
again is made by the first who asks after a pause, which grows from failure to failure.

A session is set up so that plans do not depend on statistics, which are never up to date for tables whose rows come and
go by the ten thousand a second: every statement of the store goes through a primary key, so whatever else a
planner could think of is switched off, and a plan is made once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import asyncpg

from everbell.entropy import Entropy
from everbell.errors import StoreUnavailable
from everbell.stores.postgres_address import Address
from everbell.stores.postgres_failures import Failure, store_error

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[Any]"

CONNECT_S = 5.0
ANSWER_S = 15.0
"""When the server has not answered by then, it is taken for lost."""
_PAUSE_S = 0.05
_PAUSE_MAX_S = 2.0

# A statement ends before its caller gives up, so that the server itself says that it was not made. Whoever is idle
# within a transaction was stopped there, and holds up those who take its partitions.
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


async def connect(address: Address) -> Connection:
    """A new session on a server that takes writes."""
    connection = await asyncpg.connect(address.dsn, timeout=CONNECT_S, target_session_attrs="read-write")
    try:
        async with asyncio.timeout(CONNECT_S):
            await connection.execute(_SESSION.format(schema=f'"{address.schema}"'))
    except BaseException:
        connection.terminate()
        raise
    return connection


class Link:
    """One connection, used by one at a time."""

    def __init__(self, address: Address, entropy: Entropy) -> None:
        self._address = address
        self._entropy = entropy
        self._connection: Connection | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        self._why = ""

    async def connected(self) -> Connection:
        """The connection, made anew if it is lost. Raises `StoreUnavailable`."""
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        loop = asyncio.get_running_loop()
        if self._failures and loop.time() < self._retry_at_s:
            raise StoreUnavailable(self._why)
        try:
            self._connection = await connect(self._address)
        except Failure as error:
            # A wrong password is no reason to end, either: it was right before, and somebody may be changing it.
            self._why = str(store_error(error, self._address.name))
            self._failures += 1
            self._retry_at_s = loop.time() + self._pause_s()
            raise StoreUnavailable(self._why) from error
        self._failures = 0
        return self._connection

    async def patiently_connected(self) -> Connection:
        """The connection, however long that takes."""
        while True:
            try:
                return await self.connected()
            except StoreUnavailable:
                await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        longest: float = min(_PAUSE_S * 2 ** min(self._failures, 10), _PAUSE_MAX_S)
        return longest * (1 + self._entropy.jitter()) / 2

    def drop(self) -> None:
        """Give up the connection: nobody knows any more what it is about to say."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do something that may be repeated. Raises a `StoreError`."""
        connection = await self.connected()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await work(connection)
        except Failure as error:
            failure = store_error(error, self._address.name)
            if isinstance(failure, StoreUnavailable):
                self.drop()
            raise failure from error
        except asyncio.CancelledError:
            self.drop()
            raise

    async def close(self) -> None:
        """Say goodbye, if there is anybody."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=CONNECT_S)
            except Failure:
                connection.terminate()


class Links:
    """A few connections for those who only read, made when they are needed."""

    def __init__(self, address: Address, entropy: Entropy, count: int) -> None:
        self._links = [Link(address, entropy) for _ in range(count)]
        self._idle = list(self._links)
        self._permits = asyncio.Semaphore(count)

    async def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """See `Link`; whoever comes when all are in use waits."""
        async with self._permits:
            link = self._idle.pop()  # The one that was used last: the others are opened only when they are needed.
            try:
                return await link.ask(work)
            finally:
                self._idle.append(link)

    async def close(self) -> None:
        """Let go of all of them."""
        for link in self._links:
            await link.close()
