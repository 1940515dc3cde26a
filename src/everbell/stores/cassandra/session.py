"""A session with Cassandra: prepared statements, sent to a replica that has the rows, with a limit in flight.

The driver (DataStax's, in C++) keeps the connections and reconnects by itself. It never retries a request, because only
the caller knows which requests may be repeated. A session belongs to the loop in which it was created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import acsylla
from acsylla import Consistency, SSLVerifyFlags

from everbell.errors import StoreUnusable
from everbell.stores.cassandra.address import CassandraAddress
from everbell.stores.cassandra.failures import CassandraFailure, store_error
from everbell.stores.cassandra.levels import level_of

CONNECT_S = 5.0
ANSWER_S = 10.0  # How long to wait for an answer.
IN_FLIGHT = 128  # How many reads and plain writes are in flight at a time. Others wait here and not in the server.

CassandraRow = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]  # A text with its values.


class CassandraSession:
    """One session, opened on demand. Raises `StoreError`s."""

    def __init__(self, address: CassandraAddress, *, keyspace: bool = True, briefly: bool = False) -> None:
        """Without `keyspace`, the session can create it. A session for a few requests (`briefly`) does not learn which
        replicas have which rows."""
        self.address = address
        self._translated = _Translation(address.name)
        self._briefly = briefly
        self._keyspace = address.keyspace if keyspace else None
        self.floor = "LOCAL_QUORUM" if address.is_local else "QUORUM"
        self._serial = Consistency.LOCAL_SERIAL if address.is_local else Consistency.SERIAL
        self._session: Any = None
        self._prepared: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._permits = asyncio.Semaphore(IN_FLIGHT)

    async def ask(
        self, text: str, *values: Any, level: str | None = None, timeout_s: float = ANSWER_S
    ) -> list[CassandraRow]:
        """Read some rows, or write without a timestamp."""
        with self._translated:
            statement = await self._bound(text, values, level_of(level or self.floor), timeout_s)
            async with self._permits:
                return _rows(await self._session.execute(statement))

    async def ask_all(
        self, text: str, places: Iterable[Sequence[Any]], level: str | None = None
    ) -> list[list[CassandraRow]]:
        """`ask` for many values at once. The answers are in the same order."""
        return await asyncio.gather(*(self.ask(text, *values, level=level) for values in places))

    async def write(self, statements: Sequence[Statement], clock: int, level: str) -> None:
        """Write rows of one partition of Cassandra in one request, all with one timestamp."""
        with self._translated:
            request, execute = await self._request(statements)
            request.set_consistency(level_of(level))
            request.set_timestamp(clock)
            async with self._permits:
                await execute(request)

    async def decide(
        self, statements: Sequence[Statement], *, timeout_s: float = ANSWER_S
    ) -> tuple[bool, list[CassandraRow]]:
        """A lightweight transaction on one partition of Cassandra: whether it was made, and the present rows if not.

        When it raises, it may have been made, or may still be made later.
        """
        with self._translated:
            request, execute = await self._request(statements)
            request.set_consistency(level_of(self.floor))
            request.set_serial_consistency(self._serial)
            if len(statements) == 1:
                request.set_timeout(timeout_s)
            else:
                request.set_request_timeout(int(timeout_s * 1_000))
            rows = _rows(await execute(request))
        return bool(rows and rows[0][0]), [row[1:] for row in rows]

    async def see(self, text: str, *values: Any, timeout_s: float = ANSWER_S) -> list[CassandraRow]:
        """Read rows of lightweight transactions. One that is half done is finished first, or never will be."""
        with self._translated:
            statement = await self._bound(text, values, self._serial, timeout_s)
            return _rows(await self._session.execute(statement))

    async def prepare(self, text: str) -> None:
        """Connect and prepare a statement, so that its first request is fast."""
        with self._translated:
            await self._prepare(text)

    async def run(self, text: str) -> list[CassandraRow]:
        """Run a statement without preparing it, for example to create a table."""
        with self._translated:
            session = await self._connected()
            statement = acsylla.create_statement(text, timeout=60.0)
            statement.set_consistency(Consistency.LOCAL_ONE)
            return _rows(await session.execute(statement))

    async def _bound(self, text: str, values: Sequence[Any], level: Consistency, timeout_s: float) -> Any:
        statement = (await self._prepare(text)).bind(values)
        statement.set_consistency(level)
        statement.set_timeout(timeout_s)
        return statement

    async def _request(self, statements: Sequence[Statement]) -> tuple[Any, Callable[[Any], Awaitable[Any]]]:
        """One statement, or a batch of several; and the method that executes it."""
        bound = [(await self._prepare(text)).bind(values) for text, values in statements]
        if len(bound) == 1:
            return bound[0], self._session.execute
        batch = acsylla.create_batch_unlogged()
        for statement in bound:
            batch.add_statement(statement)
        return batch, self._session.execute_batch

    async def _prepare(self, text: str) -> Any:
        prepared = self._prepared.get(text)
        if prepared is None:
            session = await self._connected()
            prepared = self._prepared[text] = await session.create_prepared(text)
        return prepared

    async def _connected(self) -> Any:
        async with self._opening:
            if self._session is None:
                self._session = await _connect(self.address, self._keyspace, self._briefly)
            return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        self._prepared = {}
        if session is not None:
            await session.close()


class _Translation:
    """A context that turns errors of the driver into `StoreError`s."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, CassandraFailure):
            raise store_error(error, self._name) from error


async def _connect(address: CassandraAddress, keyspace: str | None, briefly: bool) -> Any:
    cluster = acsylla.create_cluster(
        list(address.hosts),
        port=address.port,
        username=address.user or None,
        password=address.password or None,
        connect_timeout=CONNECT_S,
        request_timeout=ANSWER_S,
        log_level="disabled",
        consistency=Consistency.LOCAL_QUORUM,
        load_balance_dc_aware=address.datacenter or None,
        retry_policy="fallthrough",
        constant_reconnect_delay_ms=500,
        heartbeat_interval_sec=2,
        idle_timeout_sec=6,
        coalesce_delay_us=50,
        ssl_enabled=address.tls,
        ssl_trusted_cert=_file_text(address.ca) if address.ca else None,
        ssl_verify_flags=SSLVerifyFlags.PEER_CERT if address.ca else SSLVerifyFlags.NONE,
        use_schema=not briefly,
        application_name="everbell",
    )
    return await _undisturbed(cluster.create_session(keyspace))


class _Steady(asyncio.Task[Any]):
    """A task that cannot be cancelled, not even by a loop that ends."""

    def cancel(self, msg: object = None) -> bool:
        return False


async def _undisturbed(connecting: Awaitable[Any]) -> Any:
    """Wait until the driver is connected or gives up, after `CONNECT_S` for each host. A cancelled caller waits, too,
    because freeing a session that is connecting blocks the whole process for ever."""

    async def connected() -> Any:
        return await connecting

    task = _Steady(connected())
    try:
        return await task
    except asyncio.CancelledError:
        if task.exception() is None:
            await task.result().close()
        raise


def _file_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise StoreUnusable(
            f"ca= in the URL of Cassandra names a file that cannot be read: {error.strerror}"
        ) from error


def _rows(result: Any) -> list[CassandraRow]:
    return [row.as_tuple() for row in result.all()]
