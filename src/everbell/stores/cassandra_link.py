"""A session with Cassandra: prepared statements, sent to a replica that has the rows, and not too many at a time.

The driver (DataStax's, in C++) keeps the connections, comes back by itself when a server does, and never repeats a
request: whoever asks knows what may be repeated. A session belongs to the loop in which it was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

import acsylla
from acsylla import Consistency, SSLVerifyFlags

from everbell.errors import StoreUnusable
from everbell.stores.cassandra_address import Address
from everbell.stores.cassandra_failures import Failure, store_error
from everbell.stores.cassandra_levels import level_of

CONNECT_S = 5.0
ANSWER_S = 10.0
"""When there is no answer by then, there will be none."""
IN_FLIGHT = 128
"""How many requests a process has under way at a time; others wait here and not in the server."""

Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]
"""A text, and what to put in."""


class Link:
    """One session, made when it is needed."""

    def __init__(self, address: Address, *, keyspace: bool = True, briefly: bool = False) -> None:
        """Without a keyspace it is for whoever makes that. For a few requests it need not know where rows lie."""
        self.address = address
        self._briefly = briefly
        self._keyspace = address.keyspace if keyspace else None
        self.floor = "LOCAL_QUORUM" if address.is_local else "QUORUM"
        self._serial = Consistency.LOCAL_SERIAL if address.is_local else Consistency.SERIAL
        self._session: Any = None
        self._prepared: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._permits = asyncio.Semaphore(IN_FLIGHT)

    async def ask(self, text: str, *values: Any, level: str | None = None, timeout_s: float = ANSWER_S) -> list[Row]:
        """Read some rows, or write plainly."""
        try:
            statement = (await self._prepare(text)).bind(values)
            statement.set_consistency(level_of(level or self.floor))
            statement.set_timeout(timeout_s)
            async with self._permits:
                return _rows(await self._session.execute(statement))
        except Failure as error:
            raise store_error(error, self.address.name) from error

    async def ask_all(self, text: str, places: Iterable[Sequence[Any]], level: str | None = None) -> list[list[Row]]:
        """The same with many values at once; the answers are in their order."""
        return await asyncio.gather(*(self.ask(text, *values, level=level) for values in places))

    async def write(self, statements: Sequence[Statement], clock: int, level: str) -> None:
        """Write rows of one partition of Cassandra in one request, all with one timestamp."""
        try:
            prepared = [((await self._prepare(text)), values) for text, values in statements]
            async with self._permits:
                if len(prepared) == 1:
                    statement = prepared[0][0].bind(prepared[0][1])
                    statement.set_consistency(level_of(level))
                    statement.set_timestamp(clock)
                    await self._session.execute(statement)
                    return
                batch = acsylla.create_batch_unlogged()
                batch.set_consistency(level_of(level))
                batch.set_timestamp(clock)
                for one, values in prepared:
                    batch.add_statement(one.bind(values))
                await self._session.execute_batch(batch)
        except Failure as error:
            raise store_error(error, self.address.name) from error

    async def decide(self, statements: Sequence[Statement], *, timeout_s: float = ANSWER_S) -> tuple[bool, list[Row]]:
        """A lightweight transaction on one partition of Cassandra: whether it was made, and what is there if not.

        When it raises, it may have been made, or may yet be.
        """
        try:
            bound = []
            for text, values in statements:
                statement = (await self._prepare(text)).bind(values)
                bound.append(statement)
            whole = bound[0] if len(bound) == 1 else acsylla.create_batch_unlogged()
            whole.set_consistency(level_of(self.floor))
            whole.set_serial_consistency(self._serial)
            if len(bound) == 1:
                whole.set_timeout(timeout_s)
                result = await self._session.execute(whole)
            else:
                whole.set_request_timeout(int(timeout_s * 1_000))
                for statement in bound:
                    whole.add_statement(statement)
                result = await self._session.execute_batch(whole)
            rows = _rows(result)
        except Failure as error:
            raise store_error(error, self.address.name) from error
        return bool(rows and rows[0][0]), [row[1:] for row in rows]

    async def see(self, text: str, *values: Any, timeout_s: float = ANSWER_S) -> list[Row]:
        """Read what lightweight transactions wrote; one that is half done is finished first, or never will be."""
        try:
            statement = (await self._prepare(text)).bind(values)
            statement.set_consistency(self._serial)
            statement.set_timeout(timeout_s)
            return _rows(await self._session.execute(statement))
        except Failure as error:
            raise store_error(error, self.address.name) from error

    async def prepare(self, text: str) -> None:
        """Make ready for a request."""
        try:
            await self._prepare(text)
        except Failure as error:
            raise store_error(error, self.address.name) from error

    async def run(self, text: str) -> list[Row]:
        """A statement that is not prepared, as those that make tables."""
        try:
            session = await self._connected()
            statement = acsylla.create_statement(text, timeout=60.0)
            statement.set_consistency(Consistency.LOCAL_ONE)
            return _rows(await session.execute(statement))
        except Failure as error:
            raise store_error(error, self.address.name) from error

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
        """Let go of it."""
        session, self._session = self._session, None
        self._prepared = {}
        if session is not None:
            await session.close()


async def _connect(address: Address, keyspace: str | None, briefly: bool) -> Any:
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
    """A task that nobody can cancel, not even the loop when it ends."""

    def cancel(self, msg: object = None) -> bool:
        return False


async def _undisturbed(connecting: Awaitable[Any]) -> Any:
    """Wait until the driver is connected, or gives up, which it does by itself after `CONNECT_S` for each host.

    A session that is freed while it connects waits for its own threads, for ever, with the whole process. So whoever
    is cancelled meanwhile has to wait, too.
    """

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


def _rows(result: Any) -> list[Row]:
    return [row.as_tuple() for row in result.all()]
